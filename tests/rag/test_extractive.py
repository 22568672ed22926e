"""Laws of answers made of the book's own sentences."""

from __future__ import annotations

import re

import pytest
from fakes import hash_embed, make_passage

from indexes.errors import Cancelled
from rag.citations import resolve
from rag.errors import ArmUnavailable
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.sentence_scores import DEFINITION_BONUS, SentenceScorer
from rag.types import Passage

MEMORY = make_passage(
    "Shared memory is divided into 32 banks. Cats sleep all day in the sun. "
    "This makes bank conflicts serialise accesses to shared memory. Dogs bark at night."
)
CODE = make_passage(
    "A kernel for vector addition.\n\n```cuda\n__global__ void add(float *a) {\n    a[0] += 1;\n}\n```\n\nDone.",
    node_id="book-1",
)
TABLE = make_passage(
    "Sizes are these.\n\n| memory | latency in cycles |\n|---|---|\n| register | 1 |\n| global | 400 |",
    node_id="book-2",
)


def answer(question: str, *passages: Passage, **fields) -> tuple[str, GenerationDone]:
    generator = ExtractiveGenerator(hash_embed, "hash")
    events = list(generator.stream(GenerationRequest(question, "rag", tuple(passages), **fields)))
    assert isinstance(events[-1], GenerationDone)
    return "".join(event.text for event in events if isinstance(event, TextPiece)), events[-1]


def test_every_sentence_is_the_books_own_and_marked() -> None:
    text, _ = answer("How many banks does shared memory have?", MEMORY)
    sentences = re.findall(r"(.+?) \[(\d+)\]\s*", text)
    assert sentences
    for sentence, marker in sentences:
        assert sentence in " ".join(MEMORY.text.split())
        assert marker == "1"


def test_the_answer_comes_first_among_what_is_said() -> None:
    text, _ = answer("How many banks does shared memory have?", MEMORY)
    assert "32 banks" in text


def scores(question: str, *passages: Passage) -> dict[str, float]:
    scored = SentenceScorer(hash_embed).score(question, passages)
    return {unit.text: float(score) for unit, score in zip(scored.units, scored.scores, strict=True)}


@pytest.mark.parametrize(
    "question", ["What is a warp?", "What are warps?", "Explain the warp.", "What is a warp in CUDA?"]
)
def test_a_sentence_that_says_what_a_thing_is_comes_before_others_about_it(question: str) -> None:
    says, other = "A warp is a group of lanes in CUDA.", "In CUDA every warp runs a group of lanes."
    found = scores(question, make_passage(f"{other} {says}"))
    assert found[says] > found[other]


def test_other_questions_prefer_no_definitions() -> None:
    says, other = "A warp is a group.", "A warp wants a group."
    found = scores("How does a warp reach a group?", make_passage(f"{other} {says}"))
    assert abs(found[says] - found[other]) < DEFINITION_BONUS


def test_what_a_book_announces_counts_less_than_what_it_tells() -> None:
    text = "Warps hide the latency of memory."
    told, announced = (
        make_passage(text, section=("Warps",)),
        make_passage(text, section=("Warps", "Learning objectives")),
    )
    question = "How do warps hide latency?"
    assert scores(question, told)[text] > scores(question, announced)[text]
    asked = "What are the objectives about latency?"
    assert scores(asked, announced)[text] >= scores(asked, told)[text]


def test_a_timetable_answers_only_those_who_ask_when() -> None:
    table = "| time | what |\n|---|---|\n| 09:00 | heat equation solved |\n| 10:30 | coffee |"
    passage = make_passage(f"{table}\n\nThe heat equation is solved by a stencil that moves over the grid.")
    assert "09:00" not in answer("How is a heat equation solved?", passage)[0]
    assert "09:00" in answer("When is the heat equation solved?", passage)[0]


def test_a_sentence_that_begins_with_this_brings_the_one_before() -> None:
    text, _ = answer("What makes bank conflicts serialise accesses?", MEMORY, max_tokens=30)
    if "This makes" in text:
        assert text.index("Cats sleep") < text.index("This makes")


def test_sentences_stand_in_the_books_order() -> None:
    text, _ = answer("shared memory banks conflicts", MEMORY)
    places = [MEMORY.text.index(s) for s in re.findall(r"(?:^|\] )(.+?) \[1\]", text)]
    assert places == sorted(places)


def test_a_listing_stays_whole_when_code_is_asked_for() -> None:
    text, _ = answer("Show the code of vector addition", MEMORY, CODE)
    assert "```cuda\n__global__ void add(float *a) {\n    a[0] += 1;\n}\n```" in text
    assert re.search(r"```\n\n\[2\]", text)


def test_a_table_that_is_the_answer_stays_whole() -> None:
    text, _ = answer("What latency in cycles have register and global memory?", TABLE)
    assert "| register | 1 |\n| global | 400 |" in text


LIMITS = make_passage(
    "Limits of the runtime.\n\n| limit | value | meaning |\n|---|---|---|\n"
    + "\n".join(f"| limit{n} | {n} | how many things of kind {n} there may be at one time |" for n in range(40))
    + "\n| queue | 77 | how many kernels may wait in a stream |",
    node_id="book-3",
)


def test_a_long_table_gives_its_header_and_the_rows_that_answer() -> None:
    text, _ = answer("How many kernels may wait in a stream?", LIMITS)
    assert "| limit | value | meaning |\n|---|---|---|\n| queue | 77 |" in text
    assert "limit17" not in text


def test_the_rows_of_a_long_table_are_cited_as_supported() -> None:
    text, _ = answer("How many kernels may wait in a stream?", LIMITS)
    (citation, *_) = [one for one in resolve(text, [LIMITS]) if "queue" in one.quote]
    assert citation.verdict == "supported"
    assert citation.quote in LIMITS.text


def test_a_sentence_beside_what_repeats_the_question_counts_more() -> None:
    near = scores("When does a queue block?", make_passage("When does a queue block a host? It is full. Dogs bark."))
    assert near["It is full."] > near["Dogs bark."]


def test_what_describes_a_signature_is_found_by_its_name_and_said_with_it() -> None:
    manual = make_passage(
        "`fill(value)`\n\nSets each element.\n\n`__len__()`\n\nReturns the leading dimension.\n\n"
        "`ravel()`\n\nFlattens.",
        node_id="book-4",
    )
    found = scores("What does __len__ return?", manual)
    assert found["Returns the leading dimension."] > found["Sets each element."]
    text, _ = answer("What does __len__ return?", manual)
    assert re.search(r"`__len__\(\)` \[1\] Returns the leading dimension\. \[1\]", text)


def test_a_short_sentence_that_goes_on_is_brought_along() -> None:
    passage = make_passage(
        "The call get_devices used to raise when no device matched. Now it is quiet. "
        "It returns an empty list instead.\n\nBirds sing in the morning, and dogs bark at night near the river.",
        node_id="book-5",
    )
    text, _ = answer("What did the call get_devices do when no device matched? Now it is quiet", passage, max_tokens=45)
    assert "It returns an empty list instead." in text


def test_a_chinese_question_is_answered_with_english_quotes() -> None:
    text, _ = answer("共享内存有多少个存储体？", MEMORY)
    assert "Shared memory is divided into 32 banks." in text


def test_max_tokens_bounds_the_answer() -> None:
    long = make_passage(" ".join(f"Warp number {i} holds many threads of its own kind." for i in range(60)))
    short, done = answer("What does a warp hold?", long, max_tokens=40)
    usual, _ = answer("What does a warp hold?", long)
    assert len(short.split()) < len(usual.split()) <= 160
    assert 0 < done.usage.completion_tokens <= 60


def test_nothing_is_said_twice() -> None:
    twice = make_passage("A warp holds 32 threads.\n\nA warp holds 32 threads.\n\nBlocks hold warps.")
    text, _ = answer("How many threads does a warp hold?", twice)
    assert text.count("A warp holds 32 threads.") == 1


def test_no_passages_means_refused() -> None:
    text, done = answer("What is a warp?")
    assert (text, done.refused) == ("", True)


@pytest.mark.parametrize("arm", ["base", "tuned", "rag+tuned"])
def test_arms_that_need_a_model_say_what_to_do(arm: str) -> None:
    generator = ExtractiveGenerator(hash_embed, "hash")
    with pytest.raises(ArmUnavailable) as caught:
        generator.check(GenerationRequest("q", arm))
    assert "--generator local" in caught.value.hint


def test_a_cancelled_answer_stops() -> None:
    with pytest.raises(Cancelled):
        answer("How many banks?", MEMORY, cancelled=lambda: True)
