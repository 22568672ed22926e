"""Answers of exams that are not handed in yet: a reloaded page and a second tab find them."""

from __future__ import annotations

from collections import OrderedDict

from evals.marking import Given

KEPT_EXAMS = 500


class Drafts:
    """Answers by exam and question, in memory; gone once handed in."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, dict[str, Given]] = OrderedDict()

    def of(self, exam_id: str) -> dict[str, Given]:
        """The answers of an exam so far; to be read, and written through `keep`."""
        return dict(self._answers.get(exam_id, {}))

    def keep(self, exam_id: str, question_id: str, answer: Given) -> None:
        """Keeps one answer; None or an empty text takes it back."""
        answers = self._answers.setdefault(exam_id, {})
        self._answers.move_to_end(exam_id)
        if answer is None or answer == "":
            answers.pop(question_id, None)
        else:
            answers[question_id] = answer
        while len(self._answers) > KEPT_EXAMS:
            self._answers.popitem(last=False)

    def forget(self, exam_id: str) -> None:
        """Drops the answers of an exam."""
        self._answers.pop(exam_id, None)
