"""Answers in the book's own sentences, each with its marker: no language model, nothing that the book does not say."""

from __future__ import annotations

import math
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from indexes.errors import Cancelled
from indexes.words import count_words, terms_of
from rag.citations import without_markers
from rag.errors import ArmUnavailable
from rag.forms import Listing, definition_share, rank_listings
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.stream_text import StopStrings
from rag.query import Query, english_query
from rag.question import QuestionKind
from rag.sentence_reader import ScoredUnit, SentenceReader, Unit, units_of
from rag.types import Arm, Passage, Quoted, Usage

WORDS_PER_TOKEN = 0.75
LEAST_SHARE = 0.2
"""A sentence scoring under this share of the best one is left out."""
DEFINITION_SHARE = 0.7
"""What a sentence that defines the name asked about gains, as a share of the best score."""
READING_WEIGHT = 0.5
"""Weight of the log odds that the reader gives a listing, beside its names and its place."""
UNREAD = 0.02
"""The score taken for a listing that the reader did not read."""
LISTING_WORDS = 400
"""Longest listing given when code is asked for, and longest table: a whole one is worth more than its half."""
LIST_WORDS = 100
"""Longest list given whole, or brought along, as a table, listing or formula is, by the sentence that announces it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of an answer: words, and groups of sentences (a sentence with the neighbours that it needs)."""

    words: int
    groups: int


BUDGETS: dict[QuestionKind, Budget] = {
    "define": Budget(60, 3),
    "fact": Budget(100, 4),
    "list": Budget(100, 4),
    "code": Budget(40, 1),
}
"""What each kind of question needs; a listing is not counted."""

MARKDOWN_FORMATS = frozenset({"markdown", "ipynb", "folder"})
"""Books written in Markdown: what reads as markup is meant as markup."""
PLAIN_FORMATS = frozenset({"pdf", "text", "code", "pptx"})
"""Books without markup: nothing outside fences is meant as markup. Readers of the others put code in backticks."""

_LINK = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|!?(?<![\w\])])\[(?P<label>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?:<[^<>\n]*>|(?:[^()\s]|\([^()\s]*\))*)"
    r"(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)"
)
_MARKUP = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<name>(?<![\w\\])(?:_+[A-Za-z0-9]\w*|[A-Za-z]\w*_(?!\())(?!\w))"
    r"|(?P<mark>^(?:[#>+-](?=\s)|\d{1,9}(?=[.)]\s))|(?<!\s)\*|\*(?!\s)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|`|\$"
    r"|\\(?=[!-/:-@\[-`{-~])|<(?=[A-Za-z/!?])|\](?=[(\[])|~(?=~)|&(?=#?\w+;))"
)

_REFERS_BACK = re.compile(
    r"^(?:[*_`\"'(]*)(?:this|these|that|those|its|they|their|them|he|she|such|here|both|the (?:former|latter|same)|"
    r"it|in (?:this|that|such) (?:case|way|example)|for this reason)\b"
    r"|^(?:这|那|它|该|此)",
    re.IGNORECASE,
)
_CLOSING = "\"'”’)]}*_` \n"
"""What may stand behind the mark that ends a sentence."""
_PROSE = frozenset({"sentence", "item"})
_BLOCKS = frozenset({"code", "table", "formula"})
_ANNOUNCED = _BLOCKS | {"item"}

Place = tuple[int, int]
"""A unit's passage, and its place in it."""


class ExtractiveGenerator:
    """The embedded default. Arm `rag` only: it has nothing to say without passages and nothing to tune."""

    def __init__(self, reader: SentenceReader, model_name: str) -> None:
        self._reader = reader
        self._model_name = model_name

    @property
    def name(self) -> str:
        """`extractive`."""
        return "extractive"

    @property
    def model_name(self) -> str:
        """The embedder that chooses the sentences."""
        return self._model_name

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Only `rag`."""
        return ("rag",)

    @property
    def adapters(self) -> tuple[str, ...]:
        """None."""
        return ()

    def check(self, request: GenerationRequest) -> None:
        """Refuses the arms that need a language model.

        Raises:
            ArmUnavailable: any arm but `rag`.
        """
        refuse_without_model(request.arm)

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        """Yields one piece per sentence, listing or table, the best one first, then the figures."""
        self.check(request)
        started = time.perf_counter()
        query = request.query or english_query(request.question)
        units = self.choose(query, request.passages, request.max_tokens, said=request.said)
        pieces = _pieces(units, request)
        written = 0
        for piece in _until_stop(pieces, request.stop) if request.stop else pieces:
            written += count_tokens(piece.text)
            yield piece
        seconds = time.perf_counter() - started
        read = count_tokens(request.question) + sum(count_tokens(passage.text) for passage in request.passages)
        yield GenerationDone(
            usage=Usage(prompt_tokens=read, completion_tokens=written),
            tokens_per_s=written / seconds if written > 1 and seconds > 0 else 0.0,
            peak_memory_bytes=peak_process_bytes(),
            refused=not units,
            passages_used=len(request.passages),
        )

    def choose(
        self, query: Query, passages: Sequence[Passage], max_tokens: int | None = None, *, said: str = ""
    ) -> list[Unit]:
        """The chosen sentences, listings and tables, the best one first.

        Args:
            max_tokens: longest answer, where that is shorter than what the kind of question needs.
            said: an earlier answer, whose sentences are left out as long as others are left.
        """
        bound = None if max_tokens is None else max(int(max_tokens * WORDS_PER_TOKEN), 1)
        choice = _Choice(query, passages, bound)
        scored = self._reader.read(query, passages)
        if said:
            said = " ".join(said.split())
            scored = [
                item for item in scored if _spoken(item.unit, passages[item.unit.passage].format) not in said
            ] or scored
        choice.fill(_definitions_first(scored, query.subject))
        return list(choice.units())

    def close(self) -> None:
        """Nothing to free: the embedder belongs to the library."""


def refuse_without_model(arm: Arm) -> None:
    """Raises ArmUnavailable for the arms that need a language model."""
    if arm == "rag":
        return
    needs = "a language model" if arm == "base" else "a language model and a LoRA adapter"
    adapter = "" if arm == "base" else " --adapter NAME=FOLDER"
    raise ArmUnavailable(
        f"arm {arm!r} needs {needs}; the extractive generator only answers from passages",
        hint=f"start with `--generator local --model PATH_OR_NAME{adapter}`, or ask with `--arm rag`",
    )


def count_tokens(text: str) -> int:
    """Tokens by the rule of thumb of `WORDS_PER_TOKEN`; this generator has no tokenizer of its own."""
    return round(count_words(text) / WORDS_PER_TOKEN)


def peak_process_bytes() -> int:
    """Most memory this process has held, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Choice:
    """What has been chosen so far, as runs of neighbouring units in the order in which they are said.

    Args:
        bound: most words, where the request names them.
    """

    def __init__(self, query: Query, passages: Sequence[Passage], bound: int | None) -> None:
        budget = BUDGETS[query.kind]
        self._query = query
        self._titles = [passage.title for passage in passages]
        self._book = {(unit.passage, unit.place): unit for unit in units_of(passages)}
        self._asked = terms_of(query.english).pieces
        self._left = budget.words if bound is None else min(budget.words, bound)
        self._listing_words = LISTING_WORDS if bound is None else bound
        self._groups = budget.groups
        self.runs: list[list[Place]] = []

    def fill(self, scored: Sequence[ScoredUnit]) -> None:
        """Chooses among scored units, best first."""
        waiting = [item for item in scored if item.score > 0 and item.unit.kind != "code"]
        if self._query.kind == "code":
            listing = self._best_listing(scored)
            if listing is not None:
                self._take_listing(listing)
            else:
                self._groups = BUDGETS["fact"].groups
        elif (opening := self._opening()) is not None:
            self._take(opening)
        best = waiting[0].score if waiting else 0.0
        for item in waiting:
            if item.score >= LEAST_SHARE * best:
                self._take(item.unit)
        if not self.runs and scored:
            self.runs.append([(scored[0].unit.passage, scored[0].unit.place)])

    def units(self) -> Iterator[Unit]:
        """What was chosen, in the order in which it is said; an item is indented below the one that it stands under."""
        for run in self.runs:
            for number, place in enumerate(run):
                unit = self._book[place]
                parent = _parent_item(unit, self._book)
                inner = parent is not None and (parent.passage, parent.place) in run[:number]
                yield replace(unit, indent=2 if inner else 0)

    def _best_listing(self, scored: Sequence[ScoredUnit]) -> Unit | None:
        """The listing that shows best what was asked for, by its names, its place and the reader's score."""
        units = [
            unit
            for unit in self._book.values()
            if unit.kind == "code" and count_words(unit.text) <= self._listing_words
        ]
        read = {(item.unit.passage, item.unit.place): item.score for item in scored}
        listings = [
            Listing(unit.text, f"{self._titles[unit.passage]} {' '.join(unit.section)}", self._before(unit))
            for unit in units
        ]
        ranked = zip(units, rank_listings(self._query.english, listings), strict=True)
        fits = [
            (score + READING_WEIGHT * _log_odds(read.get((unit.passage, unit.place), UNREAD)), -number, unit)
            for number, (unit, score) in enumerate(ranked)
        ]
        return max(fits)[2] if fits else None

    def _before(self, listing: Unit) -> str:
        """The sentence right before a listing."""
        before = self._book.get((listing.passage, listing.place - 1))
        return before.text if before is not None and before.kind in _PROSE else ""

    def _take_listing(self, listing: Unit) -> None:
        """A listing with the sentence before it, which announces it or says what it does."""
        place = (listing.passage, listing.place)
        before = self._book.get((listing.passage, listing.place - 1))
        self.runs.append([place])
        if before is None or before.kind not in _PROSE:
            return
        if _is_cut_off(before) or not self._asked.isdisjoint(before.pieces):
            self.runs[0].insert(0, (before.passage, before.place))
            self._groups -= 1

    def _take(self, unit: Unit) -> None:
        """Chooses the unit, with the neighbours that it needs, where there is room."""
        said = {place for run in self.runs for place in run}
        if self._groups <= 0 or any(unit.pieces == self._book[place].pieces for place in said):
            return
        group = [place for place in _with_context(unit, self._book, self._query.kind) if place not in said]
        cost = sum(count_words(self._book[place].text) for place in group)
        if not group or (cost > self._left and self.runs):
            return
        self._left -= cost
        self._groups -= 1
        passage, first = group[0]
        home = next((run for run in self.runs if run[-1] == (passage, first - 1)), None)
        if home is None:
            self.runs.append(group)
        else:
            home.extend(group)

    def _opening(self) -> Unit | None:
        """The first sentence of the section whose name the question quotes: 'Explain “The roofline model”'."""
        name = terms_of(self._query.text.partition("“")[2].partition("”")[0]).stems
        prose = (unit for unit in self._book.values() if unit.kind in _PROSE and unit.section)
        return next((unit for unit in prose if name and terms_of(unit.section[-1]).stems == name), None)


def _log_odds(share: float) -> float:
    share = min(max(share, UNREAD), 1 - UNREAD / 4)
    return math.log(share / (1 - share))


def _definitions_first(scored: Sequence[ScoredUnit], subject: str) -> Sequence[ScoredUnit]:
    """The units, best first, where those that best define the name asked about count for more."""
    if not subject:
        return scored
    best = max((item.score for item in scored), default=0.0)
    shares = [definition_share(subject, item.unit.text) if item.unit.kind in _PROSE else 0.0 for item in scored]
    # Beside a definition, one that says little ('Grids are far larger') is only a sentence.
    gain = [DEFINITION_SHARE * best * share if share == max(shares) else 0.0 for share in shares]
    raised = [replace(item, score=item.score + more) for item, more in zip(scored, gain, strict=True)]
    return sorted(raised, key=lambda item: -item.score)


def _with_context(unit: Unit, book: dict[Place, Unit], kind: QuestionKind) -> list[Place]:
    """The unit plus the neighbours needed to read it alone; empty where those cannot come along.

    These are the sentence that 'this' refers to, the list, listing or formula that it
    announces, and the rest of a list that was asked for.
    """
    first = last = unit.place
    if unit.kind == "formula":
        announcing = book.get((unit.passage, first - 1))
        return [(unit.passage, first - 1), (unit.passage, first)] if announcing and announcing.kind in _PROSE else []
    if refers_back(unit.text):
        before = book.get((unit.passage, first - 1))
        if before is None or before.kind not in _PROSE | {"formula"}:
            return []
        first -= 1
    if kind == "list" and unit.kind == "item":
        return _whole_list(unit, book) or [(unit.passage, place) for place in range(first, last + 1)]
    following = book.get((unit.passage, last + 1))
    if following is not None and _announces(unit, following):
        last = _end_of_announced(unit, book)
    if last == unit.place and _is_cut_off(unit):
        return []
    return [(unit.passage, place) for place in range(first, last + 1)]


def refers_back(sentence: str) -> bool:
    """Whether a sentence begins with what an earlier one names."""
    return _REFERS_BACK.match(sentence) is not None


def _announces(unit: Unit, following: Unit) -> bool:
    """Whether a sentence is read with the block or list behind it."""
    if following.kind in ("formula", "code") and following.paragraph == unit.paragraph + 1:
        return not unit.text.rstrip(_CLOSING).endswith((".", "!", "。"))
    return _has_sublist(unit, following) or (following.kind in _ANNOUNCED and _is_cut_off(unit))


def _has_sublist(unit: Unit, following: Unit | None) -> bool:
    """Whether a list item has a list of its own below it."""
    return following is not None and unit.kind == following.kind == "item" and following.indent > unit.indent


def _is_cut_off(unit: Unit) -> bool:
    return unit.text.rstrip(_CLOSING).endswith((":", "："))


def _end_of_announced(unit: Unit, book: dict[Place, Unit]) -> int:
    """The place of the last unit that a sentence announces; its own place where that is longer than `LIST_WORDS`."""
    last, words = unit.place, LIST_WORDS
    while (after := book.get((unit.passage, last + 1))) is not None and after.kind in _ANNOUNCED:
        if last > unit.place and after.kind != "item":
            break
        if unit.kind == after.kind == "item" and after.indent <= unit.indent:
            break
        words -= count_words(after.text)
        if words < 0:
            return unit.place
        last += 1
        if after.kind != "item":
            break
    return last


def _whole_list(unit: Unit, book: dict[Place, Unit]) -> list[Place]:
    """The list that an item belongs to, with what announces it; empty where it is too long.

    Of lists within lists that is the innermost: the one below the item, else the one that it stands in.
    """
    first = last = unit.place
    depth = unit.indent
    if _has_sublist(unit, book.get((unit.passage, unit.place + 1))):
        depth += 1
    else:
        while _is_item(before := book.get((unit.passage, first - 1)), depth):
            first -= 1
        if before is not None and (before.kind == "item" or _is_cut_off(before)):
            first -= 1
    while _is_item(book.get((unit.passage, last + 1)), depth):
        last += 1
    places = [(unit.passage, place) for place in range(first, last + 1)]
    return places if sum(count_words(book[place].text) for place in places) <= LIST_WORDS else []


def _parent_item(unit: Unit, book: dict[Place, Unit]) -> Unit | None:
    """The item of the list around the one that an item stands in."""
    place = unit.place - 1
    while _is_item(before := book.get((unit.passage, place)), unit.indent):
        place -= 1
    return before if unit.kind == "item" and before is not None and before.kind == "item" else None


def _is_item(unit: Unit | None, depth: int) -> bool:
    return unit is not None and unit.kind == "item" and unit.indent >= depth


def _pieces(units: Sequence[Unit], request: GenerationRequest) -> Iterator[TextPiece]:
    for unit, before in zip(units, [None, *units], strict=False):
        if request.cancelled():
            raise Cancelled("the answer was stopped")
        yield _say(unit, before, request.passages[unit.passage].format)


def _until_stop(pieces: Iterator[TextPiece], strings: Sequence[str]) -> Iterator[TextPiece]:
    """The pieces up to the first of the stop strings."""
    stop = StopStrings(strings)
    for piece in pieces:
        if text := stop.push(piece.text):
            yield replace(piece, text=text)
        if stop.hit:
            return
    if text := stop.finish():
        yield TextPiece(text)


def _say(unit: Unit, before: Unit | None, book_format: str) -> TextPiece:
    """The unit with its marker, separated from the text before it.

    A listing, table or formula keeps its lines and has the marker on a line below.
    """
    kind, marker = unit.kind, f"[{unit.passage + 1}]"
    if kind in ("code", "formula"):
        said = f"{unit.text}\n\n{marker}"
    elif kind == "table":
        said = f"{as_markdown(unit.text, book_format)}\n\n{marker}"
    else:
        bullet = f"{' ' * unit.indent}- " if kind == "item" else ""
        said = f"{bullet}{_spoken(unit, book_format)} {marker}"
    quoted = Quoted(unit.passage + 1, unit.start, unit.end)
    return TextPiece(_separator(before, unit) + said, quoted)


def _spoken(unit: Unit, book_format: str) -> str:
    """A sentence as an answer has it."""
    return as_markdown(" ".join(without_markers(unit.text).split()), book_format)


def _separator(before: Unit | None, unit: Unit) -> str:
    if before is None:
        return ""
    kinds = (before.kind, unit.kind)
    if not _BLOCKS.isdisjoint(kinds) or kinds == ("item", "sentence"):
        return "\n\n"
    return "\n" if unit.kind == "item" else " "


def as_markdown(text: str, book_format: str) -> str:
    """A sentence or table of a book of this format, safe to read as Markdown; links become their text."""
    if book_format in PLAIN_FORMATS:
        return _MARKUP.sub(_escaped, text)
    text = _LINK.sub(lambda match: match["code"] or match["label"] or "", text)
    if book_format in MARKDOWN_FORMATS:
        return text
    return _MARKUP.sub(lambda match: f"`{match['name']}`" if match["name"] else match[0], text)


def _escaped(match: re.Match[str]) -> str:
    if match["code"]:
        return match["code"]
    if match["name"]:
        return f"`{match['name']}`"
    mark = match["mark"]
    return f"{mark}\\" if mark[0].isdigit() else f"\\{mark}"
