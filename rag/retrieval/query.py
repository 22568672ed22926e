"""A question made ready for search: its language, and what each retriever is asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rag.retrieval.glossary import translate_terms
from rag.retrieval.language import is_chinese
from rag.types import Turn
from rag.wording import wording

_POINTS_BACK = re.compile(
    r"\b(it|its|they|them|their|this|that|these|those|he|she|same|such|former|latter|above|previous|one|ones)\b"
    r"|^(and|but|so|or|then|also|why|how so|what about|how about|what if|any|more|another|else)\b"
    r"|它|他们|它们|这|那|该|上述|前者|后者|刚才|为什么呢|还有|呢[？?]?$",
    re.IGNORECASE,
)
_FEW_STEMS = 6


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for.

    Attributes:
        text: the question's own words without inline filters.
        chinese: whether the question is in Chinese.
        dense: text for the embedder.
        lexical: text for the lexical index.
        english: the question in English words, for comparing with English sentences; `text` itself if not Chinese.
    """

    text: str
    chinese: bool
    dense: str
    lexical: str
    english: str


def prepare_query(text: str, turns: Sequence[Turn] = (), *, multilingual: bool = False) -> Query:
    """The searches for a question, with the words of the question before when it leans on them.

    Args:
        turns: earlier exchanges of the conversation, oldest first.
        multilingual: whether the embedder reads Chinese itself.
    """
    standing = f"{turns[-1].question} {text}" if turns and leans_on_earlier(text) else text
    chinese = is_chinese(text)
    if not is_chinese(standing):
        return Query(text, chinese, standing, standing, standing)
    english = translate_terms(standing)
    return Query(
        text,
        chinese,
        dense=standing if multilingual or not english else english,
        lexical=f"{standing} {translate_terms(standing, synonyms=True)}",
        english=english or standing,
    )


def leans_on_earlier(text: str) -> bool:
    """Whether a follow-up question is too short, or points back too much, to be searched for alone."""
    stems = len(wording(translate_terms(text) if is_chinese(text) else text).pieces)
    return stems < 2 or (stems <= _FEW_STEMS and bool(_POINTS_BACK.search(text)))
