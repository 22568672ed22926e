"""Makes training questions from a user's own books with any language model, one passage at a time.

Every pair is checked against rules, the model is asked to answer it from its passage, and rejects are counted by
reason. Each finished passage is saved at once, so a stopped run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from indexes.errors import Cancelled, InvalidInput
from indexes.jsonl import JsonlLog
from indexes.types import Book
from indexes.words import count_words, terms_of
from rag.citations import support_of
from rag.errors import ArmUnavailable, DoesNotFitInMemory, PromptTooLong
from rag.generators.protocol import GenerationRequest, Generator, TextPiece
from rag.tuning.data import Format, RowPassage, TrainingRow, write_dataset
from rag.tuning.settings import SynthesisSettings
from rag.types import Arm

LOG_FILE = "synthesis.jsonl"
_PASSAGE_WORDS = (60, 280)
_TOKENS_PER_PAIR = 220
_ANSWER_TOKENS = 200
Reason: TypeAlias = Literal[
    "unparsed", "malformed", "names_its_source", "evidence_not_in_passage", "not_in_passage", "off_topic",
    "gives_itself_away", "near_duplicate", "not_answered",
]  # fmt: skip
"""Why a pair is thrown away: it is not JSON; it is empty, too long or not a question; it points at a figure, page or
text; its evidence is not in the passage; the answer has names, numbers or words that the passage lacks; the question is
not about the passage; it contains the answer; it was asked before; the model cannot answer it from the passage."""

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
class SynthesisReport:
    """The result of a synthesis.

    Attributes:
        passages: read, in all sessions of this run; rows: kept; written: pairs the model wrote.
        thrown_away: pairs by reason (`Reason`); skipped_passages: longer than the model's context.
    """

    data_file: str
    passages: int
    rows: int
    written: int
    thrown_away: dict[str, int]
    skipped_passages: int


def cut_passages(book: Book) -> list[RowPassage]:
    """A book's sections cut into passages of 60 to 280 words, between paragraphs; shorter ones are left out."""
    least, most = _PASSAGE_WORDS
    passages: list[RowPassage] = []
    for section in book.sections:
        for text in _grouped(section.text.split("\n\n"), most):
            if count_words(text) >= least:
                passages.append(RowPassage(book.title, section.heading_path, text))
    return passages


def synthesize(
    passages: Sequence[RowPassage],
    generator: Generator,
    out: Path,
    settings: SynthesisSettings | None = None,
    *,
    file_format: Format = "messages",
    progress: Callable[[int, int, int], None] = lambda _done, _total, _rows: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> SynthesisReport:
    """Makes a dataset in the folder `out`; goes on where an earlier call with the same settings stopped.

    Args:
        progress: called with (passages done, all passages, rows kept).
        cancelled: polled between passages and by the generator.

    Raises:
        ArmUnavailable: the generator has no language model.
        InvalidInput: no passages, or nothing was kept.
        Cancelled: `cancelled` became true; finished passages are kept.
        StorageFull, and the generator's own errors: finished passages are kept.
    """
    settings = settings or SynthesisSettings()
    if not passages:
        raise InvalidInput("The books hold no passages to ask about.", hint="Name books with running text.")
    if "base" not in generator.arms:
        raise ArmUnavailable(
            f"The {generator.name} generator cannot write questions.",
            hint="Use --generator local --model PATH, or --generator remote --base-url URL --model NAME.",
        )
    chosen = _spread(passages, settings.limit, settings.seed)
    log = JsonlLog(out / LOG_FILE)
    finished = {entry["key"]: entry for _, entry in log.read()}
    writer = _Writer(generator, settings, cancelled)
    seen, rows, totals, skipped = QuestionsSeen(), [], Counter[str](), 0
    for number, passage in enumerate(chosen, 1):
        key = _key(passage, generator.model_name, settings)
        entry = finished.get(key)
        if entry is None:
            if cancelled():
                raise Cancelled(f"Stopped after {number - 1} of {len(chosen)} passages; call again to go on.")
            entry = finished[key] = {"key": key, **writer.write(passage)}
            log.append(entry)
        skipped += bool(entry.get("skipped"))
        totals.update(entry["thrown_away"])
        totals["written"] += entry["written"]
        for question, answer in entry["pairs"]:
            if seen.add(question):
                rows.append(_row(passage, question, answer, chosen, settings))
            else:
                totals["near_duplicate"] += 1
        progress(number, len(chosen), len(rows))
    written = totals.pop("written", 0)
    thrown_away = dict(sorted(totals.items()))
    if not rows:
        reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in thrown_away.items())
        raise InvalidInput(
            f"None of {written} pairs passed the checks: {reasons}.",
            hint="Use a larger model; small ones seldom follow the rules.",
        )
    file = write_dataset(rows, out, name="synthesized", file_format=file_format)
    return SynthesisReport(str(file), len(chosen), len(rows), written, thrown_away, skipped)


def verified_pairs(
    passage: RowPassage, generator: Generator, cancelled: Callable[[], bool] = lambda: False
) -> list[SynthesizedPair]:
    """The questions that a language model writes about a passage and answers from it, as `synthesize` keeps them.

    Raises:
        the generator's own errors; a passage that is too long gives none.
    """
    try:
        return _Writer(generator, SynthesisSettings(), cancelled).pairs(passage)[0]
    except (PromptTooLong, DoesNotFitInMemory):
        return []


class _Writer:
    """Asks the model for pairs about one passage and checks them."""

    def __init__(self, generator: Generator, settings: SynthesisSettings, cancelled: Callable[[], bool]) -> None:
        self._generator = generator
        self._settings = settings
        self._cancelled = cancelled

    def write(self, passage: RowPassage) -> dict[str, Any]:
        """The log entry of a passage: the pairs kept, the number written, the number thrown away by reason."""
        try:
            kept, thrown = self.pairs(passage)
        except (PromptTooLong, DoesNotFitInMemory):
            return {"pairs": [], "written": 0, "thrown_away": {}, "skipped": True}
        pairs = [(pair.question, pair.answer) for pair in kept]
        return {"pairs": pairs, "written": len(pairs) + thrown.total(), "thrown_away": dict(thrown)}

    def pairs(self, passage: RowPassage) -> tuple[list[SynthesizedPair], Counter[str]]:
        """The pairs kept, and the number thrown away by reason. Raises PromptTooLong, DoesNotFitInMemory."""
        count = self._settings.pairs
        asked = pair_request(passage.text, " > ".join((passage.title, *passage.section)), count)
        request = GenerationRequest(
            asked,
            "base",
            max_tokens=count * _TOKENS_PER_PAIR,
            temperature=self._settings.temperature,
            seed=self._settings.seed,
            cancelled=self._cancelled,
        )
        pairs, unreadable = parse_pairs(self._text(request))
        thrown = Counter[str]({"unparsed": unreadable} if unreadable else {})
        kept: list[SynthesizedPair] = []
        for pair in pairs:
            fault = fault_of(pair, passage.text)
            if fault is None and self._settings.verify and not self._answers(pair.question, pair.answer, passage):
                fault = "not_answered"
            if fault is None:
                kept.append(pair)
            else:
                thrown[fault] += 1
        return kept, thrown

    def _answers(self, question: str, answer: str, passage: RowPassage) -> bool:
        arm: Arm = "rag" if "rag" in self._generator.arms else "base"
        request = GenerationRequest(
            question, arm, (passage.as_passage(),), max_tokens=_ANSWER_TOKENS, cancelled=self._cancelled
        )
        return same_answer(self._text(request), answer)

    def _text(self, request: GenerationRequest) -> str:
        return "".join(piece.text for piece in self._generator.stream(request) if isinstance(piece, TextPiece))


def _row(
    passage: RowPassage, question: str, answer: str, others: Sequence[RowPassage], settings: SynthesisSettings
) -> TrainingRow:
    """A row; its own passage is shown at a random place among others, so that the place reveals nothing."""
    row = TrainingRow(question, answer, section=" > ".join((passage.title, *passage.section)))
    if settings.shown_passages < 1:
        return row
    rng = random.Random(f"{settings.seed}:{question}")
    rest = [other for other in others if other.text != passage.text]
    shown = [passage, *rng.sample(rest, min(settings.shown_passages - 1, len(rest)))]
    rng.shuffle(shown)
    return replace(row, passages=tuple(shown))


def _key(passage: RowPassage, model_name: str, settings: SynthesisSettings) -> str:
    """Identifies the work on one passage: another text, model or setting is other work."""
    parts = (passage.title, *passage.section, passage.text, model_name, settings.pairs, settings.verify)
    identity = json.dumps([*parts, settings.temperature, settings.seed], ensure_ascii=False)
    return hashlib.sha256(identity.encode()).hexdigest()[:24]


def _spread(passages: Sequence[RowPassage], limit: int | None, seed: int) -> list[RowPassage]:
    """At most `limit` passages, drawn evenly and kept in reading order."""
    if limit is None or limit >= len(passages):
        return list(passages)
    places = sorted(random.Random(seed).sample(range(len(passages)), limit))
    return [passages[place] for place in places]


def _grouped(paragraphs: Sequence[str], most_words: int) -> Iterator[str]:
    held: list[str] = []
    words = 0
    for paragraph in (part for part in paragraphs if part.strip()):
        size = count_words(paragraph)
        if held and words + size > most_words:
            yield "\n\n".join(held)
            held, words = [], 0
        held.append(paragraph)
        words += size
    if held:
        yield "\n\n".join(held)


@dataclass(frozen=True, slots=True)
class SynthesizedPair:
    """A question, its answer, and the sentence of the passage that holds the answer."""

    question: str
    answer: str
    evidence: str


def pair_request(passage: str, source: str, count: int) -> str:
    """The prompt that asks for questions about one passage."""
    return (
        f"Write {count} exam questions with answers about the passage below, which is from {source}.\n"
        "Rules:\n"
        "- Each question stands alone: a reader who never saw the passage understands what is asked.\n"
        "- Never mention a passage, text, figure, table, page, chapter, section, listing or author.\n"
        "- Ask about GPU programming or parallel computing, not about how the text is written.\n"
        "- Answer only with what the passage says. Invent no names, numbers or code.\n"
        "- The answer does not stand in the question. No two questions ask the same.\n"
        "- `evidence` is one sentence copied exactly from the passage that holds the answer.\n"
        'Write one JSON object per line and nothing else: {"question": "…", "answer": "…", "evidence": "…"}\n\n'
        f"Passage:\n{passage}"
    )


def parse_pairs(written: str) -> tuple[list[SynthesizedPair], int]:
    """The pairs in a model's text, and how many more began but cannot be read.

    Accepts one object per line, objects inside an array, inside a code fence, or over several lines.
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
    """The first rule that a pair breaks, None for a good one; `QuestionsSeen` finds repeats."""
    question_words, answer_words = count_words(pair.question), count_words(pair.answer)
    if not pair.question.endswith(("?", "？")) or not _within(question_words, _QUESTION_WORDS):
        return "malformed"
    if not _within(answer_words, _ANSWER_WORDS):
        return "malformed"
    if _POINTS_AT_SOURCE.search(pair.question) or _POINTS_AT_SOURCE.search(pair.answer):
        return "names_its_source"
    if not pair.evidence or _plain(pair.evidence) not in _plain(passage):
        return "evidence_not_in_passage"
    question, answer, said = terms_of(pair.question), terms_of(pair.answer), terms_of(passage)
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
    """Finds repeats: questions with nearly the words of an earlier one."""

    def __init__(self) -> None:
        self._seen: list[frozenset[str]] = []
        self._holding: dict[str, list[int]] = {}

    def add(self, question: str) -> bool:
        """Adds a question; False when an earlier one is nearly the same."""
        pieces = terms_of(question).pieces
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
    """Lower case with single spaces and straight quotation marks, for comparing a quote with its source."""
    return " ".join(text.translate(str.maketrans("“”‘’", "\"\"''")).split()).lower()
