"""Laws of measuring which sentence the reader puts first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evals.bench.best_sentence import answering_places, main
from indexes.library import open_library
from indexes.settings import IndexSettings
from rag.sentence_reader import LearnedReader

GOOD = "A warp is a group of 32 threads that run together."
BOOK = f"# Warps\n\nMany books speak of warps in passing.\n\n{GOOD}\n\nA block has several warps.\n"


@pytest.mark.integration
@pytest.mark.parametrize(("liked", "place"), [(GOOD, 0), ("A block has several warps.", 1)])
def test_the_place_of_the_first_sentence_that_answers(tmp_path: Path, liked: str, place: int) -> None:
    (tmp_path / "book.md").write_text(BOOK, encoding="utf-8")
    record = {"question": "What is a warp?", "question_zh": "什么是线程束？", "answerable": True, "good": [GOOD]}
    refused = record | {"answerable": False, "good": []}
    questions = tmp_path / "book.jsonl"
    questions.write_text("\n".join(map(json.dumps, (record, refused))), encoding="utf-8")
    worth = {liked: 1.0, GOOD: 0.9}
    reader = LearnedReader(lambda _, pairs: np.array([worth.get(p.sentence, 0.1) for p in pairs], dtype=np.float32))
    library = open_library(IndexSettings(home=tmp_path / "home"))
    library.load()
    document_id = library.add(tmp_path / "book.md").document.document_id
    assert list(answering_places(library, document_id, questions, reader)) == [place, place]
    library.close()


@pytest.mark.parametrize(("book", "said"), [("no-such-book", "only about"), ("opencl-guide", "has no folder")])
def test_a_book_without_questions_or_text_is_named(
    tmp_path: Path, book: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--texts", str(tmp_path), "--books", book])
    assert said in capsys.readouterr().err
