"""Laws of comparing terms, of prompts, of choosing options and of judging evidence."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeLibrary, hash_embed, make_node, make_passage, signals_only

from indexes.types import Filters
from indexes.words import count_words, is_identifier, stem, terms_of
from rag.citations import support_of
from rag.errors import ArmUnavailable
from rag.evidence import EvidenceJudge, evidence_signals, load_calibration, not_found, proper_names, without_nearest
from rag.generators.encoder import EncoderAnswerer
from rag.generators.prompts import render_choices, render_messages
from rag.generators.protocol import GenerationRequest, Turn
from rag.retrieval import HybridRetriever
from rag.sentence_reader import LearnedReader
from rag.settings import RetrievalSettings


@pytest.mark.parametrize("pair", [("threads", "thread"), ("synchronized", "synchronizes"), ("memories", "memory")])
def test_forms_of_a_word_share_a_stem(pair: tuple[str, str]) -> None:
    assert stem(pair[0]) == stem(pair[1])


@pytest.mark.parametrize(
    ("token", "expected"),
    [("cudaMemcpyAsync", True), ("__syncthreads()", True), ("threadIdx.x", True), ("warp", False), ("GPU", False)],
)
def test_names_from_code_are_distinguished_from_words(token: str, expected: bool) -> None:
    assert is_identifier(token) is expected


def test_numbers_are_compared_without_thousands_separators() -> None:
    assert terms_of("It holds 65,536 registers").numbers == terms_of("65536 of them").numbers == {"65536"}


def test_two_chinese_characters_count_as_a_word() -> None:
    assert count_words("warp 线程束块") == 2 + 2


def test_support_names_what_is_missing() -> None:
    support = support_of("`cudaFoo` copies 64 bytes", "cudaBar copies 32 bytes")
    assert support.missing == {"cudafoo", "64"}
    assert support.verdict != "supported"


PASSAGE = make_passage("A warp holds 32 threads.", page_start=4, page_label="iv", section=("Warps",))


def test_what_repeats_comes_first_and_the_question_last() -> None:
    turns = (Turn("Earlier?", "So."),)
    request = GenerationRequest("What is a warp?", "rag", (PASSAGE,), turns)
    messages = render_messages(request)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert "[1] A Book > Warps, p. iv\nA warp holds 32 threads." in messages[0]["content"]
    assert messages[-1]["content"].startswith("What is a warp?")
    other = render_messages(GenerationRequest("Another question?", "rag", (PASSAGE,), turns))
    assert other[:-1] == messages[:-1]


def test_the_answers_language_is_the_questions() -> None:
    assert "Chinese" in render_messages(GenerationRequest("什么是线程束？", "base"))[-1]["content"]
    assert "English" in render_messages(GenerationRequest("What is a warp?", "base"))[-1]["content"]


def test_without_passages_no_marker_is_asked_for() -> None:
    assert "square brackets" not in render_messages(GenerationRequest("q", "base"))[0]["content"]


def test_options_are_lettered() -> None:
    assert "A. one\nB. two\n" in render_choices("Which?", ["one", "two"])


OPTIONS = ("It holds 32 threads", "It holds 64 bananas", "It holds one register", "It holds nothing")


def test_passages_decide_between_options() -> None:
    answerer = EncoderAnswerer(hash_embed, "hash")
    request = GenerationRequest("How many threads does a warp hold?", "rag", (PASSAGE,))
    scores = answerer.score_choices(request, OPTIONS).scores
    assert max(range(4), key=lambda i: scores[i]) == 0


def test_the_order_of_options_does_not_change_their_scores() -> None:
    answerer = EncoderAnswerer(hash_embed, "hash")
    request = GenerationRequest("How many threads does a warp hold?", "rag", (PASSAGE,))
    forwards = answerer.score_choices(request, OPTIONS).scores
    backwards = answerer.score_choices(request, OPTIONS[::-1]).scores
    assert forwards == pytest.approx(backwards[::-1])


def test_passages_without_a_sentence_decide_nothing() -> None:
    request = GenerationRequest("How many threads?", "rag", (make_passage("# Only a heading"),))
    assert len(EncoderAnswerer(hash_embed, "hash").score_choices(request, OPTIONS).scores) == 4


def test_an_adapter_is_opened_once_and_only_for_tuned_arms() -> None:
    opened: list[str] = []

    def open_adapter():
        opened.append("once")
        return lambda texts: -hash_embed(texts) * 1.0

    answerer = EncoderAnswerer(hash_embed, "hash", lambda: {"a": open_adapter})
    assert answerer.arms == ("base", "tuned", "rag", "rag+tuned")
    answerer.score_choices(GenerationRequest("q", "base"), OPTIONS)
    assert opened == []
    for _ in range(2):
        answerer.score_choices(GenerationRequest("q", "tuned", adapter="a"), OPTIONS)
    assert opened == ["once"]


@pytest.mark.parametrize("adapter", [None, "nobody"])
def test_a_tuned_arm_without_its_adapter_is_refused(adapter: str | None) -> None:
    with pytest.raises(ArmUnavailable):
        EncoderAnswerer(hash_embed, "hash").score_choices(GenerationRequest("q", "tuned", adapter=adapter), OPTIONS)


def test_the_calibration_names_signals_that_exist() -> None:
    library = FakeLibrary([make_node("A warp holds 32 threads.")])
    retrieval = HybridRetriever(library, RetrievalSettings()).search("What is a warp?", Filters())
    calibration = load_calibration()
    assert set(calibration.weights) <= set(EvidenceJudge(LearnedReader(signals_only)).signals(retrieval, [PASSAGE]))
    assert 0.0 < calibration.asked <= calibration.threshold < calibration.strong < 1.0


@pytest.mark.parametrize(
    ("question", "unnamed"),
    [
        ("How many threads does a warp hold on gfx90a?", 1.0),
        ("What does `hipMallocPitch()` return for a warp?", 1.0),
        ("How many threads does a warp hold?", 0.0),
        ("What does numba.cuda.warpsize say?", 0.0),  # the passage says `warpsize`
        ("Which compiler flag selects MI250X for installing?", 1.0),  # named, but not where that is told
        ("How large is `__shared__` memory on MI250X?", 0.0),
    ],
)
def test_what_the_question_names_must_stand_in_a_passage(question: str, unnamed: float) -> None:
    passage = make_passage("A warp holds 32 threads, see warpsize. On MI250X `__shared__` memory has 64 KiB.")
    library = FakeLibrary([make_node(passage.text)])
    retrieval = HybridRetriever(library, RetrievalSettings()).search(question, Filters())
    assert evidence_signals(retrieval, [passage])["unnamed"] == unnamed
    judge = EvidenceJudge(LearnedReader(signals_only))
    assert judge.score(retrieval, [passage]) < judge.threshold or not unnamed


@pytest.mark.parametrize(
    ("question", "unnamed"),
    [
        ("How many threads does a warp hold in Metal?", 1.0),
        ("What is a warp of NCCLs?", 1.0),
        ("Metal 的 warp 有多少线程？", 1.0),
        ("Numba 的 warp 有多少线程？", 0.0),
        ("Warps of AMD: how many threads?", 0.0),  # the passage speaks of ROCm
        ("Tell me. Please, how many threads does a warp hold?", 0.0),
        ("HOW MANY THREADS DOES A WARP HOLD?", 0.0),
    ],
)
def test_a_name_that_no_passage_holds_weakens_the_evidence(question: str, unnamed: float) -> None:
    passage = make_passage("In Numba and ROCm a warp holds 32 threads.")
    retrieval = HybridRetriever(FakeLibrary([make_node(passage.text)]), RetrievalSettings()).search(question, Filters())
    assert evidence_signals(retrieval, [passage])["unnamed"] == unnamed


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("How does NCCL reduce? Is Volta fine?", {"nccl", "volta"}),
        ("Numba 中如何声明共享内存？", {"numba"}),
        ("在Rust里怎么用MPI+OpenMP写kernel？", {"rust", "mpi", "openmp"}),
        ("Is MPI+OpenMP code in C++ or C#?", {"mpi", "openmp", "c++", "c#"}),
        ("`CUDA_PATH`, std::Vector and a GPU", set()),
        ("Why is my kernel slow? What now", set()),
    ],
)
def test_proper_names_are_words_with_a_capital_of_their_own(text: str, names: set[str]) -> None:
    assert proper_names(text) == names


def test_names_may_be_in_different_passages() -> None:
    question = "Is allocation by cudaMalloc or by hipMalloc faster?"
    passages = [make_passage(f"{name} is the faster allocation.") for name in ("cudaMalloc", "hipMalloc")]
    library = FakeLibrary([make_node(passage.text, place) for place, passage in enumerate(passages)])
    retrieval = HybridRetriever(library, RetrievalSettings()).search(question, Filters())
    assert evidence_signals(retrieval, passages)["unnamed"] == 0.0
    assert evidence_signals(retrieval, passages[:1])["unnamed"] == 1.0


@pytest.mark.parametrize(
    ("said", "strong"),
    [("Register pressure is the demand for registers.", True), ("It takes the pressure off.", False)],
)
def test_a_definition_is_strong_only_where_a_good_sentence_holds_the_name(said: str, strong: bool) -> None:
    passages = [make_passage(f"{said} Dogs bark."), make_passage("Registers are many.", node_id="book-1")]
    library = FakeLibrary([make_node(passage.text, place) for place, passage in enumerate(passages)])
    retrieval = HybridRetriever(library, RetrievalSettings()).search("What is register pressure?", Filters())
    judge = EvidenceJudge(LearnedReader(lambda _, pairs: np.ones(len(pairs), dtype=np.float32)))
    assert judge.evidence(judge.score(retrieval, passages)) == ("strong" if strong else "weak")


def test_terms_that_are_found_make_evidence_stronger() -> None:
    library = FakeLibrary([make_node("A warp holds 32 threads."), make_node("Cats sleep.", 1)])
    retriever = HybridRetriever(library, RetrievalSettings())
    judge = EvidenceJudge(LearnedReader(signals_only))
    on = judge.score(retriever.search("How many threads does a warp hold?", Filters()), [PASSAGE])
    off = judge.score(retriever.search("Who won the football cup of 1966?", Filters()), [PASSAGE])
    assert off < judge.threshold <= on


@pytest.mark.parametrize("question", ["How do I bake bread?", "怎么烤面包？"])
def test_a_refusal_is_said_without_its_nearest_sections_where_they_are_listed(question: str) -> None:
    assert "Warps" in not_found(question, (PASSAGE,))
    assert without_nearest(not_found(question, (PASSAGE,))) == not_found(question, ())


def test_an_answer_that_names_the_nearest_sections_is_left_whole() -> None:
    answer = "The book names neighbours. The nearest sections: those beside it."
    assert without_nearest(answer) == answer
