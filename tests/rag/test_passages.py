"""Laws of making passages from ranked nodes."""

from __future__ import annotations

from fakes import FakeLibrary, make_node
from hypothesis import given
from hypothesis import strategies as st

from indexes.types import Hit
from indexes.words import count_words
from rag.retrieval import PassageBudget, passage_from_nodes, select_passages
from rag.types import Passage


def words(number: int, start: int = 0) -> str:
    return " ".join(f"w{start + i}" for i in range(number))


def book(*sizes: int, sections: int = 1) -> list:
    return [
        make_node(words(size, 1000 * i), i, heading_path=("Chapter", f"S{i * sections // len(sizes)}"))
        for i, size in enumerate(sizes)
    ]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=14),
    st.integers(1, 8),
    st.integers(50, 1500),
    st.randoms(use_true_random=False),
)
def test_passages_keep_to_their_number_and_budget_and_share_no_node(sizes, top_k, budget_words, random) -> None:
    nodes = book(*sizes)
    hits = [Hit(node, 1.0) for node in random.sample(nodes, len(nodes))]
    passages = select_passages(hits, FakeLibrary(nodes), top_k, PassageBudget(budget_words, budget_words))
    assert 1 <= len(passages) <= top_k
    total = sum(count_words(passage.text) for passage in passages)
    assert total <= max(budget_words, count_words(hits[0].node.text))
    parts = [part.node_id for passage in passages for part in passage.parts]
    assert len(parts) == len(set(parts))
    assert passages[0].node_id == hits[0].node.node_id


def test_a_generators_own_tokens_fill_the_budget() -> None:
    nodes = book(*[100] * 12)
    hits = [Hit(node, 1.0) for node in nodes[::3]]

    def letters(text: str) -> int:
        return len(text)

    shown = select_passages(hits, FakeLibrary(nodes), 4, PassageBudget.of_tokens(2000, letters))
    assert 1000 < sum(len(part.text) for passage in shown for part in parts_of(passage, nodes)) <= 2000
    estimated = select_passages(hits, FakeLibrary(nodes), 4, PassageBudget.of_tokens(2000))
    assert sum(count_words(passage.text) for passage in estimated) > 1000


def parts_of(passage: Passage, nodes: list) -> list:
    by_id = {node.node_id: node for node in nodes}
    return [by_id[part.node_id] for part in passage.parts]


def test_every_part_is_its_node_verbatim() -> None:
    nodes = book(20, 20, 20)
    (passage,) = select_passages([Hit(nodes[1], 1.0)], FakeLibrary(nodes), 5, PassageBudget())
    assert [part.node_id for part in passage.parts] == ["book-0", "book-1", "book-2"]
    for part, node in zip(passage.parts, nodes, strict=True):
        assert passage.text[part.start : part.end] == node.text


def test_neighbouring_hits_become_one_passage() -> None:
    nodes = book(30, 30, 30, 30)
    passages = select_passages([Hit(nodes[0], 2.0), Hit(nodes[1], 1.0)], FakeLibrary(nodes), 5, PassageBudget(60, 60))
    assert len(passages) == 1


def test_a_passage_that_enters_another_section_shows_its_heading() -> None:
    nodes = [make_node("One two.", 0, heading_path=("Ch", "A")), make_node("Three four.", 1, heading_path=("Ch", "B"))]
    (passage,) = select_passages([Hit(nodes[0], 1.0)], FakeLibrary(nodes), 5, PassageBudget())
    assert passage.text == "One two.\n\n## B\n\nThree four."
    assert passage.section == ("Ch", "A")
    assert passage.part_at(passage.text.index("Three")).section == ("Ch", "B")


def test_a_passage_never_enters_another_chapter_or_book() -> None:
    nodes = [
        make_node("Mine.", 0),
        make_node("Other chapter.", 1, chapter=2, heading_path=("Next",)),
        make_node("Other book.", 1, document_id="else"),
    ]
    (passage,) = select_passages([Hit(nodes[0], 1.0)], FakeLibrary(nodes), 5, PassageBudget())
    assert passage.text == "Mine."


def test_the_same_text_is_shown_once() -> None:
    nodes = [make_node("The very same words.", 0), make_node("The very  same words.", 0, document_id="copy")]
    assert len(select_passages([Hit(node, 1.0) for node in nodes], FakeLibrary(nodes), 5, PassageBudget())) == 1


def test_a_listing_cut_in_two_is_joined_and_closed() -> None:
    nodes = [make_node("```cuda\nint a;\nint b;", 0), make_node("int c;\n```\n\nAfterwards.", 1)]
    (passage,) = select_passages([Hit(nodes[0], 1.0)], FakeLibrary(nodes), 5, PassageBudget())
    assert passage.text == "```cuda\nint a;\nint b;\nint c;\n```\n\nAfterwards."


def test_a_passage_that_begins_inside_a_listing_opens_a_fence() -> None:
    nodes = [make_node("```cuda\n" + words(400), 0), make_node("int c;\n```\n\nAfterwards.", 1)]
    (passage,) = select_passages([Hit(nodes[1], 1.0)], FakeLibrary(nodes), 5, PassageBudget(100, 100))
    assert passage.text == "```\nint c;\n```\n\nAfterwards."
    assert passage.text[passage.parts[0].start : passage.parts[0].end] == nodes[1].text


def test_prose_far_behind_a_listing_of_its_section_is_not_a_listing() -> None:
    code = [make_node("```cuda\nint a;", 0), *(make_node(f"int b{n};", n) for n in range(1, 12))]
    nodes = [*code, make_node("int c;\n```", 12), make_node("Afterwards. " + words(20), 13)]
    (passage,) = select_passages([Hit(nodes[-1], 1.0)], FakeLibrary(nodes), 5, PassageBudget(22, 22))
    assert passage.text == nodes[-1].text


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


def test_no_hits_give_no_passages() -> None:
    assert select_passages([], FakeLibrary([]), 5, PassageBudget()) == ()


def test_the_end_of_a_listing_comes_before_other_neighbours() -> None:
    nodes = [
        make_node(words(40), 0),
        make_node("```c\nint a;", 1),
        make_node("int b;\n```", 2),
        make_node(words(40, 1000), 3),
        make_node(words(30, 2000), 0, document_id="other"),
    ]
    library = FakeLibrary(nodes)
    found = select_passages([Hit(nodes[1], 1.0), Hit(nodes[4], 0.5)], library, 5, PassageBudget(35, 35))
    assert "int b;" in found[0].text
