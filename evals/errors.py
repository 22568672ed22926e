"""Errors of questions, comparisons and study; `indexes/errors.py` holds the root of the tree.

CoalesceError
├── MalformedQuestions     a question file with a line that breaks the schema, named by file and line  (422)
├── LeakageFound           test questions would become tuning data                                     (409)
└── ExamClosed             answers handed in twice, or after the time limit                            (409)
"""

from __future__ import annotations

from indexes.errors import CoalesceError


class MalformedQuestions(CoalesceError):
    """A question file breaks the schema; the message names file and line."""


class LeakageFound(CoalesceError):
    """Test questions would become tuning data."""


class ExamClosed(CoalesceError):
    """The exam takes no more answers: it was handed in before, or its time is over."""
