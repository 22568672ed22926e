"""Laws of making passages from ranked nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from fakes import make_node, section
from hypothesis import given
from hypothesis import strategies as st

from indexes.library import Library
from indexes.types import Hit, Section
from indexes.words import count_words
from rag.retrieval import PassageBudget, passage_from_nodes, select_passages
from rag.types import Passage

Select = Callable[..., tuple[Passage, ...]]


def words(number: int, start: int = 0) -> str:
    return " ".join(f"w{start + i}" for i in range(number))


@pytest.fixture(scope="module")
def select(library_of: Callable[..., Library]) -> Select:
    """Passages of the sections with these ordinals, best first."""

    def of(
        sections: Sequence[Section], found: Sequence[int], budget: PassageBudget | None = None, top_k: int = 5
    ) -> tuple[Passage, ...]:
        library = library_of(*sections)
        nodes = library.nodes_of("book")
        assert [node.text for node in nodes] == [one.text for one in sections]
        hits = [Hit(nodes[ordinal], 1.0 / rank) for rank, ordinal in enumerate(found, 1)]
        return select_passages(hits, library, top_k, budget or PassageBudget())

    return of


BOOK = [
    section(words(size, 1000 * place), "Chapter", f"S{place // 4}", chapter=1 + place // 10)
    for place, size in enumerate((3, 250, 40, 7, 90, 1, 300, 33, 120, 15, 60, 80, 2, 200))
]


@given(st.permutations(range(14)), st.integers(1, 14), st.integers(1, 8), st.integers(50, 1500))
def test_passages_keep_to_their_number_and_budget_and_share_no_node(
    select: Select, order: list[int], found: int, top_k: int, most: int
) -> None:
    passages = select(BOOK, order[:found], PassageBudget(most, most), top_k)
    assert 1 <= len(passages) <= top_k
    assert sum(count_words(passage.text) for passage in passages) <= max(most, count_words(BOOK[order[0]].text))
    parts = [part.node_id for passage in passages for part in passage.parts]
    assert len(parts) == len(set(parts)) and parts
    for passage in passages:
        assert all(passage.text[part.start : part.end] in [one.text for one in BOOK] for part in passage.parts)
    assert BOOK[order[0]].text in passages[0].text


def test_a_generators_own_tokens_fill_the_budget(select: Select) -> None:
    book = [section(words(100, 1000 * place)) for place in range(12)]
    shown = select(book, (0, 3, 6, 9), PassageBudget.of_tokens(2000, len))
    assert 1000 < sum(part.end - part.start for passage in shown for part in passage.parts) <= 2000
    estimated = select(book, (0, 3, 6, 9), PassageBudget.of_tokens(2000))
    assert sum(count_words(passage.text) for passage in estimated) > 1000


def test_neighbouring_hits_become_one_passage_and_the_same_text_is_shown_once(
    select: Select, library_of: Callable[..., Library]
) -> None:
    assert len(select([section(words(30, n)) for n in range(4)], (0, 1), PassageBudget(60, 60))) == 1
    library = library_of(section("The very same words."), copy=[section("The very  same words.")])
    hits = library.lexical("very same words", 5)
    assert len(hits) == 2 and len(select_passages(hits, library, 5, PassageBudget())) == 1
    assert select_passages([], library, 5, PassageBudget()) == ()


def test_a_passage_that_enters_another_section_shows_its_heading_and_never_enters_another_chapter(
    select: Select,
) -> None:
    book = [section("One two.", "Ch", "A"), section("Three four.", "Ch", "B"), section("Five.", "Next", chapter=2)]
    (passage,) = select(book, (0,))
    assert passage.text == "One two.\n\n## B\n\nThree four."
    assert passage.section == ("Ch", "A")
    assert passage.part_at(passage.text.index("Three")).section == ("Ch", "B")


@pytest.mark.parametrize(
    ("texts", "found", "most", "shown"),
    [
        (["```cuda\nint a;\nint b;", "int c;\n```\n\nEnd."], 0, 450, "```cuda\nint a;\nint b;\nint c;\n```\n\nEnd."),
        (["```cuda\n" + words(400), "int c;\n```\n\nEnd."], 1, 100, "```\nint c;\n```\n\nEnd."),
        (["```c\nint a;", *(f"int b{n};" for n in range(9)), "c;\n```", words(22)], 11, 22, words(22)),
        ([words(40), "```c\nint a;", "int b;\n```", words(40, 50)], 1, 9, "```c\nint a;\nint b;\n```"),
    ],
    ids=["joined and closed", "opened", "prose far behind one", "its end before other neighbours"],
)
def test_a_listing_that_was_cut_is_whole_again(
    select: Select, texts: list[str], found: int, most: int, shown: str
) -> None:
    (passage,) = select([section(text) for text in texts], (found,), PassageBudget(most, most))
    assert passage.text == shown


def test_pages_and_labels_of_joined_nodes_belong_to_their_characters() -> None:
    nodes = [
        make_node("Alpha beta.", 0, page_marks=((0, 4),), page_labels=("iv",)),
        make_node("Gamma delta.", 1, page_marks=((0, 4), (6, 5)), page_labels=("iv", "1")),
    ]
    passage = passage_from_nodes(nodes, nodes[0], 1.0)
    assert (passage.page_start, passage.page_end, passage.page_label) == (4, 5, "iv")
    assert passage.page_of(passage.text.index("Gamma")) == 4
    assert passage.page_of(passage.text.index("delta")) == 5
    assert passage.label_of(5) == "1"
    found = make_node("Eta.", 2, page_marks=((0, 5),), page_labels=("1",))
    reaching_back = passage_from_nodes([nodes[0], found], found, 1.0)
    assert (reaching_back.page_start, reaching_back.page_end, reaching_back.page_label) == (5, 5, "1")
    assert reaching_back.page_of(0) == 4
