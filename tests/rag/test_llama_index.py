"""Our retriever and generators in llama-index's programs, and its LLMs as our generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeLibrary, ScriptedGenerator, make_node, make_passage
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata, MessageRole
from llama_index.core.llms import LLM, CustomLLM

from indexes.errors import Cancelled, InvalidInput
from indexes.types import Filters
from rag.assemble import build_language_model
from rag.errors import ArmUnavailable, GenerationFailed
from rag.generators.protocol import GenerationDone, GenerationRequest, Generator, TextPiece
from rag.llama_index import GeneratorLLM, LlamaIndexGenerator, PassageRetriever
from rag.retrieval import HybridRetriever
from rag.settings import GeneratorSettings, RetrievalSettings
from rag.types import Turn, Usage


def test_it_completes_and_streams_as_any_llm() -> None:
    generator = ScriptedGenerator(("A warp ", "is 32 threads."), arms=("base", "tuned"), adapters=("qa",))
    llm = GeneratorLLM(generator, adapter="qa", max_tokens=33)
    assert isinstance(llm, LLM)
    assert llm.complete("What is a warp?").text == "A warp is 32 threads."
    assert [(part.delta, part.text) for part in llm.stream_complete("What?")] == [
        ("A warp ", "A warp "),
        ("is 32 threads.", "A warp is 32 threads."),
    ]
    request = generator.requests[0]
    assert (request.question, request.arm, request.adapter, request.max_tokens) == (
        "What is a warp?",
        "tuned",
        "qa",
        33,
    )
    assert llm.metadata.model_name == "script"


def test_a_chats_exchanges_become_turns() -> None:
    generator = ScriptedGenerator(("Yes.",))
    said = [
        (MessageRole.SYSTEM, "Be brief."),
        (MessageRole.USER, "First?"),
        (MessageRole.ASSISTANT, "One."),
        (MessageRole.USER, "Second?"),
    ]
    messages = [ChatMessage(role=role, content=text) for role, text in said]
    llm = GeneratorLLM(generator)
    assert llm.chat(messages).message.content == "Yes."
    assert [part.delta for part in llm.stream_chat(messages)] == ["Yes."]
    assert generator.requests[0].turns == (Turn("First?", "One."),)
    assert generator.requests[0].question == "Second?"
    with pytest.raises(InvalidInput, match="does not end with a question"):
        llm.chat(messages[:-1])


def test_the_retriever_gives_the_order_of_our_search() -> None:
    library = FakeLibrary(
        [make_node("A warp has 32 threads.", 0), make_node("Shared memory is fast.", 1), make_node("Streams run.", 2)]
    )
    ours = HybridRetriever(library, RetrievalSettings())
    found = PassageRetriever(ours, top_k=2).retrieve("How many threads has a warp?")
    hits = ours.search("How many threads has a warp?", Filters()).hits[:2]
    assert [(one.node.node_id, one.score) for one in found] == [(hit.node.node_id, hit.score) for hit in hits]
    assert PassageRetriever(ours, filters=Filters(chapters=(7,))).retrieve("warp") == []


class SlowLLM(CustomLLM):
    """Writes an answer in three pieces, the first of them hidden reasoning."""

    fails: bool = False
    opening: str = "<think>"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="slow")

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        raise NotImplementedError

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Iterator[CompletionResponse]:
        raise NotImplementedError

    def stream_chat(self, messages: Sequence[ChatMessage], **_: Any) -> Iterator[ChatResponse]:
        if self.fails:
            raise ConnectionError("no route to the engine")
        assert "A warp has 32 threads." in str(messages[0].content)
        text = ""
        for piece in (f"{self.opening}hm</think>", "It has 32 ", "threads. [1]"):
            text += piece
            counts = {"prompt_tokens": 90, "completion_tokens": 9}
            yield ChatResponse(message=ChatMessage(content=text), delta=piece, additional_kwargs=counts)


def ask(generator: LlamaIndexGenerator, **fields: Any) -> list[TextPiece | GenerationDone]:
    request = GenerationRequest("How many threads?", "rag", passages=(make_passage("A warp has 32 threads."),))
    return list(generator.stream(replace(request, **fields)))


def test_a_named_llm_writes_answers_from_our_prompt() -> None:
    *pieces, done = ask(LlamaIndexGenerator(SlowLLM(), "llama_index:x:y"))
    assert pieces == [TextPiece("It has 32 "), TextPiece("threads. [1]")]
    assert isinstance(done, GenerationDone)
    assert (done.usage, done.refused, done.passages_used) == (Usage(90, 0, 9), False, 1)


def test_an_answer_of_a_named_llm_ends_before_a_stop_string() -> None:
    *pieces, done = ask(LlamaIndexGenerator(SlowLLM(), "llama_index:x:y"), stop=("threads",))
    assert pieces == [TextPiece("It has 32 ")]
    assert isinstance(done, GenerationDone)


def test_reasoning_that_the_prompt_of_a_named_llm_opened_is_an_error() -> None:
    with pytest.raises(GenerationFailed, match="sent that as the answer"):
        ask(LlamaIndexGenerator(SlowLLM(opening=""), "llama_index:x:y"))


def test_a_named_llm_that_fails_or_has_no_adapter_is_a_clear_error() -> None:
    with pytest.raises(GenerationFailed, match="no route to the engine"):
        ask(LlamaIndexGenerator(SlowLLM(fails=True), "llama_index:x:y"))
    with pytest.raises(ArmUnavailable, match="adapter"):
        ask(LlamaIndexGenerator(SlowLLM(), "llama_index:x:y"), arm="rag+tuned")
    with pytest.raises(Cancelled):
        ask(LlamaIndexGenerator(SlowLLM(), "llama_index:x:y"), cancelled=lambda: True)


def test_settings_name_an_llm() -> None:
    settings = GeneratorSettings(kind="llama_index", model="llama_index:llama_index.core.llms:MockLLM?max_tokens=3")
    generator = build_language_model(settings)
    assert isinstance(generator, Generator)
    assert generator.name == "llama_index"
    assert "".join(piece.text for piece in ask(generator) if isinstance(piece, TextPiece)) == "text text text"
    with pytest.raises(InvalidInput, match="needs an LLM"):
        build_language_model(GeneratorSettings(kind="llama_index"))
