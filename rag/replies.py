"""Replies to messages that need no search: greetings, talk about the last answer, what a chapter or book is about.

Sentences of an earlier answer and of a chapter keep their markers and quotes. Other words and other languages need a
language model; with one, the model writes, from the last answer's passages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from indexes.errors import NotFound
from indexes.sentences import split_spans
from indexes.types import Chapter, Document, Filters, StoredNode
from indexes.words import CJK, TermWeights, count_words, index_terms, is_chinese, terms_of
from rag.citations import MARKER, without_markers
from rag.generators.extractive import as_markdown
from rag.generators.protocol import TextPiece
from rag.question import ChapterAsked, MessageKind, asks_in_chinese, asks_which_books, chapter_asked, message_kind
from rag.retrieval import chapters_named, passage_from_nodes
from rag.sentence_reader import units_of
from rag.spelling import is_english
from rag.types import Answer, Passage, Question, Quoted, SearchableLibrary, Turn

SUMMARY_WORDS = 100
OPENING_WORDS = 60
"""Words of a book's beginning that say what it is about."""
NEAR_NODES = 8
"""Nodes before and after a citation in which a listing is looked for."""
MOST_NAMED_CHARACTERS = 200
NAMED = 20
"""Books, chapters and sections named in one list."""

_SUMMARY = re.compile(
    r"\W*(?:chapter )?(?:summary|recap|conclusions?|key ?points?|takeaways|in short|小结|总结|本章小结)\b",
    re.IGNORECASE,
)
_MARKERS = re.compile(rf"(?:\s*{MARKER.pattern})*")

_ABOUT_BOOKS: frozenset[MessageKind] = frozenset({"question", "chapter", "library"})

_TEXTS = {
    "greeting": (
        "Hello! Ask me a question: I answer from the books in the library and say where it is written.",
        "您好！请提问，我根据书库中的书回答，并注明出处。",
    ),
    "thanks": ("You are welcome. Ask again whenever you like.", "不客气，欢迎继续提问。"),
    "about": (
        "I am Coalesce. I answer questions from the books in the library ({books}) and show the quote behind every "
        "sentence. You can ask on ('why?', 'and on AMD?'), ask for the code or for a shorter answer, and ask what a "
        "chapter covers.",
        "我是 Coalesce，根据书库中的书（{books}）回答问题，每句话都附上原文。"
        "您可以追问（“为什么？”）、要代码、要更短的回答，也可以问某一章讲了什么。",
    ),
    "quiz": (
        "Exams and cards are under Study: it sets questions on the chapters you choose and shows the passage behind "
        "every mark. In a terminal: `coalesce quiz`.",
        "考试和卡片在“学习”页：选定章节即可出题，每个得分都附上原文。在终端中可用 `coalesce quiz`。",
    ),
    "no_answer": (
        "There is no answer in this conversation yet. Ask a question first.",
        "这次对话里还没有回答，请先提一个问题。",
    ),
    "reword": (
        "Other words or another language need a language model; without one, an answer is made of the books' own "
        "sentences. `coalesce models` lists what can run here.",
        "换一种说法或语言需要语言模型；没有语言模型时，回答由书中的原句组成。`coalesce models` 会列出这里可用的模型。",
    ),
    "doubt": (
        "The sentences are the book's own: press a number to read on around it. If they do not answer you, ask in "
        "other words, or name the term or the book that you mean.",
        "这些句子是书中的原句，点编号可看上下文。如果没有答到您的问题，请换个说法，或写明术语或书名。",
    ),
    "unknown_words": (
        "None of these words is in the books: {words}. Ask in English or Chinese.",
        "书中没有这些词：{words}。请用中文或英文提问。",
    ),
    "no_question": ("This is the first message of the conversation.", "这是本次对话的第一条消息。"),
    "first": ("Your first question was: “{asked}”", "您的第一个问题是：“{asked}”"),
    "last": ("Your last question was: “{asked}”", "您上一个问题是：“{asked}”"),
    "asked": ("You asked:", "您问过："),
    "same_sections": ("From the sections of the last answer.", "取自上一个回答所引的章节。"),
    "sections": ("Its sections: {names}.", "本章各节：{names}。"),
    "chapters": ("Its chapters: {names}.", "本书各章：{names}。"),
    "page": (", page {page}", "，第 {page} 页"),
    "no_chapter": (
        "“{title}” has {count} chapters, and none of them is {asked}. The chapters: {names}.",
        "《{title}》共有 {count} 章，没有{asked}。各章：{names}。",
    ),
    "books": ("The library holds: {names}.", "书库中有：{names}。"),
    "which_book": (
        "The library holds {count} books: {names}. Choose one as a filter, or name it in the question, for example "
        "“{example}”.",
        "书库中有 {count} 本书：{names}。请用筛选选定一本，或在问题中写明，例如“{example}”。",
    ),
    "no_books": (
        "The library is empty. Add a book first: coalesce add PATH",
        "书库是空的。请先添加一本书：coalesce add PATH",
    ),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What is said without a search.

    Attributes:
        pieces: the answer's text; empty where the generator writes it from `passages`.
        passages: what its markers name.
        note: what a reader should know beside it.
    """

    pieces: tuple[TextPiece, ...] = ()
    passages: tuple[Passage, ...] = ()
    note: str | None = None


def reply_to(
    kind: MessageKind,
    question: Question,
    earlier: Sequence[Answer],
    turns: Sequence[Turn],
    library: SearchableLibrary,
    *,
    writes: bool,
) -> Reply | None:
    """The reply to a message that is not a question; None where the library has to be searched all the same.

    Args:
        question: the message, its inline filters among its other filters.
        earlier: the answers of the conversation, oldest first.
        turns: the same as text, also where a caller brings its own conversation.
        writes: whether the generator can put things in its own words.
    """
    text = question.text
    chinese = asks_in_chinese(text) or (not text.isascii() and any(asks_in_chinese(turn.question) for turn in turns))
    if kind in ("chapter", "library"):
        return _about_books(text, kind, question.filters, library, chinese=chinese, writes=writes)
    if kind in ("greeting", "thanks", "quiz"):
        return _said(kind, chinese)
    if kind == "about":
        books = [document.title for document in library.documents()]
        return _said(kind, chinese, books=_list(books, chinese) or ("none yet" if not chinese else "暂无"))
    if kind == "recall":
        asked = [answer.question for answer in earlier] or [turn.question for turn in turns]
        return _recall(text, [one for one in asked if message_kind(one) in _ABOUT_BOOKS], chinese)
    cited = (one for one in reversed(earlier) if one.citations and message_kind(one.question) in _ABOUT_BOOKS)
    last = next(cited, None)
    if kind == "listing":
        found = _listing(last, library) if last is not None else None
        return replace(found, note=_text("same_sections", chinese)) if found else _nothing_yet(turns, chinese)
    if last is None and not turns:
        return _said("no_answer", chinese)
    if kind == "where" and last is not None:
        return _places(last, chinese)
    if writes:
        return Reply(passages=last.passages if last is not None else ())
    if kind in ("reword", "doubt"):
        return _said(kind, chinese)
    return _first_sentence(last.answer, last) if last is not None else _first_sentence(turns[-1].answer, None)


def _nothing_yet(turns: Sequence[Turn], chinese: bool) -> Reply | None:
    return None if turns else _said("no_answer", chinese)


def _recall(text: str, asked: Sequence[str], chinese: bool) -> Reply:
    if not asked:
        return _said("no_question", chinese)
    if re.search(r"\bfirst\b|第一|最初|一开始|最开始|首先", text, re.IGNORECASE):
        return _said("first", chinese, asked=asked[0])
    if re.search(r"\b(?:last|previous|just)\b|上一个|前一个|刚才|刚刚", text, re.IGNORECASE):
        return _said("last", chinese, asked=asked[-1])
    lines = [f"{number}. {' '.join(one.split())}" for number, one in enumerate(asked, 1)]
    return Reply((TextPiece("\n".join((_text("asked", chinese), "", *lines))),))


def _first_sentence(answer: str, cited: Answer | None) -> Reply:
    """The first sentence of an answer, with its citation where the answer is kept."""
    spans = split_spans(answer)
    end = spans[0].end if spans else len(answer)
    if cited is None:
        return Reply((TextPiece(without_markers(answer[:end]).strip()),))
    markers = _MARKERS.match(answer, end)
    said = answer[: markers.end() if markers else end]
    first = cited.citations[0]
    quoted = Quoted(first.marker, first.char_start, first.char_end) if said.endswith(f"[{first.marker}]") else None
    return Reply((TextPiece(said, quoted),), cited.passages)


def _places(last: Answer, chinese: bool) -> Reply:
    """Where an answer stands: for each book, section and page its first quote."""
    pieces: list[TextPiece] = []
    places = {(each.title, each.section, each.page_start): each for each in reversed(last.citations)}
    for citation in reversed(places.values()):
        passage = last.passages[citation.marker - 1]
        start, end = citation.char_start, citation.char_end
        quote = _quote(citation.quote, citation.marker, passage.format, start, end, "\n- " if pieces else "- ")
        page = _text("page", chinese, page=citation.page_label or citation.page_start) if citation.page_start else ""
        pieces += [quote, TextPiece(f" ({' › '.join((citation.title, *citation.section))}{page})")]
    return Reply(tuple(pieces), last.passages)


def _listing(last: Answer, library: SearchableLibrary) -> Reply | None:
    """The listing nearest the last answer: in its passages, in their sections, or beside them, cited ones first."""
    cited = list(dict.fromkeys(last.passages[citation.marker - 1] for citation in last.citations))
    around = [_section_around(passage, library) for passage in cited]
    beside = [passage for passage in last.passages if passage not in cited]
    said = {citation.quote for citation in last.citations}
    wanted = terms_of(" ".join((last.question, *said))).pieces
    for passage in (*chain.from_iterable(zip(cited, around, strict=True)), *beside):
        if passage is None:
            continue
        units = units_of([passage])
        listings = [unit for unit in units if unit.kind == "code" and unit.text not in said]
        if passage in cited:  # a listing that reaches the passage's end goes on behind it
            listings = [unit for unit in listings if unit.end < len(passage.text.rstrip())]
        if listings:
            weights = TermWeights([unit.pieces for unit in units])
            best = max(listings, key=lambda unit: weights.share(wanted, unit.pieces))
            before = units[best.place - 1] if best.place else best
            pieces = []
            if before.kind in ("sentence", "item") and before.text.endswith((":", "：")):
                pieces.append(_quote(before.text, 1, passage.format, before.start, before.end, ""))
            gap = "\n\n" if pieces else ""
            pieces.append(TextPiece(f"{gap}{best.text}\n\n[1]", Quoted(1, best.start, best.end)))
            return Reply(tuple(pieces), (passage,))
    return None


def _section_around(passage: Passage, library: SearchableLibrary) -> Passage | None:
    """The nodes of a passage's section near it, as one passage; None where the node is gone."""
    try:
        (found,) = library.get_nodes([passage.node_id])
    except NotFound:
        return None
    section = (found.chapter, found.heading_path[:2])
    near = library.around(found, NEAR_NODES, NEAR_NODES)
    same = [node for node in near if (node.chapter, node.heading_path[:2]) == section]
    return replace(passage_from_nodes(same, found, passage.score), format=passage.format)


def not_understood(text: str, library: SearchableLibrary) -> str | None:
    """The reply to a question without one word that the library or the dictionary knows; else None."""
    words = tuple(dict.fromkeys(re.findall(r"\w+", text)))
    if (
        not words
        or any(map(is_chinese, words))
        or any(count for count in library.count_terms(index_terms(text), 1).values())
    ):
        return None
    latin = [word for word in words if word.isascii()]
    if any(is_english(word.lower()) for word in latin if word.isalpha() and len(word) > 2):
        return None
    return _text("unknown_words", chinese=False, words=_list(words, chinese=False)[:MOST_NAMED_CHARACTERS])


# --- chapters and books


def _about_books(
    text: str, kind: MessageKind, filters: Filters, library: SearchableLibrary, *, chinese: bool, writes: bool
) -> Reply:
    documents = library.documents()
    if not documents:
        return _said("no_books", chinese)
    if asks_which_books(text):
        return _said("books", chinese, names=_list([document.title for document in documents], chinese))
    chosen = (
        [one for one in documents if one.document_id in filters.document_ids] or _titled(text, documents) or documents
    )
    if len(chosen) > 1:
        titles = [document.title for document in chosen]
        example = f"{text.rstrip('?？ ')} #{re.sub(f'[^0-9A-Za-z{CJK}]+', '-', titles[0]).strip('-').lower()}"
        return _said("which_book", chinese, count=len(titles), names=_list(titles, chinese), example=example)
    document = chosen[0]
    nodes = library.nodes_of(document.document_id)
    chapters = library.chapters(document.document_id)
    if kind == "library":
        titles = [chapter.title for chapter in chapters]
        opening = [node for node in nodes if node.text.strip()][:2]
        return _outline([opening], document, "chapters", titles, OPENING_WORDS, chinese=chinese, writes=writes)
    asked = chapter_asked(text)
    chapter = _chapter(asked, chapters)
    if chapter is None:
        numbered = _list([f"{one.ordinal} {one.title}" for one in chapters], chinese)
        number = f"第 {asked.number} 章" if chinese else f"chapter {asked.number}"
        wanted = f"“{asked.title}”" if asked.title else number
        return _said("no_chapter", chinese, title=document.title, count=len(chapters), asked=wanted, names=numbered)
    inside = [node for node in nodes if node.chapter == chapter.ordinal]
    sections = [list(group) for _, group in groupby(inside, key=lambda node: node.heading_path[:2])]
    summary = [node for node in inside if len(node.heading_path) > 1 and _SUMMARY.match(node.heading_path[-1])]
    names = [s[0].heading_path[1] for s in sections if len(s[0].heading_path) > 1 and s[0] not in summary]
    stretches = [summary] if summary else sections
    if writes and summary:
        stretches = [summary, *(section[:1] for section in sections if section[0] not in summary)]
    return _outline(stretches, document, "sections", names, SUMMARY_WORDS, chinese=chinese, writes=writes)


def _titled(text: str, documents: Sequence[Document]) -> list[Document]:
    """The books whose whole title is in the message."""
    return [document for document in documents if document.title.casefold() in text.casefold()]


def _chapter(asked: ChapterAsked, chapters: Sequence[Chapter]) -> Chapter | None:
    """The chapter asked for: the one that prints this number before its title, else the one at this place."""
    if asked.title:
        return next(iter(chapters_named(asked.title, chapters)), None)
    if asked.number == -1:
        return chapters[-1] if chapters else None
    printed = re.compile(rf"(?:chapter |第\s*)?{asked.number}(?!\d|\.\d)", re.IGNORECASE)
    numbered = [chapter for chapter in chapters if re.match(r"(?:chapter |第\s*)?\d", chapter.title, re.IGNORECASE)]
    if numbered:
        return next((chapter for chapter in numbered if printed.match(chapter.title)), None)
    return next((chapter for chapter in chapters if chapter.ordinal == asked.number), None)


def _outline(
    stretches: Sequence[Sequence[StoredNode]],
    document: Document,
    label: str,
    names: Sequence[str],
    words: int,
    *,
    chinese: bool,
    writes: bool,
) -> Reply:
    """The first sentences of some stretches of a book, within `words`, then the names of its parts.

    One stretch is said from its beginning; of several, each gives its first sentence.
    """
    passages = [
        replace(passage_from_nodes(nodes[:3], nodes[0], 1.0), format=document.format) for nodes in stretches if nodes
    ][:NAMED]
    if writes:
        return Reply(passages=tuple(passages))
    pieces: list[TextPiece] = []
    used: list[Passage] = []
    left = words
    for passage in passages:
        spans = [span for span in split_spans(passage.text) if span.kind in ("sentence", "item")]
        statements = [span for span in spans if _is_statement(passage.text[span.start : span.end], span.kind)]
        for span in statements if len(passages) == 1 else statements[:1]:
            text = passage.text[span.start : span.end]
            if (cost := count_words(text)) > left and pieces:
                left = 0
                break
            left -= cost
            if passage not in used:
                used.append(passage)
            gap = "" if not pieces else "\n" if span.kind == "item" else " "
            mark = "- " if span.kind == "item" else ""
            pieces.append(_quote(text, len(used), passage.format, span.start, span.end, gap + mark))
        if left <= 0:
            break
    if names:
        gap = "\n\n" if pieces else ""
        pieces.append(TextPiece(gap + _text(label, chinese, names=_list(list(dict.fromkeys(names)), chinese))))
    return Reply(tuple(pieces), tuple(used))


def _is_statement(text: str, kind: str) -> bool:
    """Whether a sentence says something: no question, no announcement, no title without a full stop."""
    return text.endswith((".", "!", "。", "！", ")", "`")) if kind == "sentence" else text[-1] not in "?？:："


def _quote(text: str, number: int, book_format: str, start: int, end: int, before: str) -> TextPiece:
    said = as_markdown(" ".join(without_markers(text).split()), book_format)
    return TextPiece(f"{before}{said} [{number}]", Quoted(number, start, end))


# --- texts


def _said(name: str, chinese: bool, **values: object) -> Reply:
    return Reply((TextPiece(_text(name, chinese, **values)),))


def _text(name: str, chinese: bool, **values: object) -> str:
    return _TEXTS[name][chinese].format(**values)


def _list(names: Sequence[str], chinese: bool) -> str:
    shown = [*names[:NAMED], *(["…"] if len(names) > NAMED else [])]
    return ("、" if chinese else ", ").join(shown)
