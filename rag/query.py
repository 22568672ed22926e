"""A question understood once: its kind, its filters, its language, and the texts that are searched for.

`understand` makes one value at the beginning, and whoever comes after reads it and asks nothing again.

`#cuda-guide what is a warp` looks in books whose title, source name or id holds "cuda guide"; `@3` and `@"memory
model"` look in chapter 3, or in chapters whose title holds those words. A tag that matches no book or chapter stays in
the question: `#pragma unroll` and `@cuda.jit` are code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from indexes.types import Document, Filters
from indexes.words import index_terms, is_chinese
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
    whole_number,
)
from rag.spelling import correct, is_english
from rag.types import SearchableLibrary, Turn
from rag.wording import find_other_words, put_into_books_words, translate_terms

_TAG = re.compile(r"(?<![^\s(（，。；])([#@])(?:\"([^\"]{1,200})\"|“([^”]{1,200})”|([^\s\"“”,，。？?！!；;]{1,200}))")
_COMPARING = re.compile(r"\b(?:what|have|has|differen\w*|compare|between|is|are)\b\s*")
_DEFINING = re.compile(r"\b(?:what|defines?|definition|meaning|explain)\b\s*")
_QUESTION_MARKS = re.compile("[?？]+")
_NOT_A_LETTER = re.compile(r"[\W_]+")
_READ_WITH = ("Read together with your earlier question: “{asked}”", "已结合您前面的问题：“{asked}”")
_SPELLED = ("Searched for: {words}.", "按“{words}”搜索。")
_BEGINNING = ("Only the beginning of the message was searched for.", "只按消息的开头部分进行了搜索。")
_OTHER_WORDS = ("The books have other words for this: {words}.", "书中用的是另外的说法：{words}。")
_SEVERAL = (
    "Answering several questions at once needs a language model; ask them one by one.",
    "一次回答多个问题需要语言模型，请逐个提问。",
)
_UNKNOWN_WORDS = "None of these words is in the books: {words}. Ask in English or Chinese."
_CODE_UNDONE = ("Explaining your own code needs a language model.", "解释您自己的代码需要语言模型。")


@dataclass(frozen=True, slots=True)
class Query:
    """What was asked, and what is searched for.

    Attributes:
        text: the question's own words, without inline filters.
        kind: of the question in the user's words.
        chinese: whether it was asked in Chinese.
        filters: those given, and those named in the question.
        options: of a pasted exam question.
        standalone: the question after the earlier one where it refers to that, in the books' spelling.
        dense: text for the embedder.
        lexical: text for the lexical index.
        english: the question in English words, for comparing with English sentences; else `standalone`.
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
        library: corrects misspelt words, knows which words the books have, and which books and chapters are named.
        turns: earlier exchanges of the conversation, oldest first; used where the question refers to them.
    """
    text, filters = split_inline_filters(question, filters or Filters(), library)
    chinese = asks_in_chinese(text)
    notes: list[str] = []
    undone: list[str] = []
    asked = prose_of(text)
    if asked == text.strip() or not own_terms(asked):
        asked = text
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
        notes.append(_READ_WITH[chinese].format(asked=standing))
    spelled = correct(standalone, library)
    if spelled.corrections:
        notes.append(_SPELLED[chinese].format(words=", ".join(spelled.corrections)))
    query = replace(
        _in_english(spelled.text),
        text=text,
        kind=question_kind(asked),
        chinese=chinese,
        filters=filters,
        options=options,
        notes=tuple(notes),
        undone=tuple(undone),
        asks_for_more=bool(standing) and not own_terms(asked),
    )
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


def not_understood(query: Query, library: SearchableLibrary) -> str | None:
    """The reply to a question without one word that the library or the dictionary knows; else None."""
    words = tuple(dict.fromkeys(re.findall(r"\w+", query.standalone)))
    if not words or any(map(is_chinese, words)) or any(library.count_terms(index_terms(query.standalone), 1).values()):
        return None
    if any(is_english(word.lower()) for word in words if word.isascii() and word.isalpha() and len(word) > 2):
        return None
    return _UNKNOWN_WORDS.format(words=", ".join(words)[:200])


# --- inline filters


def split_inline_filters(question: str, filters: Filters, library: SearchableLibrary) -> tuple[str, Filters]:
    """The question without its inline filters, and `filters` narrowed by them."""
    tags = list(_TAG.finditer(question))
    if not tags:
        return question, filters
    documents = library.documents()
    names = [(d.document_id, _plain_names(d)) for d in documents]
    searched = documents if any(tag.group(1) == "@" for tag in tags) else ()
    chapters = [(d.document_id, c, _plain(c.title)) for d in searched for c in library.chapters(d.document_id)]
    books: dict[str, None] = {}
    named: dict[tuple[str, int | str], None] = {}
    kept: list[str] = []
    position = 0
    for tag in tags:
        wanted = next(group for group in tag.groups()[1:] if group).rstrip(".:")
        number, words = whole_number(wanted), _plain(wanted)
        found: list[Any]
        if tag.group(1) == "#":
            found = [book for book, held in names if words and any(words in name for name in held)]
            books |= dict.fromkeys(found)
        elif number is not None:
            found = [(book, number) for book, chapter, _ in chapters if chapter.ordinal == number]
            named |= dict.fromkeys(found)
        else:
            found = [(book, chapter.title) for book, chapter, title in chapters if words and words in title]
            named |= dict.fromkeys(found)
        if found:
            kept.append(question[position : tag.start()])
            position = tag.end()
    kept.append(question[position:])
    rest = " ".join("".join(kept).split())
    within = tuple(book for book in books if book in filters.document_ids) or tuple(books) or filters.document_ids
    there = dict.fromkeys(name for book, name in named if isinstance(name, int) or not within or book in within)
    return rest or question, replace(filters, document_ids=within, chapters=filters.chapters + tuple(there))


def _plain_names(document: Document) -> tuple[str, ...]:
    source = PurePath(document.source)
    return tuple(map(_plain, (document.title, source.stem, source.name, document.document_id)))


def _plain(name: str) -> str:
    return _NOT_A_LETTER.sub(" ", name).casefold().strip()
