"""Questions made from any book, each checked against the book itself; no language model is needed.

A draft (`evals/question_drafts.py`) becomes a question only if the question alone finds its own passage first, the
sentence reader finds its sentence there, and, where it is a choice, the encoder picks its option and no other option
stands beside it. Wrong options are other terms, names or numbers of the same class from other sections of the book;
how many of them are longer or shorter than the right one is balanced over the questions, and its place is drawn.

Where a language model answers, it writes up to half of the questions: those that `rag/tuning/synthesis.py` verifies and
that find their passage first.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from evals.question_drafts import Draft, Drafts, Option, draft_questions, is_foreign_name, other_capital
from evals.questions import MOST_BY_DEFAULT, NUM_CHOICES, BankQuestion, Gold, QuestionType
from indexes.errors import Cancelled
from indexes.types import Filters, StoredNode
from indexes.words import count_words, is_chinese, terms_of
from rag.engine import AnswerEngine
from rag.generators.encoder import EncoderAnswerer
from rag.generators.protocol import GenerationRequest
from rag.tuning.data import RowPassage
from rag.tuning.synthesis import QuestionsSeen, SynthesizedPair, verified_pairs
from rag.types import Passage

MADE_TYPES: tuple[QuestionType, ...] = ("choice", "short")
"""The types that can be made without a language model."""
MOST_ALIKE = 0.72
"""A wrong option nearer to the right one than this (cosine) may mean the same."""
MOST_PER_ANSWER = 2
MOST_AHEAD = 1
"""Questions by which one rank of the right option, by length, may be ahead of another."""
CHOICE_SHARE = 0.6
"""Share of the questions that could be open and are asked as a choice."""
BESIDE_SHARE = 0.5
"""A sentence read as well as this share of the best one must not hold a wrong option."""
_ORDER = ("definition", "name", "number", "term")
_SCREENED_PASSAGES = 5
WRITTEN_SHARE = 0.5
"""Share of the questions that a language model may write."""
_ENOUGH_ASKED = 4
"""From so many other answers of the class on, wrong options are drawn from them alone."""
_FEW_OF_CLASS = 8
"""A class of fewer terms is joined with that of the other capital."""
_NOT_THIN = 8
"""With so many questions a book needs none for foreign names."""
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
    maker = _Maker(engine, document_id, drafts, frozenset(types or MADE_TYPES))
    kept: list[tuple[StoredNode, BankQuestion]] = []
    if "base" in engine.generator.arms and "short" in (types or MADE_TYPES):
        for written in maker.written(nodes, cancelled):
            kept.append(written)
            progress(MakingProgress(len(kept), wanted, 0))
            if len(kept) >= wanted * WRITTEN_SHARE:
                break
    for tried, draft in enumerate(_in_order(drafts.drafts), 1):
        if cancelled():
            raise Cancelled(f"stopped after {len(kept)} questions; none of them was kept")
        if len(kept) == wanted or (draft.asks_for_foreign_name and len(kept) >= _NOT_THIN):
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


def _in_order(drafts: Sequence[Draft]) -> Iterator[Draft]:
    """Those that leave out a foreign name last: they are good less often."""
    for foreign in (False, True):
        yield from _spread([draft for draft in drafts if draft.asks_for_foreign_name is foreign])


def _spread(drafts: Sequence[Draft]) -> Iterator[Draft]:
    """The drafts in turns of chapters and, within a chapter, of kinds, so that any number of them covers the book."""
    chapters: dict[int, dict[str, list[Draft]]] = defaultdict(lambda: {kind: [] for kind in _ORDER})
    for draft in drafts:
        chapters[draft.statement.node.chapter][draft.kind].append(draft)
    lots = random.Random(len(drafts))
    turns: dict[int, Iterator[Draft]] = {}
    for chapter in sorted(chapters):
        for waiting in chapters[chapter].values():
            lots.shuffle(waiting)
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

    def __init__(self, engine: AnswerEngine, document_id: str, drafts: Drafts, types: frozenset[str]) -> None:
        self._engine = engine
        self._encoder = EncoderAnswerer(engine.library.embed, "")
        self._document_id = document_id
        self._types = types
        self._pool: dict[str, list[Option]] = defaultdict(list)
        for option in drafts.pool:
            self._pool[option.options].append(option)
        self._asked = {draft.answer.lower() for draft in drafts.drafts}
        self._places: Counter[int] = Counter()
        self._used: Counter[str] = Counter()
        self._seen = QuestionsSeen()
        self._quotes: set[str] = set()
        self._answers: Counter[str] = Counter()

    def question(self, draft: Draft) -> BankQuestion | None:
        """The draft as a question, None if it does not hold."""
        answer = draft.answer.lower()
        if draft.statement.quote in self._quotes or self._answers[answer] >= MOST_PER_ANSWER:
            return None
        lots = random.Random(f"{self._document_id}:{draft.question}")
        open_too = not draft.only_choice and "short" in self._types
        chosen = "choice" in self._types and (not open_too or lots.random() < CHOICE_SHARE)
        choices, place = (
            draw_options(draft.answer, self._wrong(draft), lots, self._places, self._used) if chosen else ((), 0)
        )
        if not choices and not open_too:
            return None
        passages = self._passages(draft)
        if not passages or not self._is_read(draft, passages, choices):
            return None
        if choices and not self._is_chosen(draft, choices, passages):
            return None
        if not self._seen.add(f"{draft.question} {draft.answer}"):
            return None
        if choices:
            self._places[place] += 1
            self._used.update(choices)
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
        """What the question finds; empty unless its own passage comes first."""
        filters = Filters(document_ids=(self._document_id,))
        found = self._engine.search(draft.question, _SCREENED_PASSAGES, filters)
        first = bool(found) and found[0].node_id == draft.statement.node.node_id
        return found if first and draft.statement.quote in found[0].text else ()

    def _is_read(self, draft: Draft, passages: Sequence[Passage], choices: Sequence[str]) -> bool:
        """Whether the reader finds the draft's sentence, and no wrong option in one that it likes nearly as well."""
        read = self._engine.reader.read(draft.question, passages)
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
        """Answers of the draft's class that are wrong: from other sections, with other words and another meaning."""
        if not draft.options:
            return []
        section = draft.statement.node.heading_path
        taken = terms_of(f"{draft.question} {draft.answer}").pieces
        answer = draft.answer.lower()
        number = draft.kind == "number"
        if draft.only_choice and draft.kind in ("definition", "name"):  # descriptions may share words with one another
            taken = terms_of(draft.question).pieces
        found = []
        pool = self._pool[draft.options]
        if draft.kind == "term":
            if len(pool) < _FEW_OF_CLASS:
                pool = pool + self._pool[other_capital(draft.options)]
            if not draft.asks_for_foreign_name:
                pool = [option for option in pool if not is_foreign_name(option.text)]  # they are right elsewhere only
        for option in pool:
            if section in option.sections or option.text.lower() == answer:
                continue
            if number or not (terms_of(option.text).pieces & taken):
                found.append(option.text)
        asked = [text for text in found if text.lower() in self._asked]
        if len(asked) >= _ENOUGH_ASKED:  # what is asked elsewhere reads like what is asked here
            found = asked
        if number:  # '32-bit' and '32 bits' are one option, written as the answer is
            unit = draft.answer[len(_first_number(draft.answer)) :]
            spelled = dict.fromkeys(f"{_first_number(text)}{unit}" for text in found)
            return [text for text in spelled if _size(text) != _size(draft.answer)]
        if len(found) < NUM_CHOICES - 1:
            return found
        vectors = self._engine.library.embed([draft.answer, *found])
        near = vectors[1:] @ vectors[0]
        return [text for text, cosine in zip(found, near.tolist(), strict=True) if cosine < MOST_ALIKE]


def draw_options(
    answer: str,
    wrong: Sequence[str],
    lots: random.Random,
    places: Mapping[int, int] = MappingProxyType({}),
    used: Mapping[str, int] = MappingProxyType({}),
) -> tuple[tuple[str, ...], int]:
    """The answer among three wrong ones, in a drawn order, empty where they are too few; and its rank by size.

    How many are shorter (numbers: smaller) than the answer is balanced, so that its size says nothing.

    Args:
        places: how many questions so far have so many shorter options; the rarest is taken, and none that is ahead.
        used: how often a text was an option so far; those used before come last, every fourth time those used more
            than once: so neither rare nor frequent options are right more often.
    """
    shuffled = list({text.lower(): text for text in wrong}.values())
    lots.shuffle(shuffled)
    size = _size(answer)
    free = lots.randrange(4) == 0
    shuffled.sort(key=lambda text: (max(used.get(text, 0) - free, 0), abs(_size(text) - size)))
    below = {text for text in shuffled if _size(text) == size and lots.random() < 0.5}  # one of the same size is either
    fewer = [text for text in shuffled if _size(text) < size or text in below]
    more = [text for text in shuffled if _size(text) >= size and text not in below]
    drawn = lots.sample(range(NUM_CHOICES), NUM_CHOICES)
    least = min(places.get(place, 0) for place in drawn)
    for place in sorted(drawn, key=lambda place: places.get(place, 0)):
        if places.get(place, 0) > least + MOST_AHEAD:
            break
        if len(fewer) >= place and len(more) >= NUM_CHOICES - 1 - place:
            options = [answer, *fewer[:place], *more[: NUM_CHOICES - 1 - place]]
            lots.shuffle(options)
            return tuple(options), place
    return (), 0


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
