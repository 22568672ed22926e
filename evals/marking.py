"""Marks an answer by a person or a system: the right option, or the share of key facts stated.

A choice question gives 1 for the right option and 0 for any other. An open one gives the share of its key facts that
the answer states (`evals/metrics/key_facts.py`); without key facts, the token F1 with the reference answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evals.metrics.key_facts import fact_met, key_fact_recall, normalize
from evals.metrics.text_overlap import token_f1
from evals.questions import BankQuestion
from indexes.errors import InvalidInput

Given: TypeAlias = int | str | None
"""What was handed in: an option's index from 0, a text, or nothing."""

MAX_ANSWER_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of one question.

    Attributes:
        score: 0.0 to `max_score`, which is 1.0 for every question.
        given: what was handed in.
        facts_met, facts_missed: first alternative of each key fact of an open question.
    """

    question_id: str
    score: float
    max_score: float
    given: Given
    reference_answer: str
    facts_met: tuple[str, ...] = ()
    facts_missed: tuple[str, ...] = ()


def mark_answer(question: BankQuestion, given: Given) -> Mark:
    """Marks one answer; nothing handed in is 0.

    Raises:
        InvalidInput: an option that does not exist, or a text beyond `MAX_ANSWER_CHARACTERS`.
    """
    given = readable_answer(question, given)
    if given is None:
        return Mark(question.id, 0.0, 1.0, None, question.answer)
    if isinstance(given, int):
        return Mark(question.id, float(given == question.answer_index), 1.0, given, question.answer)
    if not question.key_facts:
        return Mark(question.id, round(token_f1(given, question.answer) or 0.0, 4), 1.0, given, question.answer)
    recall = key_fact_recall(question.key_facts, given) or 0.0
    met = tuple(_shown(fact) for fact in question.key_facts if fact_met(fact, given))
    missed = tuple(_shown(fact) for fact in question.key_facts if not fact_met(fact, given))
    return Mark(question.id, round(recall, 4), 1.0, given, question.answer, met, missed)


def _shown(fact: str) -> str:
    return fact.split("|")[0].strip()


def readable_answer(question: BankQuestion, given: Given) -> Given:
    """The answer as it is marked: an index for a choice question, a text for an open one, None for nothing.

    A choice question also takes an option's own text. Raises as `mark_answer`.
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    if question.type != "choice":
        text = str(given)
        if len(text) > MAX_ANSWER_CHARACTERS:
            raise InvalidInput(
                f"the answer to {question.id} has {len(text)} characters, at most {MAX_ANSWER_CHARACTERS} are marked",
                hint="shorten the answer",
            )
        return text
    index = given
    if isinstance(given, str):
        options = [normalize(choice) for choice in question.choices]
        index = options.index(normalize(given)) if normalize(given) in options else given
    if isinstance(index, str) or not 0 <= index < len(question.choices):
        raise InvalidInput(
            f"the answer to {question.id} is {given!r:.60}, not one of its {len(question.choices)} options",
            hint=f"hand in an index from 0 to {len(question.choices) - 1}",
        )
    return index
