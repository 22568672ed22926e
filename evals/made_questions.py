"""Questions made from any book, each checked against the book itself; no language model is needed.

A draft (`evals/question_drafts.py`) becomes a question only if the question alone finds its own passage first, the
sentence reader finds its sentence there, and, where it is a choice, the encoder picks its option and no other option
stands beside it. Wrong options are other terms or numbers of the book, near in meaning or size to the right one.

Where a language model answers, it writes up to half of the questions: those that `rag/tuning/synthesis.py` verifies and
that find their passage first.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from evals.question_drafts import Draft, Drafts, Option, draft_questions, is_foreign_name, other_capital
from evals.questions import MOST_BY_DEFAULT, NUM_CHOICES, BankQuestion, Gold, QuestionType
from indexes.embedder import Matrix
from indexes.errors import Cancelled
from indexes.types import Filters, StoredNode
from indexes.words import count_words, is_chinese, terms_of
from rag.engine import AnswerEngine
from rag.generators.encoder import EncoderAnswerer
from rag.generators.protocol import GenerationRequest
from rag.query import english_query
from rag.tuning.data import RowPassage
from rag.tuning.synthesis import QuestionsSeen, SynthesizedPair, verified_pairs
from rag.types import Passage

MADE_TYPES: tuple[QuestionType, ...] = ("choice", "short")
"""The types that can be made without a language model."""
MOST_ALIKE = 0.66
"""A wrong option nearer to the right one than this (cosine) may mean the same."""
LEAST_ALIKE = 0.2
"""A wrong option farther from it than this is of another world: `square root` beside `grid size`."""
MOST_PER_ANSWER = 2
MOST_AHEAD = 1
"""Questions by which one rank of the right option by length may be ahead of the rarest."""
CHOICE_SHARE = 0.6
"""Share of the numbers that are asked as a choice."""
BESIDE_SHARE = 0.5
"""A sentence read as well as this share of the best one must not hold a wrong option."""
_ORDER = ("definition", "name", "number", "term")
_SCREENED_PASSAGES = 5
WRITTEN_SHARE = 0.5
"""Share of the questions that a language model may write."""
_MOST_NODES = 0.15
"""An answer in more of a book's nodes than this is known to whoever has opened it."""
_FEW_NODES = 3
_PLAUSIBLE = 6
"""So many wrong options, the nearest in meaning or size, are drawn from."""
_FEW_OF_CLASS = 8
"""A class of fewer terms is joined with that of the other capital."""
TERM_SHARE = 0.45
"""Most terms left out among a book's questions: 8 of 10 are good, of the other kinds 9 (docs/decisions.md)."""
_NOT_THIN = 8
"""A book that gives fewer questions is asked for more terms, and for what is off topic."""
_PASSAGE_WORDS = 60
_PATIENCE = 12
"""Passages in a row without a question, after which a model is asked no more."""
RULES = "rules"


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
    """Questions from a book in reading order: at most `count`, or what the book holds up to `MOST_BY_DEFAULT`.

    The same book gives the same questions. A book too thin gives fewer, or none.

    Args:
        types: of `MADE_TYPES`; empty takes all.

    Raises:
        NotFound: no such book.
        Cancelled: `cancelled` became true.
    """
    nodes = engine.library.nodes_of(document_id)
    wanted = count if count is not None else MOST_BY_DEFAULT
    drafts = draft_questions(nodes)
    maker = _Maker(engine, document_id, nodes, drafts, frozenset(types or MADE_TYPES))
    kept: list[tuple[StoredNode, BankQuestion]] = []
    if "base" in engine.generator.arms and "short" in (types or MADE_TYPES):
        for written in maker.written(nodes, cancelled):
            kept.append(written)
            progress(MakingProgress(len(kept), wanted, 0))
            if len(kept) >= wanted * WRITTEN_SHARE:
                break
    good, terms, off_topic = _by_worth(drafts.drafts)
    term_share = TERM_SHARE if "short" in (types or MADE_TYPES) else 1.0  # names are asked openly alone
    for tried in range(1, len(drafts.drafts) + 1):
        if cancelled():
            raise Cancelled(f"stopped after {len(kept)} questions; none of them was kept")
        if len(kept) == wanted:
            break
        num_terms = sum(question.kind == "term" for _, question in kept)
        draft = next(terms, None) if num_terms <= term_share * len(kept) else None
        draft = draft or next(good, None)
        if draft is None and len(kept) < _NOT_THIN:
            draft = next(terms, None) or next(off_topic, None)
        if draft is None:
            break
        question = maker.question(draft)
        if question is not None:
            kept.append((draft.statement.node, question))
        progress(MakingProgress(len(kept), wanted, tried))
    kept.sort(key=lambda item: item[0].ordinal)
    return tuple(question for _, question in kept)


def _passages_to_ask(nodes: Sequence[StoredNode]) -> list[StoredNode]:
    """Nodes with enough prose, in an order of which any beginning covers the book."""
    long = [node for node in nodes if count_words(node.text) >= _PASSAGE_WORDS and not is_chinese(node.text)]
    random.Random(len(long)).shuffle(long)
    return long


def _by_worth(drafts: Sequence[Draft]) -> tuple[Iterator[Draft], Iterator[Draft], Iterator[Draft]]:
    """Drafts that mostly make good questions, those with a term left out, and those that are off topic."""
    groups: tuple[list[Draft], list[Draft], list[Draft]] = ([], [], [])
    for draft in drafts:
        groups[2 if draft.is_off_topic else draft.kind == "term"].append(draft)
    good, terms, off_topic = map(_spread, groups)
    return good, terms, off_topic


def _spread(drafts: Sequence[Draft]) -> Iterator[Draft]:
    """The drafts in turns of chapters and, within a chapter, of kinds, so that any number of them covers the book."""
    chapters: dict[int, dict[str, list[Draft]]] = defaultdict(lambda: {kind: [] for kind in _ORDER})
    for draft in drafts:
        chapters[draft.statement.node.chapter][draft.kind].append(draft)
    rng = random.Random(len(drafts))
    turns: dict[int, Iterator[Draft]] = {}
    for chapter in sorted(chapters):
        for waiting in chapters[chapter].values():
            rng.shuffle(waiting)
            waiting.sort(key=lambda draft: draft.promise)  # taken from the end
        turns[chapter] = _in_turns(chapters[chapter])
    while turns:
        for chapter in sorted(turns):
            following = next(turns[chapter], None)
            if following is None:
                del turns[chapter]
            else:
                yield following


def _in_turns(kinds: dict[str, list[Draft]]) -> Iterator[Draft]:
    while any(kinds.values()):
        for waiting in kinds.values():
            if waiting:
                yield waiting.pop()


class _Maker:
    """Checks drafts of one book, and gives them options."""

    def __init__(
        self,
        engine: AnswerEngine,
        document_id: str,
        nodes: Sequence[StoredNode],
        drafts: Drafts,
        types: frozenset[str],
    ) -> None:
        self._engine = engine
        self._encoder = EncoderAnswerer(engine.library.embed, "")
        self._document_id = document_id
        self._types = types
        self._pool: dict[str, list[Option]] = defaultdict(list)
        for option in drafts.pool:
            self._pool[option.options].append(option)
        self._texts = [node.text.lower() for node in nodes]
        self._options = OptionDrawer(engine.library.embed)
        self._seen = QuestionsSeen()
        self._quotes: set[str] = set()
        self._answers: Counter[str] = Counter()

    def question(self, draft: Draft) -> BankQuestion | None:
        """The draft as a question, None if it does not hold."""
        answer = draft.answer.lower().removesuffix("s")
        most = 1 if draft.kind == "definition" else MOST_PER_ANSWER
        if draft.statement.quote in self._quotes or self._answers[answer] >= most:
            return None
        holding = sum(answer in text for text in self._texts)
        if draft.kind == "term" and holding > max(_FEW_NODES, _MOST_NODES * len(self._texts)):
            return None
        rng = random.Random(f"{self._document_id}:{draft.question}")
        open_too = draft.kind != "term" and "short" in self._types
        either = draft.kind == "number" and rng.random() < CHOICE_SHARE
        chosen = "choice" in self._types and (either or not open_too)
        drawn = self._options.draw(draft.answer, self._wrong(draft), rng) if chosen else None
        choices = drawn.texts if drawn is not None else ()
        if not choices and not open_too:
            return None
        passages = self._passages(draft)
        if not passages or not self._is_read(draft, passages, choices):
            return None
        if choices and not self._is_chosen(draft, choices, passages):
            return None
        if not self._seen.add(f"{draft.question} {draft.answer}"):
            return None
        if drawn is not None:
            self._options.keep(drawn)
        self._quotes.add(draft.statement.quote)
        self._answers[answer] += 1
        return _question(draft, choices, self._document_id)

    def written(
        self, nodes: Sequence[StoredNode], cancelled: Callable[[], bool]
    ) -> Iterator[tuple[StoredNode, BankQuestion]]:
        """Questions that the language model writes, and that find their own passage first."""
        generator = self._engine.generator
        fruitless = 0
        for node in _passages_to_ask(nodes):
            if cancelled():
                raise Cancelled("stopped while the model wrote questions; none of them was kept")
            if fruitless == _PATIENCE:
                return
            fruitless += 1
            for pair in verified_pairs(RowPassage(node.title, node.heading_path, node.text), generator, cancelled):
                quote = _verbatim(pair.evidence, node.text)
                found = self._engine.search(pair.question, 1, Filters(document_ids=(self._document_id,)))
                if not quote or not found or found[0].node_id != node.node_id or quote in self._quotes:
                    continue
                if self._seen.add(f"{pair.question} {pair.answer}"):
                    self._quotes.add(quote)
                    fruitless = 0
                    yield node, _written_question(node, pair, quote, self._document_id, generator.model_name)

    def _passages(self, draft: Draft) -> tuple[Passage, ...]:
        """What the question finds; empty unless its own sentence is among it."""
        filters = Filters(document_ids=(self._document_id,))
        found = self._engine.search(draft.question, _SCREENED_PASSAGES, filters)
        return found if any(draft.statement.quote in passage.text for passage in found) else ()

    def _is_read(self, draft: Draft, passages: Sequence[Passage], choices: Sequence[str]) -> bool:
        """Whether the reader finds the draft's sentence, and no wrong option in one that it likes nearly as well."""
        read = self._engine.reader.read(english_query(draft.question), passages)
        quote = draft.statement.quote
        if not read or not (read[0].unit.text in quote or quote in read[0].unit.text):
            return False
        near = [item.unit.text for item in read[1:] if item.score >= BESIDE_SHARE * read[0].score]
        wrong = [choice for choice in choices if choice != draft.answer]
        return not any(_holds(text, choice) for text in near for choice in wrong)

    def _is_chosen(self, draft: Draft, choices: Sequence[str], passages: Sequence[Passage]) -> bool:
        """Whether the encoder prefers the right option."""
        request = GenerationRequest(draft.question, "rag", tuple(passages))
        scores = self._encoder.score_choices(request, tuple(choices)).scores
        return choices[scores.index(max(scores))] == draft.answer

    def _wrong(self, draft: Draft) -> list[str]:
        """Answers of the draft's class that are wrong."""
        if not draft.options:
            return []
        pool = self._pool[draft.options]
        if draft.kind == "number":
            section = draft.statement.node.heading_path
            found = [option.text for option in pool if section not in option.sections]
            # '32-bit' and '32 bits' are one option, written as the answer is
            unit = draft.answer[len(_first_number(draft.answer)) :]
            spelled = dict.fromkeys(f"{_first_number(text)}{unit}" for text in found)
            return [text for text in spelled if _size(text) != _size(draft.answer)]
        if len(pool) < _FEW_OF_CLASS:
            pool = pool + self._pool[other_capital(draft.options)]
        if not is_foreign_name(draft.answer):
            pool = [option for option in pool if not is_foreign_name(option.text)]  # they are right elsewhere only
        said, own = terms_of(draft.question).pieces, terms_of(draft.answer).pieces
        wrong = [option.text for option in pool if not _holds(draft.statement.quote, option.text)]
        return [text for text in wrong if _tells_apart(pieces := terms_of(text).pieces, own) and not pieces & said]


def _tells_apart(left: Set[str], right: Set[str]) -> bool:
    """Whether each has a word of its own: `shared memory` beside `global memory`, not beside `memory`."""
    return bool(left - right) and bool(right - left)


@dataclass(frozen=True, slots=True)
class DrawnOptions:
    """Four options in a drawn order.

    Attributes:
        place: of the right one, from 0.
        shorter: how many wrong ones are shorter, or smaller numbers, than the right one.
        nearer: how many are nearer to the middle of all four by meaning; -1 for numbers.
    """

    texts: tuple[str, ...]
    place: int
    shorter: int
    nearer: int


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

    def draw(self, answer: str, wrong: Sequence[str], rng: random.Random) -> DrawnOptions | None:
        """Of all threes of plausible wrong options the one that levels best; None where none keeps the level."""
        wrong = list({text.lower(): text for text in wrong}.values())
        if len(wrong) < NUM_CHOICES - 1:
            return None
        numbers = bool(_first_number(answer))
        vectors = self._embed([answer, *wrong])
        near = vectors[1:] @ vectors[0]
        if numbers:
            plausible = sorted(range(len(wrong)), key=lambda row: abs(_size(wrong[row]) - _size(answer)))
        else:
            plausible = [row for row in (-near).argsort().tolist() if LEAST_ALIKE < near[row] < MOST_ALIKE]
        place = min(range(NUM_CHOICES), key=lambda place: (self._places[place], rng.random()))
        most = min(self._shorter[rank] for rank in range(NUM_CHOICES)) + MOST_AHEAD
        ties: dict[tuple[int, int], float] = defaultdict(rng.random)
        found: list[tuple[tuple[float, ...], DrawnOptions]] = []
        for three in combinations(plausible[:_PLAUSIBLE], NUM_CHOICES - 1):
            texts = [wrong[row] for row in three]
            sizes = [_size(text) - _size(answer) or rng.random() - 0.5 for text in texts]  # one as long is either
            four = vectors[[0, *(row + 1 for row in three)]]
            middle = four @ four.sum(axis=0)
            shorter = sum(size < 0 for size in sizes)
            nearer = -1 if numbers else int((middle[1:] > middle[0]).sum())
            if self._shorter[shorter] <= most:
                level = self._shorter[shorter] + self._nearer[nearer]
                used = sum(self._used[text] for text in texts)
                options = rng.sample(texts, len(texts))
                options.insert(place, answer)
                drawn = DrawnOptions(tuple(options), place, shorter, nearer)
                found.append(((level, ties[shorter, nearer], used, rng.random()), drawn))
        return min(found, key=lambda item: item[0])[1] if found else None

    def keep(self, drawn: DrawnOptions) -> None:
        """Counts options that are asked."""
        self._places[drawn.place] += 1
        self._shorter[drawn.shorter] += 1
        self._nearer[drawn.nearer] += 1
        self._used.update(drawn.texts)


def _size(text: str) -> float:
    """What options are matched by: the value of a number, else the length."""
    number = _first_number(text)
    return float(re.sub(r"[,\u202f]", "", number)) if number else float(len(text))


def _first_number(text: str) -> str:
    """The number that a text begins with; empty if it begins with none."""
    number = re.match(r"[\d,.\u202f]+", text)
    return number[0].rstrip(".,") if number else ""


def _holds(text: str, option: str) -> bool:
    held = _first_number(option) or option  # a number may stand there with its unit written otherwise
    return re.search(rf"(?<![\w]){re.escape(held)}(?![\w])", text, re.IGNORECASE) is not None


def _verbatim(evidence: str, text: str) -> str:
    """The stretch of a text that evidence quotes, whatever its white space and capitals; empty where it has none."""
    match = re.search(r"\s+".join(map(re.escape, evidence.split())), text, re.IGNORECASE)
    return match[0] if match else ""


def _written_question(
    node: StoredNode, pair: SynthesizedPair, quote: str, document_id: str, model: str
) -> BankQuestion:
    return BankQuestion(
        **_of_book(node, pair.question, quote, document_id),
        type="short",
        answer=pair.answer,
        kind="written",
        made_by=model,
    )


def _of_book(node: StoredNode, question: str, quote: str, document_id: str) -> dict[str, Any]:
    """What made questions say of their place."""
    heading = node.heading_path[-1] if node.heading_path else ""
    digest = hashlib.sha256(f"{document_id}\n{question}".encode()).hexdigest()
    return {
        "id": f"made-{digest[:16]}",
        "chapter": node.chapter,
        "question": question,
        "gold": (Gold(file=node.title or document_id, heading=heading, evidence=quote),),
        "section": f"{node.heading_path[0] if node.heading_path else node.title}#{heading}",
        "book": document_id,
    }


def _question(draft: Draft, choices: Sequence[str], document_id: str) -> BankQuestion:
    statement = draft.statement
    return BankQuestion(
        **_of_book(statement.node, draft.question, statement.quote, document_id),
        type="choice" if choices else "short",
        choices=tuple(choices),
        answer_index=choices.index(draft.answer) if choices else None,
        answer=draft.answer,
        key_facts=("|".join(dict.fromkeys((draft.answer, *draft.accepted))),),
        kind=draft.kind,
        made_by=RULES,
    )
