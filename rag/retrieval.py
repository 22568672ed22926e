"""From a question to the passages that answer it: its filters and language, two searches, one order, then passages.

`#cuda-guide what is a warp` looks in books whose title, source name or id holds "cuda guide"; `@3` and `@"memory
model"` look in chapter 3, or in chapters whose title holds those words. A tag that matches no book or chapter stays in
the question: `#pragma unroll` and `@cuda.jit` are code.

A node's score adds its reciprocal rank in the dense and the lexical search, how near each other the question's terms
are in it, and its length: a node of a few words rarely answers (`docs/decisions.md`). A reranker, where one
is configured, orders the best nodes once more.

Short nodes rank and cite well, long passages hold more of the answer. So neighbouring hits become one passage, and the
rest of the budget adds neighbouring nodes, also of the next section of the chapter, with its heading. A listing that
was cut into several nodes is joined again.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from indexes.errors import NotFound
from indexes.sentences import fence_after
from indexes.types import Chapter, Document, Filters, Hit, PageMarks, StoredNode
from indexes.words import count_words, index_terms, is_chinese, is_identifier, terms_of
from rag.answer_forms import about_listing, listings_in, rank_by_form, rank_listings
from rag.errors import ModelCannotLoad
from rag.question import (
    MOST_SEARCHED_CHARACTERS,
    QuestionKind,
    after_standing,
    asks_for_more,
    asks_in_chinese,
    code_in,
    looked_up,
    message_kind,
    names_in,
    only_about_code,
    question_kind,
    refers_to_earlier,
    standing_question,
    whole_number,
    without_greeting,
    without_options,
    without_style,
)
from rag.settings import RetrievalSettings
from rag.spelling import correct
from rag.types import Passage, PassagePart, SearchableLibrary, Searched, Turn
from rag.wording import OtherWords, find_other_words, put_into_books_words, translate_terms

RRF_CONSTANT = 10.0
"""The k of reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009, who use 60). A small one lets the first
few of each ranking count for more; measured in `docs/decisions.md`."""
RESCORED = 30
"""Nodes of the fused order whose text is read."""
PROXIMITY_WEIGHT = 2.0
"""As much as first places in both searches."""
LENGTH_WEIGHT = 0.5
FORM_CANDIDATES = 100
"""Nodes found by words in which a definition or a number is looked for."""
FORM_PLACE = 3
"""The node that best has the form asked for is at least the third."""
LEAST_FORM = 0.5
LISTING_WEIGHT = 1.0
"""For a listing about what was asked for, where code is."""
FULL_LENGTH_WORDS = 180
WINDOW_CHARACTERS = 160
"""About one sentence; 160, 260 and 400 rank alike."""

_TAG = re.compile(r"(?<![^\s(（，。；])([#@])(?:\"([^\"]{1,200})\"|“([^”]{1,200})”|([^\s\"“”,，。？?!！;；]{1,200}))")
_COMPARING = re.compile(r"\b(?:what|have|has|differen\w*|compare|between|is|are)\b\s*")
_DEFINING = re.compile(r"\b(?:what|defines?|definition|meaning|explain)\b\s*")
_CHANGE_LOG = re.compile(
    r"(?:user-visible |all |notable )?changes(?: (?:in|since) (?:version )?v?\d.*)?|change ?-?log\b.*|"
    r"(?:release|version) (?:notes|history)\b.*|更新日志|版本说明|变更记录",
    re.IGNORECASE,
)
_ASKS_CHANGES = re.compile(
    r"\b(?:chang(?:e|es|ed)|new|newer|added|removed|renamed|fixed|deprecat\w+|versions?|releases?|since|still|longer)\b"
    r"|新|版本|更新|变化|改动|移除|弃用",
    re.IGNORECASE,
)
_NOT_A_LETTER = re.compile(r"[\W_]+")
_READ_WITH = ("Read together with your earlier question: “{asked}”", "已结合您前面的问题：“{asked}”")
_SPELLED = ("Searched for: {words}.", "按“{words}”搜索。")
_FROM_CODE = ("Searched for the names in your code: {words}.", "按您代码中的名称搜索：{words}。")
_BEGINNING = ("Only the beginning of the message was searched for.", "只按消息的开头部分进行了搜索。")
_NAMES_SEARCHED = 8
_OTHER_WORDS = ("The books have other words for this: {words}.", "书中用的是另外的说法：{words}。")


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for.

    Attributes:
        text: the question's own words without inline filters.
        standalone: the same, after the earlier question where it refers to that one.
        dense: text for the embedder.
        lexical: text for the lexical index.
        english: the question in English words, for comparing with English sentences; else `standalone`.
        notes: what a reader should know about how the question was understood; they go into `Answer.note`.
        asks_for_more: whether it is a follow-up without words of its own, so that nothing should be said again.
    """

    text: str
    standalone: str
    dense: str
    lexical: str
    english: str
    notes: tuple[str, ...] = ()
    asks_for_more: bool = False


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What one question found.

    Attributes:
        hits: the final order, best first.
        dense, lexical: the two rankings that it was made of, with their own scores.
    """

    query: Query
    filters: Filters
    hits: tuple[Hit, ...]
    dense: tuple[Hit, ...]
    lexical: tuple[Hit, ...]


class HybridRetriever:
    """Searches a library by meaning and by terms, and makes one ranking of both."""

    def __init__(
        self,
        library: SearchableLibrary,
        settings: RetrievalSettings,
        *,
        reranker: CrossEncoderReranker | None = None,
    ) -> None:
        self._library = library
        self._candidates = settings.candidates
        self._reranker = reranker

    def search(
        self, question: str, filters: Filters, turns: Sequence[Turn] = (), searched: Searched = "hybrid"
    ) -> Retrieval:
        """Ranked nodes for a question; inline filters in it are taken out and applied.

        Args:
            turns: earlier exchanges, oldest first; used when the question refers to them.
            searched: one search alone keeps its own order.
        """
        text, filters = split_inline_filters(question, filters, self._library)
        query = prepare_query(without_greeting(text), turns, library=self._library)
        query = in_the_books_words(query, find_other_words(query.english, self._library, filters))
        dense = self._library.dense(query.dense, self._candidates, filters) if searched != "lexical" else []
        lexical = self._library.lexical(query.lexical, self._candidates, filters) if searched != "dense" else []
        hits = rescore(query.english, fuse(lexical, dense)) if searched == "hybrid" else fuse(lexical or dense)
        if searched == "hybrid":
            hits = self._of_the_form_asked_for(query, hits, filters)
        if self._reranker is not None:
            hits = self._reranker.rerank(query.english, hits)
        if not _ASKS_CHANGES.search(query.text):
            hits = [hit for hit in hits if not in_change_log(hit.node)] + [
                Hit(hit.node, 0.0) for hit in hits if in_change_log(hit.node)
            ]
        return Retrieval(query, filters, tuple(hits), tuple(dense), tuple(lexical))

    def _of_the_form_asked_for(self, query: Query, hits: Sequence[Hit], filters: Filters) -> list[Hit]:
        """`hits` with what has the form of an answer higher: a listing, a definition, a number."""
        kind = question_kind(query.text)
        if kind == "code":
            found = self._library.lexical(about_listing(query.english), self._candidates, filters)
            return with_listings(query.english, hits, found)
        if kind in ("define", "number"):
            found = self._library.lexical(query.lexical, FORM_CANDIDATES, filters)
            return with_form(kind, query.english, hits, found)
        return list(hits)


def prepare_query(text: str, turns: Sequence[Turn] = (), *, library: SearchableLibrary | None = None) -> Query:
    """The searches for a question, after the earlier question where it refers to that one.

    Args:
        turns: earlier exchanges of the conversation, oldest first.
        library: corrects misspelt words, and says which names of pasted code can be found.
    """
    text = looked_up(text) or text
    searched, names = _without_code(text, library)
    chinese = asks_in_chinese(text)
    notes = [_FROM_CODE[chinese].format(words=", ".join(names))] if names else []
    if len(searched) > MOST_SEARCHED_CHARACTERS:
        searched = searched[:MOST_SEARCHED_CHARACTERS]
        notes.append(_BEGINNING[chinese])
    own = standalone = without_style(without_options(searched))
    standing = ""
    talk = message_kind(standalone) != "question"
    if turns and (talk or refers_to_earlier(standalone)) and (standing := standing_question(turns, standalone)):
        standalone = after_standing(standing, standalone)
        notes.append(note_on_earlier(standing, chinese=chinese))
    if library is not None:
        spelled = correct(standalone, library)
        standalone = spelled.text
        if spelled.corrections:
            notes.append(_SPELLED[chinese].format(words=", ".join(spelled.corrections)))
    query = _query_of(text, standalone)
    return replace(query, notes=tuple(notes), asks_for_more=bool(standing) and asks_for_more(own))


def note_on_earlier(asked: str, *, chinese: bool) -> str:
    """The note on a question that was read together with an earlier one."""
    return _READ_WITH[chinese].format(asked=asked)


def _query_of(text: str, standalone: str) -> Query:
    if not is_chinese(standalone):
        return Query(text, standalone, standalone, standalone, standalone)
    english = translate_terms(standalone)
    if question_kind(standalone) == "define":
        english = f"what is {_DEFINING.sub('', english).strip()}"
    if question_kind(standalone) == "compare":
        english = f"difference between {_COMPARING.sub(' ', english).strip()}"
    return Query(
        text,
        standalone,
        dense=english or standalone,
        lexical=f"{standalone} {translate_terms(standalone, synonyms=True)}",
        english=english or standalone,
    )


def _without_code(text: str, library: SearchableLibrary | None) -> tuple[str, tuple[str, ...]]:
    """The search text of a message with pasted code, and the code's names in it that the library has.

    A listing's names say little of what is asked, so they stand in only where the prose says nothing ('explain this').
    """
    prose, code = code_in(text)
    if not code or library is None:
        return text, ()
    about_code = only_about_code(prose)
    if not about_code and "\n" in code.strip():
        return prose, ()
    terms = {name: index_terms(name)[0] for name in names_in(code) if len(name) > 2 and index_terms(name)}
    counts = library.count_terms(list(dict.fromkeys(terms.values())))
    held = [name for name, term in terms.items() if counts[term] and is_identifier(name)]
    names = tuple(sorted(held, key=lambda name: counts[terms[name]])[:_NAMES_SEARCHED])
    return " ".join(filter(None, ["" if about_code else prose, *names])) or text, names


def in_the_books_words(query: Query, others: Sequence[OtherWords]) -> Query:
    """`query` with words that the books lack replaced by theirs, and a note; the lexical search gets both."""
    if not others:
        return query
    said = _OTHER_WORDS[asks_in_chinese(query.text)]
    words = ", ".join(f"{other.asked} → {' / '.join(other.found)}" for other in others)
    return replace(
        query,
        standalone=put_into_books_words(query.standalone, others),
        dense=put_into_books_words(query.dense, others),
        lexical=" ".join((query.lexical, *(word for other in others for word in other.found))),
        english=put_into_books_words(query.english, others),
        notes=(*query.notes, said.format(words=words)),
    )


def split_inline_filters(question: str, filters: Filters, library: SearchableLibrary) -> tuple[str, Filters]:
    """The question without its inline filters, and `filters` narrowed by them."""
    if "#" not in question and "@" not in question:
        return question, filters
    documents = library.documents()
    book_ids: list[str] = []
    chapter_tags: list[str] = []
    kept: list[str] = []
    position = 0
    for match in _TAG.finditer(question):
        wanted = next(group for group in match.groups()[1:] if group).rstrip(".:")
        if match.group(1) == "#":
            found = [d.document_id for d in documents if _names_book(wanted, d)]
            book_ids.extend(found)
        else:
            found = [wanted] if any(chapters_named(wanted, library.chapters(d.document_id)) for d in documents) else []
            chapter_tags.extend(found)
        if found:
            kept.append(question[position : match.start()])
            position = match.end()
    kept.append(question[position:])
    rest = " ".join("".join(kept).split())
    if book_ids:
        named = tuple(dict.fromkeys(book_ids))
        both = tuple(i for i in named if i in filters.document_ids)
        filters = replace(filters, document_ids=both or named)
    if chapter_tags:
        filters = replace(filters, chapters=filters.chapters + _titles(chapter_tags, filters, documents, library))
    return rest or question, filters


def _names_book(wanted: str, document: Document) -> bool:
    plain = _plain(wanted)
    names = (document.title, PurePath(document.source).stem, PurePath(document.source).name, document.document_id)
    return bool(plain) and any(plain in _plain(name) for name in names)


def chapters_named(wanted: str, chapters: Sequence[Chapter]) -> list[Chapter]:
    """The chapters with this number, or whose title holds these words."""
    number = whole_number(wanted)
    if number is not None:
        return [chapter for chapter in chapters if chapter.ordinal == number]
    plain = _plain(wanted)
    return [chapter for chapter in chapters if plain and plain in _plain(chapter.title)]


def _titles(
    tags: list[str], filters: Filters, documents: Sequence[Document], library: SearchableLibrary
) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for tag in tags:
        number = whole_number(tag)
        if number is not None:
            found.append(number)
            continue
        for document in documents:
            if not filters.document_ids or document.document_id in filters.document_ids:
                found.extend(chapter.title for chapter in chapters_named(tag, library.chapters(document.document_id)))
    return tuple(dict.fromkeys(found))


def _plain(name: str) -> str:
    return _NOT_A_LETTER.sub(" ", name).casefold().strip()


def fuse(*rankings: Sequence[Hit]) -> list[Hit]:
    """Nodes by reciprocal ranks: the sum of `1 / (RRF_CONSTANT + rank)`, ranks from 1, scaled to at most 1.

    The node that is first in every ranking scores 1. Ties keep the order of the first ranking that holds the node.
    """
    scores: dict[str, float] = {}
    nodes: dict[str, StoredNode] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            nodes.setdefault(hit.node.node_id, hit.node)
            scores[hit.node.node_id] = scores.get(hit.node.node_id, 0.0) + 1 / (RRF_CONSTANT + rank)
    scale = (RRF_CONSTANT + 1) / len(rankings)
    return [Hit(nodes[node_id], scale * scores[node_id]) for node_id in sorted(scores, key=lambda key: -scores[key])]


def rescore(question: str, hits: Sequence[Hit]) -> list[Hit]:
    """`hits` of two fused searches, the first `RESCORED` of them ranked by proximity and length too; scores 0 to 1."""
    head, tail = hits[:RESCORED], hits[RESCORED:]
    total = 2 + PROXIMITY_WEIGHT + LENGTH_WEIGHT
    scored = [
        Hit(hit.node, (2 * hit.score + PROXIMITY_WEIGHT * share + LENGTH_WEIGHT * _length(hit)) / total)
        for hit, share in zip(head, proximity(question, [hit.node.text for hit in head]), strict=True)
    ]
    scored.sort(key=lambda hit: -hit.score)
    least = scored[-1].score if scored else 0.0
    return [*scored, *(Hit(hit.node, min(least, 2 * hit.score / total)) for hit in tail)]


def with_form(kind: QuestionKind, question: str, hits: Sequence[Hit], found: Sequence[Hit]) -> list[Hit]:
    """`hits` with the node that best has the form asked for (a definition, a number) among the first `FORM_PLACE`.

    Args:
        found: more nodes in which it is looked for.
    """
    known = {hit.node.node_id for hit in hits}
    every = [*hits, *(hit for hit in found if hit.node.node_id not in known)]
    forms = rank_by_form(kind, question, [hit.node.text for hit in every])
    best = max(range(len(every)), key=lambda place: (forms[place], -place), default=0)
    if best < FORM_PLACE or forms[best] < LEAST_FORM:
        return list(hits)
    raised = Hit(every[best].node, hits[FORM_PLACE - 1].score)
    rest = [hit for hit in hits if hit.node.node_id != raised.node.node_id]
    return [*rest[: FORM_PLACE - 1], raised, *rest[FORM_PLACE - 1 :]]


def with_listings(question: str, hits: Sequence[Hit], found: Sequence[Hit]) -> list[Hit]:
    """`hits` and the nodes `found` for the words of the listing asked for, those with such a listing ranked higher."""
    known = {hit.node.node_id for hit in hits}
    every = [*hits, *(Hit(hit.node, 0.0) for hit in found if hit.node.node_id not in known)]
    listings = [(place, listing) for place, hit in enumerate(every) for listing in listings_in(hit.node)]
    best: dict[int, float] = {}
    for (place, _), score in zip(listings, rank_listings(question, [one for _, one in listings]), strict=True):
        best[place] = max(best.get(place, 0.0), min(score, 1.0))
    raised = [
        Hit(hit.node, (hit.score + LISTING_WEIGHT * best.get(place, 0.0)) / (1 + LISTING_WEIGHT))
        for place, hit in enumerate(every)
    ]
    return sorted(raised, key=lambda hit: -hit.score)


def _length(hit: Hit) -> float:
    return min(count_words(hit.node.text) / FULL_LENGTH_WORDS, 1.0)


def proximity(question: str, texts: Sequence[str]) -> list[float]:
    """For each text the share, 0 to 1, of the question's terms within its best stretch of `WINDOW_CHARACTERS`.

    Terms weigh by their inverse frequency among `texts`; those that no text holds are left out. They are searched for
    as beginnings of words with one regular expression, so that thirty texts cost a few milliseconds.
    """
    pieces = sorted(terms_of(question).pieces, key=len, reverse=True)
    if not pieces:
        return [0.0] * len(texts)
    pattern = re.compile("|".join(map(_as_beginning, pieces)), re.IGNORECASE)
    found = [[(match.start(), match.group().lower()) for match in pattern.finditer(text)] for text in texts]
    frequency = Counter(piece for matches in found for piece in {piece for _, piece in matches})
    weight = {piece: math.log(1 + len(texts) / (0.5 + count)) for piece, count in frequency.items()}
    total = math.fsum(weight.values()) or 1.0
    return [_best_window(matches, weight) / total for matches in found]


def in_change_log(node: StoredNode) -> bool:
    """Whether a node tells what changed between versions: it answers only who asks for that."""
    return any(_CHANGE_LOG.fullmatch(heading.strip()) for heading in node.heading_path)


def _as_beginning(piece: str) -> str:
    ascii_start = piece[0].isascii() and (piece[0].isalnum() or piece[0] == "_")
    return ("(?<![A-Za-z0-9])" if ascii_start else "") + re.escape(piece)


def _best_window(matches: Sequence[tuple[int, str]], weight: Mapping[str, float]) -> float:
    """Greatest weight of different terms within one window."""
    best = 0.0
    first = 0
    for last, (position, _) in enumerate(matches):
        while position - matches[first][0] > WINDOW_CHARACTERS:
            first += 1
        inside = {piece for _, piece in matches[first : last + 1]}
        best = max(best, math.fsum(weight[piece] for piece in inside))  # fsum: sets have no order
    return best


class CrossEncoderReranker:
    """Orders the first `depth` nodes by a cross-encoder, which reads question and node together.

    Light to make; the model loads when first used.

    Args:
        model: path or hub name for `sentence_transformers.CrossEncoder`.
        depth: how many of the best nodes are read; the others keep their order behind them.
    """

    def __init__(self, model: str, *, depth: int = 30) -> None:
        self._model = model
        self._depth = depth
        self._encoder: Any = None
        self._lock = threading.Lock()

    def load(self) -> None:
        """Loads the model.

        Raises:
            ModelCannotLoad: no such model on disk.
        """
        with self._lock:
            if self._encoder is None:
                from sentence_transformers import CrossEncoder

                try:
                    self._encoder = CrossEncoder(self._model)
                except (OSError, ValueError, RuntimeError) as error:
                    raise ModelCannotLoad(
                        f"the reranker {self._model!r} cannot be loaded: {error}",
                        hint="give a folder with a cross-encoder, or remove the `reranker` setting",
                    ) from error

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """Relevance of each text, a probability; higher is better."""
        self.load()
        with self._lock:
            raw = self._encoder.predict([(query, text) for text in texts], show_progress_bar=False)
        values = [float(value) for value in raw]
        # Some models give probabilities, some give logits; a mixture would not keep the order.
        return values if all(0.0 <= value <= 1.0 for value in values) else [_sigmoid(value) for value in values]

    def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """`hits` with the first `depth` in the cross-encoder's order and with its scores."""
        head, tail = hits[: self._depth], hits[self._depth :]
        if not head:
            return []
        texts = [f"{' > '.join(hit.node.heading_path)}\n{hit.node.text}" for hit in head]
        read = [Hit(hit.node, score) for hit, score in zip(head, self.scores(query, texts), strict=True)]
        read.sort(key=lambda hit: -hit.score)
        return [*read, *(Hit(hit.node, read[-1].score - 1e-6 * place) for place, hit in enumerate(tail, 1))]


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(min(value, 60.0), -60.0)))


# --- passages

FARTHEST = 4
"""Nodes on either side of a found node that its passage may reach."""
LONGEST_SECTION = 100
"""Nodes of a section, before a passage, that are looked through for the fence of a listing that it begins in."""


@dataclass(frozen=True, slots=True)
class PassageBudget:
    """The most of all passages together, and of one, as `count` counts a text.

    `count_words`, where two Chinese characters are a word, is for generators that do not say how they count.
    """

    most: int = 1500
    most_each: int = 450
    count: Callable[[str], int] = count_words

    @classmethod
    def of_tokens(cls, tokens: int, count_tokens: Callable[[str], int] | None = None) -> PassageBudget:
        """The budget for a prompt, by the generator's tokenizer, else three words for four tokens, as in prose.

        Code and numbers are more tokens than prose: where digits are tokens, 1,500 words made prompts of 2,721.
        """
        most = max(tokens if count_tokens else tokens * 3 // 4, 1)
        return cls(most, max(most * 3 // 10, 1), count_tokens or count_words)


class _Window:
    """A run of nodes in reading order around the best-ranked of them."""

    def __init__(self, hit: Hit, near: Sequence[StoredNode], count: Callable[[str], int]) -> None:
        self.found = hit.node
        self.score = hit.score
        self._near = {node.ordinal: node for node in near if node.chapter == hit.node.chapter}
        self._near[hit.node.ordinal] = hit.node
        self.first = self.last = hit.node.ordinal
        self._count = count
        self.size = count(hit.node.text)

    @property
    def nodes(self) -> list[StoredNode]:
        return [self._near[ordinal] for ordinal in range(self.first, self.last + 1)]

    def covers(self, node: StoredNode) -> bool:
        return node.document_id == self.found.document_id and self.first <= node.ordinal <= self.last

    def next_to(self, node: StoredNode) -> bool:
        same = node.document_id == self.found.document_id and node.ordinal in self._near
        return same and node.ordinal in (self.first - 1, self.last + 1)

    def edge(self, step: int) -> StoredNode | None:
        """The node just outside, after it (1) or before it (-1)."""
        return self._near.get(self.last + 1 if step > 0 else self.first - 1)

    @property
    def ends_in_listing(self) -> bool:
        """Whether a listing that begins in it is not closed in it."""
        fence = ""
        for node in self.nodes:
            fence = fence_after(node.text, fence)
        return bool(fence)

    def take(self, node: StoredNode) -> int:
        """Adds a node next to it; returns the node's cost."""
        self.first, self.last = min(self.first, node.ordinal), max(self.last, node.ordinal)
        cost = self.cost(node)
        self.size += cost
        return cost

    def cost(self, node: StoredNode) -> int:
        return self._count(node.text) + (0 if node.heading_path == self.found.heading_path else len(node.heading_path))

    def passage(self, library: SearchableLibrary) -> Passage:
        passage = passage_from_nodes(self.nodes, self.found, self.score, fence=self._fence_before(library))
        return replace(passage, format=_format_of(self.found.document_id, library))

    def _fence_before(self, library: SearchableLibrary) -> str:
        """The opening fence of a listing that began in an earlier node of the same section; "" without one."""
        first = self._near[self.first]
        fence = ""
        for earlier in library.around(first, before=LONGEST_SECTION, after=0)[:-1]:
            # Only from its section's start on is it known whether a fence opens a listing or closes one.
            fence = fence_after(earlier.text, fence) if earlier.heading_path == first.heading_path else ""
        return fence


def select_passages(
    hits: Sequence[Hit], library: SearchableLibrary, top_k: int, budget: PassageBudget
) -> tuple[Passage, ...]:
    """At most `top_k` passages, best first, within `budget`; no node is in two of them."""
    windows: list[_Window] = []
    seen: set[str] = set()
    left = budget.most
    for hit in hits:
        text = " ".join(hit.node.text.split())
        if text in seen or any(window.covers(hit.node) for window in windows):
            continue
        seen.add(text)
        home = next((window for window in windows if window.next_to(hit.node)), None)
        if home is not None:
            if home.size + home.cost(hit.node) <= budget.most_each and home.cost(hit.node) <= left:
                left -= home.take(hit.node)
        elif len(windows) < top_k and (budget.count(hit.node.text) <= left or not windows):
            windows.append(_Window(hit, library.around(hit.node, before=FARTHEST, after=FARTHEST), budget.count))
            left -= windows[-1].size
            left -= _complete_listing(windows, left, budget.most_each)
    _reach_out(windows, left, budget.most_each)
    return tuple(window.passage(library) for window in windows)


def _format_of(document_id: str, library: SearchableLibrary) -> str:
    try:
        return library.document(document_id).format
    except NotFound:  # removed since it was found
        return "text"


def _complete_listing(windows: Sequence[_Window], left: int, most_each: int) -> int:
    """Extends the last passage to the end of a listing that begins in it; returns the cost."""
    window = windows[-1]
    taken = 0
    while window.ends_in_listing and (node := window.edge(1)) is not None:
        cost = window.cost(node)
        if taken + cost > left or window.size + cost > most_each or any(other.covers(node) for other in windows):
            break
        taken += window.take(node)
    return taken


def _reach_out(windows: Sequence[_Window], left: int, most_each: int) -> None:
    """Extends the passages, best first, by the nodes after and before them, while the budget lasts."""
    for _ in range(FARTHEST):
        for window in windows:
            for step in (1, -1):
                node = window.edge(step)
                if node is None or any(other.covers(node) for other in windows):
                    continue
                cost = window.cost(node)
                if cost <= left and window.size + cost <= most_each:
                    left -= window.take(node)


def passage_from_nodes(nodes: Sequence[StoredNode], found: StoredNode, score: float, *, fence: str = "") -> Passage:
    """One passage over neighbouring nodes.

    Args:
        found: gives the passage its id and heading path.
        fence: of the listing that the first node begins inside; the passage then opens with it.
    """
    pieces: list[str] = []
    parts: list[PassagePart] = []
    marks: list[tuple[int, int]] = []
    length = 0
    if fence:
        pieces.append(f"{fence}\n")
        length = len(fence) + 1
    for index, node in enumerate(nodes):
        joint = "" if index == 0 else _joint(nodes[index - 1], node, bool(fence))
        pieces.extend((joint, node.text))
        start = length + len(joint)
        length = start + len(node.text)
        fence = fence_after(node.text, fence)
        parts.append(PassagePart(start, length, node.node_id, node.heading_path))
        marks.extend((start + offset, page) for offset, page in node.page_marks)
    if fence:
        pieces.append(f"\n{fence}")
    page_marks = _merged(marks)
    labels = _page_labels(nodes, page_marks)
    return Passage(
        node_id=found.node_id,
        document_id=found.document_id,
        title=found.title,
        section=found.heading_path,
        page_label=labels[0] if labels else None,
        page_start=page_marks[0][1] if page_marks else None,
        page_end=page_marks[-1][1] if page_marks else None,
        text="".join(pieces),
        score=score,
        chapter=found.chapter,
        page_marks=page_marks,
        page_labels=labels,
        parts=tuple(parts),
    )


def _joint(before: StoredNode, after: StoredNode, in_listing: bool) -> str:
    """The text between two neighbouring nodes: a line break in a listing, the heading where a section begins."""
    if in_listing:
        return "\n"
    if before.heading_path == after.heading_path or not after.heading_path:
        return "\n\n"
    shared = 0
    while before.heading_path[shared : shared + 1] == after.heading_path[shared : shared + 1] != ():
        shared += 1
    fresh = after.heading_path[shared:] or after.heading_path[-1:]
    first_level = len(after.heading_path) - len(fresh) + 1
    lines = [f"{'#' * min(level, 6)} {heading}" for level, heading in enumerate(fresh, first_level)]
    return "\n\n" + "\n\n".join(lines) + "\n\n"


def _merged(marks: Sequence[tuple[int, int]]) -> PageMarks:
    """Marks without those that repeat the page before."""
    kept: list[tuple[int, int]] = []
    for offset, page in marks:
        if not kept or kept[-1][1] != page:
            kept.append((offset if kept else 0, page))
    return tuple(kept)


def _page_labels(nodes: Sequence[StoredNode], marks: PageMarks) -> tuple[str | None, ...]:
    if not marks:
        return ()
    by_page: dict[int, str | None] = {}
    for node in nodes:
        pages = list(dict.fromkeys(page for _, page in node.page_marks))
        by_page.update(zip(pages, node.page_labels, strict=False))
    return tuple(by_page.get(page) for page in range(marks[0][1], marks[-1][1] + 1))
