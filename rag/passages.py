"""Makes ranked nodes into the few passages that model and reader see.

Short nodes rank and cite well, long passages hold more of the answer. So neighbouring hits become one passage, and the
rest of the word budget adds neighbouring nodes, also of the next section of the chapter, with its heading. A listing
that was cut into several nodes is joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from indexes.errors import NotFound
from indexes.sentences import fence_after
from indexes.types import Hit, PageMarks, StoredNode
from indexes.words import count_words
from rag.types import Passage, PassagePart, SearchableLibrary

FARTHEST = 4
"""Nodes on either side of a found node that its passage may reach."""


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

    def take(self, node: StoredNode) -> int:
        """Grows by a node next to it; what it cost."""
        self.first, self.last = min(self.first, node.ordinal), max(self.last, node.ordinal)
        cost = self.cost(node)
        self.size += cost
        return cost

    def cost(self, node: StoredNode) -> int:
        return self._count(node.text) + (0 if node.heading_path == self.found.heading_path else len(node.heading_path))

    def passage(self, book_format: str) -> Passage:
        passage = passage_from_nodes(self.nodes, self.found, self.score, fence=self._fence_before())
        return replace(passage, format=book_format)

    def _fence_before(self) -> str:
        """The fence of a listing that a node of the same section left open before the first one."""
        section = self._near[self.first].heading_path
        ordinal = self.first
        while (before := self._near.get(ordinal - 1)) is not None and before.heading_path == section:
            ordinal -= 1
        fence = ""
        for earlier in range(ordinal, self.first):
            fence = fence_after(self._near[earlier].text, fence)
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
    _reach_out(windows, left, budget.most_each)
    return tuple(window.passage(_format_of(window.found.document_id, library)) for window in windows)


def _format_of(document_id: str, library: SearchableLibrary) -> str:
    try:
        return library.document(document_id).format
    except NotFound:  # removed since it was found
        return "text"


def _reach_out(windows: Sequence[_Window], left: int, most_each: int) -> None:
    """Lets passages, the best first, take what follows and what precedes them while the budget lasts."""
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
