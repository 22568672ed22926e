"""Readers' feedback as evaluation cases: one question a line, in the question bank's own schema.

An answer that was good gives its text, without markers, as the reference answer and its supported quotes as evidence.
An answer that was bad gives the reader's comment as the reference; without a comment there is nothing to hold an
answer against, and the case is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from rag.conversations import Feedback
from rag.types import Answer

_MARKER = re.compile(r"\s*\[\d{1,3}\](?!\()")


def feedback_cases(feedback: Iterable[tuple[Feedback, Answer]]) -> Iterator[str]:
    """Lines of JSON; `rating` and `comment` say where a case comes from."""
    for given, answer in feedback:
        reference = _MARKER.sub("", answer.answer).strip() if given.rating == "up" else given.comment.strip()
        if not reference:
            continue
        cited = answer.citations if given.rating == "up" else ()
        case = {
            "id": f"feedback-{answer.id}",
            "type": "short",
            "question": answer.question,
            "answer": reference,
            "answerable": not (answer.refused and given.rating == "up"),
            "gold": [
                {
                    "file": citation.title,
                    "heading": citation.section[-1] if citation.section else citation.title,
                    "part": 1,
                    "evidence": citation.quote,
                }
                for citation in cited
                if citation.verdict == "supported"
            ],
            "rating": given.rating,
            "comment": given.comment,
        }
        yield json.dumps(case, ensure_ascii=False)
