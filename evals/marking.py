"""Marks an open answer in levels: key facts, then a learned comparison for a student's own words, then a judge.

1. Both texts are brought into one form (`evals/answer_terms.py`). A key fact is met where the answer has its words and
   numbers with the same polarity; the question's own words earn nothing. All facts met is full marks.
2. Else a logistic regression says how likely the answer is right. Its inputs are the facts met, how much of the
   reference it says, and the bundled encoder's cosines. Who contradicts the reference (denies a fact, says of one thing
   what it says of another in another clause, says the opposite of a word) gets nothing.
3. Where a judge model is configured, it grades what key facts did not settle.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Literal, TypeAlias

from evals.answer_terms import Term, in_english, terms
from evals.questions import BankQuestion
from evals.scoring import GRADES
from evals.text_match import Embed, normalize

By: TypeAlias = Literal["choice", "key_facts", "similarity", "judge", "self"]
"""How a mark was made: `self` is the learner's own verdict."""
AskJudge: TypeAlias = Callable[[BankQuestion, str], str | None]
"""Grades an answer `correct`, `partial` or `wrong`; None when it cannot."""

HALF = 0.5
RIGHT = 0.5
SURELY_RIGHT = 0.75
SURELY_WRONG = 0.2
"""Chances between the last two are marked to be checked, those from `RIGHT` on with points."""
_WEIGHTS = {
    "stated": 2.234,
    "covered": 3.276,
    "verdict": 5.399,
    "turned": -2.027,
    "like_quote": 2.363,
    "like_question": -3.97,
    "like_reference": 12.088,
    "length": 0.416,
}
_CONSTANT = -12.85
"""Fitted on the development half of `evals/question_sets/marks` by `python -m tools.marks --fit`."""
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
valid/invalid common/rare gain/lose allow/forbid optional/required attract/repel
"""
_SHORT_TERMS = 4
"""An answer of at most so many terms need not repeat the noun of a number: `32` for `32 registers`."""
_REPEATED_TERMS = 4
"""From so many terms on, a stretch of the question is a repetition."""
_AFTER_TERMS = 2
"""How far after a fact's words a `not` still belongs to them: `integer division is not slow`."""
_ALONE = r"(?=\s*(?:[-–,.:;，。！!]|$))"
_YES = re.compile(rf"\s*(?:yes|yeah|yep|会|是的?|对|能|可以){_ALONE}", re.IGNORECASE)
_NO = re.compile(rf"\s*(?:no|nope|不(?:会|是|能|可以)?){_ALONE}", re.IGNORECASE)


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
    needs_check = SURELY_WRONG <= chance < SURELY_RIGHT or (reading.contradicted and chance >= SURELY_RIGHT)
    if chance < RIGHT or reading.contradicted:
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
    no, -1 for the other. Cosines of the answer with the quote and the question, and of both answers read after the
    question. `length`: log of the answer's terms.
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
        contradicted: a key fact is denied, two clauses are exchanged, or the opposite of a word is said.
        verdict: 1 if the answer's yes or no is the reference's, -1 if it is the other, 0 without one.
    """

    def __init__(self, question: BankQuestion, answer: str) -> None:
        self.question, self.text = question, answer
        self.quote = question.gold[0].evidence if question.gold else question.answer
        self.facts = question.key_facts or (question.answer,)
        self.asked, self.reference = terms(question.question), terms(question.answer)
        self.answer = terms(_YES.sub("", _NO.sub("", answer, count=1), count=1)) or terms(answer)
        self.verdict = _yes_or_no(answer) * _yes_or_no(question.answer)
        stated = [self._states(fact) for fact in self.facts]
        self.met = tuple(polarity is True for polarity in stated)
        exchanged = _paired_otherwise(self.reference, self.answer)
        self.contradicted = False in stated or exchanged or self._opposed()

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
        if not self.verdict and (not self._novel or self._repeats):
            return 0.0
        return 1.0 if self.stated == 1.0 and self.verdict >= 0 else None

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
        here, there = _said_once(self.answer), _said_once(self.reference)
        common = here.keys() & there.keys()
        turned = [w for w in common if _denied([here[w]], self.answer) != _denied([there[w]], self.reference)]
        return len(turned) / len(common) if common else 0.0

    @property
    def _novel(self) -> list[Term]:
        return [term for term in self.answer if self._is_new(term)] if not all(self.met) else list(self.answer)

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
        return numeric and any(term.is_number for term in self._novel)

    def _is_new(self, term: Term) -> bool:
        return term.text != "not" and not _among(term, self.asked)

    def _opposed(self) -> bool:
        """Whether the answer has, in place of a word of the reference, its opposite."""
        said, wanted, asked = ({term.text for term in text} for text in (self.answer, self.reference, self.asked))
        own, missed = said - wanted - asked, wanted - said
        return any((a in own and b in missed) or (b in own and a in missed) for a, b in _opposites())

    def _states(self, fact: str) -> bool | None:
        """Whether the answer has one of the fact's wordings with its polarity; None where it has none."""
        found = None
        for wording in fact.split("|"):
            said = terms(wording)
            wanted = [term for term in said if term.text != "not"]
            needed = [term for term in wanted if term.is_number or not _among(term, self.asked)] or wanted
            numbers = [term for term in needed if term.is_number]
            if numbers and len(self.answer) <= _SHORT_TERMS:
                needed = numbers
            if (places := _places(needed, self.answer)) is None:
                continue
            meant = {_negated(said)}
            if (there := _places(wanted, self.reference)) is not None:
                meant.add(_denied(there, self.reference))
            if _denied(places, self.answer, _AFTER_TERMS) in meant:
                return True
            found = False
        return found


def _yes_or_no(text: str) -> int:
    """1 for a text that begins with yes, -1 with no, else 0."""
    return 1 if _YES.match(text) else -1 if _NO.match(text) else 0


@cache
def _opposites() -> tuple[tuple[str, str], ...]:
    """The pairs as terms have them."""
    return tuple((terms(a)[0].text, terms(b)[0].text) for a, b in (pair.split("/") for pair in _OPPOSITES.split()))


def _said_once(said: Sequence[Term]) -> dict[str, int]:
    """Places of the words that are said once."""
    counts = Counter(term.text for term in said if not term.is_number and term.text != "not")
    return {term.text: at for at, term in enumerate(said) if counts[term.text] == 1}


def _paired_otherwise(first: Sequence[Term], second: Sequence[Term]) -> bool:
    """Whether what one text says in two clauses is exchanged between two clauses of the other."""
    here, there = _said_once(first), _said_once(second)
    places = {(first[here[word]].clause, second[there[word]].clause) for word in here.keys() & there.keys()}
    return any(
        a != b and x != y and (a, y) in places and (b, x) in places for (a, x), (b, y) in combinations(places, 2)
    )


def _denied(places: Sequence[int], said: Sequence[Term], after: int = 0) -> bool:
    """Whether a `not` in their clause, before or among the terms at these places, turns them round."""
    first, last = min(places), max(places)
    near = list(enumerate(said))[: last + after + 1]
    return _negated([term for at, term in near if term.clause == said[first].clause or first < at < last])


def _negated(said: Sequence[Term]) -> bool:
    return sum(term.text == "not" for term in said) % 2 == 1


def _among(term: Term, others: Sequence[Term]) -> bool:
    return any(term.same(other) for other in others)


def _places(needed: Sequence[Term], said: Sequence[Term]) -> tuple[int, ...] | None:
    """Where each of the terms is said first; None where one is missing."""
    places = [next((at for at, term in enumerate(said) if wanted.same(term)), -1) for wanted in needed]
    return tuple(places) if places and -1 not in places else None
