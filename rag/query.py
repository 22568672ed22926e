"""A question understood once: its kind, its language, and the texts that are searched for.

`understand` makes one value at the beginning, and whoever comes after reads it and asks nothing again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from indexes.types import Filters
from indexes.words import is_chinese, terms_of
from rag.question import (
    MOST_SEARCHED_CHARACTERS,
    QuestionKind,
    after_standing,
    asks_in_chinese,
    compares,
    options_of,
    own_terms,
    prose_of,
    question_kind,
    refers_to_earlier,
    standing_question,
    subject_of,
)
from rag.types import SearchableLibrary, Turn
from rag.wording import correct, find_other_words, put_into_books_words, translate_terms

_LOOKED_AT = 5
"""Nodes by which the language to search in is chosen: as many as an answer is made of by default."""
_COMPARING = re.compile(r"\b(?:what|have|has|differen\w*|compare|between|is|are)\b\s*")
_DEFINING = re.compile(r"\b(?:what|defines?|definition|meaning|explain)\b\s*")
_QUESTION_MARKS = re.compile("[?？]+")
_READ_WITH = ("Read together with your earlier question: “{asked}”", "已结合您前面的问题：“{asked}”")
_MOST_NAMED_CHARACTERS = 120
"""Of an earlier question in a note: about two lines."""
_SPELLED = ("Searched for: {words}.", "按“{words}”搜索。")
_BEGINNING = ("Only the beginning of the message was searched for.", "只按消息的开头部分进行了搜索。")
_OTHER_WORDS = ("The books have other words for this: {words}.", "书中用的是另外的说法：{words}。")
_SEVERAL = (
    "Answering several questions at once needs a language model; ask them one by one.",
    "一次回答多个问题需要语言模型，请逐个提问。",
)
_CODE_UNDONE = ("Explaining your own code needs a language model.", "解释您自己的代码需要语言模型。")


def _beginning(question: str) -> str:
    """A question on one line, cut where it is long."""
    line = " ".join(question.split())
    return line if len(line) <= _MOST_NAMED_CHARACTERS else f"{line[:_MOST_NAMED_CHARACTERS].rstrip()}…"


@dataclass(frozen=True, slots=True)
class Query:
    """What was asked, and what is searched for.

    Attributes:
        text: the question's own words.
        kind: of the question in the user's words.
        chinese: whether it was asked in Chinese.
        filters: the books, chapters and pages to search in.
        options: of a pasted exam question.
        standalone: the question after the earlier one where it refers to that, in the books' spelling.
        dense: text for the embedder.
        lexical: text for the lexical index.
        english: the question in English words, for comparing with English sentences; `standalone` where it is compared
            with sentences of its own language.
        subject: the name that is to be defined, "" for other questions.
        notes: what a reader should know about how the question was understood; they go into `Answer.note`.
        undone: what only a language model could do beside, one sentence each.
        asks_for_more: whether it is a follow-up without words of its own, so that nothing should be said again.
    """

    text: str
    kind: QuestionKind = "fact"
    chinese: bool = False
    filters: Filters = field(default_factory=Filters)
    options: tuple[str, ...] = ()
    standalone: str = ""
    dense: str = ""
    lexical: str = ""
    english: str = ""
    subject: str = ""
    notes: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    asks_for_more: bool = False


def english_query(text: str) -> Query:
    """An English question as it stands, without a library or a conversation."""
    kind, subject = question_kind(text), subject_of(text)
    return Query(text, kind, standalone=text, dense=text, lexical=text, english=text, subject=subject)


def understand(
    question: str, library: SearchableLibrary, filters: Filters | None = None, turns: Sequence[Turn] = ()
) -> Query:
    """The question as everything after this reads it.

    Args:
        library: corrects misspelt words, and knows which words the books have.
        turns: earlier exchanges of the conversation, oldest first; used where the question refers to them.
    """
    chinese = asks_in_chinese(question)
    notes: list[str] = []
    undone: list[str] = []
    asked = prose_of(question)
    if asked == question.strip() or not own_terms(asked):
        asked = question
    else:
        undone.append(_CODE_UNDONE[chinese])
    if len(asked) > MOST_SEARCHED_CHARACTERS:
        asked = asked[:MOST_SEARCHED_CHARACTERS]
        notes.append(_BEGINNING[chinese])
    asked, options = options_of(asked)
    if len(_QUESTION_MARKS.findall(asked)) > 1:
        undone.append(_SEVERAL[chinese])
    standalone, standing = asked, ""
    if turns and refers_to_earlier(asked) and (standing := standing_question(turns, asked)):
        standalone = after_standing(standing, asked)
        notes.append(_READ_WITH[chinese].format(asked=_beginning(standing)))
    spelled = correct(standalone, library)
    if spelled.corrections:
        notes.append(_SPELLED[chinese].format(words=", ".join(spelled.corrections)))
    query = _in_english(spelled.text)
    if is_chinese(spelled.text):
        query = _in_the_books_language(query, library, filters)
    query = replace(
        query,
        text=question,
        kind=question_kind(asked),
        chinese=chinese,
        filters=filters or Filters(),
        options=options,
        notes=tuple(notes),
        undone=tuple(undone),
        asks_for_more=bool(standing) and not own_terms(asked),
    )
    if not is_chinese(query.english):
        query = _in_the_books_words(query, library)
    return replace(query, subject=subject_of(query.english))


def _in_english(standalone: str) -> Query:
    if not is_chinese(standalone):
        return english_query(standalone)
    english = translate_terms(standalone)
    if question_kind(standalone) == "define":
        english = f"what is {_DEFINING.sub('', english).strip()}"
    elif compares(standalone):
        english = f"difference between {_COMPARING.sub(' ', english).strip()}"
    return Query(
        standalone,
        standalone=standalone,
        dense=english or standalone,
        lexical=f"{standalone} {translate_terms(standalone, synonyms=True)}",
        english=english or standalone,
    )


def _in_the_books_language(english: Query, library: SearchableLibrary, filters: Filters | None) -> Query:
    """The Chinese question as it is, where Chinese texts hold at least as much of it as any hold of its English."""
    asked = english.standalone
    own = _share_found(asked, [text for text in _found(asked, library, filters) if is_chinese(text)])
    if not own or own < _share_found(english.english, _found(english.english, library, filters)):
        return english
    return Query(asked, standalone=asked, dense=asked, lexical=asked, english=asked)


def _found(words: str, library: SearchableLibrary, filters: Filters | None) -> list[str]:
    hits = library.lexical(words, _LOOKED_AT, filters)
    return [" ".join((*hit.node.heading_path, hit.node.text)) for hit in hits]


def _share_found(asked: str, texts: Sequence[str]) -> float:
    pieces = terms_of(asked).pieces
    return len(pieces & terms_of("\n".join(texts)).pieces) / len(pieces) if pieces else 0.0


def _in_the_books_words(query: Query, library: SearchableLibrary) -> Query:
    """`query` with words that the books lack replaced by theirs, and a note; the lexical search gets both."""
    others = find_other_words(query.english, library, query.filters)
    if not others:
        return query
    words = ", ".join(f"{other.asked} → {' / '.join(other.found)}" for other in others)
    return replace(
        query,
        standalone=put_into_books_words(query.standalone, others),
        dense=put_into_books_words(query.dense, others),
        lexical=" ".join((query.lexical, *(word for other in others for word in other.found))),
        english=put_into_books_words(query.english, others),
        notes=(*query.notes, _OTHER_WORDS[query.chinese].format(words=words)),
    )
