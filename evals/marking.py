"""Marks an open answer in levels: key facts, then a learned comparison for a student's own words, then a judge.

1. Both texts are brought into one form (`evals/answer_terms.py`). A key fact is met where the answer has its words and
   numbers close together and with the same polarity; the question's own words earn nothing. All facts met is full
   marks.
2. Else a logistic regression says how likely the answer is right. Its inputs are the facts met, how much of the
   reference it says, and the bundled encoder's cosines. Who contradicts the reference (denies a fact, exchanges two,
   says the opposite) gets nothing.
3. Where a judge model is configured, it grades what key facts did not settle.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise
from typing import Literal, TypeAlias

from evals.answer_terms import Term, in_english, terms
from evals.questions import BankQuestion
from evals.scoring import GRADES
from evals.text_match import Embed, normalize
from indexes.words import is_chinese

By: TypeAlias = Literal["choice", "key_facts", "similarity", "judge", "self", "teacher"]
"""How a mark was made: `self` is the learner's own verdict, `teacher` that of whoever gave the class its exam."""
AskJudge: TypeAlias = Callable[[BankQuestion, str], str | None]
"""Grades an answer `correct`, `partial` or `wrong`; None when it cannot."""

HALF = 0.5
RIGHT = 0.55
SURELY_RIGHT = 0.75
SURELY_WRONG = 0.16
"""Chances between the last two are marked to be checked, those from `RIGHT` on with points. Chosen on the development
half, by cross-validation over its questions."""
_WEIGHTS = {
    "stated": 4.274,
    "covered": 5.923,
    "verdict": 5.675,
    "turned": -2.303,
    "like_quote": 2.064,
    "like_question": -2.979,
    "like_reference": 16.025,
    "length": 0.489,
}
_CONSTANT = -17.303
"""Fitted on the development half of `evals/question_sets/marks` by `python -m tools.marks --fit`, with rules that have
gone since; fitted again, they mark no other half better."""
_OPPOSITES = """
before/after more/few larger/smaller large/small higher/lower high/low highest/lowest least/largest least/most
most/few first/last newer/older new/old faster/slower fast/slow increase/decrease increase/reduce rise/fall rise/drop
grow/fall grow/shrink same/different host/device compile/run row/column read/write multiply/divide product/divided
product/sum inside/outside inclusive/exclusive online/offline always/never easy/hard input/output begin/end start/end
forward/backward global/shared physical/virtual half/twice upper/lower maximum/minimum add/subtract even/odd
true/false left/right positive/negative sequential/parallel static/dynamic scalar/vector early/late near/far
decrypt/encrypt encode/decode compress/expand synchronous/asynchronous blocking/nonblocking double/single
better/worse cheap/expensive dense/sparse active/idle full/empty longer/shorter
include/exclude including/excluding together/apart partial/full split/combine separate/together
source/target source/destination send/receive sender/receiver producer/consumer caller/callee client/server
success/failure succeed/fail accept/reject open/close enter/leave signed/unsigned visible/hidden public/private
private/shared local/shared local/remote mutable/immutable weak/strong narrow/wide thick/thin implicit/explicit
direct/indirect absolute/relative coarse/fine horizontal/vertical ascending/descending nearest/farthest known/unknown
valid/invalid common/rare often/rarely gain/lose allow/forbid optional/required attract/repel
"""
_SHORT_TERMS = 4
"""An answer of at most so many terms need not repeat the noun of a number: `32` for `32 registers`."""
_REPEATED_TERMS = 4
"""From so many terms on, a stretch of the question is a repetition."""
_MOST_OWN = 1
"""Most words of its own of an answer whose clauses are laid beside the reference's."""
_NEAR_TERMS = 4
"""How far before a fact's words a `not` still belongs to them."""
_AFTER_TERMS = 2
"""How far after them: `integer division is not slow`."""
_ALONE = r"(?=\s*(?:[-–,.:;，。！!]|$))"
_YES = re.compile(rf"\s*(?:yes|yeah|yep|会|是的?|对|能|可以){_ALONE}", re.IGNORECASE)
_NO = re.compile(rf"\s*(?:no|nope|不(?:会|是|能|可以)?){_ALONE}", re.IGNORECASE)
_BESIDE_TERMS = 2
_FRAME_TERMS = 2
"""Most terms of what denies a sentence behind it: `it is not true that`."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What an open answer earns.

    Attributes:
        share: of the points, 0.0 to 1.0.
        needs_check: uncertain; the learner decides.
        met: for each key fact, whether the answer states it.
    """

    share: float
    by: By
    needs_check: bool
    met: tuple[bool, ...]


def grade_answers(
    answers: Sequence[tuple[BankQuestion, str]], embed: Embed, judge: AskJudge | None = None
) -> tuple[Grade, ...]:
    """Grades open answers, each with its question; the encoder reads all that key facts do not settle at once.

    Args:
        embed: of the bundled encoder, which the weights were fitted with.
    """
    readings = [Reading(question, answer) for question, answer in answers]
    found = {index: grade for index, reading in enumerate(readings) if (grade := _settled(reading, judge)) is not None}
    left = [reading for index, reading in enumerate(readings) if index not in found]
    compared = iter(_compared(reading, chance) for reading, chance in zip(left, chances(left, embed), strict=True))
    return tuple(found[index] if index in found else next(compared) for index in range(len(readings)))


def _settled(reading: Reading, judge: AskJudge | None) -> Grade | None:
    if reading.settled is not None:
        return Grade(reading.settled, "key_facts", False, reading.met)
    given = judge(reading.question, reading.text) if judge is not None else None
    return Grade(GRADES[given], "judge", False, reading.met) if given is not None else None


def _compared(reading: Reading, chance: float) -> Grade:
    unlike = reading.contradicted or reading.one_thing
    needs_check = SURELY_WRONG <= chance < SURELY_RIGHT or (unlike and chance >= SURELY_RIGHT)
    if chance < RIGHT or unlike:
        return Grade(0.0, "similarity", needs_check, reading.met)
    by: By = "key_facts" if reading.stated >= HALF else "similarity"
    return Grade(max(reading.stated, HALF) if reading.stated else 1.0, by, needs_check, reading.met)


def chances(readings: Sequence[Reading], embed: Embed) -> list[float]:
    """The chance that each answer is right, by the logistic regression."""
    return [
        1 / (1 + math.exp(-_CONSTANT - sum(_WEIGHTS[name] * value for name, value in inputs.items())))
        for inputs in features(readings, embed)
    ]


def features(readings: Sequence[Reading], embed: Embed) -> list[dict[str, float]]:
    """The inputs of the regression, a row for each answer.

    `stated`: share of the key facts, 0 with a contradiction. `covered`: share of the reference's terms beyond the
    question's that the answer has, 0 with a contradiction or a wrong number. `verdict`: 1 for the reference's yes or
    no, -1 for the other. `turned`: share of the words in common that only one of both denies. Cosines of the answer
    with the quote and the question, and of both answers read after the question. `length`: log of the answer's terms.
    """
    if not readings:
        return []
    texts = list(dict.fromkeys(text for reading in readings for text in reading.compared))
    vectors = dict(zip(texts, embed(texts), strict=True))
    return [
        {
            "stated": reading.stated,
            "covered": reading.covered,
            "verdict": float(reading.verdict),
            "turned": reading.turned,
            "like_quote": float(own @ quote),
            "like_question": float(own @ question),
            "like_reference": float(own_after @ reference_after),
            "length": math.log1p(len(reading.answer)),
        }
        for reading in readings
        for own, quote, question, own_after, reference_after in [[vectors[text] for text in reading.compared]]
    ]


class Reading:
    """Question and answer as terms, and what they have in common.

    Attributes:
        met: for each key fact, whether the answer states it. Without key facts, the reference answer is one.
        contradicted: a key fact is denied, two are exchanged, or the answer says the opposite of a word.
        verdict: 1 if the answer's yes or no is the reference's, -1 if it is the other, 0 without one.
    """

    def __init__(self, question: BankQuestion, answer: str) -> None:
        self.question, self.text = question, answer
        self.quote = question.gold[0].evidence if question.gold else question.answer
        self.facts = question.key_facts or (question.answer,)
        self.asked, self.reference = terms(question.question), terms(question.answer)
        self.answer = terms(_YES.sub("", _NO.sub("", answer, count=1), count=1)) or terms(answer)
        self.verdict = _agreement(answer, question.answer)
        places = [self._places(fact) for fact in self.facts]
        self.met = tuple(found is not None and found[1] for found in places)
        denied = any(found is not None and not found[1] for found in places)
        self.contradicted = (
            denied
            or self._opposed()
            or self._rearranged()
            or self._partners_exchanged()
            or self._turned_round()
            or self._denies_all()
        )

    @property
    def compared(self) -> tuple[str, ...]:
        """The texts whose vectors are compared; a Chinese answer in the glossary's English."""
        asked, reference = self.question.question, self.question.answer
        said = in_english(self.text) or " "
        return said, self.quote, asked, f"{asked} {said}", f"{asked} {reference}"

    @property
    def stated(self) -> float:
        """Share of the key facts that the answer states, 0.0 with a contradiction."""
        return 0.0 if self.contradicted else sum(self.met) / len(self.met)

    @property
    def settled(self) -> float | None:
        """The share of the points where key facts alone decide it, else None."""
        if normalize(self.text) == normalize(self.question.answer):
            return 1.0
        nothing_new = not all(self.met) and not any(map(self._is_new, self.answer))
        if not self.verdict and (nothing_new or self._repeats):
            return 0.0
        return 1.0 if self.stated == 1.0 and self.verdict >= 0 else None

    @property
    def one_thing(self) -> bool:
        """Whether the reference says one key fact and nothing else: what is like a name is another name."""
        wanted = [term for term in self.reference if self._is_new(term)]
        wordings = [terms(text) for fact in self.question.key_facts for text in fact.split("|")]
        return len(self.question.key_facts) == 1 and any(all(_among(one, said) for one in wanted) for said in wordings)

    @property
    def covered(self) -> float:
        """Share of the reference's terms, apart from the question's, that the answer has."""
        wanted = [term for term in dict.fromkeys(self.reference) if self._is_new(term)]
        if not wanted or self.contradicted or self._wrong_number:
            return 0.0
        return sum(_among(term, self.answer) for term in wanted) / len(wanted)

    @property
    def turned(self) -> float:
        """Share of the words that answer and reference have in common, of which one is denied and the other not."""
        common = _said_once(self.answer).keys() & _said_once(self.reference).keys()
        return len(self._turned_words) / len(common) if common else 0.0

    @cached_property
    def _turned_words(self) -> tuple[str, ...]:
        here, there = _said_once(self.answer), _said_once(self.reference)
        return tuple(
            word
            for word in here.keys() & there.keys()
            if _negated_near((here[word],), self.answer) != _negated_near((there[word],), self.reference)
        )

    @cached_property
    def _own(self) -> tuple[Term, ...]:
        """The answer's terms that neither the reference nor the question has."""
        return tuple(term for term in self.answer if self._is_new(term) and not _among(term, self.reference))

    @property
    def _reworded(self) -> bool:
        """Whether the order of its words says nothing: some are its own, or the glossary's for Chinese."""
        return bool(self._own) or is_chinese(self.text)

    @property
    def _repeats(self) -> bool:
        """Whether the answer is a stretch of the question, in either language."""
        said = normalize(self.text).strip(" .?")
        asked = (normalize(self.question.question), normalize(self.question.question_zh))
        return len(self.answer) >= _REPEATED_TERMS and any(said in text for text in asked)

    @property
    def _wrong_number(self) -> bool:
        """Whether a fact that is a number is not met, and the answer has a number of its own."""
        missed = (fact for fact, met in zip(self.facts, self.met, strict=True) if not met)
        numeric = any(all(any(t.is_number for t in terms(w)) for w in fact.split("|")) for fact in missed)
        return numeric and any(term.is_number and self._is_new(term) for term in self.answer)

    def _is_new(self, term: Term) -> bool:
        return term.text != "not" and not _among(term, self.asked)

    def _opposed(self) -> bool:
        """Whether the answer has the opposite of a word of the reference in its place, both denied or neither."""
        said, wanted = _firsts(self.answer), _firsts(self.reference)
        known = wanted.keys() | {term.text for term in (*terms(self.quote), *self.asked)}
        known |= {term.text for fact in self.facts for term in terms(fact.replace("|", " "))}
        return any(
            word in said
            and word not in known
            and other in wanted
            and other not in said
            and _negated_near((said[word],), self.answer) == _negated_near((wanted[other],), self.reference)
            for pair in _opposites()
            for word, other in (pair, pair[::-1])
        )

    def _places(self, fact: str) -> tuple[tuple[int, ...], bool] | None:
        """Where the answer has one of the fact's wordings, and whether with its polarity; None where it has not."""
        found = None
        for wording in fact.split("|"):
            said = terms(wording)
            places = self._stated(wording, said)
            if places is None:
                continue
            meant = {_negated(said)}
            if (there := _within_reach([term for term in said if term.text != "not"], self.reference)) is not None:
                meant.add(_negated_near(there, self.reference))
            if _negated_near(places, self.answer, _AFTER_TERMS) in meant:
                return places, True
            found = places, False
        return found

    def _stated(self, wording: str, said: Sequence[Term]) -> tuple[int, ...] | None:
        wanted = [term for term in said if term.text != "not"]
        needed = [term for term in wanted if term.is_number or not _among(term, self.asked)] or wanted
        numbers = [term for term in needed if term.is_number]
        if numbers and len(self.answer) <= _SHORT_TERMS:
            needed = numbers
        if ", " in wording and not _follows(wanted, self.answer):  # a list: steps, dimensions
            return None
        return _within_reach(needed, self.answer)

    def _rearranged(self) -> bool:
        """Whether the answer has no word of its own and puts the reference's words in another order."""
        if self._reworded:
            return False
        here, there = _places_once(self.reference, self.answer)
        if all(a < b for a, b in pairwise(there)):
            return False
        return any(
            (_beside(self.reference, here[a], here[b]) and abs(there[a] - there[b]) > _NEAR_TERMS)
            or (_beside(self.answer, there[a], there[b]) and abs(here[a] - here[b]) > _NEAR_TERMS)
            for a, b in combinations(range(len(here)), 2)
        )

    def _partners_exchanged(self) -> bool:
        """Whether a word has left another of its clause and joined one of another clause, in the reference's own words:
        `A is fast, B is small` becomes `B is fast`, `the GPU is faster than the CPU` becomes `the CPU is ...`."""
        if len(self._own) > _MOST_OWN:
            return False
        here, there = _places_once(self.reference, self.answer)
        moves = {(self.reference[a].clause, self.answer[b].clause) for a, b in zip(here, there, strict=True)}
        return any(
            first != other and at != left and (first, at) in moves for first, left in moves for other, at in moves
        )

    def _turned_round(self) -> bool:
        """Whether an answer in the reference's words denies others of them."""
        if self._reworded:
            return False
        turned = len(self._turned_words)
        return turned > 1 or (turned == 1 and _negated(self.answer) != _negated(self.reference))

    def _denies_all(self) -> bool:
        """Whether the answer puts a denial before the whole reference: `No, ...`, `It is not true that ...`.

        What it denies behind the reference or of words of its own says no less: `milliseconds, not seconds`. A
        reference that begins with yes or no is left to `verdict`, and one that denies goes with a `no` before it.
        """
        said = terms(self.text)
        first = next((at for at, term in enumerate(said) if _among(term, self.reference)), 0)
        frame, rest = said[:first], said[first:]
        if _sign(self.question.answer) or _negated(self.reference) or not _negated(frame):
            return False
        if _sign(self.text) >= 0 and (len(frame) > _FRAME_TERMS or frame[-1].clause != rest[0].clause):
            return False
        return all(_among(term, rest) for term in self.reference) and all(_among(term, self.reference) for term in rest)


def _agreement(answer: str, reference: str) -> int:
    """1 if both begin with the same yes or no, -1 with the other, 0 if one has neither."""
    return _sign(answer) * _sign(reference)


def _sign(text: str) -> int:
    return 1 if _YES.match(text) else -1 if _NO.match(text) else 0


@cache
def _opposites() -> tuple[tuple[str, str], ...]:
    def word(text: str) -> str:
        found = terms(text)
        return found[0].text if found else text

    pairs = (pair.split("/") for pair in _OPPOSITES.split())
    return tuple((word(first), word(second)) for first, second in pairs)


def _firsts(said: Sequence[Term]) -> dict[str, int]:
    """Where each word is said first."""
    return {term.text: at for at, term in reversed(list(enumerate(said)))}


def _said_once(said: Sequence[Term]) -> dict[str, int]:
    """Places of the words that are said once."""
    counts = Counter(term.text for term in said)
    once = {term.text: at for at, term in enumerate(said) if counts[term.text] == 1 and not term.is_number}
    return {word: at for word, at in once.items() if word != "not"}


def _places_once(first: Sequence[Term], second: Sequence[Term]) -> tuple[list[int], list[int]]:
    """Places in both texts of the words and numbers that each of them says once."""
    found = [
        (at, there[0])
        for at, term in enumerate(first)
        if term.text != "not" and sum(term.same(other) for other in first) == 1
        if len(there := [place for place, other in enumerate(second) if term.same(other)]) == 1
    ]
    return [here for here, _ in found], [there for _, there in found]


def _beside(said: Sequence[Term], first: int, second: int) -> bool:
    """Whether two terms stand in one clause, with one other between them at most."""
    return said[first].clause == said[second].clause and abs(first - second) <= _BESIDE_TERMS


def _negated_near(places: Sequence[int], said: Sequence[Term], after: int = 0) -> bool:
    """Whether a `not` in the clause, shortly before or among the terms at these places, turns them round."""
    first, last = min(places), max(places)
    clause = said[first].clause
    near = range(max(first - _NEAR_TERMS, 0), min(last + after + 1, len(said)))
    return _negated([said[at] for at in near if said[at].clause == clause or first < at < last])


def _negated(said: Sequence[Term]) -> bool:
    return sum(term.text == "not" for term in said) % 2 == 1


def _among(term: Term, others: Sequence[Term]) -> bool:
    return any(term.same(other) for other in others)


def _follows(wanted: Sequence[Term], said: Sequence[Term]) -> bool:
    """Whether the terms are said in this order, others between them allowed."""
    rest = iter(said)
    return all(any(term.same(other) for other in rest) for term in wanted)


def _within_reach(needed: Sequence[Term], answer: Sequence[Term]) -> tuple[int, ...] | None:
    """Places of the terms in the shortest stretch that has them all."""
    places = [[at for at, term in enumerate(answer) if wanted.same(term)] for wanted in needed]
    if not needed or not all(places):
        return None
    best: tuple[int, ...] | None = None
    for first in sorted({at for found in places for at in found}):
        inside = [[at for at in found if at >= first] for found in places]
        if all(inside):
            stretch = tuple(found[0] for found in inside)
            if best is None or _span(stretch) < _span(best):
                best = stretch
    return best


def _span(places: Sequence[int]) -> int:
    return max(places) - min(places)
