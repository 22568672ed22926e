"""From a query to the passages that answer it: two searches, one order, then passages.

A node's score adds its reciprocal ranks in the dense and the lexical search. A reranker, where one is configured,
orders the best nodes once more.

Short nodes rank and cite well, long passages hold more of the answer. So neighbouring hits become one passage, and the
rest of the budget adds neighbouring nodes, also of the next section of the chapter, with its heading. A listing that
was cut into several nodes is joined again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from indexes.errors import NotFound
from indexes.sentences import fence_after
from indexes.types import Hit, PageMarks, StoredNode, page_at
from indexes.words import count_words, signed_names
from rag.errors import ModelCannotLoad
from rag.forms import about_listing, listings_in, rank_listings
from rag.query import Query
from rag.settings import RetrievalSettings
from rag.types import Passage, PassagePart, SearchableLibrary, Searched

RRF_CONSTANT = 10.0
"""The k of reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009, who use 60). A small one lets the first
few of each ranking count for more; measured in `docs/decisions.md`."""
LISTING_WEIGHT = 1.0
"""For a listing about what was asked for, where code is."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What one question found.

    Attributes:
        hits: the final order, best first.
        dense, lexical: the two rankings that it was made of, with their own scores.
    """

    query: Query
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
        self.library = library
        self._candidates = settings.candidates
        self._reranker = reranker

    def search(self, query: Query, searched: Searched = "hybrid") -> Retrieval:
        """Ranked nodes for a question.

        Args:
            searched: one search alone keeps its own order.
        """
        dense = self.library.dense(query.dense, self._candidates, query.filters) if searched != "lexical" else []
        lexical = self.library.lexical(query.lexical, self._candidates, query.filters) if searched != "dense" else []
        if searched == "hybrid":
            hits = fuse(lexical, dense)
            if query.kind == "code":
                found = self.library.lexical(about_listing(query.english), self._candidates, query.filters)
                hits = with_listings(query.english, hits, found)
            hits = _with_signed(query.english, hits)
        else:
            hits = fuse(lexical or dense)
        if self._reranker is not None:
            hits = self._reranker.rerank(query.english, hits)
        return Retrieval(query, tuple(hits), tuple(dense), tuple(lexical))


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
    # The section named is that of the node found, and so is the page: what comes before it may lie on an earlier one.
    page = page_at(page_marks, next((part.start for part in parts if part.node_id == found.node_id), 0))
    return Passage(
        node_id=found.node_id,
        document_id=found.document_id,
        title=found.title,
        section=found.heading_path,
        page_label=labels[page - page_marks[0][1]] if page is not None and labels else None,
        page_start=page,
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


def _with_signed(question: str, hits: list[Hit]) -> list[Hit]:
    """`hits` with those first that hold the names with a sign, such as `-E`, that the question asks about."""
    if not (names := signed_names(question)):
        return hits
    held = sorted(hits, key=lambda hit: not names <= signed_names(hit.node.text))
    return [replace(hit, score=place.score) for hit, place in zip(held, hits, strict=True)]


def _merged(marks: Sequence[tuple[int, int]]) -> PageMarks:
    """Marks without those that repeat the page before."""
    kept: list[tuple[int, int]] = []
    for offset, page in marks:
        if not kept or kept[-1][1] != page:
            kept.append((offset if kept else 0, page))
    return tuple(kept)


def labels_by_page(nodes: Sequence[StoredNode]) -> dict[int, str | None]:
    """The printed number of each file page that these nodes touch."""
    found: dict[int, str | None] = {}
    for node in nodes:
        pages = dict.fromkeys(page for _, page in node.page_marks)
        found.update(zip(pages, node.page_labels, strict=False))
    return found


def _page_labels(nodes: Sequence[StoredNode], marks: PageMarks) -> tuple[str | None, ...]:
    if not marks:
        return ()
    by_page = labels_by_page(nodes)
    return tuple(by_page.get(page) for page in range(marks[0][1], marks[-1][1] + 1))
