"""Answers as JSON and back, whole, so that a conversation reloads with its citations and pages intact.

The store's own form, not the wire form (`api/schemas.py`): it keeps what a client does not see, such as page marks.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rag.types import Answer, Citation, Passage, PassagePart, Timings, Usage


def answer_to_json(answer: Answer) -> str:
    """One line of JSON that holds every field of `answer`."""
    return json.dumps(asdict(answer), ensure_ascii=False, separators=(",", ":"))


def answer_from_json(text: str) -> Answer:
    """The answer that `answer_to_json` wrote; fields unknown to this version are ignored.

    Raises:
        ValueError: not such a line.
    """
    try:
        data = json.loads(text)
        return Answer(
            **(
                _known(Answer, data)
                | {
                    "citations": tuple(_citation(item) for item in data["citations"]),
                    "passages": tuple(_passage(item) for item in data["passages"]),
                    "timings": Timings(**_known(Timings, data["timings"])),
                    "usage": Usage(**_known(Usage, data["usage"])),
                }
            )
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a stored answer: {error}") from error


def _known(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in cls.__dataclass_fields__ if name in data}  # type: ignore[attr-defined]


def _citation(data: dict[str, Any]) -> Citation:
    return Citation(**(_known(Citation, data) | {"section": tuple(data["section"])}))


def _part(data: dict[str, Any]) -> PassagePart:
    return PassagePart(**(_known(PassagePart, data) | {"section": tuple(data["section"])}))


def _passage(data: dict[str, Any]) -> Passage:
    marks = tuple((int(offset), int(page)) for offset, page in data.get("page_marks", ()))
    return Passage(
        **(
            _known(Passage, data)
            | {
                "section": tuple(data["section"]),
                "page_marks": marks,
                "page_labels": tuple(data.get("page_labels", ())),
                "parts": tuple(_part(item) for item in data.get("parts", ())),
            }
        )
    )
