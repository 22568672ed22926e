"""Checks what a language model writes, sentence by sentence while it streams, against the passages that it read.

A sentence holds when a passage supports it by its terms, with as many negations and with all its numbers, number
words included; one that begins with yes or no does not, since nothing says whether that is right. A listing, table or
formula holds where it stands in a passage line by line. What is cut off, says again what was said, or leans on
a sentence that did not hold ('It …', the rest of an item, the items behind an announcement) does not hold. Each that
holds gets the marker of its passage, whatever the model wrote. What still passes stands in `docs/serving.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from indexes.sentences import Span, iter_spans
from indexes.words import NEGATIONS, NUMBER_WORDS, number_value, terms_of
from rag.citations import best_quote, support_of, take_markers
from rag.generators.extractive import as_markdown, refers_back
from rag.generators.prompts import says_unknown
from rag.generators.protocol import TextPiece
from rag.types import Passage, Quoted

DIVIDER = "\n\n---\n\n"
"""Stands between the written sentences of an answer and the books' own."""
_LEAST_TERMS = 2
"""A sentence of fewer words states nothing that could be checked."""
_SAID_AGAIN = 0.5
"""The share of a sentence's words that stand in one below it from which it adds nothing (docs/decisions.md)."""
_YES_OR_NO = re.compile(r"\W*(?:(?:yes|no)\b|是的|不是)", re.IGNORECASE)
_VERBATIM = frozenset({"code", "table", "formula"})
_NEGATION = re.compile(rf"\b(?:{'|'.join(sorted(NEGATIONS))})\b|n['’]t\b|[不没无未非]", re.IGNORECASE)
_WHOLE = re.compile(r"[.!?。！？:：][\"'”’)\]}*_`]*$")
_MAY_END = re.compile(r"[.!?…。！？；\n]")
_ANNOUNCES = re.compile(r"[:：][\"'”’)\]}*_`]*$")


def supporting_quote(sentence: str, passages: Sequence[Passage], named: Sequence[int] = ()) -> Quoted | None:
    """The stretch of a passage that supports a sentence; None where none does.

    Args:
        named: numbers of passages, from 1, that are taken before others.
    """
    negations, sentence = _negations(sentence), in_digits(sentence)
    if len(terms_of(sentence).pieces) < _LEAST_TERMS or _YES_OR_NO.match(sentence):
        return None
    best: tuple[bool, float, int] | None = None
    found: Quoted | None = None
    for number, passage in enumerate(passages, 1):
        start, end = best_quote(sentence, passage.text)
        quote = passage.text[start:end]
        support = support_of(sentence, in_digits(quote))
        if support.verdict != "supported" or _negations(quote) != negations:
            continue
        rank = (number in named, support.recall, -number)
        if best is None or rank > best:
            best, found = rank, Quoted(number, start, end)
    return found


def _negations(text: str) -> int:
    return len(_NEGATION.findall(text))


def in_digits(text: str) -> str:
    """A text with its numbers in words as digits; 'one' alone is mostly no number."""
    return NUMBER_WORDS.sub(lambda said: said[0] if said[0].lower() == "one" else str(number_value(said[0])), text)


def stands_in(block: str, passages: Sequence[Passage]) -> Quoted | None:
    """The whole of the first passage in which every line of a listing, table or formula stands; None without one."""
    lines = {_bare(line) for line in block.splitlines() if not line.lstrip().startswith(("```", "~~~"))} - {""}
    for number, passage in enumerate(passages, 1):
        if lines and lines <= set(map(_bare, passage.text.splitlines())):
            return Quoted(number, 0, len(passage.text))
    return None


def _bare(line: str) -> str:
    return " ".join(line.split())


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence, list item or block of what is written, without markers; `lead` is what stands before it."""

    kind: str
    paragraph: int
    lead: str
    text: str
    named: tuple[int, ...]


class WrittenCheck:
    """Lets through what holds of a text that comes in pieces, each sentence with its marker.

    Args:
        keep_all: what does not hold comes too, without a marker of ours.
        quotes: the sentences that stand below what is written, in order, without the known ones. What says the first
            again, at least half of it, is not said right above it, nor the others but first, or where a sentence leans
            on it.
        known: sentences below that the reader has had before and may want in other words, but not in the same.

    Attributes:
        left_out: sentences that did not hold.
        written: something was let through.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        keep_all: bool = False,
        quotes: Sequence[str] = (),
        known: Sequence[str] = (),
    ) -> None:
        self.left_out = 0
        self.written = False
        self._passages = passages
        self._keep_all = keep_all
        self._quotes = [terms_of(quote).pieces for quote in quotes]
        self._text = ""
        self._done = 0
        self._before: _Unit | None = None
        self._before_held = True
        self._list_holds = True
        self._said = {_key(text) for text in known}
        self._waiting: list[TextPiece] = []  # what stands below, until a sentence that holds is said with it
        self._announcement: list[TextPiece] = []  # until one of its items holds

    @property
    def heard(self) -> bool:
        """Whether there was any text."""
        return bool(self._text.strip())

    def feed(self, piece: str) -> Iterator[TextPiece]:
        """What can be shown once `piece` is written: sentences that are followed by more text."""
        self._text += piece
        if piece.strip() and _MAY_END.search(self._text[self._done :].strip()):
            yield from self._through(last=False, whole=True)

    def finish(self, *, whole: bool) -> Iterator[TextPiece]:
        """The rest; `whole` unless the text was cut off."""
        yield from self._through(last=True, whole=whole)

    def _through(self, *, last: bool, whole: bool) -> Iterator[TextPiece]:
        spans = [span for span in iter_spans(self._text) if span.start >= self._done]
        for place, span in enumerate(spans):
            ends = place + 1 == len(spans)
            if ends and not last:
                return
            yield from self._judge(self._unit(span), cut_off=ends and not whole)
            self._done = span.end

    def _unit(self, span: Span) -> _Unit:
        raw = self._text[span.start : span.end]
        named: tuple[int, ...] = ()
        if span.kind not in _VERBATIM:
            raw, named = take_markers(raw, len(self._passages))
            raw = as_markdown(raw.strip(), "markdown")
        lead = self._text[self._done : span.start] if self._done else self._text[: span.start].lstrip()
        return _Unit(span.kind, span.paragraph, lead, raw, named)

    def _judge(self, unit: _Unit, *, cut_off: bool) -> Iterator[TextPiece]:
        if not unit.text.strip(" .*_-"):  # markers alone
            return
        quoted = self._support(unit)
        if self._keep_all:
            yield _piece(unit, quoted)
            self.written = True
            self.left_out += quoted is None and unit.kind != "heading"
            return
        key = _key(unit.text)
        again, new = key in self._said, unit.kind != "heading" and not says_unknown(unit.text)
        self._said.add(key)
        if unit.kind not in {"item", *_VERBATIM}:
            self._announcement, self._list_holds = [], True
        holds = quoted is not None and new and not again and not self._leans(unit) and self._is_whole(unit, cut_off)
        if holds:
            yield from self._let_through(unit, _piece(unit, quoted))
        elif new and not again:
            self.left_out += 1
        if _ANNOUNCES.search(unit.text):
            self._list_holds = holds
        self._before, self._before_held = unit, holds

    def _support(self, unit: _Unit) -> Quoted | None:
        if unit.kind in _VERBATIM:
            return stands_in(unit.text, self._passages)
        if unit.kind == "heading":
            return None
        return supporting_quote(unit.text, self._passages, unit.named)

    def _leans(self, unit: _Unit) -> bool:
        """Whether a unit is read with one that did not hold."""
        if unit.kind in {"item", *_VERBATIM} and not self._list_holds:
            return True
        if self._before is None or self._before_held:
            return False
        goes_on = unit.kind == self._before.kind == "item" and unit.paragraph == self._before.paragraph
        return goes_on or refers_back(unit.text)

    @staticmethod
    def _is_whole(unit: _Unit, cut_off: bool) -> bool:
        if unit.kind == "sentence":
            return bool(_WHOLE.search(unit.text)) and not (cut_off and _ANNOUNCES.search(unit.text))
        return not cut_off

    def _let_through(self, unit: _Unit, piece: TextPiece) -> Iterator[TextPiece]:
        if _ANNOUNCES.search(unit.text):
            self._announcement.append(piece)
            return
        terms = terms_of(unit.text).pieces
        below = self._quotes if self.written else self._quotes[:1]
        if unit.kind not in _VERBATIM and any(len(terms & quote) >= _SAID_AGAIN * len(terms) for quote in below):
            self._waiting = [*self._announcement, piece]
            return
        if self.written and not refers_back(unit.text):
            self._waiting = []
        announced = [each for each in self._announcement if each not in self._waiting]
        for each in (*self._waiting, *announced, piece):
            yield each if self.written else replace(each, text=each.text.lstrip("\n "))
            self.written = True
        self._waiting, self._announcement = [], []


def _key(text: str) -> tuple[frozenset[str], int]:
    """Equal for texts that say the same in the same words."""
    return terms_of(text).pieces, _negations(text)


def _piece(unit: _Unit, quoted: Quoted | None) -> TextPiece:
    """A unit as it is shown: with the marker of what supports it, else with those that the model wrote."""
    markers = "".join(f"[{number}]" for number in ([quoted.passage] if quoted is not None else unit.named))
    gap = "\n\n" if unit.kind in _VERBATIM else " "
    return TextPiece(f"{unit.lead}{unit.text}{gap if markers else ''}{markers}", quoted)
