"""Our generators as llama-index LLMs."""

from __future__ import annotations

import pytest
from fakes import ScriptedGenerator
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms import LLM

from indexes.errors import InvalidInput
from rag.generators.llama_index_llm import GeneratorLLM
from rag.types import Turn


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
