"""Questions made from any book, best first, each checked against the book itself; no language model is needed.

Drafts (`evals/question_drafts.py`) are ranked, and the best of them checked: the question alone finds its passage and
its sentence, the quote is verbatim and holds the answer, the answer does not stand in the question, and no other
question is like it. What does not pass is marked, and kept where a book gives nothing better.

Where a language model answers, it writes up to half of the questions, and the same checks mark them.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from evals.made_store import made_id
from evals.question_drafts import MOST_SENTENCES, RULES, Draft, Drafts, draft_questions, points_elsewhere
from evals.questions import FACT_WORDS, MOST_BY_DEFAULT, NUM_CHOICES, BankQuestion, Gold, QuestionType
from indexes.embedder import Matrix
from indexes.errors import Busy, Cancelled
from indexes.messages import Message, msg
from indexes.sentences import iter_spans
from indexes.types import Filters, StoredNode
from indexes.words import count_words, is_chinese, terms_of
from rag.engine import AnswerEngine
from rag.errors import DoesNotFitInMemory, GenerationFailed, PromptTooLong
from rag.generators.protocol import GenerationRequest, Generator, TextPiece
from rag.query import english_query
from rag.tuning.synthesis import QuestionsSeen

MADE_TYPES: tuple[QuestionType, ...] = ("choice", "short")
"""The types that can be made without a language model."""
MOST_ALIKE = 0.66
"""A wrong option nearer to the right one than this (cosine) may mean the same."""
LEAST_ALIKE = 0.2
"""A wrong option farther from it than this is of another world: `square root` beside `grid size`."""
MOST_PER_ANSWER = 2
MOST_AHEAD = 1
"""Questions by which one rank of the right option by length may be ahead of the rarest."""
_CHECKED_PER_QUESTION = 6
"""Drafts that are checked for each question wanted."""
_LATER = 30
"""Places by which a question comes later that stands alone, but is not surely found or answered as the book does."""
_AGAIN = 0.03
"""What a draft loses in rank for each earlier one of its kind, and by half for each of its chapter."""
_MOST_STATEMENTS = 0.3
"""Share of drafts that may be statements: nearly every sentence gives one."""
_SCREENED_PASSAGES = 5
_PLAUSIBLE = 6
"""So many wrong options, the nearest in meaning, are drawn from."""
_FEW = 8
"""Fewer questions than this are explained."""
_WRITTEN_AT_ONCE = 4
"""Questions that a language model writes together."""
_LEAST_ASKED = 0.4
"""Least share of a sentence's words that a question about it has which a model wrote: one that says less has several
answers."""
_WRITTEN_TOKENS = 100
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"question": {"type": "string"}},
        "required": ["question"],
        "additionalProperties": False,
    }
)
_PROMPT = """\
Turn a sentence into the exam question that it answers. The question says everything that the sentence says, except \
the answer. Reply with JSON.

Sentence (Cells): Mitochondria are the parts of a cell that produce most of its energy.
Answer: Mitochondria
{{"question": "Which parts of a cell produce most of its energy?"}}

Sentence (Roman roads): The Via Appia was built in 312 BC to connect Rome and Capua.
Answer: 312
{{"question": "In which year BC was the Via Appia built to connect Rome and Capua?"}}

Sentence (Lists): Calling `list.sort()` sorts a Python list in place and returns `None`.
Answer: list.sort()
{{"question": "Which method sorts a Python list in place and returns None?"}}

Sentence ({heading}): {sentence}
Answer: {answer}
"""
_BACK = "{sentence}\n\n{question} Answer in one to five words."


@dataclass(frozen=True, slots=True)
class MakingProgress:
    """`done` questions of `total` are made; `tried` drafts were checked for them."""

    done: int
    total: int
    tried: int


def make_questions(
    engine: AnswerEngine,
    document_id: str,
    *,
    count: int | None = None,
    types: Sequence[str] = (),
    progress: Callable[[MakingProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[BankQuestion, ...]:
    """Questions from a book, best first: `count`, or `MOST_BY_DEFAULT`, or fewer where it has too few sentences.

    The same book gives the same questions.

    Args:
        types: of `MADE_TYPES`; empty takes all.

    Raises:
        NotFound: no such book.
        Cancelled: `cancelled` became true.
    """
    wanted = count if count is not None else MOST_BY_DEFAULT
    drafts = draft_questions(engine.library.nodes_of(document_id))
    checker = _Checker(engine, document_id, drafts, frozenset(types or MADE_TYPES))
    found: list[tuple[int, BankQuestion]] = []
    kept = 0
    ranked: Iterator[Draft] = _ranked(drafts.drafts, wanted * _CHECKED_PER_QUESTION)
    if "base" in engine.generator.arms:
        ranked = _reworded(engine.generator, list(ranked), wanted // 2, cancelled)
    for tried, draft in enumerate(ranked, 1):
        if cancelled():
            raise Cancelled(f"stopped after {kept} questions; none of them was kept")
        if (question := checker.question(draft)) is not None:
            later = 0 if question.checked else _LATER if draft.stands_alone else len(drafts.drafts)
            found.append((tried + later, question))
            kept += question.checked
        progress(MakingProgress(kept, wanted, tried))
        if kept == wanted:
            break
    found.sort(key=lambda item: item[0])
    return tuple(question for _, question in found[:wanted])


def why_few(nodes: Sequence[StoredNode], made: int) -> Message | None:
    """Why a book gave few questions, or which of its sentences were read; None where there is nothing to say."""
    texts = [node.text for node in nodes]
    chinese = sum(map(is_chinese, texts))
    sentences = sum(span.kind in ("sentence", "item") for text in texts for span in iter_spans(text))
    if not made and 2 * chinese > len(texts):
        return msg("no question was made: the book is in Chinese, and questions are made from English sentences")
    if not made and not sentences:
        return msg("no question was made: the book has no sentences, only listings, tables or headings")
    if not made:
        return msg("no question was made: none of the book's sentences ({}) says enough", f"{sentences:,}")
    if made < _FEW:
        return msg("no more of the book's sentences ({}) say enough", f"{sentences:,}")
    if sentences > 2 * MOST_SENTENCES:
        return msg("of its {} sentences {} were read, evenly spread", f"{sentences:,}", f"{MOST_SENTENCES:,}")
    return None


def _ranked(drafts: Sequence[Draft], most: int) -> Iterator[Draft]:
    """The best drafts by worth, less the more of their kind and chapter have come before, so that any beginning of them
    is of several kinds and covers the book; of statements those with `not` and those without are two kinds."""
    left: dict[tuple[str, str, int], list[Draft]] = defaultdict(list)
    for draft in reversed(drafts):
        side = draft.options if draft.kind == "statement" else ""
        left[draft.kind, side, draft.statement.node.chapter].append(draft)
    kinds: Counter[str] = Counter()
    chapters: Counter[int] = Counter()
    for _ in range(min(most, len(drafts))):

        def value(group: tuple[str, str, int]) -> float:
            kind, side, chapter = group
            return left[group][-1].worth - _AGAIN * (kinds[kind + side] + chapters[chapter] / 2)

        enough = kinds["statement"] > _MOST_STATEMENTS * chapters.total()
        ahead = 2 * kinds["statementso"] > kinds["statement"]
        others = [g for g in left if g[0] != "statement" or not (enough or (ahead and g[1] == "so"))]
        best = max(others or left, key=value)
        draft = left[best].pop()
        if not left[best]:
            del left[best]
        kinds.update({draft.kind, best[0] + best[1]})
        chapters[draft.statement.node.chapter] += 1
        yield draft


def _reworded(
    generator: Generator, drafts: Sequence[Draft], most: int, cancelled: Callable[[], bool]
) -> Iterator[Draft]:
    """The drafts, before each of the best that leave something out the question which a language model makes of it."""
    writers = ThreadPoolExecutor(_WRITTEN_AT_ONCE)
    try:
        wanted = [draft for draft in drafts if draft.kind in ("term", "name", "number")][:most]
        asked = {draft.question: writers.submit(_ask, generator, draft, cancelled) for draft in wanted}
        for draft in drafts:
            if draft.question in asked and (question := asked[draft.question].result()):
                alone = question.endswith("?") and not points_elsewhere(question)
                yield replace(draft, question=question, stands_alone=alone, made_by=generator.model_name)
            yield draft
    finally:
        writers.shutdown(cancel_futures=True)


def _ask(generator: Generator, draft: Draft, cancelled: Callable[[], bool]) -> str:
    """The question that a language model writes for a draft's sentence and answer; blank where none comes that can be
    read, or where the model itself answers it otherwise (Alberti and others, 2019: round-trip consistency)."""

    def written(prompt: str, schema: str = "") -> str:
        request = GenerationRequest(prompt, "base", max_tokens=_WRITTEN_TOKENS, schema=schema, cancelled=cancelled)
        return "".join(piece.text for piece in generator.stream(request) if isinstance(piece, TextPiece))

    said = draft.statement.text
    heading = (draft.statement.node.heading_path or (draft.statement.node.title,))[-1]
    try:
        text = written(_PROMPT.format(heading=heading, sentence=said, answer=draft.answer), _SCHEMA)
        question = str(json.loads(text[text.index("{") : text.rindex("}") + 1])["question"]).strip()
        answer = written(_BACK.format(sentence=said, question=question)) if question else ""
        return question if terms_of(draft.answer).pieces <= terms_of(answer).pieces else ""
    except (ValueError, KeyError, TypeError, RecursionError, PromptTooLong, DoesNotFitInMemory, GenerationFailed, Busy):
        return ""


class _Checker:
    """Makes drafts of one book into questions, and says of each whether it holds."""

    def __init__(self, engine: AnswerEngine, document_id: str, drafts: Drafts, types: frozenset[str]) -> None:
        self._engine = engine
        self._filters = Filters(document_ids=(document_id,))
        self._document_id = document_id
        self._types = types
        self._pool = drafts.pool
        self._options = OptionDrawer(engine.library.embed)
        self._seen = QuestionsSeen()
        self._quotes: set[str] = set()
        self._asked: set[str] = set()
        self._answers: Counter[str] = Counter()
        self._said: Counter[str] = Counter()

    def question(self, draft: Draft) -> BankQuestion | None:
        """The draft as a question; None where it is like an earlier one, or of no type that is wanted."""
        quote, open_too, is_statement = draft.statement.quote, "short" in self._types, draft.kind == "statement"
        answer = quote if is_statement else draft.answer.lower().removesuffix("s")
        if quote in self._quotes or self._answers[answer] >= MOST_PER_ANSWER or (is_statement and not open_too):
            return None
        if is_statement:
            draft = self._true_or_false(draft)
        checked = self._holds(draft)
        if draft.made_by != RULES and not checked:
            return None  # the rules' own follows
        if draft.question in self._asked or not self._seen.add(f"{draft.question} {draft.answer}"):
            return None
        choices: tuple[str, ...] = ()
        if "choice" in self._types and draft.options and not is_statement and (draft.kind != "name" or not open_too):
            rng = random.Random(f"{self._document_id}:{draft.question}")
            choices = self._options.draw(draft.answer, self._wrong(draft), rng)
        if not choices and not open_too:
            return None
        self._asked.add(draft.question)
        self._quotes.add(quote)
        self._answers[answer] += 1
        return _question(draft, choices, self._document_id, checked=checked)

    def _true_or_false(self, draft: Draft) -> Draft:
        """A statement, or every second time its opposite, so that neither `not` nor its lack tells."""
        self._said[draft.options] += 1
        if self._said[draft.options] % 2 == (draft.options == "not"):
            return draft
        return replace(draft, question=draft.opposite, answer=f"False: {draft.statement.text}")

    def _holds(self, draft: Draft) -> bool:
        """Whether a question passes every check."""
        quote, statement = draft.statement.quote, draft.kind == "statement"
        if not draft.stands_alone:
            return False
        found = self._engine.search(draft.question, _SCREENED_PASSAGES, self._filters)
        if not any(quote in passage.text for passage in found):
            return False
        held = terms_of(draft.answer).pieces
        if not statement and (not held <= terms_of(quote).pieces or held <= terms_of(draft.question).pieces):
            return False
        if draft.made_by != RULES and len(terms_of(draft.question).stems) < _LEAST_ASKED * len(terms_of(quote).stems):
            return False
        if draft.kind == "abbreviation":
            return True  # many sentences have it, and one spells it out
        read = self._engine.reader.read(english_query(draft.question), found)
        return bool(read) and (read[0].unit.text in quote or quote in read[0].unit.text)

    def _wrong(self, draft: Draft) -> list[str]:
        """Answers of the draft's class that are wrong."""
        said, own = terms_of(draft.question).pieces, terms_of(draft.answer).pieces
        wrong = [text for text in self._pool.get(draft.options, ()) if not _holds(draft.statement.quote, text)]
        kept = []
        for text in wrong[:400]:
            pieces = terms_of(text).pieces
            if pieces - own and own - pieces and not pieces & said:
                kept.append(text)
        return kept


class OptionDrawer:
    """Draws three plausible wrong options for each answer of a book.

    Over the questions, the right option is as often in each place, as often the shortest as the longest, as often in
    the middle of the options' meanings as at their edge, and no text comes much more often than others.
    """

    def __init__(self, embed: Callable[[Sequence[str]], Matrix]) -> None:
        self._embed = embed
        self._places: Counter[int] = Counter()
        self._shorter: Counter[int] = Counter()
        self._nearer: Counter[int] = Counter()
        self._used: Counter[str] = Counter()
        self._vectors: dict[str, Matrix] = {}

    def draw(self, answer: str, wrong: Sequence[str], rng: random.Random) -> tuple[str, ...]:
        """The answer among three plausible wrong options, those that level best; empty where none keeps the level."""
        plausible = self.plausible(answer, wrong)
        vectors = self._vectors_of([answer, *plausible])
        place = min(range(NUM_CHOICES), key=lambda place: (self._places[place], rng.random()))
        most = min(self._shorter[rank] for rank in range(NUM_CHOICES)) + MOST_AHEAD
        ties: dict[tuple[int, int], float] = defaultdict(rng.random)
        found: list[tuple[tuple[float, ...], int, int, tuple[str, ...]]] = []
        for three in combinations(range(len(plausible)), NUM_CHOICES - 1):
            texts = [plausible[row] for row in three]
            sizes = [len(text) - len(answer) or rng.random() - 0.5 for text in texts]  # one as long is either
            four = vectors[[0, *(row + 1 for row in three)]]
            middle = four @ four.sum(axis=0)
            shorter = sum(size < 0 for size in sizes)
            nearer = int((middle[1:] > middle[0]).sum())  # to the middle of their meanings
            if self._shorter[shorter] <= most:
                level = self._shorter[shorter] + self._nearer[nearer]
                used = sum(self._used[text] for text in texts)
                options = rng.sample(texts, len(texts))
                options.insert(place, answer)
                found.append(((level, ties[shorter, nearer], used, rng.random()), shorter, nearer, tuple(options)))
        if not found:
            return ()
        _, shorter, nearer, drawn = min(found)
        self._places[place] += 1
        self._shorter[shorter] += 1
        self._nearer[nearer] += 1
        self._used.update(drawn)
        return drawn

    def plausible(self, answer: str, wrong: Sequence[str]) -> list[str]:
        """The wrong answers nearest in meaning to the right one, that do not mean the same."""
        wrong = list({text.lower(): text for text in wrong}.values())
        if not wrong:
            return []
        vectors = self._vectors_of([answer, *wrong])
        near = vectors[1:] @ vectors[0]
        return [wrong[row] for row in (-near).argsort().tolist() if LEAST_ALIKE < near[row] < MOST_ALIKE][:_PLAUSIBLE]

    def _vectors_of(self, texts: Sequence[str]) -> Matrix:
        new = [text for text in texts if text not in self._vectors]
        if new:
            self._vectors.update(zip(new, self._embed(new), strict=True))
        return np.stack([self._vectors[text] for text in texts])


def _holds(text: str, option: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(option)}(?!\w)", text, re.IGNORECASE) is not None


def _question(draft: Draft, choices: Sequence[str], document_id: str, *, checked: bool) -> BankQuestion:
    node = draft.statement.node
    heading = node.heading_path[-1] if node.heading_path else ""
    facts: tuple[str, ...] = ()
    if count_words(draft.answer) <= FACT_WORDS:
        facts = (draft.answer, *draft.accepted)
    if draft.kind == "statement":
        facts = (draft.answer.partition(":")[0],)
    return BankQuestion(
        id=made_id(document_id, draft.question),
        chapter=node.chapter,
        type="choice" if choices else "short",
        question=draft.question,
        choices=tuple(choices),
        answer_index=choices.index(draft.answer) if choices else None,
        answer=draft.answer,
        key_facts=("|".join(dict.fromkeys(facts)),) if facts else (),
        gold=(Gold(file=node.title or document_id, heading=heading, evidence=draft.statement.quote),),
        section=f"{node.heading_path[0] if node.heading_path else node.title}#{heading}",
        book=document_id,
        kind=draft.kind,
        made_by=draft.made_by,
        checked=checked,
    )
