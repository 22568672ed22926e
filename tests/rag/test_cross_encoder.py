"""Laws of the learned reader: one text form for training and serving, what is read, digests, and what shipped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from fakes import make_passage
from numpy.typing import NDArray

from rag.errors import ModelCannotLoad
from rag.query import english_query
from rag.sentence_reader import (
    HEADING_TOKENS,
    QUESTION_TOKENS,
    READ_UNITS,
    REMEMBERED,
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
    (encoded,) = PairTokenizer().encode("warp " * 900, [Pair("lane " * 900, "head " * 90, 0.0)])
    assert (encoded.question_tokens, encoded.sentence_tokens) == (QUESTION_TOKENS, SENTENCE_TOKENS)
    assert len(encoded.ids) == QUESTION_TOKENS + SENTENCE_TOKENS + HEADING_TOKENS + 4


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("When does a queue block?", ["When does a queue block a host?", "It is full."]),
        ("What is a warp?", ["Groups of 32 are called warps.", "A warp waits."]),
    ],
    ids=["its words, then their neighbour", "a definition, then its words"],
)
def test_the_most_promising_sentences_are_read_first(question: str, first: list[str]) -> None:
    text = "# Head\n\nWhen does a queue block a host? It is full. Dogs bark.\n\nA warp waits.\n\n```c\nint queue;\n```"
    passages = [make_passage(text), make_passage("Groups of 32 are called warps.")]
    units, pairs = candidates(english_query(question), passages)
    assert [unit.text for unit in units][:2] == first
    assert [one.sentence for one in pairs] == [unit.text for unit in units]
    assert {one.heading for one in pairs} == {"Chapter > Section"}
    assert not {unit.kind for unit in units} & {"heading", "code"}


def test_listings_are_read_where_code_is_asked_for_and_only_there() -> None:
    passage = make_passage("It adds two vectors:\n\n```c\nadd(a, b, vectors);\n```\n\nDogs.\n\n```c\nint other;\n```")
    reader = LearnedReader(by_signals)
    read = [item.unit for item in reader.read(english_query("Write code that adds two vectors"), [passage])]
    assert [unit.text.splitlines()[1] for unit in read if unit.kind == "code"] == ["add(a, b, vectors);", "int other;"]
    assert all(item.unit.kind != "code" for item in reader.read(english_query("Why add vectors?"), [passage]))


def by_signals(question: str, pairs: Sequence[Pair]) -> NDArray[np.float32]:
    return np.array([pair.signals for pair in pairs], dtype=np.float32)


def test_a_limited_number_of_sentences_is_read_and_asking_again_reads_none() -> None:
    read: list[int] = []
    reader = LearnedReader(lambda question, pairs: read.append(len(pairs)) or by_signals(question, pairs))
    passage = make_passage(" ".join(f"Sentence {number} is about a warp." for number in range(60)))
    assert reader.read(english_query(QUESTION), [passage]) == reader.read(english_query(QUESTION), [passage])
    assert read == [READ_UNITS]
    for number in range(REMEMBERED):
        assert reader.read(english_query(f"What is warp {number}?"), []) == []
    reader.read(english_query(QUESTION), [passage])
    assert read == [READ_UNITS] * 2, "the oldest reading was forgotten"


SENTENCES = (
    "With a stride of two floats the warp touches eight sectors.",
    "A warp is a group of 32 threads that run one instruction together.",
    "The next chapter shows how to use the profiler.",
    "A warp has 32 threads. " * 12,
)


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
def test_the_sentence_that_answers_is_preferred_and_half_the_bits_change_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a processor or GPU with bfloat16 units computes."""
    pairs = [pair(sentence) for sentence in SENTENCES]
    exact, rounded = (in_format(dtype, monkeypatch).score(QUESTION, pairs) for dtype in ("float32", "bfloat16"))
    assert 0 < abs(exact - rounded).max() < 0.02
    assert exact[:3].argmax() == rounded[:3].argmax() == 1
    assert ((exact > 0) & (exact < 1)).all()


@pytest.mark.integration
def test_a_damaged_or_missing_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelCannotLoad, match="cannot be read"):
        CrossEncoder(tmp_path / "none").load()
    shutil.copytree(SHIPPED, tmp_path / "cut")
    weights = tmp_path / "cut" / "adapter.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelCannotLoad, match="damaged") as caught:
        CrossEncoder(tmp_path / "cut").load()
    assert caught.value.hint
