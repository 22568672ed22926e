"""llama-index, both ways: our retriever for its query engines, and its LLMs as our generator.

The product imports this file only for `generator = llama_index`. Examples that the tests run: `docs/llama-index.md`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.llms import LLM
from llama_index.core.schema import NodeWithScore, QueryBundle

from indexes.errors import Cancelled
from indexes.llama_index import load_part, reason_of, to_text_node
from indexes.types import Filters
from rag.errors import ArmUnavailable, GenerationFailed
from rag.generators.prompts import render_messages, says_unknown
from rag.generators.protocol import GenerationDone, GenerationRequest, Item, TextPiece, only_thought
from rag.generators.stream_text import AnswerText, RepetitionGuard
from rag.models.devices import peak_memory_bytes
from rag.query import understand
from rag.retrieval import HybridRetriever
from rag.types import RETRIEVING_ARMS, TUNED_ARMS, Arm, Thinking, Usage


class PassageRetriever(BaseRetriever):
    """Our search by meaning and by words as a llama-index retriever.

    Args:
        retriever: such as `HybridRetriever(library, RetrievalSettings())`.
        top_k: most nodes given.
        filters: books, chapters and pages to search in.
    """

    def __init__(self, retriever: HybridRetriever, top_k: int = 5, filters: Filters | None = None) -> None:
        super().__init__()
        self._retriever = retriever
        self._top_k = top_k
        self._filters = filters or Filters()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._retriever.search(understand(query_bundle.query_str, self._retriever.library, self._filters))
        return [NodeWithScore(node=to_text_node(hit.node), score=hit.score) for hit in found.hits[: self._top_k]]


def load_llm(spec: str) -> LlamaIndexGenerator:
    """The generator over the LLM that the setting `model` names. Raises InvalidInput."""
    return LlamaIndexGenerator(load_part(spec, LLM), spec)  # type: ignore[type-abstract]


class LlamaIndexGenerator:
    """A llama-index LLM as our `Generator`, for the arms `base` and `rag`.

    How long an answer gets and how it is sampled are the LLM's own settings, given where it is named; stop strings are
    looked for here. Token counts are 0 where the LLM reports none.
    """

    name = "llama_index"
    arms: tuple[Arm, ...] = ("base", "rag")
    adapters: tuple[str, ...] = ()

    def __init__(self, llm: LLM, spec: str) -> None:
        self._llm = llm
        self.model_name = llm.metadata.model_name or spec.partition("?")[0]

    def check(self, request: GenerationRequest) -> None:
        """Raises ArmUnavailable for the tuned arms."""
        if request.arm in TUNED_ARMS:
            raise ArmUnavailable(
                f"The arm {request.arm} needs a LoRA adapter; a llama-index LLM has none.",
                hint="Use --generator local or remote with --adapter.",
            )

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """As `Generator.stream`.

        Raises:
            GenerationFailed: what the LLM raised, or its answer was or held reasoning.
            Cancelled: `request.cancelled` became true.
        """
        self.check(request)
        messages = [ChatMessage(role=one["role"], content=one["content"]) for one in render_messages(request)]
        answer, guard, usage, thinking = AnswerText(request.stop), RepetitionGuard(), Usage(), False
        started = time.perf_counter()
        for response in self._responses(messages):
            if request.cancelled():
                raise Cancelled("The answer was stopped.")
            usage = _usage(response, usage)
            text = answer.push(response.delta or "")
            if answer.thought_unseen:
                raise GenerationFailed(
                    f"{self.model_name} thinks before it answers, and sent that as the answer.",
                    hint="Turn reasoning off where the LLM is named, or use a model that does not reason.",
                )
            if answer.thinking is not None and not thinking:
                thinking = True
                yield Thinking()
            if text := guard.push(response.delta or "", text):
                yield TextPiece(text)
            if answer.stopped or guard.circling:
                break
        if guard.circling:
            usage = replace(usage, finish="length")
        elif text := guard.finish() + answer.finish():
            yield TextPiece(text)
        if answer.thought and not answer.shown.strip():
            raise only_thought(self.model_name, replace(usage, reasoning_tokens=usage.completion_tokens))
        seconds = time.perf_counter() - started
        yield GenerationDone(
            usage=usage,
            tokens_per_s=usage.completion_tokens / seconds if seconds > 0 else 0.0,
            peak_memory_bytes=peak_memory_bytes("cpu"),
            refused=request.arm in RETRIEVING_ARMS and says_unknown(answer.shown),
            passages_used=len(request.passages),
        )

    def close(self) -> None:
        """Nothing to free."""

    def _responses(self, messages: list[ChatMessage]) -> Iterator[ChatResponse]:
        try:
            yield from self._llm.stream_chat(messages)
        except Exception as error:
            raise GenerationFailed(
                f"The LLM {self.model_name} failed: {reason_of(error)}", hint="See that its engine runs."
            ) from error


def _usage(response: ChatResponse, before: Usage) -> Usage:
    """Token counts of a response in OpenAI's form, which most LLMs use; `before` if it has none."""
    counts = response.additional_kwargs
    if "completion_tokens" not in counts:
        return before
    return Usage(int(counts.get("prompt_tokens") or 0), 0, int(counts["completion_tokens"] or 0))
