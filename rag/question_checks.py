"""What a question must be before anything is done with it."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

from indexes.errors import InvalidInput, TooLarge
from rag.types import ARMS, Question

MOST_CHARACTERS = 20_000
MOST_PASSAGES = 50
MOST_ANSWER_TOKENS = 32_768


def clean_text(text: str, what: str = "question") -> str:
    """`text` without control characters and outer white space.

    Raises:
        InvalidInput: nothing is left, or it holds half a surrogate pair.
        TooLarge: more than `MOST_CHARACTERS` characters.
    """
    if len(text) > MOST_CHARACTERS:
        raise TooLarge(
            f"the {what} has {len(text):,} characters", hint=f"ask in at most {MOST_CHARACTERS:,} characters"
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(f"the {what} holds half a surrogate pair", hint="send well-formed Unicode text")
    kept = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf") or c in "\u200c\u200d")
    kept = kept.strip()
    if not kept:
        raise InvalidInput(f"the {what} is empty", hint="ask in at least one word")
    return kept


def check_question(question: Question) -> Question:
    """The question with its text cleaned.

    Raises:
        InvalidInput: empty text, an arm that does not exist, `top_k` or `max_tokens` out of range, bad filters,
            a sampling setting out of range, an empty stop string.
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
        raise InvalidInput(f"pages {pages[0]}-{pages[1]} is no range", hint="give first and last page, from 1")
    return replace(question, text=clean_text(question.text))


def check_top_k(top_k: int) -> None:
    """Refuses a number of passages out of range.

    Raises:
        InvalidInput: not from 1 to `MOST_PASSAGES`.
    """
    if not 1 <= top_k <= MOST_PASSAGES:
        raise InvalidInput(f"top_k {top_k} is out of range", hint=f"use 1 to {MOST_PASSAGES}")
