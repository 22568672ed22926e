"""Nodes are verbatim, small enough, and cut where a reader would cut."""

from itertools import pairwise

from fakes import HashEncoder
from hypothesis import given
from hypothesis import strategies as st

from indexes.chunking import chunk_book, chunk_text
from indexes.types import Book, Section, page_at

ENCODER = HashEncoder()


def starts(text: str) -> list[int]:
    return ENCODER.token_starts([text])[0]


def pieces(text: str, limit: int, overlap: int = 0) -> list[str]:
    return [text[start:end] for start, end in chunk_text(text, starts(text), limit, overlap)]


def book(*sections: Section, labels: tuple[str | None, ...] = ()) -> Book:
    return Book("B", "markdown", sections, page_labels=labels)


PARAGRAPHS = st.lists(
    st.text(alphabet="ab .`\n-|线程。{};#$", min_size=1, max_size=120).filter(lambda text: text.strip()), max_size=12
)


@given(PARAGRAPHS, st.integers(8, 60))
def test_every_word_is_in_one_node_and_no_node_is_too_long(paragraphs: list[str], limit: int) -> None:
    text = "\n\n".join(paragraphs)
    found = chunk_text(text, starts(text), limit)
    assert all(len(starts(text[a:b])) <= limit for a, b in found)
    assert "".join("".join(text[a:b].split()) for a, b in found) == "".join(text.split())
    assert all(first[1] <= second[0] for first, second in pairwise(found))


def test_a_section_that_fits_is_one_node_and_cuts_fall_between_paragraphs() -> None:
    assert pieces("One two. Three four.\n\nFive.", 20) == ["One two. Three four.\n\nFive."]
    text = "\n\n".join("alpha beta gamma delta. epsilon zeta eta theta." for _ in range(4))
    assert pieces(text, 22) == ["\n\n".join(text.split("\n\n")[:2]), "\n\n".join(text.split("\n\n")[2:])]


def test_nodes_of_a_section_are_of_like_size() -> None:
    text = " ".join(f"Word{n} and more here." for n in range(50))
    sizes = [len(starts(piece)) for piece in pieces(text, 110)]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 10


def test_code_blocks_are_never_split_when_they_fit_and_a_sentence_that_announces_one_stays_with_it() -> None:
    code = "```c\nint a;\n\nint b;\n\nint c;\n```"
    text = f"{'Some words before it. ' * 8}\n\n{code}\n\n{'Some words after it. ' * 8}"
    assert any(code in piece for piece in pieces(text, 44))
    code = "```c\nint a = b + c;\n```"
    text = f"{'Some words before it. ' * 5}\n\nThe sum is written so:\n\n{code}"
    assert any(f"The sum is written so:\n\n{code}" in piece for piece in pieces(text, 24))


def test_a_long_listing_is_cut_at_blank_lines() -> None:
    functions = [f"int f{n}() {{\n    return {n} + {n} * {n};\n}}" for n in range(6)]
    found = pieces("```c\n" + "\n\n".join(functions) + "\n```", 40)
    assert len(found) > 1
    assert all(sum(function in piece for piece in found) == 1 for function in functions)


def test_overlap_repeats_whole_sentences() -> None:
    text = " ".join(f"Sentence {n} stands here." for n in range(12))
    found = pieces(text, 25, 6)
    assert all(later.split(". ")[0] in earlier for earlier, later in pairwise(found))


def test_nodes_carry_headings_pages_and_labels() -> None:
    text = "First page words. " * 6 + "Second page words. " * 6
    at = text.index("Second")
    section = Section(("Chapter", "Deep"), text, 3, ((0, 2), (at, 3)))
    nodes = list(chunk_book(book(section, labels=(None, "i", "1")), ENCODER.token_starts, 40))
    assert len(nodes) > 1
    for node in nodes:
        assert text[node.start : node.end] == node.text
        assert (node.heading_path, node.chapter) == (("Chapter", "Deep"), 3)
        assert node.embedded_text == f"Chapter > Deep\n{node.text}"
        assert len(starts(node.embedded_text)) == node.num_tokens <= 40
        for offset in (0, len(node.text) - 1):
            assert page_at(node.page_marks, offset) == page_at(section.page_marks, node.start + offset)
    assert {node.page_labels for node in nodes} <= {("i",), ("i", "1"), ("1",)}


def test_long_heading_paths_leave_room_for_the_text() -> None:
    path = tuple(f"heading {n} with quite a few words in it" for n in range(8))
    (node,) = chunk_book(book(Section(path, "Some words.", 1)), ENCODER.token_starts, 40)
    assert node.heading_path == path
    assert len(starts(node.heading)) <= 12
    assert node.heading.startswith("heading")


def test_the_same_text_under_the_same_heading_has_the_same_key() -> None:
    one, two = chunk_book(book(Section(("A",), "x y.", 1), Section(("A",), "x y.", 1)), ENCODER.token_starts, 40)
    other = next(chunk_book(book(Section(("B",), "x y.", 1)), ENCODER.token_starts, 40))
    assert one.text_sha == two.text_sha != other.text_sha


def test_words_without_end_are_cut_and_a_text_of_which_the_tokenizer_makes_nothing_is_one_node() -> None:
    assert all(len(starts(piece)) <= 10 for piece in pieces("a-" * 500, 10))
    assert chunk_text("\uf0b7\n\n\uf0e7", [], 100) == [(0, 4)]
