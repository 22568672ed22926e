"""What clients of OpenAI's calls show: an answer whose markers count from 1, with the list of its sources in its text.

A chat page asks for more than answers: Open WebUI has its model name a conversation, tag it and go on with it. Those
prompts get the JSON that they ask for, made of the conversation's first question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from rag.citations import MarkerFilter
from rag.conversations import clean_title
from rag.question import asks_in_chinese
from rag.types import Answer, Passage, place_of

_SOURCES = {False: "\n\nSources:\n", True: "\n\n来源：\n"}
_TASK = "### Task:"
_WANTED = re.compile(r'\{\s*"(title|tags|follow_ups|queries|text|prompt)"\s*:')
_FIRST_QUESTION = re.compile(r"<chat_history>.*?USER:\s*(\S[^\n]*)", re.DOTALL)


class MarkersFromOne(MarkerFilter):
    """As `MarkerFilter`, and numbers the passages in the order in which the answer names them.

    Attributes:
        numbers: by the number of the passage.
    """

    def __init__(self, num_passages: int) -> None:
        super().__init__(num_passages)
        self.numbers: dict[int, int] = {}

    def _named(self, marker: str) -> list[int]:
        return [self.numbers.setdefault(number, len(self.numbers) + 1) for number in super()._named(marker)]


def sources(passages: Sequence[Passage], *, chinese: bool) -> str:
    """The list that ends an answer's text; nothing where it cites nothing."""
    places = (place_of(one.title, one.section, one.page_label or one.page_start) for one in passages)
    listed = "\n".join(f"[{number}] {place}" for number, place in enumerate(places, 1))
    return _SOURCES[chinese] + listed if listed else ""


def without_sources(text: str) -> str:
    """An answer that a client sends back, without the list that ends it."""
    ends = [text.rfind(f"{heading}[1] ") for heading in _SOURCES.values()]
    return text[: max(ends)] if max(ends) >= 0 else text


def for_client(answer: Answer, markers: MarkersFromOne, text: str) -> Answer:
    """An answer as its client reads it.

    Args:
        markers: has seen the whole text; text: what it let through.
    """
    cited = [answer.passages[number - 1] for number in markers.numbers]
    others = [one for number, one in enumerate(answer.passages, 1) if number not in markers.numbers]
    citations = tuple(
        replace(one, marker=markers.numbers[one.marker]) for one in answer.citations if one.marker in markers.numbers
    )
    listed = sources(cited, chinese=asks_in_chinese(answer.question))
    return replace(answer, answer=text + listed, citations=citations, passages=(*cited, *others))


def task_reply(prompt: str) -> str | None:
    """What a prompt of Open WebUI's own asks for, in the JSON that it names; None for a question of somebody."""
    if not prompt.lstrip().startswith(_TASK):
        return None
    wanted = _WANTED.search(prompt)
    if wanted is None:
        return None
    asked = _FIRST_QUESTION.search(prompt)
    first = clean_title(asked[1]) if asked else ""
    texts = {"title": first, "prompt": first, "text": ""}
    return json.dumps({wanted[1]: texts.get(wanted[1], [])}, ensure_ascii=False)
