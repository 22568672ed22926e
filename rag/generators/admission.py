"""Checks before work starts: does the prompt fit the context, and its KV cache the memory?

A request that is too large loses its lowest passages, then its oldest turns; one that can never fit is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from indexes.messages import msg
from rag.errors import DoesNotFitInMemory, PromptTooLong
from rag.generators.chat_prompt import ever_smaller
from rag.generators.protocol import GenerationRequest
from rag.models.capabilities import Capabilities

_LEAST_ANSWER_TOKENS = 16
CLOSING_TOKENS = 64
"""Room for the mark that ends reasoning."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that can run.

    Attributes:
        request: with the passages and turns that fit.
        prompt: its tokens.
        max_new_tokens: longest answer.
        kv_bytes: KV cache of prompt and longest answer.
        reasoning_tokens: longest reasoning before it, as far as context and memory reach.
    """

    request: GenerationRequest
    prompt: list[int]
    max_new_tokens: int
    kv_bytes: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of one model on one machine.

    Attributes:
        tokenize: gives a request's prompt as tokens.
        budget_bytes: for the KV cache, of the running answer and kept prefixes together.
        default_max_tokens: longest answer when the request names none.
        reasoning_tokens: longest reasoning of a model that thinks first.
    """

    capabilities: Capabilities
    tokenize: Callable[[GenerationRequest], list[int]]
    model_name: str
    budget_bytes: int
    dtype_bytes: int
    default_max_tokens: int
    reasoning_tokens: int = 0

    def admit(self, request: GenerationRequest) -> Admitted:
        """The request as it can run: smaller where it has to be.

        Raises:
            PromptTooLong: the question alone leaves no room for an answer in the context.
            DoesNotFitInMemory: the question alone needs more bytes than the budget.
        """
        refusal: PromptTooLong | DoesNotFitInMemory | None = None
        for smaller in ever_smaller(request):
            prompt = self.tokenize(smaller)
            refusal = self._refusal(len(prompt), smaller.max_tokens)
            if refusal is None:
                new = self._max_new_tokens(len(prompt), smaller.max_tokens)
                total = len(prompt) + new
                return Admitted(smaller, prompt, new, self.kv_bytes(total), self._reasoning_tokens(total))
        raise refusal or ValueError("a request has at least one form")

    def check(self, request: GenerationRequest) -> None:
        """Raises as `admit` does, for the question alone: before anything is retrieved."""
        refusal = self._refusal(len(self.tokenize(replace(request, passages=(), turns=()))), request.max_tokens)
        if refusal is not None:
            raise refusal

    def _max_new_tokens(self, prompt_tokens: int, wanted: int | None) -> int:
        """Longest answer: the wanted length, as far as the context reaches."""
        return max(min(wanted or self.default_max_tokens, self.capabilities.context_tokens - prompt_tokens), 1)

    def _reasoning_tokens(self, total: int) -> int:
        """Longest reasoning beside a prompt and an answer of `total` tokens together."""
        one = max(self.kv_bytes(total + 1) - self.kv_bytes(total), 1)
        affordable = (self.budget_bytes - self.kv_bytes(total)) // one
        room = min(self.capabilities.context_tokens - total, affordable) - CLOSING_TOKENS
        return max(min(self.reasoning_tokens, room), 0)

    def _refusal(self, prompt_tokens: int, wanted: int | None) -> PromptTooLong | DoesNotFitInMemory | None:
        context = self.capabilities.context_tokens
        room = min(wanted or self.default_max_tokens, max(context // 4, _LEAST_ANSWER_TOKENS))
        if prompt_tokens + room > context:
            return PromptTooLong(
                msg(
                    "The question makes a prompt of {} tokens; {} reads {}, of which {} are kept for the answer.",
                    f"{prompt_tokens:,}",
                    self.model_name,
                    f"{context:,}",
                    f"{room:,}",
                ),
                hint="Ask a shorter question, or serve a model with a longer context.",
            )
        tokens = prompt_tokens + self._max_new_tokens(prompt_tokens, wanted)
        needed = self.kv_bytes(tokens)
        if needed > self.budget_bytes:
            return DoesNotFitInMemory(
                msg(
                    "{} prompt tokens and {} for the answer need "
                    "{} of KV cache ({} for 1,000 tokens); "
                    "the budget is {}.",
                    f"{prompt_tokens:,}",
                    f"{tokens - prompt_tokens:,}",
                    _mib(needed),
                    _mib(self.kv_bytes(1000)),
                    _mib(self.budget_bytes),
                ),
                hint="Ask for fewer max_tokens, or raise the budget (kv_budget_bytes).",
            )
        return None

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of KV cache for `tokens` tokens."""
        return self.capabilities.kv_bytes(tokens, self.dtype_bytes)


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
