"""The `remote` generator: any OpenAI-compatible engine (vLLM, SGLang, LMDeploy, llama.cpp, Ollama), adapters by name.

The engine applies the chat template and keeps prefixes; messages come in the order that lets it (system text and
passages first, question last). It is not contacted before the first request.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Generator as Yields
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, TypeVar

from indexes.errors import Busy, CoalesceError
from indexes.messages import msg
from indexes.sample import SAMPLE_PATH
from rag.errors import ArmUnavailable, EngineRefuses, EngineUnreachable, GenerationFailed, PromptTooLong
from rag.generators.chat_prompt import Excerpts, ever_smaller
from rag.generators.openai_client import Json, OpenAIClient
from rag.generators.prompts import CHOICE_LETTERS, render_choices, render_messages, says_unknown
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
from rag.generators.stream_text import REASONING_BLOCKS, THINK, AnswerText, ReasoningBlock, RepetitionGuard
from rag.settings import GeneratorSettings
from rag.types import RETRIEVING_ARMS, Arm, Finish, Thinking, Usage, Waiting

_CHAT = "chat/completions"
_TOP_LOGPROBS = 20
_LETTER_TOKENS = 4
_LISTED_S = 60.0  # how long an engine's lists are believed
_TAIL_TOKENS = 8  # of a prompt, that hold the mark of a block of reasoning
_CHARS_PER_TOKEN = 4  # of English; a Chinese character is about one token
_COUNTED = 4096  # texts whose tokens are remembered
_TRIED_TEXT_BYTES = 16_384  # of the bundled book, that show how an engine counts
_AT_ONCE_S = 0.01  # an engine that takes longer to count a short text is not asked about every one
_COUNT_WITHIN_S = 2.0
_TOKENS_PER_BYTE = 0.3
"""Where the engine does not count: of five GPU texts Qwen2.5's tokenizer makes 0.22 to 0.26 tokens a byte, SmolLM2's
0.24 to 0.29; of Chinese Qwen2.5's makes 0.25."""
_LETTER = re.compile(r"^\W*(?:option|answer|the answer is|选项|答案是?)?\W*([A-J])(?![A-Za-z])", re.IGNORECASE)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Serving:
    """What an engine lists: models, the context of ours, and llama.cpp's adapters by file, None for other engines."""

    models: tuple[str, ...]
    context_tokens: int | None
    loras: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _Counting:
    """How an engine counts: tokens of a byte, whether it is asked about every text, and when to look again."""

    tokens_per_byte: float = _TOKENS_PER_BYTE
    each: bool = False
    until: float = math.inf


class _ThinksFirst(Exception):
    """The engine began to reason in an answer that had no room for it."""


class RemoteGenerator:
    """Writes answers with an engine elsewhere.

    Args:
        excerpts: what a model of known size is shown of the passages; None shows them whole.
    """

    def __init__(self, settings: GeneratorSettings, excerpts: Excerpts | None = None) -> None:
        if not settings.base_url or not settings.model:
            raise ArmUnavailable(
                "The remote generator needs the engine's address and a model.",
                hint=msg("Add --base-url {} --model NAME.", "http://HOST:PORT/v1"),
            )
        self._settings = settings
        self._excerpts = excerpts
        self._model = settings.model
        self._client = OpenAIClient(
            settings.base_url, settings.api_key, settings.request_timeout_s, settings.queue_timeout_s
        )
        self._template_options: Json = {"chat_template_kwargs": {"enable_thinking": False}}
        self._thinks = False
        self._block: ReasoningBlock | None = None  # that the engine's template opens, out of our sight
        self._template_asked = False
        self._listed: _Serving | None = None
        self._listed_at = 0.0
        self._counting: _Counting | None = None
        self._counting_lock = threading.Lock()
        self._count = lru_cache(_COUNTED)(self._ask_count)

    @property
    def name(self) -> str:
        """`remote`."""
        return "remote"

    @property
    def model_name(self) -> str:
        """The engine's model."""
        return self._model

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All four with an adapter, `base` and `rag` without."""
        return arms_with(self.adapters)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters; the engine serves each as a model of its own."""
        return tuple(self._settings.adapters)

    def check(self, request: GenerationRequest) -> None:
        """Refuses a request that can never run, as far as that shows without the engine's tokenizer.

        Raises:
            ArmUnavailable: a tuned arm without its adapter, or a model or adapter that the engine does not list.
            PromptTooLong: the question alone is longer than the engine's context by a cautious count.
        """
        self._served(request, asked=False)
        least = _least_tokens(request.question)
        if least > 256 and (context := self._context()) is not None and least > context:
            raise PromptTooLong(
                msg("The question has at least {} tokens; {} reads {}.", f"{least:,}", self._model, f"{context:,}"),
                hint="Ask a shorter question, or serve a model with a longer context.",
            )

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text by the engine's `/tokenize` (llama.cpp, vLLM), else about as many by the text's bytes.

        An engine that is far away or busy is asked once how it counts, and not about every text.
        """
        counting = self._how_it_counts()
        if counting.each:
            try:
                return self._count(text)
            except CoalesceError:  # it would keep every passage waiting as long
                self._counting = counting = replace(counting, each=False, until=time.monotonic() + _LISTED_S)
        return math.ceil(len(text.encode()) * counting.tokens_per_byte)

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """As `Generator.stream`; when the engine finds the prompt too long the lowest passages, then turns, go.

        Engines count reasoning among the answer's tokens. One that begins to reason is asked again, once and for all
        later answers, with room for both.

        Raises:
            ArmUnavailable, PromptTooLong, EngineUnreachable, Busy, GenerationFailed, Cancelled.
        """
        return self._until_it_fits(request, self._answer)

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """Scores options by the log-probability of their letter; 1 and 0 by the letter written where none are given.

        The lowest passages go when the engine finds the prompt too long, as in `stream`.

        Raises:
            GenerationFailed: neither can be read from the answer; other errors as for `stream`.
        """
        question = render_choices(request.question, choices)
        listed = replace(request, question=question, temperature=0.0, max_tokens=_LETTER_TOKENS)
        return next(self._until_it_fits(listed, lambda smaller: self._letters(smaller, len(choices))))

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _prepare(self) -> None:
        """Called before the engine is asked anything for a request."""

    def _until_it_fits(
        self, request: GenerationRequest, attempt: Callable[[GenerationRequest], Yields[Result, None, None]]
    ) -> Yields[Result, None, None]:
        """What the first attempt yields whose prompt the engine does not find too long."""
        refusal: PromptTooLong | None = None
        for smaller in ever_smaller(self._excerpts.of(request) if self._excerpts is not None else request):
            try:
                yield from attempt(smaller)
            except PromptTooLong as error:
                refusal = error
                continue
            return
        raise refusal or ValueError("a request has at least one form")

    def _letters(self, request: GenerationRequest, count: int) -> Yields[ChoiceScores, None, None]:
        body, asks = self._body(request), {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
        try:
            answer = next(self._chat(body | asks, request.cancelled))
        except EngineRefuses:  # engines that know no logprobs
            answer = next(self._chat(body, request.cancelled))
        choice, letters = _first_choice(answer), CHOICE_LETTERS[:count]
        kind, scores = "letters", _letter_scores(choice.get("logprobs"), letters)
        if scores is None:
            content = _fields(choice.get("message")).get("content")
            written = content if isinstance(content, str) else ""
            found = _LETTER.match(written)
            if found is None or found[1].upper() not in letters:
                raise GenerationFailed(
                    msg("The model named no option: {}.", repr(written[:80])), hint="Such answers are unscored."
                )
            kind, scores = "written", tuple(float(letter == found[1].upper()) for letter in letters)
        usage = _usage(answer.get("usage"), _LETTER_TOKENS)
        yield ChoiceScores(scores, usage, {kind: scores}, passages_used=len(request.passages))

    def _answer(self, request: GenerationRequest) -> Yields[Item, None, None]:
        body = self._body(request) | {"stream": True, "stream_options": {"include_usage": True}}
        if not self._template_asked:
            self._ask_template(body)
        try:
            yield from self._written(body, request)
        except _ThinksFirst:
            self._thinks = True
            yield from self._written(body, request)

    def _written(self, body: Json, request: GenerationRequest) -> Yields[Item, None, None]:
        """One answer.

        Raises:
            _ThinksFirst: the engine reasons, and had no room for it.
        """
        most = int(body["max_tokens"])
        if self._thinks:
            body = body | {"max_tokens": most + self._settings.reasoning_tokens}
            body.pop("stop", None)  # the engine would look for it in the reasoning, too
        answer, guard = AnswerText(request.stop, self._block), RepetitionGuard()
        usage: Any = None
        pieces = reasoning = 0
        finish: Finish | None = None
        first_at = last_at = 0.0
        with closing(self._chat(body, request.cancelled)) as events:
            for event in events:
                if isinstance(event, Waiting):
                    yield event
                    continue
                usage = event.get("usage") or usage
                if not event.get("choices"):
                    continue
                choice = _first_choice(event)
                if (reason := choice.get("finish_reason")) is not None:
                    finish = "length" if reason == "length" else "stop"
                text, thought = _said(choice)
                if not text and not thought:
                    continue
                if thought and answer.thinking is not None and not reasoning:
                    self._block, answer = None, AnswerText(request.stop)  # the engine divides the text itself
                last_at = time.perf_counter()
                first_at = first_at or last_at
                pieces += 1
                piece = answer.push(text)
                if answer.thought_unseen:
                    raise self._thought_aloud()
                if thought or answer.thinking or (answer.thought and not reasoning):
                    if not self._thinks:
                        raise _ThinksFirst
                    if not reasoning:
                        yield Thinking()
                    reasoning += 1
                elif reasoning == pieces - 1:  # an answer may say what was thought
                    piece, guard = guard.finish() + piece, RepetitionGuard()
                if shown := guard.push(text or thought, piece):
                    yield TextPiece(shown)
                if answer.stopped:  # an engine that ignores `stop`, or did not get it
                    finish = "stop"
                    break
                # the room to think is not the answer's
                if guard.circling or (self._thinks and pieces - reasoning >= most):
                    finish = "length"
                    break
        if finish is None:
            raise GenerationFailed("The connection ended before the answer did.", hint="The engine's log says more.")
        if not guard.circling and (rest := guard.finish() + answer.finish()):
            yield TextPiece(rest)
        counted = _usage(usage, pieces, reasoning, finish)
        if reasoning and not answer.shown.strip():
            raise only_thought(self._model, counted)
        seconds = last_at - first_at
        yield GenerationDone(
            usage=counted,
            tokens_per_s=(counted.completion_tokens - 1) / seconds if seconds > 0 else 0.0,
            peak_memory_bytes=0,
            refused=request.arm in RETRIEVING_ARMS and says_unknown(answer.shown),
            passages_used=len(request.passages),
        )

    def _chat(self, body: Json, cancelled: Callable[[], bool]) -> Yields[Any, None, None]:
        """The engine's answer; the template's options go, once and for all, where it takes the rest without them."""
        if self._template_options:
            try:
                yield from self._client.ask(_CHAT, body | self._template_options, cancelled)
            except EngineRefuses:
                pass
            else:
                return
        for event in self._client.ask(_CHAT, body, cancelled):
            if not isinstance(event, Waiting):
                self._template_options = {}
            yield event

    def _ask_template(self, body: Json) -> None:
        """Finds the block of reasoning that the engine's template opens, where it shows a prompt (llama.cpp, vLLM)."""
        serving = self._serving()
        path = "/apply-template" if serving is not None and serving.loras is not None else "/tokenize"
        asks = {name: body[name] for name in ("model", "messages")} | self._template_options
        asks |= {"add_generation_prompt": True, "return_token_strs": True}
        try:
            found = _fields(self._client.get(path, asks))
        except (EngineUnreachable, GenerationFailed, PromptTooLong):
            found = {}
        except Busy:
            return
        self._template_asked = True
        strings = found.get("token_strs")
        prompt = "".join(map(str, strings[-_TAIL_TOKENS:])) if isinstance(strings, list) else str(found.get("prompt"))
        tail = prompt.rstrip("\n ĊĠ▁")  # how vocabularies write line ends and blanks
        self._block = next((block for block in REASONING_BLOCKS if tail.endswith(block.opening)), None)
        self._thinks = self._block is not None

    def _thought_aloud(self) -> GenerationFailed:
        """The error for reasoning that came as an answer; later answers begin inside the block."""
        self._block, self._thinks = THINK, True
        return GenerationFailed(
            msg("{} thinks before it answers, and its engine sent that as the answer.", self._model),
            hint="Ask again: from now on it is left out. An engine started with a reasoning parser marks it.",
        )

    def _body(self, request: GenerationRequest) -> Json:
        body = self._served(request, asked=True) | {
            "messages": render_messages(request, brief=self._excerpts is not None and self._excerpts.form.brief),
            "max_tokens": request.max_tokens or self._settings.max_tokens,
            "temperature": request.temperature,
        }
        if request.temperature > 0:
            body["top_p"] = request.sampling_top_p
            if request.sampling_top_k:
                body["top_k"] = request.sampling_top_k
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stop:
            body["stop"] = list(request.stop)
        return body

    def _how_it_counts(self) -> _Counting:
        with self._counting_lock:
            if self._counting is None or time.monotonic() > self._counting.until:
                try:
                    self._counting = self._try_counting()
                except CoalesceError:  # it has no `/tokenize`, or does not answer
                    self._counting = _Counting(until=time.monotonic() + _LISTED_S)
            return self._counting

    def _try_counting(self) -> _Counting:
        text = min(SAMPLE_PATH.glob("*.md")).read_text("utf-8").encode()[:_TRIED_TEXT_BYTES].decode("utf-8", "ignore")
        tokens = self._ask_count(text)
        took_s = math.inf
        for words in ("a warp", "a block", "a grid"):  # the best of three: others may keep it busy
            began = time.perf_counter()
            self._ask_count(words)
            took_s = min(took_s, time.perf_counter() - began)
        return _Counting(tokens / len(text.encode()), each=took_s < _AT_ONCE_S)

    def _ask_count(self, text: str) -> int:
        """The engine's own count; raises as `OpenAIClient.get`."""
        asks = {"model": self._model, "content": text, "add_special": False}  # llama.cpp
        asks |= {"prompt": text, "add_special_tokens": False}  # vLLM
        tokens = _fields(self._client.get("/tokenize", asks, _COUNT_WITHIN_S)).get("tokens")
        if not isinstance(tokens, list):
            raise _of_another_form(tokens)
        return len(tokens)

    def _served(self, request: GenerationRequest, *, asked: bool) -> Json:
        """The fields of a request that name the model for its arm.

        Args:
            asked: the engine is about to be asked: an adapter is asked for only where the lists could be had, since an
                engine that is still starting might answer with the base model.

        Raises:
            ArmUnavailable: the engine does not list the model or the adapter; it might answer with another one.
            EngineUnreachable, GenerationFailed, Busy: it gives no list.
        """
        self._prepare()
        adapter = adapter_of(request, self.adapters)
        wanted = None if adapter is None else self._settings.adapters[adapter]
        serving = self._serving(needed=asked and wanted is not None)
        if serving is not None and serving.loras is not None:
            self._check_listed(self._model, serving.models, "model")
            if wanted is not None:
                self._check_listed(wanted, serving.loras, "adapter")
            # llama.cpp ignores the model's name; adapters that are not named keep the scale they were started with.
            # Its cache of prompts does not tell adapters apart: the base went on from what an adapter had read.
            scales = [{"id": n, "scale": float(_names(wanted, lora))} for n, lora in enumerate(serving.loras)]
            return {"model": self._model} | ({"lora": scales, "cache_prompt": False} if scales else {})
        if serving is not None and serving.models:
            if wanted is not None:
                self._check_listed(wanted, serving.models, "adapter")
            elif not Path(self._model).is_dir():  # `transformers serve` lists the hub's cache, not the folder it serves
                self._check_listed(self._model, serving.models, "model")
        return {"model": wanted or self._model}

    def _check_listed(self, name: str, listed: Sequence[str], what: str) -> None:
        if not any(_names(name, one) for one in listed):
            self._listed = None  # so that the next question sees what was started meanwhile
            raise ArmUnavailable(
                msg(
                    "The engine at {} does not list the {} {}; it lists {}.",
                    self._client.address,
                    what,
                    repr(name),
                    ", ".join(map(repr, listed)) or "none",
                ),
                hint="Start the engine with it (docs/serving.md has the lines), or correct --model or --adapter.",
            )

    def _serving(self, *, needed: bool = False) -> _Serving | None:
        """What the engine serves, by its own lists, at most `_LISTED_S` seconds old; None where it does not say.

        With `needed`, what keeps it from saying is raised.
        """
        if self._listed is None or time.monotonic() > self._listed_at + _LISTED_S:
            try:
                self._listed = self._ask_what_is_served()
            except (EngineUnreachable, GenerationFailed, Busy):
                if needed:
                    raise
                return None
            self._listed_at = time.monotonic()
        return self._listed

    def _ask_what_is_served(self) -> _Serving:
        """What all engines that answer serve, since any of them may be asked."""
        first, *others = self._client.of_each(self._lists_of)
        for other in others:
            strangers = first.models and other.models and not set(first.models) & set(other.models)
            if strangers or other.loras != first.loras:  # llama.cpp knows adapters by number
                raise ArmUnavailable(
                    msg("The engines at {} list different models or adapters.", self._client.address),
                    hint="Start all of them with the same model and adapters.",
                )
        contexts = [each.context_tokens for each in (first, *others) if each.context_tokens is not None]
        models = tuple(name for name in first.models if all(name in other.models for other in others))
        return _Serving(models, min(contexts, default=None), first.loras)

    def _lists_of(self, get: Callable[[str], Any]) -> _Serving:
        found = _fields(get("models")).get("data")
        entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
        models = {str(entry.get("id")): entry for entry in entries}
        context = None
        for name, entry in models.items():
            if _names(self._model, name):
                context = entry.get("max_model_len") or _fields(entry.get("meta")).get("n_ctx")
        loras = None
        if any(entry.get("owned_by") == "llamacpp" for entry in entries):
            listed = get("/lora-adapters")
            loras = tuple(str(one.get("path")) for one in listed) if isinstance(listed, list) else ()
        return _Serving(tuple(models), context if isinstance(context, int) else None, loras)

    def _context(self) -> int | None:
        """The engine's context, where the settings or the engine say it (vLLM and SGLang do)."""
        if self._settings.context_tokens is not None:
            return self._settings.context_tokens
        serving = self._serving()
        return serving.context_tokens if serving is not None else None


def _names(name: str | None, listed: str) -> bool:
    """Whether a user's `name` means the engine's: Ollama's has a tag, SGLang's is BASE:ADAPTER, llama.cpp's a file."""
    if name is None:
        return False
    file = PurePath(listed).name
    tagged = listed == f"{name}:latest" or name.endswith(f":{listed}")
    return tagged or name in (listed, file, file.removesuffix(".gguf"))


def _least_tokens(text: str) -> int:
    """A lower bound of the text's tokens."""
    wide = sum(ord(character) > 0x2E80 for character in text)
    return wide // 2 + (len(text) - wide) // (2 * _CHARS_PER_TOKEN)


def _first_choice(answer: Any) -> Json:
    choices = _fields(answer).get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return _fields(choices[0])
    raise _of_another_form(answer)


def _said(choice: Json) -> tuple[str, str]:
    """What a streamed choice adds to the answer, and to the reasoning where the engine divides them."""
    delta = choice.get("delta") or {}
    if not isinstance(delta, dict) or not isinstance(text := delta.get("content") or "", str):
        raise _of_another_form(choice)
    return text, str(delta.get("reasoning_content") or delta.get("reasoning") or "")


def _of_another_form(answer: Any) -> EngineUnreachable:
    return EngineUnreachable(
        msg("The engine does not answer in the OpenAI format: {}", str(answer)[:200]),
        hint="Check that --base-url is an OpenAI-compatible /v1.",
    )


def _fields(found: Any) -> Json:
    """A JSON object; an empty one in place of anything else."""
    return found if isinstance(found, dict) else {}


def _count(found: Any) -> int:
    """A number of tokens; 0 in place of anything else."""
    return int(found) if isinstance(found, int | float) and math.isfinite(found) else 0


def _usage(found: Any, written: int, reasoning: int = 0, finish: Finish = "stop") -> Usage:
    """The engine's counts; where it gives none, the numbers of pieces."""
    found = _fields(found)
    return Usage(
        _count(found.get("prompt_tokens")),
        _count(_fields(found.get("prompt_tokens_details")).get("cached_tokens")),
        _count(found.get("completion_tokens")) or written,
        _count(_fields(found.get("completion_tokens_details")).get("reasoning_tokens")) or reasoning,
        finish,
    )


def _letter_scores(logprobs: Any, letters: str) -> tuple[float, ...] | None:
    """log P of each letter at the first written token that is one; a letter not listed gets 1 less than the least."""
    content = _fields(logprobs).get("content")
    for position in content if isinstance(content, list) else []:
        listed = _fields(position).get("top_logprobs")
        found: dict[str, float] = {}
        least = math.inf
        for entry in listed if isinstance(listed, list) else []:
            text, value = str(_fields(entry).get("token", "")).strip(" .():\n▁Ġ"), _fields(entry).get("logprob")
            if not isinstance(value, int | float):
                continue
            least = min(least, value)
            if text in letters and len(text) == 1:
                found[text] = max(found.get(text, -math.inf), value)
        if found:
            return tuple(found.get(letter, least - 1.0) for letter in letters)
    return None
