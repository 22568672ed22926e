"""The `local` generator: a transformers model in this process, with LoRA adapters by name and reused prefixes.

A request is admitted (`admission`), waits for the model's thread (`thread`), continues from a kept prefix (`cache`),
is decoded (`decode`) with others (`batch`) and turned into text (`stream_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from indexes.errors import Cancelled, CoalesceError
from rag.errors import ArmUnavailable
from rag.generators.admission import CLOSING_TOKENS, Admission, Admitted
from rag.generators.chat_prompt import ChatPrompt, Excerpts, form_of
from rag.generators.local.batch import MOST_ROWS, Batches, Row, can_share_steps
from rag.generators.local.cache import PrefixCache
from rag.generators.local.decode import (
    Sampler,
    letter_log_probabilities,
    log_probability,
    new_cache,
    prefill,
    prefill_pieces,
)
from rag.generators.local.thread import ModelThread, Pause, Step
from rag.generators.prompts import render_choices, says_unknown
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
from rag.models.adapters import AdapterSet, load_adapters
from rag.models.devices import default_kv_budget_bytes, free_cached_memory, peak_memory_bytes, reset_peak_memory
from rag.models.home import find_model
from rag.models.loading import LoadedModel, load_model, stop_tokens
from rag.sentence_reader import SentenceReader
from rag.settings import GeneratorSettings
from rag.types import RETRIEVING_ARMS, Arm, Thinking, Usage, Waiting

T = TypeVar("T")

_ADAPTER = "adapter "
_SCORES = "scores"


class LocalGenerator:
    """Writes answers with one model in memory. `load_local_generator` makes it."""

    def __init__(
        self,
        loaded: LoadedModel,
        adapters: AdapterSet,
        settings: GeneratorSettings,
        reader: SentenceReader | None = None,
    ) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._adapters = adapters
        form = form_of(loaded.model.config)
        self._chat = ChatPrompt(loaded.tokenizer, loaded.name, brief=form.brief)
        self._excerpts = Excerpts(reader, self.count_tokens, form)
        self._stop_tokens = stop_tokens(loaded.model.generation_config, loaded.tokenizer)
        self._marks = self._chat.reasoning_marks()
        self._keeps = loaded.capabilities.keeps_every_token
        budget = settings.kv_budget_bytes or default_kv_budget_bytes(loaded.device)
        self._prefixes = PrefixCache(budget if settings.prefix_cache and self._keeps else 0)
        self._admission = Admission(
            loaded.capabilities,
            self._chat.tokens,
            loaded.name,
            budget,
            loaded.dtype_bytes,
            settings.max_tokens,
            settings.reasoning_tokens,
        )
        self._batches = Batches(
            loaded.model,
            budget,
            self._admission.kv_bytes,
            MOST_ROWS if self._keeps and can_share_steps(loaded.model) else 1,
            records=loaded.device.startswith("cuda") and loaded.quantization != "int8",  # which looks for outliers
        )
        self._thread = ModelThread(
            settings.max_queue, settings.queue_timeout_s, self._free_memory, self._batches.most_rows, self._step
        )

    @property
    def name(self) -> str:
        """`local`."""
        return "local"

    @property
    def model_name(self) -> str:
        """The model's path or hub name."""
        return self._loaded.name

    @property
    def loaded(self) -> LoadedModel:
        """The model in memory, for reports."""
        return self._loaded

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All four with an adapter, `base` and `rag` without."""
        return arms_with(self.adapters)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded adapters."""
        return self._adapters.names

    def check(self, request: GenerationRequest) -> None:
        """Refuses, before retrieval, a request that can never run, or not now.

        Raises:
            ArmUnavailable: a tuned arm without its adapter.
            PromptTooLong, DoesNotFitInMemory: the question alone is too large.
            Busy: too many answers wait for the model.
        """
        adapter_of(request, self.adapters)
        self._admission.check(request)
        self._thread.check_room()

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """As `Generator.stream`.

        Raises:
            ArmUnavailable, PromptTooLong, DoesNotFitInMemory, Busy, Cancelled, GenerationFailed.
        """
        adapter = adapter_of(request, self.adapters)
        admitted = self._admission.admit(self._excerpts.of(request))
        if not self._chat.may_think(admitted.prompt):  # most models need no room for reasoning
            admitted = replace(admitted, reasoning_tokens=0)
        yield from self._thread.iterate(
            lambda stop: self._answer(admitted, adapter, stop),
            request.cancelled,
            fits=partial(self._batches.take, _group(adapter), _capacity(admitted)),
            place=Waiting,
        )

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """As `ChoiceScores` says."""
        adapter = adapter_of(request, self.adapters)
        request = self._excerpts.of(request)
        options = [self._chat.text_tokens(choice) for choice in choices]
        plain = self._admission.admit(replace(request, max_tokens=max(map(len, options))))
        question = render_choices(request.question, choices)
        listed = self._admission.admit(replace(plain.request, question=question, max_tokens=1))
        plain, listed = replace(plain, reasoning_tokens=0), replace(listed, reasoning_tokens=0)

        def score() -> ChoiceScores:
            try:
                sums = self._log_probabilities(plain, adapter, options)
                logits, _ = self._read(listed, adapter)
            finally:
                self._batches.leave(_SCORES)
            letters = letter_log_probabilities(logits, self._loaded.tokenizer, len(choices))
            per_byte = tuple(total / len(choice.encode()) for total, choice in zip(sums, choices, strict=True))
            usage, read = Usage(len(plain.prompt) + len(listed.prompt)), len(listed.request.passages)
            return ChoiceScores(letters, usage, {"likelihood": per_byte}, small=self._chat.brief, passages_used=read)

        capacity = max(_capacity(plain), _capacity(listed))
        return self._thread.call(score, fits=partial(self._batches.take, _SCORES, capacity))

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text, by the model's own tokenizer."""
        return len(self._chat.text_tokens(text))

    def prompt_of(self, request: GenerationRequest) -> list[int]:
        """The tokens that the model reads for a request."""
        return self._admission.admit(self._excerpts.of(request)).prompt

    def on_model_thread(self, function: Callable[[], T]) -> T:
        """The result of a call that may touch the model; torch's number of threads, too, belongs to a thread."""
        return self._thread.call(function)

    def close(self) -> None:
        """Stops the thread and drops all kept prefixes."""
        self._thread.close()
        self._prefixes.clear()

    def _answer(self, admitted: Admitted, adapter: str | None, stop: Callable[[], bool]) -> Generator[Any, Any, None]:
        """Runs on the model's thread: items, and between them what it asks of the thread."""
        reset_peak_memory(self._loaded.device)
        request, prompt = admitted.request, admitted.prompt
        writing = Writing(TextStream(self._loaded.tokenizer, self._marks), request, self._chat.open_block(prompt))
        cache = None
        try:
            cache, reused = self._open(admitted, adapter)
            yield from self._write(writing, admitted, cache, adapter, stop)
            yield self._done(writing, admitted, reused)
            self._keep(adapter, prompt + writing.tokens, cache)  # after the last item: nobody waits for the copy
        except CoalesceError:
            if cache is not None:
                self._keep(adapter, prompt + writing.tokens, cache)
            raise
        finally:
            self._batches.leave(_group(adapter), cache)
            self._prefixes.shrink_to(self._admission.budget_bytes - self._batches.held_bytes)

    def _write(
        self, writing: Writing, admitted: Admitted, cache: Any, adapter: str | None, stop: Callable[[], bool]
    ) -> Generator[Any, Any, None]:
        """Reasoning, if the model thinks, and the answer, each within its own number of tokens.

        Raises:
            Cancelled.
        """

        def check() -> None:
            if stop() or admitted.request.cancelled():
                raise Cancelled("The answer was stopped.")

        def read(tokens: list[int]) -> Generator[Any, Any, Any]:
            if len(tokens) == 1 and cache.get_seq_length():
                return (yield Step(_group(adapter), Row(cache, tokens[0])))
            logits = None
            for piece in prefill_pieces(self._model, tokens, cache, chunk_tokens=self._at_once(admitted.prompt)):
                logits = piece
                check()
                yield Pause()
                self._adapters.activate(adapter)
            return logits

        check()
        request = admitted.request
        sampler = Sampler(request.temperature, request.sampling_top_p, request.seed, request.sampling_top_k)
        unread = admitted.prompt[cache.get_seq_length() :]
        while not writing.ended:
            block = writing.answer.thinking
            if block is not None and not writing.announced:
                writing.announced = True
                yield Thinking()
            if block is not None and (writing.circling or writing.reasoning_tokens >= admitted.reasoning_tokens):
                closing = self._chat.close_tokens(block)
                writing.close(block, closing)
                unread += closing
            answered = len(writing.tokens) - writing.reasoning_tokens
            room = _capacity(admitted) - len(admitted.prompt) - len(writing.tokens)
            if room <= 0 or (writing.answer.thinking is None and answered >= admitted.max_new_tokens):
                break
            logits = yield from read(unread)
            check()
            token = sampler.pick(logits[-1])
            unread = [token]
            if piece := writing.add(token, ends=token in self._stop_tokens):
                yield TextPiece(piece)
        if rest := writing.rest():
            yield TextPiece(rest)

    def _done(self, writing: Writing, admitted: Admitted, reused: int) -> GenerationDone:
        """The last item; raises GenerationFailed for an answer that was all reasoning."""
        usage = Usage(len(admitted.prompt), reused, len(writing.tokens), writing.reasoning_tokens, writing.finish)
        if writing.reasoning_tokens and not writing.answer.shown.strip():
            raise only_thought(self.model_name, usage)
        return GenerationDone(
            usage=usage,
            tokens_per_s=writing.tokens_per_s,
            peak_memory_bytes=peak_memory_bytes(self._loaded.device),
            refused=admitted.request.arm in RETRIEVING_ARMS and says_unknown(writing.answer.shown),
            passages_used=len(admitted.request.passages),
        )

    def _step(self, group: str, rows: list[Row]) -> list[Any]:
        self._adapters.activate(group.removeprefix(_ADAPTER) if group else None)
        return self._batches.step(group, rows)

    def _log_probabilities(self, admitted: Admitted, adapter: str | None, options: list[list[int]]) -> list[float]:
        """log P of each option. Where state cannot be taken back, the prompt is read again for each."""
        sums: list[float] = []
        for option in options:
            if not sums or not self._keeps:
                logits, cache = self._read(admitted, adapter)
            sums.append(log_probability(self._model, logits, option, cache))
        return sums

    def _read(self, admitted: Admitted, adapter: str | None) -> tuple[Any, Any]:
        """The logits after a prompt, and the cache that holds it."""
        cache, _ = self._open(admitted, adapter)
        logits = prefill(self._model, admitted.prompt, cache, chunk_tokens=self._at_once(admitted.prompt))
        self._keep(adapter, admitted.prompt, cache)
        return logits, cache

    def _open(self, admitted: Admitted, adapter: str | None) -> tuple[Any, int]:
        """Switches the adapter and opens a cache that begins with the longest kept prefix: the cache, its tokens."""
        self._adapters.activate(adapter)
        tokens = admitted.prompt[:-1]  # at least one token must be read for its logits
        kept, alike = self._prefixes.find(self._adapters.revision(adapter), tokens)
        self._prefixes.shrink_to(self._admission.budget_bytes - self._batches.held_bytes)
        cache = new_cache(self._model, _capacity(admitted), cuttable=self._keeps)
        if kept is None or self._rescales(admitted.prompt):
            return cache, 0
        cache.begin_with(kept, alike)
        return cache, alike

    def _rescales(self, tokens: list[int]) -> bool:
        """Whether so many tokens have other keys than fewer have."""
        after = self._loaded.capabilities.rescaled_after_tokens
        return after is not None and len(tokens) > after

    def _at_once(self, tokens: list[int]) -> int | None:
        return len(tokens) if self._rescales(tokens) else None

    def _keep(self, adapter: str | None, tokens: list[int], cache: Any) -> None:
        """Keeps what was read and written; the last written token was never fed."""
        held = tokens[: cache.get_seq_length()]
        if held and not self._rescales(held) and self._keeps:
            self._prefixes.keep(self._adapters.revision(adapter), held, cache)

    def _free_memory(self) -> None:
        self._prefixes.clear()
        free_cached_memory(self._loaded.device)


def load_local_generator(settings: GeneratorSettings, reader: SentenceReader | None = None) -> LocalGenerator:
    """Loads model and adapters (seconds to minutes).

    Args:
        reader: chooses the sentences that the model is shown; without one it reads whole passages.

    Raises:
        ArmUnavailable: no model is named.
        NotFound: a model that has not been fetched.
        ModelCannotLoad, AdapterMismatch, DoesNotFitInMemory: see `find_model`, `load_model` and `load_adapters`.
    """
    if not settings.model:
        raise ArmUnavailable(
            "The local generator needs a model.",
            hint="Name one with --model: a folder, a .gguf file, or a name that `coalesce models` lists.",
        )
    loaded = load_model(
        find_model(settings.model, settings.home),
        quantization=settings.quantization,
        device=settings.device,
        dtype=settings.dtype,
        context_cap_tokens=settings.context_tokens,
    )
    return LocalGenerator(loaded, load_adapters(loaded, settings.adapters), settings, reader)


def _capacity(admitted: Admitted) -> int:
    """Tokens that an answer's cache holds at most."""
    room = admitted.reasoning_tokens + CLOSING_TOKENS if admitted.reasoning_tokens else 0
    return len(admitted.prompt) + room + admitted.max_new_tokens


def _group(adapter: str | None) -> str:
    """The name of the answers that can be decoded together."""
    return "" if adapter is None else _ADAPTER + adapter
