"""Our retriever in llama-index's query engines, its LLMs as our generator, and the guide to both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder, make_passage
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM, MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

from indexes.errors import Cancelled, InvalidInput
from indexes.library import open_library
from indexes.settings import IndexSettings
from indexes.types import Filters
from rag.assemble import build_language_model
from rag.errors import ArmUnavailable, GenerationFailed
from rag.generators.protocol import GenerationDone, GenerationRequest, Generator, TextPiece
from rag.llama_index import LlamaIndexGenerator, PassageRetriever
from rag.query import understand
from rag.retrieval import HybridRetriever
from rag.settings import GeneratorSettings, RetrievalSettings
from rag.types import Usage


def test_the_retriever_gives_the_order_of_our_search_to_a_query_engine(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Book\n\n## A\n\nA warp has 32 threads.\n\n## B\n\nShared memory is fast.\n")
    library = open_library(IndexSettings(tmp_path / "home"), embedder=HashEncoder())
    library.load()
    library.add(tmp_path / "b.md")
    ours = HybridRetriever(library, RetrievalSettings())
    engine = RetrieverQueryEngine.from_args(PassageRetriever(ours, top_k=2), llm=MockLLM())
    found = engine.query("How many threads has a warp?").source_nodes
    hits = ours.search(understand("How many threads has a warp?", library)).hits[:2]
    assert [(one.node.node_id, one.score) for one in found] == [(hit.node.node_id, hit.score) for hit in hits]
    assert found[0].node.get_content() == "A warp has 32 threads."
    assert PassageRetriever(ours, filters=Filters(chapters=(7,))).retrieve("warp") == []
    library.close()


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
        assert "A warp has 32 threads." in str(messages[-1].content)
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


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_every_example_of_the_guide_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    guide = (Path(__file__).resolve().parents[2] / "docs" / "llama-index.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    names: dict[str, object] = {}
    for number, example in enumerate(examples, 1):
        exec(compile(example, f"example {number}", "exec"), names)
