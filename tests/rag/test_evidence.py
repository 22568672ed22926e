"""Laws of judging evidence: signals of words, the sentence that answers, refusals, and the option that fits best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from fakes import ScriptedReader, make_passage, section

from indexes.library import Library
from indexes.words import terms_of
from rag.evidence import (
    CLEARLY_BEST,
    EvidenceJudge,
    clear_option,
    evidence_signals,
    load_calibration,
    not_found,
    proper_names,
    without_nearest,
)
from rag.query import Query, english_query, understand
from rag.retrieval import Retrieval
from rag.sentence_reader import ScoredUnit, units_of
from rag.types import Passage

Found = Callable[[str], Retrieval]
WARP = make_passage("A warp holds 32 threads.", section=("Warps",))


@pytest.fixture
def found(library_of: Callable[..., Library]) -> Found:
    """A question as it is understood by a library that has none of its words."""
    library = library_of(section("Nothing of it."))
    return lambda question: Retrieval(understand(question, library), (), (), ())


def test_the_calibration_names_signals_that_exist_and_its_steps_are_in_order(found: Found) -> None:
    calibration = load_calibration()
    signals = EvidenceJudge(ScriptedReader({})).signals(found("What is a warp?"), [WARP])
    assert set(calibration.weights) <= set(signals)
    assert 0.0 < calibration.threshold < calibration.strong < 1.0


def test_the_reader_counts_for_as_much_of_a_chinese_question_as_was_found() -> None:
    passage = make_passage("父网格在所有子网格完成之后才被视为完成。")
    judge = EvidenceJudge(ScriptedReader({passage.text: 0.9}))

    def read(question: str) -> float:
        query = replace(english_query(question), chinese=True)
        return judge.signals(Retrieval(query, (), (), ()), [passage])["read"]

    assert read("父网格什么时候完成？") > read("父线程和母线程是什么？")


@pytest.mark.parametrize(
    ("text", "question", "unnamed"),
    [
        *(
            ("A warp holds 32 threads, see warpsize. On MI250X `__shared__` memory has 64 KiB.", question, unnamed)
            for question, unnamed in (
                ("How many threads does a warp hold on gfx90a?", 1.0),
                ("What does `hipMallocPitch()` return for a warp?", 1.0),
                ("How many threads does a warp hold?", 0.0),
                ("How large is `__shared__` memory on MI250X?", 0.0),
                ("What does HCO3 hold?", 1.0),
            )
        ),
        ("The bath holds HCO_3.", "What holds HCO3?", 0.0),
        *(
            ("In Numba and ROCm a warp holds 32 threads.", question, unnamed)
            for question, unnamed in (
                ("How many threads does a warp hold in Metal?", 1.0),
                ("What is a warp of NCCLs?", 1.0),
                ("Metal 的 warp 有多少线程？", 1.0),
                ("Numba 的 warp 有多少线程？", 0.0),
                ("Tell me. Please, how many threads does a warp hold?", 0.0),
                ("HOW MANY THREADS DOES A WARP HOLD?", 0.0),
            )
        ),
    ],
)
def test_what_the_question_names_must_stand_in_a_passage(
    found: Found, text: str, question: str, unnamed: float
) -> None:
    assert evidence_signals(found(question), [make_passage(text)])["unnamed"] == unnamed


def test_names_may_be_in_different_passages(found: Found) -> None:
    asked = found("Is allocation by cudaMalloc or by hipMalloc faster?")
    passages = [make_passage(f"{name} is the faster allocation.") for name in ("cudaMalloc", "hipMalloc")]
    assert evidence_signals(asked, passages)["unnamed"] == 0.0
    assert evidence_signals(asked, passages[:1])["unnamed"] == 1.0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("How does NCCL reduce? Is Volta fine?", {"nccl", "volta"}),
        ("Numba 中如何声明共享内存？", {"numba"}),
        ("在Rust里怎么用MPI+OpenMP写kernel？", {"rust", "mpi", "openmp"}),
        ("Is `CUDA_PATH` read by MPI+OpenMP code?", {"mpi", "openmp"}),
        ("Why is my kernel slow? What now", set()),
    ],
)
def test_proper_names_are_words_with_a_capital_of_their_own(text: str, names: set[str]) -> None:
    assert proper_names(text) == names


def test_a_sentence_that_answers_and_words_that_are_found_make_evidence_stronger(found: Found) -> None:
    asked = "How many threads does a warp hold?"
    scores = [
        EvidenceJudge(ScriptedReader({"A warp": read})).score(found(question), [WARP])
        for question, read in (("Who won the football cup?", 0.0), (asked, 0.0), (asked, 0.5), (asked, 1.0))
    ]
    calibration = load_calibration()
    assert scores == sorted(scores) and scores[0] < calibration.threshold and scores[-1] >= calibration.strong


@pytest.mark.parametrize(
    ("said", "strong"),
    [("Register pressure is the demand for registers.", True), ("It takes the pressure off.", False)],
)
def test_a_definition_is_strong_only_where_a_good_sentence_holds_the_name(
    found: Found, said: str, strong: bool
) -> None:
    passages = [make_passage(f"{said} Dogs bark."), make_passage("Registers are many.", node_id="book-1")]
    judge = EvidenceJudge(ScriptedReader({"": 1.0}))
    assert judge.evidence(judge.score(found("What is register pressure?"), passages)) == (
        "strong" if strong else "weak"
    )


@pytest.mark.parametrize("chinese", [True, False])
def test_a_refusal_is_said_without_its_nearest_sections_where_they_are_listed(chinese: bool) -> None:
    assert "Warps" in not_found(chinese, (WARP,))
    assert without_nearest(not_found(chinese, (WARP,))) == not_found(chinese, ())
    answer = "The book names neighbours. The nearest sections: those beside it."
    assert without_nearest(answer) == answer


# --- options of an exam question


class WordsShared:
    """Likes a sentence by how many of the question's words it has."""

    def read(self, query: Query, passages: Sequence[Passage]) -> list[ScoredUnit]:
        asked = terms_of(query.english).pieces
        return [ScoredUnit(unit, 2 * CLEARLY_BEST * len(asked & unit.pieces)) for unit in units_of(passages)]


@pytest.mark.parametrize(
    ("pasted", "letter"),
    [
        ("How many threads has a warp?\nA. 16\nB. 32\nC. 64", "B"),
        ("线程束有多少线程？ A. 16 B. 32 C. 64", "B"),
        ("How many threads has a warp?", None),
        ("How many threads has a warp?\nA. 16\nB. 64", None),
        ("Which is not a warp?\nA. 16 threads\nB. 32 threads", None),
        ("以下哪个是错误的？\nA. 线程束有 32 个线程\nB. 共享内存有存储体", None),
    ],
)
def test_an_option_is_named_where_one_fits_clearly_best(found: Found, pasted: str, letter: str | None) -> None:
    passage = make_passage("A warp is a group of 32 threads. Shared memory is divided into banks.")
    option = clear_option(found(pasted).query, [passage], WordsShared())
    assert (option is not None) is (letter is not None)
    if option is not None:
        query, note = option
        assert f"{letter}（“32”）" in note or f"{letter} (“32”)" in note
        assert "32" in query.english, "sentences are chosen for it"
