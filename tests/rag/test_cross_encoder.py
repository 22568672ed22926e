"""Laws of the learned reader: one text form for training and serving, what is read, digests, and what shipped."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from fakes import make_passage, signals_only
from numpy.typing import NDArray

from rag.errors import ModelCannotLoad
from rag.sentence_reader import (
    HEADING_TOKENS,
    QUESTION_TOKENS,
    READ_UNITS,
    SENTENCE_TOKENS,
    CrossEncoder,
    LearnedReader,
    Pair,
    PairTokenizer,
    candidates,
)

SHIPPED = Path(str(files("rag"))) / "reader_adapter"
QUESTION = "What is a warp?"


def pair(sentence: str, signals: float = 0.5) -> Pair:
    return Pair(sentence, "Chapter > Warps", signals)


def test_a_long_question_sentence_and_heading_are_cut_not_refused() -> None:
    encoded = PairTokenizer().encode("warp " * 900, [Pair("lane " * 900, "head " * 90, 0.0)])[0]
    assert (encoded.question_tokens, encoded.sentence_tokens) == (QUESTION_TOKENS, SENTENCE_TOKENS)
    assert len(encoded.ids) == QUESTION_TOKENS + SENTENCE_TOKENS + HEADING_TOKENS + 4


def test_headings_and_listings_are_not_read_and_the_headings_over_a_sentence_come_along() -> None:
    passage = make_passage("# Warps\n\nA warp has 32 threads. It runs in lockstep.\n\n```c\nint warp;\n```\n")
    units, pairs = candidates(QUESTION, [passage])
    assert [unit.text for unit in units] == ["A warp has 32 threads.", "It runs in lockstep."]
    assert {one.heading for one in pairs} == {"Chapter > Section"}


def test_listings_are_read_where_code_is_asked_for_and_only_there() -> None:
    passage = make_passage(
        "A kernel adds two vectors:\n\n```c\nadd(a, b, vectors);\n```\n\nDogs bark.\n\n```c\nint other;\n```\n"
    )
    reader = LearnedReader(signals_only)
    read = [item.unit for item in reader.read("Write a kernel that adds two vectors", [passage])]
    assert [unit.text.splitlines()[1] for unit in read if unit.kind == "code"] == ["add(a, b, vectors);", "int other;"]
    assert all(item.unit.kind != "code" for item in reader.read("What does a kernel add?", [passage]))


def test_a_limited_number_of_sentences_is_read_and_asking_again_reads_none() -> None:
    read: list[int] = []

    def score(question: str, pairs: list[Pair]) -> NDArray[np.float32]:
        read.append(len(pairs))
        return signals_only(question, pairs)

    reader = LearnedReader(score)  # type: ignore[arg-type]
    passage = make_passage(" ".join(f"Sentence {number} is about a warp." for number in range(60)))
    assert reader.read(QUESTION, [passage]) == reader.read(QUESTION, [passage])
    assert read == [READ_UNITS]


TEXT = (
    "With a stride of two floats the warp touches eight sectors. A warp is a group of 32 threads that run one "
    "instruction together. The next chapter shows how to use the profiler. Shared memory has 32 banks"
)


@pytest.fixture(scope="module")
def shipped() -> CrossEncoder:
    return CrossEncoder(device="cpu")


@pytest.mark.integration
def test_the_shipped_reader_prefers_the_sentence_that_answers(shipped: CrossEncoder) -> None:
    sentences = [
        "With a stride of two floats the warp touches eight sectors.",
        "A warp is a group of 32 threads that run one instruction together.",
        "The next chapter shows how to use the profiler.",
    ]
    scores = shipped.score(QUESTION, [pair(sentence) for sentence in sentences])
    assert int(np.argmax(scores)) == 1
    assert ((scores > 0) & (scores < 1)).all()


def in_format(dtype: str, monkeypatch: pytest.MonkeyPatch) -> CrossEncoder:
    with monkeypatch.context() as patch:
        patch.setattr("rag.sentence_reader.usual_dtype", lambda _: dtype)
        reader = CrossEncoder(device="cpu")
        reader.load()
    return reader


@pytest.mark.integration
def test_scores_do_not_depend_on_what_is_read_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = in_format("float32", monkeypatch)
    pairs = [pair("A warp has 32 threads. " * size, size / 10) for size in range(1, 8)]
    together = reader.score(QUESTION, pairs)
    alone = [reader.score(QUESTION, [one])[0] for one in pairs]
    assert together == pytest.approx(alone, abs=1e-5)
    assert reader.score(QUESTION, []).shape == (0,)


@pytest.mark.integration
def test_scores_in_half_the_bits_are_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a processor or GPU with bfloat16 units computes."""
    pairs = [pair(sentence, 0.5) for sentence in (*TEXT.split(". "), "A warp has 32 threads. " * 12)]
    exact = in_format("float32", monkeypatch).score(QUESTION, pairs)
    rounded = in_format("bfloat16", monkeypatch).score(QUESTION, pairs)
    assert 0 < abs(exact - rounded).max() < 0.02
    assert exact.argmax() == rounded.argmax()


@pytest.mark.integration
def test_a_damaged_or_missing_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelCannotLoad, match="cannot be read"):
        CrossEncoder(tmp_path / "none").load()
    shutil.copytree(SHIPPED, tmp_path / "cut")
    weights = tmp_path / "cut" / "adapter.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelCannotLoad, match="damaged") as caught:
        CrossEncoder(tmp_path / "cut").load()
    assert "tools.reader_training" in caught.value.hint
