"""The `remote` generator: any OpenAI-compatible engine (vLLM, SGLang, LMDeploy, llama.cpp, Ollama), adapters by name.

The engine applies the chat template and keeps prefixes; messages come in the order that lets it (system text and
passages first, question last). It is not contacted before the first request.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator as Yields
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

from rag.errors import ArmUnavailable, EngineUnreachable, GenerationFailed, PromptTooLong
from rag.generators.chat_prompt import ever_smaller
from rag.generators.openai_client import OpenAIClient
from rag.generators.prompts import CHOICE_LETTERS, render_choices, render_messages, says_unknown
from rag.generators.protocol import (
    ChoiceScores,
    GenerationDone,
    GenerationRequest,
    TextPiece,
    adapter_of,
    arms_with,
)
from rag.generators.stream_text import AnswerText
from rag.settings import GeneratorSettings
from rag.types import RETRIEVING_ARMS, Arm, Usage

_TOP_LOGPROBS = 20
_LETTER_TOKENS = 4
_CHARS_PER_TOKEN = 4  # of English; a Chinese character is about one token
_LETTER = re.compile(r"^\W*(?:option|answer|the answer is|选项|答案是?)?\W*([A-J])(?![A-Za-z])", re.IGNORECASE)


class RemoteGenerator:
    """Writes answers with an engine elsewhere."""

    def __init__(self, settings: GeneratorSettings) -> None:
        if not settings.base_url or not settings.model:
            raise ArmUnavailable(
                "The remote generator needs the engine's address and a model.",
                hint="Add --base-url http://HOST:PORT/v1 --model NAME.",
            )
        self._settings = settings
        self._model = settings.model
        self._client = OpenAIClient(settings.base_url, settings.api_key, settings.request_timeout_s)
        self._context_tokens = settings.context_tokens
        self._asked_context = settings.context_tokens is not None

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
            ArmUnavailable: a tuned arm without its adapter.
            PromptTooLong: the question alone is longer than the engine's context by a cautious count.
        """
        self._served_model(request)
        least = _least_tokens(request.question)
        if least > 256 and (context := self._context()) is not None and least > context:
            raise PromptTooLong(
                f"The question has at least {least:,} tokens; {self._model} reads {context:,}.",
                hint="Ask a shorter question, or serve a model with a longer context.",
            )

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        """As `Generator.stream`; when the engine finds the prompt too long the lowest passages, then turns, go.

        Raises:
            ArmUnavailable, PromptTooLong, EngineUnreachable, Busy, GenerationFailed, Cancelled.
        """
        model = self._served_model(request)
        refusal: PromptTooLong | None = None
        for smaller in ever_smaller(request):
            try:
                with closing(self._attempt(smaller, model)) as attempt:
                    yield from attempt
            except PromptTooLong as error:
                refusal = error
            else:
                return
        raise refusal or ValueError("a request has at least one form")

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """Scores options by the log-probability of their letter; 1 and 0 by the letter written where none are given.

        The lowest passages go when the engine finds the prompt too long, as in `stream`.

        Raises:
            GenerationFailed: neither can be read from the answer; other errors as for `stream`.
        """
        refusal: PromptTooLong | None = None
        for smaller in ever_smaller(request):
            try:
                return replace(self._score_choices(smaller, choices), passages_used=len(smaller.passages))
            except PromptTooLong as error:
                refusal = error
        raise refusal or ValueError("a request has at least one form")

    def _score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        listed = replace(request, question=render_choices(request.question, choices), temperature=0.0)
        body = self._body(replace(listed, max_tokens=_LETTER_TOKENS), self._served_model(request))
        body |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
        try:
            answer = self._client.post("chat/completions", body, request.cancelled)
        except GenerationFailed:  # engines that know no logprobs refuse them
            plain = {key: value for key, value in body.items() if "logprobs" not in key}
            answer = self._client.post("chat/completions", plain, request.cancelled)
        choice = _first_choice(answer)
        usage = _usage(answer.get("usage"), _LETTER_TOKENS)
        letters = CHOICE_LETTERS[: len(choices)]
        scores = _letter_scores(choice.get("logprobs"), letters)
        if scores is None:
            written = str((choice.get("message") or {}).get("content") or "")
            found = _LETTER.match(written)
            if found is None or found[1].upper() not in letters:
                raise GenerationFailed(
                    f"The model named no option: {written[:80]!r}.", hint="Such answers are unscored."
                )
            scores = tuple(float(letter == found[1].upper()) for letter in letters)
            return ChoiceScores(scores, usage, {"written": scores})
        return ChoiceScores(scores, usage, {"letters": scores})

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _attempt(self, request: GenerationRequest, model: str) -> Yields[TextPiece | GenerationDone, None, None]:
        body = self._body(request, model) | {"stream": True, "stream_options": {"include_usage": True}}
        answer = AnswerText(request.stop)
        usage: Any = None
        pieces = 0
        finished = False
        first_at = last_at = 0.0
        with closing(self._client.stream("chat/completions", body, request.cancelled)) as events:
            for event in events:
                usage = event.get("usage") or usage
                if not event.get("choices"):
                    continue
                choice = _first_choice(event)
                finished = finished or choice.get("finish_reason") is not None
                text = (choice.get("delta") or {}).get("content")
                if not text:
                    continue
                last_at = time.perf_counter()
                first_at = first_at or last_at
                pieces += 1
                if piece := answer.push(str(text)):
                    yield TextPiece(piece)
                if answer.stopped:  # an engine that ignores `stop`
                    finished = True
                    break
        if not finished:
            raise GenerationFailed("The connection ended before the answer did.", hint="The engine's log says more.")
        if rest := answer.finish():
            yield TextPiece(rest)
        counted = _usage(usage, pieces)
        seconds = last_at - first_at
        yield GenerationDone(
            usage=counted,
            tokens_per_s=(counted.completion_tokens - 1) / seconds if seconds > 0 else 0.0,
            peak_memory_bytes=0,
            refused=request.arm in RETRIEVING_ARMS and says_unknown(answer.shown),
            passages_used=len(request.passages),
        )

    def _body(self, request: GenerationRequest, model: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "messages": render_messages(request),
            "max_tokens": request.max_tokens or self._settings.max_tokens,
            "temperature": request.temperature,
        }
        if request.temperature > 0:
            body["top_p"] = request.sampling_top_p
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stop:
            body["stop"] = list(request.stop)
        return body

    def _served_model(self, request: GenerationRequest) -> str:
        """The engine's model name for the request's arm."""
        adapter = adapter_of(request, self.adapters)
        return self._model if adapter is None else self._settings.adapters[adapter]

    def _context(self) -> int | None:
        """The engine's context, where it says so (vLLM and SGLang do in their list of models); asked once."""
        if not self._asked_context:
            try:
                models = self._client.get("models").get("data")
            except (EngineUnreachable, GenerationFailed):
                return None
            self._asked_context = True
            for entry in models if isinstance(models, list) else []:
                if isinstance(entry, dict) and entry.get("id") == self._model:
                    found = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
                    self._context_tokens = found if isinstance(found, int) else None
        return self._context_tokens


def _least_tokens(text: str) -> int:
    """A lower bound of the text's tokens."""
    wide = sum(ord(character) > 0x2E80 for character in text)
    return wide // 2 + (len(text) - wide) // (2 * _CHARS_PER_TOKEN)


def _first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return cast(dict[str, Any], choices[0])
    raise EngineUnreachable(
        f"The engine does not answer in the OpenAI format: {str(answer)[:200]}",
        hint="Check that --base-url is an OpenAI-compatible /v1.",
    )


def _usage(found: Any, written: int) -> Usage:
    """The engine's count; where it gives none, the number of pieces."""
    if not isinstance(found, dict):
        return Usage(completion_tokens=written)
    details = found.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(int(found.get("prompt_tokens") or 0), int(cached or 0), int(found.get("completion_tokens") or written))


def _letter_scores(logprobs: Any, letters: str) -> tuple[float, ...] | None:
    """log P of each letter at the first written token that is one; a letter not listed gets 1 less than the least."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    for position in content if isinstance(content, list) else []:
        listed = position.get("top_logprobs") if isinstance(position, dict) else None
        found: dict[str, float] = {}
        least = math.inf
        for entry in listed if isinstance(listed, list) else []:
            text, value = str(entry.get("token", "")).strip(" .():\n▁Ġ"), float(entry.get("logprob", -math.inf))
            least = min(least, value)
            if text in letters and len(text) == 1:
                found[text] = max(found.get(text, -math.inf), value)
        if found:
            return tuple(found.get(letter, least - 1.0) for letter in letters)
    return None
