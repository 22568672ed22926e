"""The option of a pasted exam question that the passages fit best, and when none is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeLibrary, ScriptedGenerator, make_node, make_passage

from indexes.words import terms_of
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.evidence import CLEARLY_BEST, EvidenceJudge, clear_option
from rag.generators.extractive import ExtractiveGenerator
from rag.question import options_of, stem_of
from rag.retrieval import HybridRetriever, prepare_query
from rag.sentence_reader import LearnedReader, Pair
from rag.settings import RetrievalSettings
from rag.types import Question

TEXT = "A warp is a group of 32 threads. Shared memory is divided into banks. The host starts kernels."


def shared_words(question: str, pairs: Sequence[Pair]) -> np.ndarray:
    """Scores a sentence by the question's words that it has."""
    asked = terms_of(question).pieces
    return np.array([len(asked & terms_of(pair.sentence).pieces) / 20 for pair in pairs], dtype=np.float32)


READER = LearnedReader(shared_words)


def named(pasted: str) -> str | None:
    asked = prepare_query(stem_of(pasted))
    option = clear_option(asked, options_of(pasted), [make_passage(TEXT)], READER)
    return option.note if option is not None else None


def test_the_option_that_a_sentence_answers_with_is_named() -> None:
    note = named("How many threads has a warp?\nA. 16\nB. 32\nC. 64")
    assert note is not None and note.startswith("Of the options, B (“32”) fits these passages best.")
    chinese = named("线程束有多少线程？ A. 16 B. 32 C. 64")
    assert chinese is not None and chinese.startswith("在各选项中，B（“32”）")


@pytest.mark.parametrize(
    "pasted",
    [
        "How many threads has a warp?",
        "How many threads has a warp?\nA. 16\nB. 64",
        "Which is not a warp?\nA. 16 threads\nB. 32 threads",
        "以下哪个是错误的？\nA. 线程束有 32 个线程\nB. 共享内存有存储体",
        "What has a warp?\nA. 32 threads\nB. a host\nC. all of the above",
    ],
)
def test_none_is_named_where_none_fits_better_or_the_wrong_one_is_wanted(pasted: str) -> None:
    assert named(pasted) is None


@pytest.mark.parametrize(("writes", "strong"), [(False, True), (False, False), (True, True)])
def test_it_is_said_beside_an_answer_with_strong_evidence(tmp_path: Path, writes: bool, strong: bool) -> None:
    """A language model weighs the options itself."""
    library = FakeLibrary([make_node(TEXT)])
    judge = EvidenceJudge(READER, 0.0)
    judge.strong = 0.0 if strong else 2.0
    engine = AnswerEngine(
        library,
        HybridRetriever(library, RetrievalSettings()),
        ScriptedGenerator() if writes else ExtractiveGenerator(READER, "hash"),
        ConversationStore(tmp_path / "conversations.sqlite3"),
        chooser=ScriptedGenerator(),
        judge=judge,
    )
    answer = engine.ask(Question("How many threads has a warp?\nA. 16\nB. 32\nC. 64"))
    assert ("Of the options, B" in (answer.note or "")) is (strong and not writes)
    assert CLEARLY_BEST < 1 / 20
