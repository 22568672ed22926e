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
from rag.generators.chat_prompt import ChatPrompt, Excerpts, form_of
from rag.generators.local.admission import CLOSING_TOKENS, Admission, Admitted
from rag.generators.local.batch import MOST_ROWS, Batches, can_share_steps
from rag.generators.local.cache import CacheKey, PrefixCache, SlabCache
from rag.generators.local.decode import (
    Decoding,
    Sampler,
    has_rotary_positions,
    letter_log_probabilities,
    new_cache,
    option_log_probabilities,
    prefill,
    prefill_pieces,
)
from rag.generators.local.thread import ModelThread, Pause, Requeue, Step
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
from rag.models.loading import LoadedModel, load_model
from rag.sentence_reader import SentenceReader
from rag.settings import GeneratorSettings
from rag.types import RETRIEVING_ARMS, Arm, Thinking, Usage, Waiting

T = TypeVar("T")

_MOST_ALONE = 4096
"""Options whose own likelihood is remembered: all arms are asked about the same ones."""
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
        self._lookup_tokens = settings.prompt_lookup_tokens if loaded.capabilities.keeps_every_token else 0
        form = form_of(loaded.model.config)
        self._chat = ChatPrompt(loaded.tokenizer, loaded.name, brief=form.brief)
        self._excerpts = Excerpts(reader, self.count_tokens, form)
        self._stop_tokens = _stop_tokens(loaded)
        self._alone: dict[tuple[str | None, str], float] = {}
        self._marks = self._chat.reasoning_marks()
        budget = settings.kv_budget_bytes or default_kv_budget_bytes(loaded.device)
        reuses = settings.prefix_cache and loaded.capabilities.keeps_every_token
        self._prefixes = PrefixCache(budget if reuses else 0)
        self._admission = Admission(
            loaded.capabilities,
            self._chat.tokens,
            loaded.name,
            budget,
            loaded.dtype_bytes,
            settings.max_tokens,
            settings.reasoning_tokens,
        )
        shares = loaded.capabilities.keeps_every_token and can_share_steps(loaded.model)
        self._batches = Batches(
            budget,
            self._admission.kv_bytes,
            MOST_ROWS if shares else 1,
            traces=loaded.device == "cpu",
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
        capacity = self._capacity(admitted)
        yield from self._thread.iterate(
            lambda stop: self._answer(admitted, adapter, stop),
            request.cancelled,
            fits=partial(self._batches.take, _group(adapter), capacity),
            place=Waiting,
        )

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """Scores options by likelihood per byte; `extra` has three other ways.

        `sum_logprob` is log P(option | prompt); `pmi` is that less log P(option | prompt without question and
        passages), the pointwise mutual information of Holtzman et al. (2021); `letters` is log P of the option's
        letter, behind a prompt that lists the options.
        """
        adapter = adapter_of(request, self.adapters)
        request = self._excerpts.of(request)
        options = [self._chat.text_tokens(choice) for choice in choices]
        room = sum(map(len, options))
        admitted = self._admission.admit(replace(request, max_tokens=room))
        listed = replace(admitted.request, question=render_choices(request.question, choices), max_tokens=1)
        lettered = self._admission.admit(listed)
        alone = self._admission.admit(GenerationRequest("", "base", max_tokens=room))
        capacity = max(len(each.prompt) + each.max_new_tokens for each in (admitted, lettered, alone))

        def score() -> ChoiceScores:
            try:
                return self._score(admitted, lettered, alone, adapter, choices, options)
            finally:
                self._batches.leave(_SCORES)

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

    def _answer(self, admitted: Admitted, adapter: str | None, stop: Callable[[], bool]) -> Iterator[Any]:
        """Runs on the model's thread: items, and between them what it asks of the thread."""
        reset_peak_memory(self._loaded.device)
        request, prompt = admitted.request, admitted.prompt
        writing = Writing(TextStream(self._loaded.tokenizer, self._marks), request, self._chat.open_block(prompt))
        sampler = Sampler(request.temperature, request.sampling_top_p, request.seed)
        capacity = self._capacity(admitted)
        reused: int | None = None
        while True:
            cache = None
            try:
                cache, key, known = self._open(prompt + writing.tokens, capacity, adapter)
                reused = known if reused is None else reused
                ended = yield from self._write(writing, admitted, cache, adapter, sampler, stop)
                if ended:
                    yield self._done(writing, admitted, reused)
                self._keep(key, prompt, writing.tokens, cache)  # after the last item: nobody waits for the copy
            except CoalesceError:
                if cache is not None:
                    self._keep(key, prompt, writing.tokens, cache)
                raise
            finally:
                self._batches.leave(_group(adapter), cache)
                self._prefixes.shrink_to(self._admission.budget_bytes - self._batches.held_bytes)
            if ended:
                return
            # Most models need no room for reasoning, so it is taken when one begins to think. A row that waits for it
            # holds no memory: two could wait for each other.
            capacity = self._capacity(admitted, thinks=True)
            yield Requeue(partial(self._batches.take, _group(adapter), capacity))

    def _write(
        self,
        writing: Writing,
        admitted: Admitted,
        cache: Any,
        adapter: str | None,
        sampler: Sampler,
        stop: Callable[[], bool],
    ) -> Generator[Any, Any, bool]:
        """Reasoning, if the model thinks, and the answer, each within its own number of tokens.

        Returns:
            False when the model has begun to think and needs a larger cache for it.

        Raises:
            Cancelled.
        """

        def check() -> None:
            if stop() or admitted.request.cancelled():
                raise Cancelled("The answer was stopped.")

        check()
        tokens = admitted.prompt + writing.tokens
        logits: Any = None
        if cache.get_seq_length() < len(tokens) - 1 or not isinstance(cache, SlabCache):
            for read in prefill_pieces(self._model, tokens, cache, chunk_tokens=self._at_once(tokens)):
                logits = read
                check()
                yield Pause()
                self._adapters.activate(adapter)
        row = Decoding(tokens, cache, sampler, self._lookup_tokens)
        while not writing.ended:
            block = writing.answer.thinking
            if block is not None and not writing.announced:
                writing.announced = True
                yield Thinking()
                if self._capacity(admitted) < self._capacity(admitted, thinks=True):
                    return False
            if block is not None and (writing.circling or writing.reasoning_tokens >= admitted.reasoning_tokens):
                closing = self._chat.close_tokens(block)
                writing.close(block, closing)
                row.force(closing)
                logits, block = None, None
            if block is not None:
                row.room_tokens = admitted.reasoning_tokens - writing.reasoning_tokens
            else:
                row.room_tokens = admitted.max_new_tokens - (len(writing.tokens) - writing.reasoning_tokens)
            if row.room_tokens <= 0:
                break
            if logits is None:
                logits = yield Step(_group(adapter), row)
            used: list[int] = []
            for token in row.take(logits)[: row.room_tokens]:
                check()
                used.append(token)
                if piece := writing.add(token, ends=token in self._stop_tokens):
                    yield TextPiece(piece)
                if writing.ended or writing.circling or writing.answer.thinking is not block:
                    break
            row.wrote(used)
            logits = None
        if rest := writing.rest():
            yield TextPiece(rest)
        return True

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

    def _capacity(self, admitted: Admitted, *, thinks: bool = False) -> int:
        """Tokens that an answer's cache holds at most; with reasoning if the prompt already opened it."""
        room = 0
        if thinks or self._chat.open_block(admitted.prompt) is not None:
            room = admitted.reasoning_tokens + CLOSING_TOKENS
        return len(admitted.prompt) + room + admitted.max_new_tokens

    def _step(self, group: str, rows: list[Decoding]) -> list[Any]:
        self._adapters.activate(group.removeprefix(_ADAPTER) if group else None)
        return self._batches.step(self._model, group, rows, self._lookup_tokens)

    def _score(
        self,
        admitted: Admitted,
        lettered: Admitted,
        alone: Admitted,
        adapter: str | None,
        choices: tuple[str, ...],
        options: list[list[int]],
    ) -> ChoiceScores:
        """Runs on the model's thread."""
        totals, reused = self._likelihoods(admitted, adapter, options)
        cache, key, _ = self._open(lettered.prompt, self._capacity(lettered), adapter)
        letters = letter_log_probabilities(self._model, self._loaded.tokenizer, lettered.prompt, cache, len(options))
        self._keep(key, lettered.prompt, [], cache)
        known = [(key.adapter, choice) for choice in choices]
        if not all(each in self._alone for each in known):
            if len(self._alone) > _MOST_ALONE:
                self._alone.clear()
            self._alone |= zip(known, self._likelihoods(alone, adapter, options)[0], strict=True)
        per_byte = tuple(total / len(choice.encode()) for total, choice in zip(totals, choices, strict=True))
        pmi = tuple(total - self._alone[each] for total, each in zip(totals, known, strict=True))
        usage = Usage(len(admitted.prompt) + len(lettered.prompt), reused, 0)
        extra = {"sum_logprob": tuple(totals), "pmi": pmi, "letters": tuple(letters)}
        read = min(len(admitted.request.passages), len(lettered.request.passages))
        return ChoiceScores(per_byte, usage, extra, passages_used=read)

    def _likelihoods(
        self, admitted: Admitted, adapter: str | None, options: list[list[int]]
    ) -> tuple[list[float], int]:
        """log P of each option, and how many of the prompt's tokens came from a kept prefix."""
        cache, key, reused = self._open(admitted.prompt, self._capacity(admitted), adapter)
        logits = prefill(self._model, admitted.prompt, cache, chunk_tokens=self._at_once(admitted.prompt))
        self._keep(key, admitted.prompt, [], cache)
        if isinstance(cache, SlabCache):
            together = has_rotary_positions(self._model) and sum(map(len, options)) <= admitted.max_new_tokens
            return option_log_probabilities(self._model, logits, options, cache, together=together), reused
        sums: list[float] = []
        for option in options:  # state that cannot be taken back: the prompt is read again for each
            if sums:
                cache, _, _ = self._open(admitted.prompt, self._capacity(admitted), adapter)
                logits = prefill(self._model, admitted.prompt, cache, chunk_tokens=self._at_once(admitted.prompt))
            sums += option_log_probabilities(self._model, logits, [option], cache, together=False)
        return sums, reused

    def _open(self, tokens: list[int], capacity_tokens: int, adapter: str | None) -> tuple[Any, CacheKey, int]:
        """Switches the adapter and opens a cache that begins with the longest kept prefix: (cache, key, its tokens)."""
        self._adapters.activate(adapter)
        key = CacheKey(
            self._adapters.fingerprint,
            self._adapters.revision(adapter),
            self._loaded.quantization,
            self._loaded.dtype,
        )
        # At least one token must be read for its logits.
        known = [] if self._rescales(tokens) else self._prefixes.find(key, tokens[:-1])
        self._prefixes.shrink_to(self._admission.budget_bytes - self._batches.held_bytes)
        cache = new_cache(self._model, capacity_tokens, cuttable=self._loaded.capabilities.keeps_every_token)
        reused = 0
        for segment, count in known:
            cache.append(segment, count)
            reused += count
        return cache, key, reused

    def _rescales(self, tokens: list[int]) -> bool:
        """Whether so many tokens have other keys than fewer have."""
        after = self._loaded.capabilities.rescaled_after_tokens
        return after is not None and len(tokens) > after

    def _at_once(self, tokens: list[int]) -> int | None:
        return len(tokens) if self._rescales(tokens) else None

    def _keep(self, key: CacheKey, prompt: list[int], written: list[int], cache: Any) -> None:
        """Keeps what was read and written; the last written token was never fed, guesses beyond it do not count."""
        if self._prefixes.capacity_bytes <= 0:
            return
        tokens = (prompt + written[:-1])[: cache.get_seq_length()]
        if not tokens or self._rescales(tokens):
            return
        self._prefixes.keep(key, tokens, cache.copy_out)

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


def _stop_tokens(loaded: LoadedModel) -> frozenset[int]:
    """Tokens that end an answer, by the model's generation settings and its tokenizer."""
    found = getattr(loaded.model.generation_config, "eos_token_id", None)
    listed = found if isinstance(found, list) else [found]
    return frozenset(token for token in (*listed, loaded.tokenizer.eos_token_id) if token is not None)


def _group(adapter: str | None) -> str:
    """The name of the answers that can be decoded together."""
    return "" if adapter is None else _ADAPTER + adapter
