"""What a made-up training question must be: the request to the model, and the checks of what it wrote.

The rules are told to the model and then checked without it, since models break rules. Each rule that throws a pair
away has a name, under which it is counted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from rag.support import support_of
from rag.wording import count_words, wording

Reason: TypeAlias = Literal[
    "unparsed", "malformed", "names_its_source", "evidence_not_in_passage", "not_in_passage", "off_topic",
    "gives_itself_away", "near_duplicate", "not_answered",
]  # fmt: skip
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Why pairs are thrown away: no JSON; empty, too long or no question; points at a figure, page or text; the quoted
evidence is not in the passage; the answer holds names, numbers or words that the passage does not; the question is not
about the passage; the answer stands in the question; asked before; the model cannot answer it from the passage."""

_QUESTION_WORDS = (4, 60)
_ANSWER_WORDS = (1, 120)
_LEAST_SHARED_STEMS = 1
_REPEATED_SHARE = 0.9
_ALIKE_SHARE = 0.75
_POINTS_AT_SOURCE = re.compile(
    r"\b(?:(?:the|this|that|these|following|above|given|provided)\s+(?:passage|text|excerpt|paragraph|document|"
    r"figure|table|listing|example|code|snippet|chapter|section|book|author|equation|diagram)s?"
    r"|according to|fig\.|(?:figure|table|listing|chapter|section|page|equation|eq\.|exercise)\s*\(?\d"
    r"|as (?:shown|described|mentioned|discussed)|(?:mentioned|described|shown|discussed) (?:above|below|earlier|here)"
    r"|the authors?\b)|(?:上文|下文|本文|文中|本章|本节|该段|这段|上图|下图|图\s*\d|表\s*\d|第\s*\d+\s*[页章节]|作者)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SynthesizedPair:
    """A question with its answer and the words of the passage that hold it."""

    question: str
    answer: str
    evidence: str


def pair_request(passage: str, source: str, count: int) -> str:
    """What the model is asked to write about one passage."""
    return (
        f"Write {count} exam questions with answers about the passage below, which is from {source}.\n"
        "Rules:\n"
        "- Each question stands alone: a reader who never saw the passage understands what is asked.\n"
        "- Never mention a passage, text, figure, table, page, chapter, section, listing or author.\n"
        "- Ask about GPU programming or parallel computing, not about how the text is written.\n"
        "- Answer only with what the passage says. Invent no names, numbers or code.\n"
        "- The answer does not stand in the question. No two questions ask the same.\n"
        "- `evidence` is one sentence copied exactly from the passage that holds the answer.\n"
        'Write one JSON object a line and nothing else: {"question": "…", "answer": "…", "evidence": "…"}\n\n'
        f"Passage:\n{passage}"
    )


def parse_pairs(written: str) -> tuple[list[SynthesizedPair], int]:
    """Pairs in what a model wrote, and how many things that began as one cannot be read.

    Takes objects one a line, inside an array, inside a code fence, or over several lines.
    """
    decoder = json.JSONDecoder()
    pairs: list[SynthesizedPair] = []
    unreadable = 0
    place = written.find("{")
    while place >= 0:
        try:
            content, end = decoder.raw_decode(written, place)
        except (ValueError, RecursionError):
            unreadable += 1
            line_end = written.find("\n", place)
            place = written.find("{", line_end) if line_end >= 0 else -1
            continue
        fields = [content.get(key) for key in ("question", "answer", "evidence")]
        if all(isinstance(field, str) for field in fields):
            pairs.append(SynthesizedPair(*(str(field).strip() for field in fields)))
        else:
            unreadable += 1
        place = written.find("{", end)
    return pairs, unreadable if pairs or unreadable else 1


def fault_of(pair: SynthesizedPair, passage: str) -> Reason | None:
    """The first rule that a pair breaks, None for a good one; repeats are `QuestionsSeen`'s to find."""
    question_words, answer_words = count_words(pair.question), count_words(pair.answer)
    if not pair.question.endswith(("?", "？")) or not _within(question_words, _QUESTION_WORDS):
        return "malformed"
    if not _within(answer_words, _ANSWER_WORDS):
        return "malformed"
    if _POINTS_AT_SOURCE.search(pair.question) or _POINTS_AT_SOURCE.search(pair.answer):
        return "names_its_source"
    if not pair.evidence or _plain(pair.evidence) not in _plain(passage):
        return "evidence_not_in_passage"
    question, answer, said = wording(pair.question), wording(pair.answer), wording(passage)
    if len(question.pieces & said.pieces) < _LEAST_SHARED_STEMS:
        return "off_topic"
    if support_of(pair.answer, passage).verdict != "supported":
        return "not_in_passage"
    if answer.pieces and len(answer.pieces & question.pieces) / len(answer.pieces) > _REPEATED_SHARE:
        return "gives_itself_away"
    return None


def same_answer(given: str, expected: str) -> bool:
    """Whether an answer says what was expected: all its identifiers and numbers and most of its words."""
    return support_of(expected, given).verdict == "supported"


class QuestionsSeen:
    """Tells repeats: questions whose wording is nearly that of an earlier one."""

    def __init__(self) -> None:
        self._seen: list[frozenset[str]] = []
        self._holding: dict[str, list[int]] = {}

    def add(self, question: str) -> bool:
        """Remembers a question; False when it is near one that is remembered."""
        pieces = wording(question).pieces
        near = {place for piece in pieces for place in self._holding.get(piece, ())}
        for place in near:
            other = self._seen[place]
            if len(pieces & other) / len(pieces | other) >= _ALIKE_SHARE:
                return False
        for piece in pieces:
            self._holding.setdefault(piece, []).append(len(self._seen))
        self._seen.append(pieces)
        return True


def _within(value: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _plain(text: str) -> str:
    """Spaces and quotation marks evened out, for comparing a quote with its source."""
    return " ".join(text.translate(str.maketrans("“”‘’", "\"\"''")).split()).lower()
