"""The bank as training data: only what may be learned from leaves, in layouts that are read back unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.errors import LeakageFound
from evals.export import export_bank, training_rows
from evals.questions import load_bank
from rag.tuning.dataset import read_dataset
from rag.tuning.formats import FORMATS, Format


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_layout_reads_back_as_the_rows_that_were_written(tmp_path: Path, file_format: Format) -> None:
    written = export_bank(tmp_path, file_format=file_format)
    rows = training_rows(load_bank(split="tune"))
    assert read_dataset(tmp_path) == rows
    assert (written.rows, written.questions) == (len(rows), len(rows) // 3)


def test_dataset_info_names_columns_and_tags_as_llama_factory_documents_them(tmp_path: Path) -> None:
    export_bank(tmp_path / "alpaca", file_format="alpaca")
    export_bank(tmp_path / "sharegpt", file_format="sharegpt")
    alpaca = json.loads((tmp_path / "alpaca" / "dataset_info.json").read_text("utf-8"))["coalesce_tune"]
    chat = json.loads((tmp_path / "sharegpt" / "dataset_info.json").read_text("utf-8"))["coalesce_tune"]
    assert alpaca["file_name"] == "coalesce_tune.json"
    assert alpaca["columns"]["prompt"] == "instruction"
    assert alpaca["columns"]["response"] == "output"
    assert (chat["formatting"], chat["columns"]["messages"]) == ("sharegpt", "conversations")
    assert (chat["tags"]["user_tag"], chat["tags"]["assistant_tag"]) == ("human", "gpt")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_questions_that_measure_leave_only_when_allowed(tmp_path: Path, split: str) -> None:
    with pytest.raises(LeakageFound, match=split):
        export_bank(tmp_path, split=split)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())
    written = export_bank(tmp_path, split=split, allow_test=True)  # type: ignore[arg-type]
    assert written.data_file.name == f"coalesce_{split}.jsonl"


def test_no_wording_of_a_measuring_question_is_among_the_tuning_rows(tmp_path: Path) -> None:
    text = export_bank(tmp_path).data_file.read_text("utf-8")
    assert not [q.id for q in load_bank() if q.split != "tune" and json.dumps(q.question, ensure_ascii=False) in text]


def test_rows_carry_their_section_and_unanswerable_questions_stay_behind() -> None:
    questions = load_bank(split="test")
    rows = training_rows(questions)
    assert len(rows) == sum(question.answerable for question in questions) < len(questions)
    assert all(row.section and row.answer for row in rows)
