"""What is said when the library does not answer a question, in the question's language."""

from __future__ import annotations

from rag.retrieval.language import is_chinese

_NOT_FOUND = (
    "The library does not answer this question. The nearest passages are shown; "
    "they may help you to put it differently."
)
_NOT_FOUND_ZH = "书库中没有能回答这个问题的内容。下面列出最接近的段落，也许能帮助您换一种问法。"
_NOTHING_THERE = "Nothing in the library matches these filters, so there is nothing to answer from."
_NOTHING_THERE_ZH = "书库中没有符合这些筛选条件的内容，因此无法回答。"
_EMPTY = "The library is empty, so there is nothing to answer from. Add a book first: coalesce add PATH"
_EMPTY_ZH = "书库是空的，因此无法回答。请先添加一本书：coalesce add PATH"


def not_found(question: str) -> str:
    """The passages found do not answer the question."""
    return _NOT_FOUND_ZH if is_chinese(question) else _NOT_FOUND


def nothing_matches(question: str) -> str:
    """No passage was found at all, though there are books."""
    return _NOTHING_THERE_ZH if is_chinese(question) else _NOTHING_THERE


def empty_library(question: str) -> str:
    """There are no books."""
    return _EMPTY_ZH if is_chinese(question) else _EMPTY
