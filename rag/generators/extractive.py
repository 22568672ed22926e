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
from rag.answer_forms import Listing, definition_share, gives_number, rank_listings, says_of_what
from rag.citations import without_markers
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.stream_text import StopStrings
from rag.question import QuestionKind, question_kind, sides_of, subject_of, wants_steps
from rag.sentence_reader import ScoredUnit, SentenceReader, Unit, units_of
from rag.types import Arm, Passage, Quoted, Usage

WORDS_PER_TOKEN = 0.75
LEAST_SHARE = 0.2
"""A sentence scoring under this share of the best one is left out."""
OTHER_SIDE_SHARE = 0.1
"""The same for the first sentence about a side of a comparison that has not been spoken of."""
DEFINITION_SHARE = 0.7
"""What a sentence that defines the name asked about gains, as a share of the best score."""
READING_WEIGHT = 0.5
"""Weight of the log odds that the reader gives a listing, beside its names and its place."""
UNREAD = 0.02
"""The score taken for a listing that the reader did not read."""
SHOWN_LISTING = 0.5
"""Least score of a listing that is shown where it is asked how something is done."""
SHOWN_THOUGHTS = 2
"""Thoughts beside such a listing."""
NUMBER_SHARE = 0.6
"""What a sentence that gives the number asked for gains, as a share of the best score."""
LEAST_WORDS = 2
"""Fewer words are a label, not a sentence: 'Note', 'Demo: `name`'."""
REPEATED = 0.93
"""A sentence this similar to one already said repeats it."""
LISTING_WORDS = 400
"""Longest listing given when code is asked for, and longest table: a whole one is worth more than its half."""
LIST_WORDS = 120
"""Longest list given whole when a list is asked for."""
ANNOUNCED_WORDS = 60
"""Longest list, table, listing or formula that is brought along with the sentence that announces it."""
OVER_WORDS = 12
"""Longest item that is quoted above an item of the list below it."""
FOLLOWING_WORDS = 25
"""Most words of a sentence brought along because it goes on about the one before ('this can …')."""
MARKER_WORDS = 1
"""How many words a marker counts as."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Most words and most thoughts (a sentence with what it needs) of an answer."""

    words: int
    thoughts: int


BUDGETS: dict[QuestionKind, Budget] = {
    "define": Budget(60, 3),
    "number": Budget(50, 2),
    "fact": Budget(80, 4),
    "yes_no": Budget(80, 4),
    "why": Budget(100, 4),
    "how": Budget(100, 4),
    "compare": Budget(100, 4),
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
    r"|(?P<name>(?<![\w\\])(?:_+[A-Za-z0-9]\w*|[A-Za-z]\w*_)(?!\w))"
    r"|(?P<mark>^(?:[#>+-](?=\s)|\d{1,9}(?=[.)]\s))|(?<!\s)\*|\*(?!\s)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|`|\$"
    r"|\\(?=[!-/:-@\[-`{-~])|<(?=[A-Za-z/!?])|\](?=[(\[])|~(?=~)|&(?=#?\w+;))"
)

_REFERS_BACK = re.compile(
    r"^(?:[*_`\"'(]*)(?:this|these|that|those|its|they|their|them|he|she|such|here|both|the (?:former|latter|same)|"
    r"it(?!(?:'s| is| can be) (?:\w+ly )?(?!\w+ed\b)\w+ (?:to|that)\b)|"
    r"in (?:this|that|such) (?:case|way|example)|for this reason)\b"
    r"|^(?:这|那|它|该|此)",
    re.IGNORECASE,
)
"""Begins with what an earlier sentence names; 'it is possible to …' names nothing."""
_GOES_BACK = re.compile(
    r"^(?:[*_`\"'(]*)(?:however|therefore|thus|hence|consequently|as a result|otherwise|instead|moreover|furthermore|"
    r"then|so|but|and|also|similarly|likewise|conversely|where)\b"
    r"|^(?:因此|所以|但|然而|否则)",
    re.IGNORECASE,
)
"""Begins with a word that joins it to an earlier sentence, but can be read alone."""

_EXPLAINS = re.compile(r"where\b", re.IGNORECASE)
"""Goes on about the formula before it."""
_ANNOUNCES = re.compile(
    r"^(?:the (?:following|next)|here (?:is|are)|below (?:is|are))\b.{0,40}\b"
    r"(?:examples?|code|programs?|listings?|kernels?|snippets?|figures?|tables?|functions?|commands?)\b",
    re.IGNORECASE,
)
_SAYS_NOTHING = re.compile(
    r"^\W*(?:(?:figure|fig|table|listing|image|photo|source|credit)\b\.?\s*(?:\d|:)|[图表]\s*\d|!\[)"
    r"|^\W*(?:please )?(?:see|refer to|consult|read)\b|^\W*(?:参见|详见|请参阅)"
    r"|^\W*for (?:more|further|details|an? (?:example|overview))\b.{0,60}\b(?:see|refer|read)\b"
    r"|^\W*(?:in this|this|the (?:next|following)) "
    r"(?:chapters?|sections?|lessons?|tutorials?|pages?|exercises?|episodes?|courses?|parts? of)\b",
    re.IGNORECASE,
)
"""Captions, pointers elsewhere, and what a chapter says about itself."""
_GOALS = re.compile(
    r"^\W*(?:\d+[.\d]*\s+)?(?:outline|agenda|questions|(?:learning )?(?:goals|objectives|outcomes))\W*$", re.I
)
"""Headings and labels over what will be learnt."""
_CLOSING = "\"'”’)]}*_` \n"
"""What may stand behind the mark that ends a sentence."""
_QUOTED_CODE = re.compile(r"(`+).+?\1|\$+[^$]+\$+", re.DOTALL)
_EMPHASIS = re.compile(r"^\W*(\*\*|__)[^*_]+\1\W*$")
_CODE_LINE = re.compile(r"[;{}]\s*(?:\n|$)|^\s*#(?:include|pragma)\b")
_CODE_MARK = re.compile(r"\w\(|\s[+*/-]?=\s|[;{}]")
CODE_MARKS_A_WORD = 0.25
"""Prose with as many marks of code outside backticks is code that has lost its lines."""
_PROSE = frozenset({"sentence", "item"})
_BLOCKS = frozenset({"code", "table", "formula"})
_ANNOUNCED = _BLOCKS | {"item"}
_SHOWN_CODE = frozenset({"code", "how", "fact", "list"})
"""Kinds of questions whose answers bring listings along."""
_LEANT_ON = _PROSE | {"formula"}

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
        kind = question_kind(request.question)
        question = request.standalone_question or request.question
        units = self.choose(question, request.passages, request.max_tokens, kind=kind, said=request.said)
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
        self,
        question: str,
        passages: Sequence[Passage],
        max_tokens: int | None = None,
        *,
        kind: QuestionKind | None = None,
        said: str = "",
    ) -> list[Unit]:
        """The chosen sentences, listings and tables, the best one first.

        Args:
            question: in the language of the passages.
            max_tokens: longest answer, where that is shorter than what the kind of question needs.
            kind: of the question in the user's words, where those are other than `question`.
            said: an earlier answer, whose sentences are left out as long as others are left.
        """
        book = {(unit.passage, unit.place): unit for unit in units_of(passages)}
        kind = kind or question_kind(question)
        bound = None if max_tokens is None else max(int(max_tokens * WORDS_PER_TOKEN), 1)
        choice = _Choice(book, [passage.title for passage in passages], kind, bound, terms_of(question).pieces)
        scored = self._reader.read(question, passages)
        if said:
            said = " ".join(said.split())
            scored = [
                item for item in scored if _spoken(item.unit, passages[item.unit.passage].format) not in said
            ] or scored
        choice.fill(_with_form(scored, kind, question), question)
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
        titles: of the books that the passages are from.
        bound: most words, where the request names them.
        asked: the question's terms.
    """

    def __init__(
        self,
        book: dict[Place, Unit],
        titles: Sequence[str],
        kind: QuestionKind,
        bound: int | None,
        asked: frozenset[str],
    ) -> None:
        budget = BUDGETS[kind]
        self._titles = titles
        self._book = book
        self._kind = kind
        self._asked = asked
        self._left = budget.words if bound is None else min(budget.words, bound)
        self._listing_words = LISTING_WORDS if bound is None else bound
        self._thoughts = budget.thoughts
        self._picked: list[Unit] = []
        self._shown: Place | None = None
        self.runs: list[list[Place]] = []

    def fill(self, scored: Sequence[ScoredUnit], question: str) -> None:
        """Chooses among scored units, best first."""
        listing = None
        if self._kind == "code":
            listing = self._best_listing(scored, question)
            if listing is not None:
                self._take_listing(listing)
            else:
                self._thoughts = BUDGETS["how"].thoughts
        shown = None
        if self._kind != "code" and wants_steps(question):
            shown = self._best_listing(scored, question, SHOWN_LISTING)
        if shown is not None:
            self._shown = (shown.passage, shown.place)
            self._thoughts = SHOWN_THOUGHTS
        waiting = [item for item in scored if item.score > 0 and _says_something(item.unit, self._book)]
        if self._kind == "code" and listing is not None:
            waiting = [item for item in waiting if self._is_about(listing, item.unit)]
        best = waiting[0].score if waiting else 0.0
        close = [item.unit for item in waiting if item.score >= LEAST_SHARE * best]
        if self._kind == "compare":
            next(filter(self._take, close), None)
            near = [item.unit for item in waiting if item.score >= OTHER_SIDE_SHARE * best]
            for side in _own_terms(sides_of(question)):
                if not any(side & self._about(unit) for unit in self._picked):
                    next((unit for unit in near if side & self._about(unit) and self._take(unit)), None)
        for unit in close:
            self._take(unit)
        if shown is not None and self.runs:
            self._put_second(shown)
        self._order()
        if not self.runs and scored:
            self.runs.append([(scored[0].unit.passage, scored[0].unit.place)])

    def units(self) -> Iterator[Unit]:
        """What was chosen, in the order in which it is said; an item is indented below the one that it stands under."""
        for run in self.runs:
            for number, place in enumerate(run):
                unit = self._book[place]
                over = _item_over(unit, self._book)
                inner = over is not None and (over.passage, over.place) in run[:number]
                yield replace(unit, indent=2 if inner else 0)

    def _order(self) -> None:
        """Says what follows the second run in the book's order, one passage after another."""
        passages = list(dict.fromkeys(run[0][0] for run in self.runs[1:]))
        self.runs[2:] = sorted(self.runs[2:], key=lambda run: (passages.index(run[0][0]), run[0][1]))

    def _put_second(self, listing: Unit) -> None:
        """Says a listing behind the sentence that leads to it, or behind the first of the answer."""
        place = (listing.passage, listing.place)
        if any(place in run for run in self.runs):
            return
        home = next((run for run in self.runs if run[-1] == (place[0], place[1] - 1)), None)
        if home is not None:
            home.append(place)
            self.runs.remove(home)
            self.runs.insert(0, home)
        else:
            self.runs.insert(1, [place])

    def _best_listing(self, scored: Sequence[ScoredUnit], question: str, least: float = 0.0) -> Unit | None:
        """The listing that shows best what was asked for; None where none scores `least` by its names and its place."""
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
        fits = [
            (score + READING_WEIGHT * _log_odds(read.get((unit.passage, unit.place), UNREAD)), -number, unit)
            for number, (unit, score) in enumerate(zip(units, rank_listings(question, listings), strict=True))
            if score >= least
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
        if before is not None and before.kind in _PROSE and not _is_aside(before) and self._leads_to(before):
            self.runs[0].insert(0, (before.passage, before.place))
            self._thoughts -= 1

    def _is_about(self, listing: Unit, unit: Unit) -> bool:
        """Whether a sentence stands in the listing's section and names what was asked for."""
        same = (unit.passage, unit.section) == (listing.passage, listing.section)
        return same and not self._asked.isdisjoint(unit.pieces)

    def _leads_to(self, before: Unit) -> bool:
        """Whether the sentence before a listing is about it: it ends in a colon, or names what was asked for."""
        return _is_cut_off(before) or (not _is_label(before) and not self._asked.isdisjoint(before.pieces))

    def _take(self, unit: Unit) -> bool:
        """Whether the unit was chosen, with the neighbours that it needs."""
        said = {place for run in self.runs for place in run}
        others = said - {(unit.passage, unit.place)}
        if self._thoughts <= 0 or any(_similarity(unit, self._book[place]) > REPEATED for place in others):
            return False
        if (unit.passage, unit.place) in said and not _is_over(unit, self._book.get((unit.passage, unit.place + 1))):
            return False
        thought = _whole_thought(unit, self._book, self._kind, self._asked)
        over = self._over(unit)
        if thought and over is not None and over not in thought:
            thought = [over, *thought]
        thought = [place for place in thought if place not in said and not _is_empty(self._book[place])]
        cost = sum(count_words(self._book[place].text) + MARKER_WORDS for place in thought)
        if not thought or (cost > self._left and self.runs):
            return False
        if self._shown is not None and any(self._book[p].kind == "code" and p != self._shown for p in thought):
            return False
        self._picked.append(unit)
        self._left -= cost
        self._thoughts -= 1
        self._join(thought, over or (unit.passage, unit.place))
        return True

    def _over(self, unit: Unit) -> Place | None:
        """The short item that a list item stands under, where it has words of the question that the list item lacks."""
        over = _item_over(unit, self._book)
        if over is None or self._kind == "list" or count_words(over.text) > OVER_WORDS:
            return None
        return (over.passage, over.place) if (over.pieces & self._asked) - unit.pieces else None

    def _about(self, unit: Unit) -> frozenset[str]:
        """The terms of a unit and of the item that it stands under."""
        over = self._over(unit)
        return unit.pieces if over is None else unit.pieces | self._book[over].pieces

    def _join(self, thought: list[Place], over: Place | None) -> None:
        """Says a thought behind the run that it follows in the book, or that it stands under, or as one of its own."""
        passage, first = thought[0]
        home = next((run for run in self.runs if run[-1] == (passage, first - 1) or over in run), None)
        if home is None:
            self.runs.append(thought)
        else:
            home.extend(thought)


def _log_odds(share: float) -> float:
    share = min(max(share, UNREAD), 1 - UNREAD / 4)
    return math.log(share / (1 - share))


def _with_form(scored: Sequence[ScoredUnit], kind: QuestionKind, question: str) -> list[ScoredUnit]:
    """The units, best first, where those that best define the name asked about, or give the number, count for more."""
    subject = subject_of(question)
    best = max((item.score for item in scored), default=0.0)
    shares = [0.0] * len(scored)
    for number, item in enumerate(scored):
        if item.unit.kind in _PROSE and says_of_what(question, item.unit.text):
            shares[number] = NUMBER_SHARE + DEFINITION_SHARE
        elif item.unit.kind in _PROSE and kind == "number":
            shares[number] = NUMBER_SHARE * gives_number(question, item.unit.text)
        elif item.unit.kind in _PROSE and subject:
            shares[number] = DEFINITION_SHARE * definition_share(subject, item.unit.text)
    # Beside a definition, one that says little ('Grids are far larger') is only a sentence.
    least = 0.0 if kind == "number" else max(shares, default=0.0)
    raised = [
        replace(item, score=item.score + share * best) if share >= least else item
        for item, share in zip(scored, shares, strict=True)
    ]
    return sorted(raised, key=lambda item: -item.score)


def _says_something(unit: Unit, book: dict[Place, Unit]) -> bool:
    """Whether a unit can be chosen for itself; a listing comes with the sentence that announces it."""
    if unit.kind == "table":
        return count_words(unit.text) <= LISTING_WORDS
    if unit.kind == "formula":
        return True
    if unit.kind not in _PROSE or _is_aside(unit):
        return False
    if _is_goal(unit, book):
        return False
    if count_words(unit.text) < LEAST_WORDS or (_is_label(unit) and not _is_signature(unit)):
        return False
    return not _is_code(unit)


def _is_goal(unit: Unit, book: dict[Place, Unit]) -> bool:
    """Whether a unit says what will be learnt: its section is of goals, or its list stands under such a label."""
    if unit.section and _GOALS.match(unit.section[-1]):
        return True
    label: Unit | None = unit
    while label is not None and label.kind == "item":
        label = book.get((label.passage, label.place - 1))
    return label is not None and _GOALS.match(label.text) is not None


def _is_aside(unit: Unit) -> bool:
    """Whether a unit is a question of the book, a caption, a title in bold, a pointer elsewhere or an announcement."""
    if unit.text.rstrip(_CLOSING).endswith(("?", "？")):
        return True
    return bool(_SAYS_NOTHING.search(unit.text) or _EMPHASIS.match(unit.text))


def _is_empty(unit: Unit) -> bool:
    """Whether a list item says nothing in its list: a pointer elsewhere, or '…'."""
    return unit.kind == "item" and (bool(_SAYS_NOTHING.search(unit.text)) or not re.search(r"\w", unit.text))


def _is_code(unit: Unit) -> bool:
    """Whether a sentence is code outside backticks."""
    rest = _QUOTED_CODE.sub("", unit.text)
    return bool(_CODE_LINE.search(rest)) or len(_CODE_MARK.findall(rest)) > CODE_MARKS_A_WORD * count_words(rest)


def _is_label(unit: Unit) -> bool:
    """Whether a unit is code and at most a word beside it: `name(argument)`, 'Demo: `name`'."""
    return count_words(_QUOTED_CODE.sub("", unit.text)) < LEAST_WORDS


def _is_signature(unit: Unit) -> bool:
    """Whether a unit is code alone: a name over its description."""
    rest = _QUOTED_CODE.sub("", unit.text)
    return rest != unit.text and not re.search(r"\w", rest)


def _own_terms(sides: Sequence[str]) -> tuple[frozenset[str], ...]:
    """The terms of each side of a comparison that the other side lacks."""
    if len(sides) != 2:
        return ()
    one, other = (terms_of(side).pieces for side in sides)
    return tuple(filter(None, (one - other, other - one)))


def _similarity(one: Unit, other: Unit) -> float:
    """Share of their terms that two units have in common, 0 to 1 (Jaccard)."""
    either = len(one.pieces | other.pieces)
    return len(one.pieces & other.pieces) / either if either else 1.0


def _whole_thought(unit: Unit, book: dict[Place, Unit], kind: QuestionKind, asked: frozenset[str]) -> list[Place]:
    """The unit plus the neighbours needed to read it alone; empty where those cannot come along.

    These are the sentence that 'this' refers to, a short one that goes on, the list, listing or formula that it
    announces, and the rest of a list that was asked for.
    """
    first = last = unit.place
    if unit.kind == "formula":
        announcing = book.get((unit.passage, first - 1))
        return [(unit.passage, first - 1), (unit.passage, first)] if announcing and announcing.kind in _PROSE else []
    for _ in range(2):
        refers = _REFERS_BACK.match(book[unit.passage, first].text)
        if not refers and not _GOES_BACK.match(book[unit.passage, first].text):
            break
        before = book.get((unit.passage, first - 1))
        if (
            before is None
            or before.kind not in (_LEANT_ON if refers or _EXPLAINS.match(unit.text) else _PROSE)
            or (_is_aside(before))
        ):
            if refers:
                return []
            break
        first -= 1
    if not _is_signature(unit):
        first -= _signature_above(unit.passage, first, book, asked)
    if kind == "list" and unit.kind == "item":
        return _whole_list(unit, book) or [(unit.passage, place) for place in range(first, last + 1)]
    following = book.get((unit.passage, last + 1))
    if _is_signature(unit):
        if following is None or following.kind not in _PROSE or _is_label(following):
            return []
        return [(unit.passage, first), (unit.passage, first + 1)]
    brings = following is not None and (following.kind != "code" or kind in _SHOWN_CODE or _is_cut_off(unit))
    if following is not None and brings and _announces(unit, following):
        last = _end_of_announced(unit, book, LIST_WORDS if kind == "list" else ANNOUNCED_WORDS)
    if last == unit.place and _says_what_follows(unit, following):
        return []
    if last == unit.place and following is not None and _goes_on(unit, following):
        last += 1
    return [(unit.passage, place) for place in range(first, last + 1)]


def _signature_above(passage: int, place: int, book: dict[Place, Unit], asked: frozenset[str]) -> int:
    """How many units right above name what this one describes: a name, or a declared name that was not asked about."""
    above, further = (book.get((passage, place - back)) for back in (1, 2))
    if above is not None and above.kind in _PROSE and _is_signature(above):
        return 1
    if above is None or above.kind != "code" or count_words(above.text) > ANNOUNCED_WORDS:
        return 0
    return 2 if further is not None and _is_signature(further) and not further.pieces <= asked else 0


def _announces(unit: Unit, following: Unit) -> bool:
    """Whether a sentence is read with the block or list behind it."""
    if following.kind in ("formula", "code") and following.paragraph == unit.paragraph + 1:
        return not unit.text.rstrip(_CLOSING).endswith((".", "!", "。"))
    return _is_over(unit, following) or (following.kind in _ANNOUNCED and _says_what_follows(unit, following))


def _is_over(unit: Unit, following: Unit | None) -> bool:
    """Whether a list item has a list of its own below it."""
    return following is not None and unit.kind == following.kind == "item" and following.indent > unit.indent


def _is_cut_off(unit: Unit) -> bool:
    return unit.text.rstrip(_CLOSING).endswith((":", "："))


def _says_what_follows(unit: Unit, following: Unit | None) -> bool:
    """Whether a sentence says nothing without what follows: it ends in a colon, or names the example below."""
    if _is_cut_off(unit):
        return True
    return following is not None and following.kind in _ANNOUNCED and bool(_ANNOUNCES.match(unit.text))


def _end_of_announced(unit: Unit, book: dict[Place, Unit], words: int) -> int:
    """The place of the last unit that a sentence announces; its own place where that is longer than `words`."""
    last = unit.place
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
    if _is_over(unit, book.get((unit.passage, unit.place + 1))):
        depth += 1
    else:
        while _is_item(before := book.get((unit.passage, first - 1)), depth):
            first -= 1
        if before is not None and (before.kind == "item" or _says_what_follows(before, None)):
            first -= 1
    while _is_item(book.get((unit.passage, last + 1)), depth):
        last += 1
    places = [(unit.passage, place) for place in range(first, last + 1)]
    return places if sum(count_words(book[place].text) for place in places) <= LIST_WORDS else []


def _item_over(unit: Unit, book: dict[Place, Unit]) -> Unit | None:
    """The item of the list around the one that an item stands in."""
    place = unit.place - 1
    while _is_item(before := book.get((unit.passage, place)), unit.indent):
        place -= 1
    return before if unit.kind == "item" and before is not None and before.kind == "item" else None


def _is_item(unit: Unit | None, depth: int) -> bool:
    return unit is not None and unit.kind == "item" and unit.indent >= depth


def _goes_on(unit: Unit, following: Unit) -> bool:
    """Whether a short sentence of the same paragraph says more of what the unit says."""
    same = following.paragraph == unit.paragraph and following.kind in _PROSE
    refers = _REFERS_BACK.match(following.text) or _GOES_BACK.match(following.text)
    return same and bool(refers) and count_words(following.text) <= FOLLOWING_WORDS


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
