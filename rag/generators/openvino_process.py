"""The process in which OpenVINO GenAI works, one for each pipeline.

GenAI holds Python's lock (GIL) for as long as a step takes: some 40 ms for a token, a second for a piece of a prompt.
In the server's own process every search, every quote and `/healthz` would wait for it, at every turn. And an engine
that crashes ends its own process only: the next answer starts another one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PipelineFiles:
    """What a pipeline is made of.

    Attributes:
        folder: of OpenVINO's form of the model.
        adapter, weight: the weights of a LoRA adapter, and by how much they count; None for the bare model.
        cache_gib: of KV cache; rows: answers written at once.
        options: of OpenVINO.
    """

    folder: str
    adapter: str | None
    weight: float
    cache_gib: int
    rows: int
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens that a request got in a step, as GenAI says them."""

    generated_ids: tuple[int, ...]
    score: float
    generated_log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """A request for a step to begin with: its number, its prompt, and attributes of GenAI's `GenerationConfig`."""

    number: int
    tokens: list[int]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step gave: outputs in order with their request's number, and those that ended or found no room."""

    outputs: list[tuple[int, Output]]
    ended: list[int]
    ignored: list[int]
    peak_memory_bytes: int


class EngineProcess:
    """The parent's end. One thread at a time may use it.

    Raises:
        RuntimeError: the pipeline cannot be loaded, in OpenVINO's words, or its process has ended.
    """

    def __init__(self, files: PipelineFiles) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from rag.generators.openvino_process import work; work()"
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the parent's
        )
        self.peak_memory_bytes = 0
        try:
            self._tell(files)
        except BaseException:
            self.close()
            raise

    def step(self, begin: Sequence[Begun], cancel: Sequence[int]) -> Stepped:
        """One step of all requests in work, after some begin and others are let go of."""
        stepped = self._tell((list(begin), list(cancel)))
        assert isinstance(stepped, Stepped)
        self.peak_memory_bytes = stepped.peak_memory_bytes
        return stepped

    @property
    def has_ended(self) -> bool:
        """Whether the process is no more."""
        return self._popen.poll() is not None

    def kill(self) -> None:
        """Ends the process, from any thread: a step that it is at fails."""
        self._popen.kill()

    def close(self) -> None:
        """Ends the process and waits for it."""
        self.kill()
        with contextlib.suppress(OSError), self._popen:  # what it was still to be told
            pass

    def _tell(self, what: object) -> object:
        assert self._popen.stdin is not None and self._popen.stdout is not None
        try:
            pickle.dump(what, self._popen.stdin)
            self._popen.stdin.flush()
            answer = pickle.load(self._popen.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self.close()
            status = self._popen.returncode
            how = signal.strsignal(-status) if status < 0 else f"exit status {status}"
            raise RuntimeError(f"its process ended ({how})") from error
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer


# --- inside the process


def work() -> None:
    """Load the pipeline that standard input names, then do step after step, until the input is closed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service manager sends it to all: answers may end first
    # What the engine prints must not get between the words: only this function has the pipes.
    hear, say = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def tell(what: object) -> None:
        pickle.dump(what, say)
        say.flush()

    with contextlib.suppress(EOFError, OSError):
        pipeline = _Steps(pickle.load(hear))
        try:
            pipeline.load()
            tell(None)
        except RuntimeError as error:
            tell(str(error))
        while True:
            begin, cancel = pickle.load(hear)
            try:
                tell(pipeline.step(begin, cancel))
            except Exception as error:  # noqa: BLE001 - the parent says it to whoever waits
                tell(str(error) or type(error).__name__)
    os._exit(0)  # GenAI's own clearing up prints warnings


class _Steps:
    """A pipeline and the requests that it works on."""

    def __init__(self, files: PipelineFiles) -> None:
        self._files = files
        self._handles: dict[int, Any] = {}

    def load(self) -> None:
        import openvino_genai as genai

        files = self._files
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = files.cache_gib
        scheduling.enable_prefix_caching = True
        scheduling.max_num_seqs = files.rows
        options = dict(files.options)
        if files.adapter is not None:
            loaded = genai.Adapter(files.adapter)
            options["adapters"] = genai.AdapterConfig(loaded, files.weight, genai.AdapterConfig.Mode.MODE_STATIC)
        self._pipeline = genai.ContinuousBatchingPipeline(files.folder, scheduling, "CPU", options)

    def step(self, begin: list[Begun], cancel: list[int]) -> Stepped:
        import numpy as np
        import openvino
        from openvino_genai import GenerationStatus

        for number in cancel:
            if number in self._handles:
                self._handles.pop(number).cancel()
        for one in begin:
            prompt = openvino.Tensor(np.array([one.tokens], dtype=np.int64))
            self._handles[one.number] = self._pipeline.add_request(one.number, prompt, _config(one.config))
        self._pipeline.step()
        outputs: list[tuple[int, Output]] = []
        ended: list[int] = []
        ignored: list[int] = []
        for number, handle in list(self._handles.items()):
            while handle.can_read():
                outputs += [
                    (number, Output(tuple(each.generated_ids), each.score, tuple(each.generated_log_probs)))
                    for each in handle.read().values()
                ]
            status = handle.get_status()
            if status != GenerationStatus.RUNNING:
                del self._handles[number]
                (ignored if status == GenerationStatus.IGNORED else ended).append(number)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Stepped(outputs, ended, ignored, peak if sys.platform == "darwin" else peak * 1024)


def _config(attributes: dict[str, Any]) -> Any:
    from openvino_genai import GenerationConfig, StructuredOutputConfig

    config = GenerationConfig()
    config.apply_chat_template = False
    for name, value in attributes.items():
        setattr(
            config, name, StructuredOutputConfig(json_schema=value) if name == "structured_output_config" else value
        )
    return config
