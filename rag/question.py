"""Checks a question and its filters, chooses its adapter, and reads its conversation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace

from indexes.errors import InvalidInput, NotFound, TooLarge
from indexes.types import Document, Filters
from rag.conversations import ConversationStore
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationRequest, Generator
from rag.messages import has_words
from rag.types import ARMS, TUNED_ARMS, Arm, Question, SearchableLibrary, Turn

MOST_CHARACTERS = 20_000
MOST_PASSAGES = 50
MOST_ANSWER_TOKENS = 32_768
EARLIER_TURNS = 6
"""Newest turns of a conversation that a generator reads."""

_MOST_DIGITS = 9
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def whole_number(text: str) -> int | None:
    """The number in `text`; None when it is not digits alone, or has more digits than any page or chapter.

    `int` accepts signs and underscores, and raises ValueError beyond 4,300 digits.
    """
    digits = text.strip()
    return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def reject_control_characters(text: str, name: str) -> str:
    """`text` unchanged; every entry point uses it to catch what a terminal or a form should not have sent.

    Raises:
        InvalidInput: it holds a control character other than tab and line ends, or half a surrogate pair.
    """
    found = _CONTROL.search(text)
    if found:
        raise InvalidInput(
            f"the {name} holds the control character U+{ord(found.group()):04X} at position {found.start()}",
            hint="remove it",
        )
    return text


def clean_text(text: str, name: str = "question") -> str:
    """`text` without invisible format characters and outer white space.

    Raises:
        InvalidInput: nothing is left, or it holds control characters.
        TooLarge: more than `MOST_CHARACTERS` characters.
    """
    if len(text) > MOST_CHARACTERS:
        raise TooLarge(
            f"the {name} has {len(text):,} characters", hint=f"ask in at most {MOST_CHARACTERS:,} characters"
        )
    reject_control_characters(text, name)
    kept = "".join(c for c in text if unicodedata.category(c) != "Cf" or c in "\u200c\u200d").strip()
    if not kept:
        raise InvalidInput(f"the {name} is empty", hint="ask in at least one word")
    return kept


def check_question(question: Question) -> Question:
    """The question with its text cleaned.

    Raises:
        InvalidInput: text without words, control characters, an unknown arm, `top_k` or `max_tokens` out of range, bad
            filters, a sampling setting out of range, an empty stop string.
        TooLarge: too many characters.
    """
    if question.arm not in ARMS:
        raise InvalidInput(f"arm {question.arm!r} is not known", hint=f"use one of {', '.join(ARMS)}")
    check_top_k(question.top_k)
    if question.max_tokens is not None and not 1 <= question.max_tokens <= MOST_ANSWER_TOKENS:
        raise InvalidInput(f"max_tokens {question.max_tokens} is out of range", hint=f"use 1 to {MOST_ANSWER_TOKENS:,}")
    if not 0.0 <= question.temperature <= 2.0:
        raise InvalidInput(f"temperature {question.temperature} is out of range", hint="use 0 to 2")
    if not 0.0 < question.sampling_top_p <= 1.0:
        raise InvalidInput(f"top_p {question.sampling_top_p} is out of range", hint="use more than 0, up to 1")
    if not all(question.stop):
        raise InvalidInput("one of the stop strings is empty", hint="leave it out")
    pages = question.filters.pages
    if pages is not None and not 1 <= pages[0] <= pages[1]:
        raise InvalidInput(f"pages {pages[0]}-{pages[1]} cannot be", hint="give first and last page, from 1")
    text = clean_text(question.text)
    if not has_words(text):
        raise InvalidInput(f"there are no words in the question {text[:40]!r}", hint="ask in at least one word")
    return replace(question, text=text)


def check_top_k(top_k: int) -> None:
    """Raises InvalidInput unless 1 <= `top_k` <= `MOST_PASSAGES`."""
    if not 1 <= top_k <= MOST_PASSAGES:
        raise InvalidInput(f"top_k {top_k} is out of range", hint=f"use 1 to {MOST_PASSAGES}")


def check_filters(filters: Filters, library: SearchableLibrary) -> None:
    """Raises NotFound when a book or chapter is named that the library does not have; needs no model."""
    documents = [library.document(name) for name in filters.document_ids]
    if filters.chapters:
        _check_chapters(filters.chapters, documents or library.documents(), library)


def _check_chapters(named: Sequence[int | str], documents: Sequence[Document], library: SearchableLibrary) -> None:
    if not documents:
        return  # the refusal says that the library is empty
    chapters = [chapter for document in documents for chapter in library.chapters(document.document_id)]
    known: set[int | str] = {chapter.ordinal for chapter in chapters} | {chapter.title for chapter in chapters}
    for wanted in named:
        if wanted not in known:
            where = "this book has" if len(documents) == 1 else "the longest of these books has"
            last = max((chapter.ordinal for chapter in chapters), default=0)
            raise NotFound(f"no chapter {wanted}; {where} {last}", hint="give a number from 1, or an exact title")


def choose_adapter(arm: Arm, named: str | None, known: Sequence[str]) -> str | None:
    """The adapter that answers: the named one, or the only one; None in arms without an adapter.

    Raises:
        InvalidInput: an adapter is named for an arm that uses none.
        ArmUnavailable: the arm needs one, and it is not loaded, or several are and none is named.
    """
    if arm not in TUNED_ARMS:
        if named is not None:
            raise InvalidInput(
                f"arm {arm!r} uses no adapter, but {named!r} was asked for", hint="ask with arm `tuned` or `rag+tuned`"
            )
        return None
    if not known:
        raise ArmUnavailable(
            f"arm {arm!r} needs a language model and a LoRA adapter, and no adapter is loaded",
            hint="start with `--generator local --model PATH_OR_NAME --adapter NAME=FOLDER`, or ask with `--arm rag`",
        )
    if named is None and len(known) > 1:
        raise ArmUnavailable(f"several adapters are loaded: {', '.join(known)}", hint="name one with `adapter`")
    if named is not None and named not in known:
        raise ArmUnavailable(f"adapter {named!r} is not loaded; loaded: {', '.join(known)}", hint="name one of these")
    return named or known[0]


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
    question = replace(question, adapter=choose_adapter(question.arm, question.adapter, generator.adapters))
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


def _turns(question: Question, conversations: ConversationStore) -> tuple[Turn, ...]:
    if question.conversation_id is None:
        return tuple(Turn(asked, answered) for asked, answered in question.turns)[-EARLIER_TURNS:]
    answers = conversations.of(question.owner).answers(question.conversation_id)
    return tuple(Turn(answer.question, answer.answer) for answer in answers if not answer.refused)[-EARLIER_TURNS:]
