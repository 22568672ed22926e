"""The branches of the error tree (see `indexes/errors.py`) that belong to questions, comparisons and study.

CoalesceError
├── MalformedQuestions     a question file with a line that breaks the schema, named by file and line  (422)
├── LeakageFound           tuning data and test questions overlap, or the check has not run            (409)
└── ExamClosed             answers handed in twice, or after the time limit                            (409)
"""

from __future__ import annotations

from indexes.errors import CoalesceError


class MalformedQuestions(CoalesceError):
    """A question file breaks the schema; the message names file and line."""


class LeakageFound(CoalesceError):
    """Tuning data and test questions overlap, or nobody checked."""


class ExamClosed(CoalesceError):
    """The exam takes no more answers: handed in before, or out of time."""
