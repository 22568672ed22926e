"""The `vllm` generator: `vllm serve` as a child of this process, in an environment of its own, and asked as `remote`.

vLLM needs other versions of torch and transformers than this program, so it is never imported: a setting names the
command that starts it. It batches the questions of many readers, and adapters are its models by name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx

from indexes.errors import CoalesceError
from indexes.messages import msg
from rag.errors import ModelCannotLoad
from rag.generators import watchdog
from rag.generators.chat_prompt import ChatPrompt, Excerpts, form_of
from rag.generators.remote import RemoteGenerator
from rag.models.adapters import read_adapter, vllm_rank
from rag.models.folder import load_config
from rag.models.home import find_model
from rag.models.loading import load_tokenizer
from rag.sentence_reader import SentenceReader
from rag.settings import GeneratorSettings

LOG_FILE = "vllm.log"
_START_S = 1800.0  # of the largest models, read from a slow disk and compiled
_POLL_S = 0.1
_LOG_LINES = 8


def start_vllm(settings: GeneratorSettings, reader: SentenceReader | None = None) -> VllmGenerator:
    """Starts vLLM and waits until it answers (seconds to minutes).

    Args:
        reader: chooses the sentences that a model is shown where it does not read whole passages.

    Raises:
        ModelCannotLoad: the command, the model or an adapter is missing, or vLLM ended; with the end of its log.
        AdapterMismatch: an adapter's tensors contradict its config.
    """
    server = VllmServer(settings)
    server.ensure_running()
    asked = replace(settings, base_url=server.address, model=server.model, api_key=None)
    asked = replace(asked, adapters={name: name for name in settings.adapters})
    return VllmGenerator(asked, server, _excerpts(server.model, reader))


def _excerpts(model: str, reader: SentenceReader | None) -> Excerpts | None:
    """What `model` is shown of the passages, as the local generator would show it; None where its size is unknown."""
    try:
        form, chat = form_of(load_config(model)), ChatPrompt(load_tokenizer(model), model)
    except CoalesceError:  # vLLM may know models that transformers does not know here
        return None
    return Excerpts(reader, lambda text: len(chat.text_tokens(text)), form)


class VllmServer:
    """One `vllm serve`; `ensure_running` starts it, also after a crash.

    Attributes:
        address: its `/v1`; model: what it lists the base model as; log: the file of its output.
    """

    def __init__(self, settings: GeneratorSettings) -> None:
        self.model = find_model(settings.model or "", settings.home)
        self.log = (settings.home or Path(tempfile.gettempdir())) / LOG_FILE
        port = _free_port()
        self.address = f"http://127.0.0.1:{port}/v1"
        self._command = _command(settings, self.model, port)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._lock = threading.Lock()

    def ensure_running(self) -> None:
        """Starts it if it does not run, and waits until it answers."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                if self._process is not None:
                    _end(self._process)
                self._process = self._start()
                self._wait_until_healthy(self._process)

    def stop(self) -> None:
        """Ends it with all its processes."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COALESCE_")}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(watchdog.__file__), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=kept | {"VLLM_NO_USAGE_STATS": "1"},
                start_new_session=True,  # Ctrl-C is for this program, which ends it
            )

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        health = self.address.removesuffix("/v1") + "/health"
        deadline = time.monotonic() + _START_S
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    if client.get(health).is_success:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(_POLL_S)
        status = process.poll()
        _end(process)
        written = self.log.read_bytes()[self._log_start :].decode("utf-8", "replace").splitlines()
        said = " / ".join(line.strip() for line in written[-_LOG_LINES:])[-1000:] or "it said nothing"
        hint: str = msg("All of its output is in {}.", self.log)
        if status is None:
            why = f"it did not answer within {_START_S:.0f} s"
        elif status == watchdog.KILLED + signal.SIGILL:
            why = "its environment holds a library with instructions that this processor lacks (Illegal instruction)"
            hint = f"Install a build for this processor, or take --generator local or another engine. {hint}"
        elif status > watchdog.KILLED:
            why = f"a signal ended it ({signal.strsignal(status - watchdog.KILLED)})"
        else:
            why = f"it ended with status {status}"
        raise ModelCannotLoad(msg("vLLM did not start with {}: {}", self.model, f"{why}; {said}"), hint=hint)


class VllmGenerator(RemoteGenerator):
    """Writes answers with vLLM. `start_vllm` makes it. One that crashed is started again by the next question."""

    def __init__(self, settings: GeneratorSettings, server: VllmServer, excerpts: Excerpts | None = None) -> None:
        super().__init__(settings, excerpts)
        self._server = server

    @property
    def name(self) -> str:
        """`vllm`."""
        return "vllm"

    def _prepare(self) -> None:
        self._server.ensure_running()

    def close(self) -> None:
        """Stops vLLM."""
        super().close()
        self._server.stop()


def _command(settings: GeneratorSettings, model: str, port: int) -> list[str]:
    """The command line of `vllm serve`; weights keep the format that they have on disk."""
    program, *options = shlex.split(settings.vllm)
    found = shutil.which(program)
    if found is None:
        raise ModelCannotLoad(
            msg("There is no program {} to start vLLM with.", repr(program)),
            hint="Install vLLM into an environment of its own and set COALESCE_VLLM='/path/to/vllm serve'.",
        )
    command = [found, *options, model, "--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm"]
    if settings.context_tokens is not None:
        command += ["--max-model-len", str(settings.context_tokens)]
    if settings.dtype != "auto":
        command += ["--dtype", settings.dtype]
    if settings.adapters:
        folders = {name: Path(folder).expanduser() for name, folder in settings.adapters.items()}
        rank = max(layer.rank for folder in folders.values() for layer in read_adapter(folder).layers)
        command += ["--enable-lora", "--max-lora-rank", str(vllm_rank(rank)), "--lora-modules"]
        command += [f"{name}={folder}" for name, folder in folders.items()]
    return command


def _end(process: subprocess.Popen[bytes]) -> None:
    """Closes the watchdog's input, at which it ends vLLM."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(watchdog.GRACE_S + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
