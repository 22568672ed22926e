"""A question let in: checked, its adapter settled, its conversation read, the generator asked whether it can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from indexes.errors import InvalidInput
from rag.conversations import ConversationStore
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationRequest, Generator
from rag.question_checks import check_question
from rag.types import TUNED_ARMS, Question, Turn

EARLIER_TURNS = 6
"""Turns of a conversation that a generator is shown, the newest."""


def admit(
    question: Question, generator: Generator, conversations: ConversationStore, cancelled: Callable[[], bool]
) -> tuple[Question, GenerationRequest]:
    """The checked question and the request made of it, still without passages.

    Raises:
        InvalidInput, TooLarge: the question cannot be used.
        NotFound: the conversation does not exist.
        ArmUnavailable, PromptTooLong: the generator cannot run it.
    """
    question = check_question(question)
    question = replace(question, adapter=_adapter(question, generator.adapters))
    request = GenerationRequest(
        question=question.text,
        arm=question.arm,
        turns=_turns(question, conversations),
        adapter=question.adapter,
        max_tokens=question.max_tokens,
        temperature=question.temperature,
        sampling_top_p=question.sampling_top_p,
        seed=question.seed,
        stop=question.stop,
        cancelled=cancelled,
    )
    generator.check(request)
    return question, request


def _adapter(question: Question, known: tuple[str, ...]) -> str | None:
    """The adapter asked for, or the only one there is; none for arms that use none."""
    if question.arm not in TUNED_ARMS:
        if question.adapter is not None:
            raise InvalidInput(
                f"arm {question.arm!r} uses no adapter, but {question.adapter!r} was asked for",
                hint="ask with arm `tuned` or `rag+tuned`",
            )
        return None
    if question.adapter is not None or not known:
        return question.adapter
    if len(known) > 1:
        raise ArmUnavailable(f"several adapters are loaded: {', '.join(known)}", hint="name one with `adapter`")
    return known[0]


def _turns(question: Question, conversations: ConversationStore) -> tuple[Turn, ...]:
    if question.conversation_id is None:
        return tuple(Turn(asked, answered) for asked, answered in question.turns)[-EARLIER_TURNS:]
    answers = conversations.of(question.owner).answers(question.conversation_id)
    return tuple(Turn(answer.question, answer.answer) for answer in answers if not answer.refused)[-EARLIER_TURNS:]
