"""Laws of what the sentence reader is trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evals.questions import Gold
from evals.reader_training import AskedForm, bank_forms, judged_examples, reading_examples
from indexes.library import open_library
from indexes.settings import IndexSettings

GOOD = "A warp is a group of 32 threads that run together."
PART = "A warp runs in lockstep on most chips."
TABLE = "| term | threads |\n| --- | --- |\n| warp | 32 |"
BOOK = f"# Warps\n\nMany books speak of warps in passing.\n\n{GOOD}\n\n{PART}\n\n{TABLE}\n"


@pytest.mark.integration
def test_a_newcomers_question_is_learnt_as_it_was_judged(tmp_path: Path) -> None:
    (tmp_path / "book.md").write_text(BOOK, encoding="utf-8")
    asked = {"question": "What is a warp?", "question_zh": "什么是线程束？"}
    records = [
        asked | {"answerable": True, "good": [GOOD], "part": [PART]},
        asked | {"answerable": False, "good": [], "part": []},
    ]
    (tmp_path / "book.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    library = open_library(IndexSettings(home=tmp_path / "home"))
    library.load()
    document_id = library.add(tmp_path / "book.md").document.document_id
    answered, in_chinese, refused, _ = judged_examples(library, document_id, tmp_path / "book.jsonl")
    labels = {one.pair.sentence: (one.answers, one.wrong) for one in answered.candidates}
    assert labels[GOOD] == (True, False)
    assert labels[PART] == (False, False)
    assert labels["Many books speak of warps in passing."] == (False, True)
    assert labels[TABLE] == (False, False)
    assert {one.pair.sentence for one in in_chinese.candidates} == set(labels)
    assert (answered.share, in_chinese.share < 1, in_chinese.question.isascii()) == (1.0, True, True)
    assert not refused.answerable and not any(one.answers for one in refused.candidates)
    library.close()


@pytest.mark.integration
def test_a_question_of_the_sets_is_learnt_by_its_evidence(tmp_path: Path) -> None:
    (tmp_path / "book.md").write_text(BOOK, encoding="utf-8")
    library = open_library(IndexSettings(home=tmp_path / "home"))
    library.load()
    document_id = library.add(tmp_path / "book.md").document.document_id
    question = next(form.question for form in bank_forms() if form.question.answerable)
    question = replace(question, gold=(Gold(file="book.md", heading="Warps", evidence=GOOD),), key_facts=("32",))
    (example,) = reading_examples(library, document_id, [AskedForm(question, "How many threads has a warp?")])
    assert [one.pair.sentence for one in example.candidates if one.answers] == [GOOD]
    assert not next(one.wrong for one in example.candidates if "32" in one.pair.sentence and not one.answers)
    library.close()
