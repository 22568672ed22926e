"""Answers in the book's own sentences, each with its marker: no language model, nothing that the book does not say."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from indexes.errors import Cancelled
from indexes.words import count_words
from rag.citations import without_markers
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.stream_text import StopStrings
from rag.sentence_reader import ScoredUnit, SentenceReader, Unit, units_of
from rag.types import Arm, Passage, Quoted, Usage

WORDS = 116
"""Longest answer in words when the request names no `max_tokens`."""
WORDS_PER_TOKEN = 0.75
REPEAT_WEIGHT = 0.15
"""How much similarity to what was chosen costs (maximal marginal relevance)."""
REPEATED = 0.93
"""A sentence this similar to a chosen one says it again."""
LEAST_SHARE = 0.4
"""A sentence scoring under this share of the best one is left out."""
LISTING_WORDS = 400
"""Longest listing given when code is asked for, and longest table: a whole one is worth more than its half."""
MARKER_WORDS = 1
"""What the marker behind a sentence counts."""
FOLLOWING_WORDS = 25
"""Most words of a sentence brought along because it goes on about the one before ('this can …')."""
LIST_WORDS = 40
"""Most words of a list, table, listing or formula that is brought along with the sentence that announces it."""

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
    r"|(?P<name>(?<![\w\\])(?:_+[A-Za-z0-9]\w*|[A-Za-z]\w*_)(?!\w))"
    r"|(?P<mark>^(?:[#>+-](?=\s)|\d{1,9}(?=[.)]\s))|(?<!\s)\*|\*(?!\s)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|`|\$"
    r"|\\(?=[!-/:-@\[-`{-~])|<(?=[A-Za-z/!?])|\](?=[(\[])|~(?=~)|&(?=#?\w+;))"
)

_ASKS_FOR_CODE = re.compile(
    r"\b(code|snippet|listing|implement(ed|ation)?|syntax|write|source)\b|代码|程序|写出|实现|语法", re.IGNORECASE
)
_REFERS_BACK = re.compile(
    r"^(?:[*_`\"'(]*)(?:this|these|that|those|it|its|they|their|them|he|she|such|here|both|the (?:former|latter|same)|"
    r"however|therefore|thus|hence|consequently|as a result|otherwise|instead|moreover|furthermore|"
    r"in (?:this|that|such) (?:case|way|example)|for this reason|then|so|but|and|also|similarly|likewise|conversely)\b"
    r"|^(?:这|那|它|该|此|因此|所以|但|然而|否则)",
    re.IGNORECASE,
)

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
        """Yields one piece per sentence, listing or table, in reading order, then the figures."""
        self.check(request)
        started = time.perf_counter()
        units = self.choose(
            request.standalone_question or request.question,
            request.passages,
            request.max_tokens,
            code=asks_for_code(request.question),
        )
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
        self, question: str, passages: Sequence[Passage], max_tokens: int | None = None, *, code: bool = False
    ) -> list[Unit]:
        """The chosen sentences, listings and tables, in reading order.

        Args:
            question: in the language of the passages.
            max_tokens: longest answer; None is about `WORDS` words.
            code: whether a listing is asked for.
        """
        scored = self._reader.read(question, passages)
        words = WORDS if max_tokens is None else max(int(max_tokens * WORDS_PER_TOKEN), 1)
        book = {(unit.passage, unit.place): unit for unit in units_of(passages)}
        places: set[Place] = set()
        if code and (listing := _best_listing(scored, words if max_tokens is not None else LISTING_WORDS)):
            places.add((listing.passage, listing.place))
        places = _choose_places(scored, book, words, places)
        return [book[place] for place in sorted(places) if book[place].kind != "heading"]

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


def asks_for_code(question: str) -> bool:
    """Whether a listing would be the answer."""
    return bool(_ASKS_FOR_CODE.search(question))


def count_tokens(text: str) -> int:
    """Tokens by the rule of thumb of `WORDS_PER_TOKEN`; this generator has no tokenizer of its own."""
    return round(count_words(text) / WORDS_PER_TOKEN)


def peak_process_bytes() -> int:
    """Most memory this process has held, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _choose_places(scored: Sequence[ScoredUnit], book: dict[Place, Unit], words: int, taken: set[Place]) -> set[Place]:
    """Greedy maximal marginal relevance within `words`, each choice with the neighbours it needs.

    Args:
        taken: places that are already chosen.
    """
    waiting = [item for item in scored if item.score > 0 and _is_statement(item.unit)]
    if not waiting:
        return taken
    least = LEAST_SHARE * max(item.score for item in waiting)
    chosen = set(taken)
    picked: list[Unit] = []
    left = words
    while waiting and left > 0:
        repeated = [max((_similarity(item.unit, other) for other in picked), default=0.0) for item in waiting]
        best = max(range(len(waiting)), key=lambda i: waiting[i].score - REPEAT_WEIGHT * repeated[i])
        item = waiting.pop(best)
        unit = item.unit
        if item.score < least or repeated[best] > REPEATED or (unit.passage, unit.place) in chosen:
            continue
        thought = [place for place in _whole_thought(unit, book) if place not in chosen]
        cost = sum(count_words(book[place].text) + MARKER_WORDS for place in thought)
        if cost > left and picked:
            continue
        picked.append(unit)
        chosen.update(thought)
        left -= cost
    return chosen


def _is_statement(unit: Unit) -> bool:
    """Whether a unit can be chosen for itself; listings and formulas come with the sentence that announces them."""
    if unit.kind == "table":
        return count_words(unit.text) <= LISTING_WORDS
    return unit.kind in ("sentence", "item")


def _similarity(one: Unit, other: Unit) -> float:
    """Share of their terms that two units have in common, 0 to 1 (Jaccard)."""
    either = len(one.pieces | other.pieces)
    return len(one.pieces & other.pieces) / either if either else 1.0


def _whole_thought(unit: Unit, book: dict[Place, Unit]) -> list[Place]:
    """The sentence plus the neighbours needed to read it alone.

    These are the sentence that 'this' refers to, a short one that goes on, and the list, listing or formula after its
    colon.
    """
    first = last = unit.place
    for _ in range(2):
        before = book.get((unit.passage, first - 1))
        refers = _REFERS_BACK.match(book[unit.passage, first].text)
        if before is None or before.kind not in ("sentence", "item") or not refers:
            break
        first -= 1
    following = book.get((unit.passage, last + 1))
    if following is not None and _goes_on(unit, following):
        last += 1
    if unit.text.endswith((":", "：")):
        left = LIST_WORDS
        while (after := book.get((unit.passage, last + 1))) is not None and after.kind in _ANNOUNCED:
            left -= count_words(after.text)
            if left < 0:
                break
            last += 1
            if after.kind in ("code", "formula"):
                break
    return [(unit.passage, place) for place in range(first, last + 1)]


def _goes_on(unit: Unit, following: Unit) -> bool:
    """Whether a short sentence of the same paragraph says more of what the unit says."""
    same = following.paragraph == unit.paragraph and following.kind in ("sentence", "item")
    return same and bool(_REFERS_BACK.match(following.text)) and count_words(following.text) <= FOLLOWING_WORDS


def _best_listing(scored: Sequence[ScoredUnit], words: int) -> Unit | None:
    listings = (item.unit for item in scored if item.unit.kind == "code" and count_words(item.unit.text) <= words)
    return next(listings, None)


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
        text = as_markdown(" ".join(without_markers(unit.text).split()), book_format)
        said = f"{'- ' if kind == 'item' else ''}{text} {marker}"
    quoted = Quoted(unit.passage + 1, unit.start, unit.end)
    return TextPiece(_separator(before, unit) + said, quoted)


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
