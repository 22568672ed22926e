"""The `local` generator on a processor: OpenVINO GenAI over the 4 bits of a GGUF file.

The bare model and each adapter have a pipeline of their own, each in a process of its own: a pipeline's prefix cache
does not know adapters. Answers of one pipeline are written together, by a thread that has one step done for all of
them. Tokens are those of the converted folder's tokenizer, so a prompt is what the transformers path reads.
"""

from __future__ import annotations

import itertools
import json
import math
import queue
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from indexes.cores import quota_cores, usable_cores
from indexes.disk import file_sha256, new_folder
from indexes.errors import Busy, Cancelled
from indexes.messages import msg
from rag.errors import AdapterMismatch, DoesNotFitInMemory, GenerationFailed, ModelCannotLoad
from rag.generators.admission import Admission
from rag.generators.chat_prompt import SMALL_PARAMETERS, ChatPrompt, Excerpts, form_of
from rag.generators.openvino_process import Begun, EngineProcess, PipelineFiles
from rag.generators.prompts import CHOICE_LETTERS, render_choices, says_unknown
from rag.generators.protocol import (
    ChoiceScores,
    GenerationDone,
    GenerationRequest,
    Item,
    TextPiece,
    adapter_of,
    arms_with,
    only_thought,
)
from rag.generators.stream_text import TextStream
from rag.generators.writing import Writing
from rag.models.adapters import (
    WEIGHTS_FILE,
    AdapterFolder,
    changes_anything,
    check_layers,
    empty_model,
    folder_fingerprint,
    read_adapter,
)
from rag.models.capabilities import read_capabilities
from rag.models.devices import choose_device, default_kv_budget_bytes, free_memory_bytes, peak_memory_bytes
from rag.models.folder import ORIGIN_FILE, load_config, shown_name
from rag.models.gguf import check_room, read_header
from rag.models.home import find_model, gguf_of, locked_model
from rag.models.loading import load_tokenizer, stop_tokens
from rag.sentence_reader import SentenceReader
from rag.settings import GeneratorSettings
from rag.types import RETRIEVING_ARMS, Arm, Thinking, Usage, Waiting

_OPTIONS: dict[str, Any] = {}
"""Of OpenVINO, beside its defaults and the threads that a container's quota allows."""
MOST_ROWS = 16
"""Answers that a pipeline writes at once."""
_KV_DTYPE_BYTES = 2
_POLL_S = 0.05
_STEP_S = 5.0
"""A step that takes longer when the model is closed hangs: a piece of a prompt takes a second."""
_HANGS_S = 300.0
"""A step that takes longer hangs whatever the model. It reads 256 tokens at most: 0.8 s for 1.5 billion weights on two
cores, so 80 s for ten times as many at a tenth of the speed."""
_BEAMS = 20
_MOST_KNOWN = 400
"""Options whose likelihood is remembered: the same ones come again in another order, when the prefix cache hides it."""
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_TYPES = frozenset({"F16", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"})
"""What OpenVINO GenAI 2026.4 reads."""
_MODEL_FILE = "openvino_model.xml"
_PREFIX = "__module."
_PROBE = range(100, 148)
"""Tokens after which an adapter must change what follows."""
_PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # in the order in which GenAI builds a layer  # fmt: skip


def build_ir(gguf: Path, folder: Path) -> None:
    """Writes OpenVINO's own form of a GGUF file into `folder`, its layers called as transformers calls them.

    GenAI gives the matrices no names, so an adapter would find none of them and change nothing.

    Raises:
        ModelCannotLoad: GenAI cannot read the file, or its layers are not those that are known.
        StorageFull, DoesNotFitInMemory: disk or memory have no room for it. Nothing was written.
    """
    import openvino_genai

    with new_folder(folder) as part:
        check_room(gguf, part, _loaded_bytes(gguf))
        link = part / gguf.name
        link.symlink_to(gguf)
        try:
            openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        except (RuntimeError, IndexError) as error:
            raise ModelCannotLoad(
                msg("OpenVINO GenAI cannot read {}: {}", gguf.name, _reason(error)),
                hint="Take the model with --quantization none, int8 or nf4.",
            ) from error
        link.unlink()
        _name_layers(part / _MODEL_FILE)


def _name_layers(file: Path) -> None:
    import openvino

    operations = openvino.Core().read_model(file).get_ordered_ops()
    linear = [each for each in operations if each.get_type_name() == "MatMul"]
    linear = [each for each in linear if each.input(1).get_partial_shape().is_static]
    names = sorted((each.get_friendly_name() for each in linear), key=lambda name: int(name.rpartition("_")[2]))
    layers, rest = divmod(len(names), len(_PARTS))
    if not layers or rest != 1:  # the last one is the output embedding
        raise ModelCannotLoad(
            msg("{} matrices are not {} for each layer and one for the output.", len(names), len(_PARTS)),
            hint="Take the model with --quantization none, int8 or nf4.",
        )
    parts = (f"{_PREFIX}model.layers.{layer}.{part}/MatMul" for layer in range(layers) for part in _PARTS)
    ours = dict(zip(names, parts, strict=False))
    text = file.read_text("utf-8")
    named = re.compile(r'name="([^"]+)" type="MatMul"')
    text = named.sub(lambda found: f'name="{ours.get(found[1], found[1])}" type="MatMul"', text)
    file.write_text(text, "utf-8")


def _loaded_bytes(gguf: Path) -> int:
    """Bytes of OpenVINO's form, on disk and in memory: for Qwen2.5-Coder-1.5B in Q4_K_M 1.15 times the file's."""
    return gguf.stat().st_size * 5 // 4


def _reason(error: Exception) -> str:
    """What GenAI says; before it stand the places in its source."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)[:300]


@dataclass(eq=False, slots=True)
class _Request:
    """One answer in work; `outputs` ends with None, or with an error.

    Attributes:
        queues: it waits while as many as are written at once are in work; `place` is what it was told last.
    """

    tokens: list[int]
    config: dict[str, Any]
    queues: bool = False
    place: int = -1
    outputs: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    given_up: bool = False


class _Pipeline:
    """A model in a process of its own, with an adapter or without, and the thread that has it step."""

    def __init__(self, folder: Path, adapter: Path | None, weight: float, kv_budget_bytes: int) -> None:
        gib = kv_budget_bytes >> 30
        options = _OPTIONS if quota_cores() is None else {"INFERENCE_NUM_THREADS": usable_cores()} | _OPTIONS
        self._files = PipelineFiles(str(folder), str(adapter) if adapter else None, weight, gib, MOST_ROWS, options)
        try:
            self._engine = EngineProcess(self._files)
        except RuntimeError as error:
            raise ModelCannotLoad(
                msg("OpenVINO GenAI cannot load {}: {}", folder, _reason(error)),
                hint="Remove that folder: the next start makes it again.",
            ) from error
        self._numbers = itertools.count()
        self._new: list[_Request] = []
        self._running: dict[int, _Request] = {}
        self._let_go: list[int] = []
        self._changed = threading.Condition()
        self._closed = False
        self._step_began_s: float | None = None
        self._hung = False
        self._thread = threading.Thread(target=self._run, name="coalesce-openvino", daemon=True)
        self._thread.start()

    @property
    def open(self) -> int:
        """Answers in work."""
        return len(self._new) + len(self._running)

    @property
    def peak_memory_bytes(self) -> int:
        """Most bytes that its process ever held."""
        return self._engine.peak_memory_bytes

    def write(
        self, tokens: list[int], config: dict[str, Any], cancelled: Callable[[], bool], *, queues: bool = True
    ) -> Iterator[Any]:
        """Outputs of one request as they come; before them `Waiting` for one that queues.

        Raises:
            Cancelled, GenerationFailed, DoesNotFitInMemory.
        """
        request = _Request(tokens, config, queues)
        self._add([request])
        yield from self._outputs(request, cancelled)

    def _add(self, requests: list[_Request]) -> None:
        with self._changed:
            if self._closed:
                raise _closed()
            self._new += requests
            self._changed.notify()

    def _outputs(self, request: _Request, cancelled: Callable[[], bool]) -> Iterator[Any]:
        try:
            while True:
                if cancelled():
                    raise Cancelled("The answer was stopped.")
                try:
                    output = request.outputs.get(timeout=_POLL_S)
                except queue.Empty:
                    self._end_what_hangs()
                    continue
                if isinstance(output, Exception):
                    raise output
                if output is None:
                    return
                yield output
        finally:
            request.given_up = True

    def _end_what_hangs(self) -> None:
        """Kills the process that does not come back from a step; everyone who waits looks."""
        began_s = self._step_began_s
        if began_s is not None and time.monotonic() - began_s > _HANGS_S:
            self._hung = True
            self._engine.kill()

    def next_tokens(self, tokens: list[int], cancelled: Callable[[], bool] = lambda: False) -> dict[int, float]:
        """Log-probabilities of the likeliest tokens to follow, by a beam search for one token."""
        config = _config(1, frozenset()) | {"num_beams": _BEAMS, "num_return_sequences": _BEAMS}
        outputs = self.write(tokens, config, cancelled, queues=False)
        return {output.generated_ids[0]: output.score for output in outputs}

    def ends(self, prompts: Sequence[list[int]], cancelled: Callable[[], bool]) -> list[list[float]]:
        """Log-probabilities of the last tokens of each prompt, from where it differs from what was read before.

        GenAI gives none for what its prefix cache holds. The prompts begin together, so that none hides another's.
        """
        config = _config(1, frozenset()) | {"echo": True, "logprobs": 1}
        requests = [_Request(tokens, config) for tokens in prompts]
        self._add(requests)
        try:
            outputs = [self._outputs(request, cancelled) for request in requests]
            return [[value for output in each for value in output.generated_log_probs][:-1] for each in outputs]
        finally:
            for request in requests:
                request.given_up = True

    def close(self) -> None:
        """Stops answers in work, ends the thread and frees the model."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_STEP_S)
        self._engine.kill()  # where it hangs
        self._thread.join()
        self._engine.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._new or self._running or self._closed):
                    self._changed.wait()
                new = self._next()
            self._running |= {next(self._numbers): request for request in new}
            if self._closed:
                self._end_all(_closed())
                return
            try:
                self._step(new)
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, and the next answers go on
                said = msg("OpenVINO GenAI failed: {}", _reason(error))
                if self._hung:
                    said = msg("OpenVINO GenAI did not end a step within {} seconds.", f"{_HANGS_S:g}")
                self._end_all(GenerationFailed(said, hint="Ask again."))

    def _next(self) -> list[_Request]:
        """Takes from the line what can begin, everything once it is closed, and tells the others their places."""
        room = MOST_ROWS - sum(request.queues for request in self._running.values())
        line = [request for request in self._new if request.queues and not request.given_up]
        begin = line if self._closed else line[: max(room, 0)]
        new = [request for request in self._new if not request.queues] + begin
        self._new = line[len(begin) :]
        for place, request in enumerate(self._new):
            if request.place != place:
                request.place = place
                request.outputs.put(Waiting(place))
        return new

    def _step(self, new: list[_Request]) -> None:
        if self._engine.has_ended and len(new) == len(self._running):  # answers in work hear of it from their step
            self._engine.close()
            self._engine = EngineProcess(self._files)
        self._hung = False
        given_up = [number for number, request in self._running.items() if request.given_up]
        for number in given_up:
            del self._running[number]
        begin = [Begun(number, one.tokens, one.config) for number, one in self._running.items() if one in new]
        self._step_began_s = time.monotonic()
        try:
            stepped = self._engine.step(begin, [*self._let_go, *given_up])
        finally:
            self._step_began_s = None
        self._let_go = []
        for number, output in stepped.outputs:
            self._running[number].outputs.put(output)
        for number in stepped.ended:
            self._running.pop(number).outputs.put(None)
        for number in stepped.ignored:
            self._running.pop(number).outputs.put(
                DoesNotFitInMemory("The prompt's KV cache does not fit.", hint="Raise the budget (kv_budget_bytes).")
            )

    def _end_all(self, error: Exception) -> None:
        self._let_go += self._running
        for request in self._running.values():
            request.outputs.put(error)
        self._running.clear()


def _closed() -> GenerationFailed:
    return GenerationFailed("The model was closed.", hint="Ask again.")


@dataclass(frozen=True, slots=True)
class LoadedIR:
    """What runs, for reports: `quantization` is the GGUF file's own, such as `q4_k`."""

    name: str
    quantization: str
    device: str = "cpu"


class OpenVINOGenerator:
    """Writes answers with one model and its adapters. `load_openvino_generator` makes it."""

    def __init__(
        self,
        loaded: LoadedIR,
        chat: ChatPrompt,
        admission: Admission,
        pipelines: dict[str | None, _Pipeline],
        tokenizer: Any,
        stop_tokens: frozenset[int],
        max_queue: int | None,
        excerpts: Excerpts,
    ) -> None:
        self.loaded = loaded
        self._chat = chat
        self._excerpts = excerpts
        self._admission = admission
        self._pipelines = pipelines
        self._tokenizer = tokenizer
        self._stop_tokens = stop_tokens
        self._most_open = None if max_queue is None else MOST_ROWS + max_queue
        self._marks = chat.reasoning_marks()
        self._known: dict[tuple[str | int | None, ...], float] = {}

    @property
    def name(self) -> str:
        """`local`."""
        return "local"

    @property
    def model_name(self) -> str:
        """The model as the user named it."""
        return self.loaded.name

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All four with an adapter, `base` and `rag` without."""
        return arms_with(self.adapters)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded adapters."""
        return tuple(name for name in self._pipelines if name is not None)

    def check(self, request: GenerationRequest) -> None:
        """Refuses, before retrieval, a request that can never run, or not now.

        Raises:
            ArmUnavailable: a tuned arm without its adapter.
            PromptTooLong, DoesNotFitInMemory: the question alone is too large.
            Busy: too many answers wait for the model.
        """
        pipeline = self._pipelines[adapter_of(request, self.adapters)]
        self._admission.check(request)
        if self._most_open is not None and pipeline.open >= self._most_open:
            raise Busy(msg("{} answers are in work or wait.", pipeline.open), hint="Ask again in a moment.")

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """As `Generator.stream`.

        Raises:
            ArmUnavailable, PromptTooLong, DoesNotFitInMemory, Cancelled, GenerationFailed.
        """
        pipeline = self._pipelines[adapter_of(request, self.adapters)]
        admitted = self._admission.admit(self._excerpts.of(request))
        request, prompt = admitted.request, admitted.prompt
        writing = Writing(TextStream(self._tokenizer, self._marks), request, self._chat.open_block(prompt))
        most = admitted.max_new_tokens + admitted.reasoning_tokens
        config = _config(most, self._stop_tokens, request)
        for output in pipeline.write(prompt, config, request.cancelled):
            if isinstance(output, Waiting):
                yield output
                continue
            for token in output.generated_ids:
                if piece := writing.add(token, ends=token in self._stop_tokens):
                    yield TextPiece(piece)
                if writing.answer.thinking is not None and not writing.announced:
                    writing.announced = True
                    yield Thinking()
                if writing.ended or writing.circling:
                    break
            if writing.ended or writing.circling or _answered(writing) >= admitted.max_new_tokens:
                break
        if rest := writing.rest():
            yield TextPiece(rest)
        usage = Usage(len(prompt), 0, len(writing.tokens), writing.reasoning_tokens, writing.finish)
        if writing.reasoning_tokens and not writing.answer.shown.strip():
            raise only_thought(self.model_name, usage)
        yield GenerationDone(
            usage=usage,
            tokens_per_s=writing.tokens_per_s,
            peak_memory_bytes=peak_memory_bytes("cpu") + pipeline.peak_memory_bytes,
            refused=request.arm in RETRIEVING_ARMS and says_unknown(writing.answer.shown),
            passages_used=len(request.passages),
        )

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """As `ChoiceScores` says.

        One beam search of a single token gives the likeliest tokens; a letter that is not among them gets the least.
        """
        adapter = adapter_of(request, self.adapters)
        pipeline = self._pipelines[adapter]
        shown = self._excerpts.of(request)
        listed = replace(shown, question=render_choices(request.question, choices), max_tokens=1)
        admitted = self._admission.admit(listed)
        found = pipeline.next_tokens(admitted.prompt, request.cancelled)
        least = min(found.values())
        letters = tuple(
            max(found.get(self._chat.text_tokens(text)[-1], least) for text in (letter, f" {letter}"))
            for letter in CHOICE_LETTERS[: len(choices)]
        )
        options = [self._chat.text_tokens(choice) for choice in choices]
        alone = self._admission.admit(replace(shown, max_tokens=max(map(len, options))))
        likelihoods = self._likelihoods(adapter, alone.prompt, options, request.cancelled)
        extra = {}
        if likelihoods is not None:
            each = zip(likelihoods, choices, strict=True)
            extra["likelihood"] = tuple(value / len(choice.encode()) for value, choice in each)
        read = min(len(admitted.request.passages), len(alone.request.passages))
        usage = Usage(len(admitted.prompt), 0, 0)
        return ChoiceScores(letters, usage, extra, small=self._chat.brief, passages_used=read)

    def _likelihoods(
        self, adapter: str | None, prompt: list[int], options: list[list[int]], cancelled: Callable[[], bool]
    ) -> list[float] | None:
        """log P of each option behind the prompt; None where the prefix cache hides one."""
        keys = [(adapter, *prompt, *option) for option in options]
        values = [value for key in keys if (value := self._known.get(key)) is not None]
        if len(values) < len(keys):
            ends = self._pipelines[adapter].ends([prompt + option for option in options], cancelled)
            if any(len(end) < len(option) for end, option in zip(ends, options, strict=True)):
                return None
            values = [sum(end[-len(option) :]) for end, option in zip(ends, options, strict=True)]
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known |= zip(keys, values, strict=True)
        return values

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text, by the model's own tokenizer."""
        return len(self._chat.text_tokens(text))

    def close(self) -> None:
        """Stops the threads and frees the pipelines."""
        for pipeline in self._pipelines.values():
            pipeline.close()


def _answered(writing: Writing) -> int:
    return len(writing.tokens) - writing.reasoning_tokens


def _config(max_tokens: int, stop_tokens: frozenset[int], request: GenerationRequest | None = None) -> dict[str, Any]:
    config: dict[str, Any] = {"max_new_tokens": max_tokens, "stop_token_ids": set(stop_tokens)}
    if request is not None and request.schema:
        config["structured_output_config"] = request.schema
    if request is not None and request.temperature > 0:
        seed = (secrets.randbits(32) if request.seed is None else request.seed) & 0xFFFF_FFFF
        config |= {"do_sample": True, "temperature": request.temperature, "top_p": request.sampling_top_p}
        config |= {"rng_seed": seed} | ({"top_k": request.sampling_top_k} if request.sampling_top_k else {})
    return config


def runs_here(settings: GeneratorSettings) -> bool:
    """Whether this is the way to run a model: a large GGUF file on a processor, in its own precision."""
    if settings.quantization != "auto" or settings.dtype != "auto" or find_spec("openvino_genai") is None:
        return False
    gguf = gguf_of(settings.model or "", settings.home)
    if gguf is None or choose_device(settings.device) != "cpu":
        return False
    if not all(_is_plain(read_adapter(Path(path))) for path in settings.adapters.values()):
        return False
    header = read_header(gguf)
    # the options of a small model are scored by likelihood
    large = header.num_parameters >= SMALL_PARAMETERS
    return large and header.architecture in _ARCHITECTURES and _TYPES.issuperset(header.matrix_types)


def _is_plain(adapter: AdapterFolder) -> bool:
    """Whether GenAI applies this kind of LoRA adapter."""
    return not any(adapter.config.get(name) for name in ("use_dora", "rank_pattern", "alpha_pattern"))


def load_openvino_generator(settings: GeneratorSettings, reader: SentenceReader | None = None) -> OpenVINOGenerator:
    """Loads the model, and a pipeline more for each adapter (some ten seconds each).

    Args:
        reader: chooses the sentences that the model is shown; without one it reads whole passages.

    Raises:
        NotFound, ModelCannotLoad, StorageFull: see `find_model` and `build_ir`.
        DoesNotFitInMemory: before anything is loaded.
        AdapterMismatch: an adapter of another base, or one that would change nothing.
    """
    folder = find_model(settings.model or "", settings.home)
    gguf = gguf_of(settings.model or "", settings.home)
    if gguf is None:
        raise ModelCannotLoad(msg("{} has no .gguf file.", settings.model), hint="Take it with --quantization none.")
    budget = (settings.kv_budget_bytes or default_kv_budget_bytes("cpu")) // (1 + len(settings.adapters))
    budget = max(budget >> 30, 1) << 30  # GenAI counts in GiB
    _check_memory(settings, _loaded_bytes(gguf) + budget)
    ir = _ir_of(Path(folder), gguf, settings.model or "")
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    capabilities = read_capabilities(config, context_cap_tokens=settings.context_tokens)
    name = shown_name(folder)
    form = form_of(config)
    chat = ChatPrompt(tokenizer, name, brief=form.brief)
    excerpts = Excerpts(reader, lambda text: len(chat.text_tokens(text)), form)
    admission = Admission(
        capabilities, chat.tokens, name, budget, _KV_DTYPE_BYTES, settings.max_tokens, settings.reasoning_tokens
    )
    from transformers import GenerationConfig

    stops = stop_tokens(GenerationConfig.from_pretrained(folder), tokenizer)
    loaded = LoadedIR(name, read_header(gguf).commonest_type.lower())
    pipelines: dict[str | None, _Pipeline] = {None: _Pipeline(ir, None, 1.0, budget)}
    try:
        for adapter, path in settings.adapters.items():
            pipelines[adapter] = _adapted(ir, read_adapter(Path(path)), Path(folder), budget, pipelines[None])
    except BaseException:
        for pipeline in pipelines.values():
            pipeline.close()
        raise
    return OpenVINOGenerator(loaded, chat, admission, pipelines, tokenizer, stops, settings.max_queue, excerpts)


def _ir_of(folder: Path, gguf: Path, model: str) -> Path:
    """The folder with OpenVINO's form of a converted model's file; made when it is missing or of an earlier file."""
    ir = folder.with_name(f".{folder.name}.openvino")
    made_from, origin = (folder / ORIGIN_FILE).read_bytes(), ir / ORIGIN_FILE

    def is_there() -> bool:
        return origin.is_file() and origin.read_bytes() == made_from

    if is_there():
        return ir
    with locked_model(folder.parents[1], ir.name):
        if is_there():  # another process made it meanwhile
            return ir
        shutil.rmtree(ir, ignore_errors=True)
        if json.loads(made_from).get("sha256", (found := file_sha256(gguf))) != found:
            raise ModelCannotLoad(
                msg("{} is another file than the one that was fetched: its digest is {}.", gguf, found[:12]),
                hint=msg("Fetch it again: coalesce models get {}", model),
            )
        build_ir(gguf, ir)
        origin.write_bytes(made_from)
    return ir


def _check_memory(settings: GeneratorSettings, each_bytes: int) -> None:
    """Raises DoesNotFitInMemory where `each_bytes` are not free for the model and for every adapter."""
    free, adapters = free_memory_bytes("cpu"), len(settings.adapters)
    if each_bytes * (1 + adapters) > free:
        raise DoesNotFitInMemory(
            msg(
                "{} needs {} GiB with its KV cache, and as much for each adapter ({}); {} GiB are free.",
                settings.model,
                f"{each_bytes / 2**30:.1f}",
                adapters,
                f"{free / 2**30:.1f}",
            ),
            hint="Start it with fewer adapters, or ask an engine elsewhere: "
            "--generator remote --base-url URL --model NAME",
        )


def _adapted(ir: Path, adapter: AdapterFolder, base: Path, kv_budget_bytes: int, bare: _Pipeline) -> _Pipeline:
    """A pipeline with an adapter that acts.

    Raises:
        AdapterMismatch: it is of another base, its layers are not in the model, or it changes nothing.
    """
    name, retrain = adapter.path.name, "Train one for this base with `coalesce tune`."
    if adapter.record is not None and (found := folder_fingerprint(base)) != adapter.record.base_fingerprint:
        raise AdapterMismatch(
            msg(
                "The adapter {} was trained on {} ({}); {} is {}.",
                name,
                adapter.record.base_model,
                adapter.record.base_fingerprint,
                shown_name(str(base)),
                found,
            ),
            hint=retrain,
        )
    check_layers(adapter, empty_model(base), shown_name(str(base)))
    rank, alpha = int(adapter.config["r"]), float(adapter.config["lora_alpha"])
    weight = alpha / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank)
    pipeline = _Pipeline(ir, adapter.path / WEIGHTS_FILE, weight, kv_budget_bytes)
    # GenAI leaves out what it cannot place, and says nothing that a program could hear
    try:
        if not changes_anything(adapter) or pipeline.next_tokens(list(_PROBE)) == bare.next_tokens(list(_PROBE)):
            raise AdapterMismatch(msg("The adapter {} changes nothing.", name), hint=retrain)
    except BaseException:
        pipeline.close()
        raise
    return pipeline
