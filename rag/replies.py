"""Replies to messages that are no question for the books: greetings, thanks, who answers, wishes about an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from indexes.words import index_terms, is_chinese
from rag.question import TalkKind
from rag.spelling import is_english
from rag.types import SearchableLibrary

NAMED = 20
"""Books or words named in one list."""
_TEXTS: dict[TalkKind, tuple[str, str]] = {
    "greeting": (
        "Hello! Ask me a question: I answer from the books in the library and say where it is written.",
        "您好！请提问，我根据书库中的书回答，并注明出处。",
    ),
    "thanks": ("You are welcome. Ask again whenever you like.", "不客气，欢迎继续提问。"),
    "about": (
        "I am Coalesce. I answer questions from the books in the library ({books}) and show the quote behind every "
        "sentence. You can ask on: 'why?', 'and on AMD?', 'show me the code'.",
        "我是 Coalesce，根据书库中的书（{books}）回答问题，每句话都附上原文。您可以追问：“为什么？”、“看看代码”。",
    ),
    "rewrite": (
        "Rewording, summaries and examples need a language model (see Settings); without one, answers are the books' "
        "own sentences.",
        "改写、总结和举例需要语言模型（见“设置”）；没有语言模型时，回答由书中的原句组成。",
    ),
}
_NO_BOOKS = ("none yet", "暂无")
_UNKNOWN_WORDS = "None of these words is in the books: {words}. Ask in English or Chinese."


def reply_to(kind: TalkKind, library: SearchableLibrary, *, chinese: bool) -> str:
    """What is said to a message that needs no search."""
    titles = [document.title for document in library.documents()]
    return _TEXTS[kind][chinese].format(books=_list(titles, chinese) or _NO_BOOKS[chinese])


def not_understood(text: str, library: SearchableLibrary) -> str | None:
    """The reply to a question without one word that the library or the dictionary knows; else None."""
    words = tuple(dict.fromkeys(re.findall(r"\w+", text)))
    if not words or any(map(is_chinese, words)) or any(library.count_terms(index_terms(text), 1).values()):
        return None
    if any(is_english(word.lower()) for word in words if word.isascii() and word.isalpha() and len(word) > 2):
        return None
    return _UNKNOWN_WORDS.format(words=_list(words, chinese=False)[:200])


def _list(names: Sequence[str], chinese: bool) -> str:
    shown = [*names[:NAMED], *(["…"] if len(names) > NAMED else [])]
    return ("、" if chinese else ", ").join(shown)
