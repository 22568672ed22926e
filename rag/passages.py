"""Ranked nodes made into the few passages that model and reader see.

Short nodes rank and cite well, long passages hold more of what was asked: neighbouring hits of one section become one
passage, and what is left of the budget lets passages reach past their node to its neighbours in the same section.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from indexes.types import Hit, PageMarks, StoredNode
from rag.retrieval.protocol import SearchableLibrary
from rag.types import Passage

JOINT = "\n\n"
"""Stands between the texts of neighbouring nodes in one passage."""


@dataclass(frozen=True, slots=True)
class PassageBudget:
    """Most words of all passages together, and of one."""

    words: int = 1500
    words_each: int = 420

    @classmethod
    def of_tokens(cls, tokens: int) -> PassageBudget:
        """The budget for a prompt: three words for four tokens, as in English prose."""
        words = max(tokens * 3 // 4, 1)
        return cls(words, max(words * 28 // 100, 1))


@dataclass(slots=True)
class _Window:
    """Neighbouring nodes of one section, in reading order; `found` is the best-ranked of them."""

    nodes: list[StoredNode]
    found: StoredNode
    score: float

    @property
    def words(self) -> int:
        return sum(_words(node) for node in self.nodes)

    def touches(self, node: StoredNode) -> bool:
        first, last = self.nodes[0], self.nodes[-1]
        same = first.document_id == node.document_id and first.heading_path == node.heading_path
        return same and first.ordinal - 1 <= node.ordinal <= last.ordinal + 1

    def holds(self, node: StoredNode) -> bool:
        return any(inside.node_id == node.node_id for inside in self.nodes)

    def take(self, node: StoredNode) -> None:
        self.nodes.append(node)
        self.nodes.sort(key=lambda item: item.ordinal)


def select_passages(
    hits: Sequence[Hit], library: SearchableLibrary, top_k: int, budget: PassageBudget
) -> tuple[Passage, ...]:
    """At most `top_k` passages, best first, within `budget`; no node stands in two of them."""
    windows: list[_Window] = []
    seen: set[str] = set()
    left = budget.words
    for hit in hits:
        text = " ".join(hit.node.text.split())
        if text in seen:
            continue
        seen.add(text)
        size = _words(hit.node)
        home = next((w for w in windows if w.touches(hit.node) and w.words + size <= budget.words_each), None)
        if windows and size > left:
            break
        if home is not None:
            home.take(hit.node)
        elif len(windows) < top_k:
            windows.append(_Window([hit.node], hit.node, hit.score))
        else:
            continue
        left -= size
    _reach_out(windows, library, left, budget.words_each)
    return tuple(_passage(window) for window in windows)


def _reach_out(windows: list[_Window], library: SearchableLibrary, left: int, words_each: int) -> None:
    """Lets each passage, best first, take the node after and the node before while the budget lasts."""
    for window in windows:
        for step in (1, -1):
            edge = window.nodes[-1] if step == 1 else window.nodes[0]
            around = library.neighbours(edge, before=1 if step == -1 else 0, after=1 if step == 1 else 0)
            for node in around:
                if node.node_id == edge.node_id:
                    continue
                size = _words(node)
                fits = size <= left and window.words + size <= words_each
                taken = any(other.holds(node) for other in windows)
                if fits and not taken:
                    window.take(node)
                    left -= size


def passage_from_nodes(nodes: Sequence[StoredNode], found: StoredNode, score: float) -> Passage:
    """One passage over neighbouring nodes; `found` gives it its id and heading path."""
    text = JOINT.join(node.text for node in nodes)
    marks = join_page_marks(nodes)
    labels = _page_labels(nodes, marks)
    return Passage(
        node_id=found.node_id,
        document_id=found.document_id,
        title=found.title,
        section=found.heading_path,
        page_label=labels[0] if labels else None,
        page_start=marks[0][1] if marks else None,
        page_end=marks[-1][1] if marks else None,
        text=text,
        score=score,
        chapter=found.chapter,
        page_marks=marks,
        page_labels=labels,
    )


def join_page_marks(nodes: Iterable[StoredNode]) -> PageMarks:
    """Page marks of the joined text; a page that goes on is marked once."""
    marks: list[tuple[int, int]] = []
    offset = 0
    for node in nodes:
        for start, page in node.page_marks:
            if not marks or marks[-1][1] != page:
                marks.append((start + offset, page))
        offset += len(node.text) + len(JOINT)
    return tuple(marks)


def _page_labels(nodes: Sequence[StoredNode], marks: PageMarks) -> tuple[str | None, ...]:
    if not marks:
        return ()
    by_page: dict[int, str | None] = {}
    for node in nodes:
        pages = list(dict.fromkeys(page for _, page in node.page_marks))
        by_page.update(zip(pages, node.page_labels, strict=False))
    return tuple(by_page.get(page) for page in range(marks[0][1], marks[-1][1] + 1))


def _passage(window: _Window) -> Passage:
    return passage_from_nodes(window.nodes, window.found, window.score)


def _words(node: StoredNode) -> int:
    return len(node.text.split())
