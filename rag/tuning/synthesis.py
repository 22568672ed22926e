"""Makes training questions from a user's own books with any generator, one passage at a time.

Every pair is checked (`synthesis_rules`), the model is asked to answer it from its passage, and what is thrown away is
counted by reason. Each finished passage is written down at once, so that a stopped run goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indexes.errors import Cancelled, InvalidInput, StorageFull
from indexes.types import Book
from rag.errors import ArmUnavailable, DoesNotFitInMemory, PromptTooLong
from rag.generators.protocol import GenerationRequest, Generator, TextPiece
from rag.tuning.dataset import write_dataset
from rag.tuning.disk import disk_full
from rag.tuning.formats import Format
from rag.tuning.rows import RowPassage, TrainingRow
from rag.tuning.synthesis_rules import QuestionsSeen, fault_of, pair_request, parse_pairs, same_answer
from rag.types import Arm, Passage
from rag.wording import count_words

LOG_FILE = "synthesis.jsonl"
_PASSAGE_WORDS = (60, 280)
_TOKENS_A_PAIR = 220
_ANSWER_TOKENS = 200


@dataclass(frozen=True, slots=True)
class SynthesisSettings:
    """What to make.

    Attributes:
        pairs: questions asked for a passage.
        shown_passages: passages in each row's prompt: its own among others of the same books (0: none, closed book).
        verify: ask the model to answer each question from its passage and throw away what it answers otherwise.
        limit: most passages to read, spread over the books; None reads all.
    """

    pairs: int = 3
    shown_passages: int = 0
    verify: bool = True
    limit: int | None = None
    temperature: float = 0.3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SynthesisReport:
    """What came out.

    Attributes:
        passages: read, in all sessions of this run; rows: kept; written: pairs the model wrote.
        thrown_away: pairs by reason (`synthesis_rules.REASONS`); skipped_passages: longer than the model's context.
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
        progress: told (passages done, passages in all, rows kept).
        cancelled: polled between passages and by the generator.

    Raises:
        ArmUnavailable: the generator has no language model.
        InvalidInput: no passages, or nothing was kept.
        Cancelled: `cancelled` became true; what is done is kept.
        StorageFull, and the generator's own errors: what is done is kept.
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
    log = _Log(out / LOG_FILE)
    writer = _Writer(generator, settings, cancelled)
    seen, rows, totals, skipped = QuestionsSeen(), [], Counter[str](), 0
    for number, passage in enumerate(chosen, 1):
        key = _key(passage, generator.model_name, settings)
        entry = log.entries.get(key)
        if entry is None:
            if cancelled():
                raise Cancelled(f"Stopped after {number - 1} of {len(chosen)} passages; call again to go on.")
            entry = {"key": key, **writer.write(passage)}
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
        raise InvalidInput(
            f"None of {written} pairs was good enough: {thrown_away}.",
            hint="Use a larger model; small ones seldom follow the rules.",
        )
    file = write_dataset(rows, out, name="synthesized", file_format=file_format)
    return SynthesisReport(str(file), len(chosen), len(rows), written, thrown_away, skipped)


class _Writer:
    """Asks the model for pairs about one passage and checks them."""

    def __init__(self, generator: Generator, settings: SynthesisSettings, cancelled: Callable[[], bool]) -> None:
        self._generator = generator
        self._settings = settings
        self._cancelled = cancelled

    def write(self, passage: RowPassage) -> dict[str, Any]:
        """The log entry of a passage: pairs kept, how many were written, how many thrown away and why."""
        count = self._settings.pairs
        asked = pair_request(passage.text, " > ".join((passage.title, *passage.section)), count)
        request = GenerationRequest(
            asked,
            "base",
            max_tokens=count * _TOKENS_A_PAIR,
            temperature=self._settings.temperature,
            seed=self._settings.seed,
            cancelled=self._cancelled,
        )
        try:
            pairs, unreadable = parse_pairs(self._text(request))
        except (PromptTooLong, DoesNotFitInMemory):
            return {"pairs": [], "written": 0, "thrown_away": {}, "skipped": True}
        thrown = Counter({"unparsed": unreadable} if unreadable else {})
        kept: list[tuple[str, str]] = []
        for pair in pairs:
            fault = fault_of(pair, passage.text)
            if fault is None and self._settings.verify and not self._answers(pair.question, pair.answer, passage):
                fault = "not_answered"
            if fault is None:
                kept.append((pair.question, pair.answer))
            else:
                thrown[fault] += 1
        return {"pairs": kept, "written": len(pairs) + unreadable, "thrown_away": dict(thrown)}

    def _answers(self, question: str, answer: str, passage: RowPassage) -> bool:
        evidence = Passage("", "", passage.title, passage.section, None, None, None, passage.text, 0.0)
        arm: Arm = "rag" if "rag" in self._generator.arms else "base"
        request = GenerationRequest(question, arm, (evidence,), max_tokens=_ANSWER_TOKENS, cancelled=self._cancelled)
        return same_answer(self._text(request), answer)

    def _text(self, request: GenerationRequest) -> str:
        return "".join(piece.text for piece in self._generator.stream(request) if isinstance(piece, TextPiece))


class _Log:
    """Finished passages, one JSON object a line; a line cut short by a crash is forgotten."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.entries: dict[str, dict[str, Any]] = {}
        whole = b""
        for line in file.read_bytes().splitlines(keepends=True) if file.is_file() else ():
            try:
                entry = json.loads(line)
                self.entries[entry["key"]] = entry
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                line += b"\n"  # noqa: PLW2901 - the last line lost only its end
            whole += line
        if file.is_file() and whole != file.read_bytes():
            file.write_bytes(whole)

    def append(self, entry: dict[str, Any]) -> None:
        """Adds a finished passage to the file."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            if disk_full(error):
                raise StorageFull(
                    f"The disk with {self._file} is full; finished passages are kept.", hint="Free some space."
                ) from error
            raise
        self.entries[entry["key"]] = entry


def _row(
    passage: RowPassage, question: str, answer: str, others: Sequence[RowPassage], settings: SynthesisSettings
) -> TrainingRow:
    """A row; with passages shown, its own stands at a random place among others, so that place tells nothing."""
    row = TrainingRow(question, answer, section=" > ".join((passage.title, *passage.section)))
    if settings.shown_passages < 1:
        return row
    draw = random.Random(f"{settings.seed}:{question}")
    rest = [other for other in others if other.text != passage.text]
    shown = [passage, *draw.sample(rest, min(settings.shown_passages - 1, len(rest)))]
    draw.shuffle(shown)
    return replace(row, passages=tuple(shown))


def _key(passage: RowPassage, model_name: str, settings: SynthesisSettings) -> str:
    """Names the work on one passage: another text, model or setting is other work."""
    parts = (passage.title, *passage.section, passage.text, model_name, settings.pairs, settings.verify)
    told = json.dumps([*parts, settings.temperature, settings.seed], ensure_ascii=False)
    return hashlib.sha256(told.encode()).hexdigest()[:24]


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
