"""The question bank as training data, in the formats that the ecosystem's trainers read.

Only the `tune` split may leave this way: whoever trains on `test` or `dev` measures memory, not skill. Questions that
the book does not answer stay behind, because a row needs an answer to learn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evals.errors import LeakageFound
from evals.questions import BankQuestion, Split, load_bank
from rag.tuning.dataset import INFO_FILE, write_dataset
from rag.tuning.formats import Format
from rag.tuning.rows import TrainingRow


@dataclass(frozen=True, slots=True)
class BankExport:
    """What was written.

    Attributes:
        data_file: the rows.
        info_file: `dataset_info.json` beside them, which names the rows' layout.
        rows: one for each wording of a question.
        questions: questions they came from.
    """

    data_file: Path
    info_file: Path
    rows: int
    questions: int


def export_bank(
    folder: Path, *, split: Split = "tune", file_format: Format = "messages", allow_test: bool = False
) -> BankExport:
    """Writes one split of the bank as `coalesce_SPLIT` into `folder`.

    Raises:
        LeakageFound: a split other than `tune` without `allow_test`.
        MalformedQuestions: the bank is broken.
        MalformedTrainingData: a `dataset_info.json` that is there already cannot be read.
    """
    if split != "tune" and not allow_test:
        raise LeakageFound(
            f"the {split} questions measure; a model that has trained on them cannot be measured any more",
            hint="export --split tune, or add --allow-test if nothing will be compared with these questions",
        )
    questions = load_bank(split=split)
    rows = training_rows(questions)
    data_file = write_dataset(rows, folder, name=f"coalesce_{split}", file_format=file_format)
    answerable = sum(question.answerable for question in questions)
    return BankExport(data_file, folder / INFO_FILE, len(rows), answerable)


def training_rows(questions: Iterable[BankQuestion]) -> list[TrainingRow]:
    """A row for every wording of every answerable question, with its section, so that wordings stay on one side."""
    return [
        TrainingRow(wording, question.answer, section=question.section)
        for question in questions
        if question.answerable
        for wording in (question.question, *question.paraphrases)
    ]
