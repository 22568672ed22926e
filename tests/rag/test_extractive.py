"""Laws of answers made of the book's own sentences."""

from __future__ import annotations

import re

import pytest
from fakes import hash_embed, make_passage

from indexes.errors import Cancelled
from rag.errors import ArmUnavailable
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.sentence_reader import FiveSignalsReader
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
    generator = ExtractiveGenerator(FiveSignalsReader(hash_embed), "hash")
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


def test_the_answering_sentence_comes_first() -> None:
    text, _ = answer("How many banks does shared memory have?", MEMORY)
    assert "32 banks" in text


def scores(question: str, *passages: Passage) -> dict[str, float]:
    return {item.unit.text: item.score for item in FiveSignalsReader(hash_embed).read(question, passages)}


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("This", "Accesses hit one bank. [1] This serialises the requests of a warp. [1]"),
        ("Sharing", "Sharing serialises the requests of a warp. [1]"),
    ],
)
def test_a_sentence_that_begins_with_this_brings_the_one_before(subject: str, said: str) -> None:
    """The budget is for two sentences, and the last one scores more than the first."""
    passage = make_passage(
        f"Accesses hit one bank. {subject} serialises the requests of a warp. A warp makes all its requests at once."
    )
    text, _ = answer("What serialises the requests of a warp?", passage, max_tokens=17)
    assert text == said


def test_sentences_keep_the_books_order() -> None:
    text, _ = answer("shared memory banks conflicts", MEMORY)
    places = [MEMORY.text.index(s) for s in re.findall(r"(?:^|\] )(.+?) \[1\]", text)]
    assert places == sorted(places)


def test_a_listing_stays_whole_when_code_is_asked_for() -> None:
    text, _ = answer("Show the code of vector addition", MEMORY, CODE)
    assert "```cuda\n__global__ void add(float *a) {\n    a[0] += 1;\n}\n```" in text
    assert re.search(r"```\n\n\[2\]", text)


def test_a_listing_appears_once_though_a_sentence_announces_it() -> None:
    passage = make_passage(
        "The properties of a device are read by this code, which asks for the device properties:\n\n"
        "```cuda\nhipGetDeviceProperties(&properties, device);\n```\n\nBirds sing."
    )
    text, _ = answer("Show code that reads the properties of a device", passage)
    assert text.count("hipGetDeviceProperties") == 1


def test_a_sentence_after_a_list_is_not_part_of_its_last_item() -> None:
    """In Markdown a line right below an item belongs to it."""
    limits = make_passage("- Registers limit how many warps are resident.\n- Shared memory limits resident warps.")
    effect = make_passage("Few resident warps limit how much latency is hidden.", node_id="book-1")
    text, _ = answer("What limits resident warps?", limits, effect)
    assert "resident. [1]\n- Shared" in text
    assert "warps. [1]\n\nFew resident warps" in text


def test_links_appear_as_their_text() -> None:
    passage = make_passage(
        'A [thread block](/glossary/(block).md) runs on one `a[i](x)` core, see ![a core](img/core.png "Core").'
    )
    text, _ = answer("Where does a thread block run?", passage)
    assert text == "A thread block runs on one `a[i](x)` core, see a core. [1]"


def test_a_stop_string_ends_the_answer() -> None:
    text, done = answer("How many banks does shared memory have?", MEMORY, stop=("into", "32"))
    assert text == "Shared memory is divided "
    assert not done.refused


def test_each_piece_names_the_stretch_that_it_quotes() -> None:
    passage = make_passage("A warp holds 32 threads.\n\n- All run  in lockstep.\n- They share *one* scheduler.")
    request = GenerationRequest("How does a warp run its threads in lockstep?", "rag", (passage,))
    pieces = [
        p
        for p in ExtractiveGenerator(FiveSignalsReader(hash_embed), "hash").stream(request)
        if isinstance(p, TextPiece)
    ]
    assert len(pieces) > 1
    for piece in pieces:
        assert piece.quoted is not None and piece.text.endswith("[1]")
        quote = passage.text[piece.quoted.start : piece.quoted.end]
        assert " ".join(quote.split()) in piece.text


def test_a_follow_up_is_answered_with_the_question_that_it_refers_to() -> None:
    passage = make_passage("Streams overlap copies because engines differ. Warps diverge because branches differ.")
    text, _ = answer(
        "why is that?", passage, standalone_question="Do warps diverge at branches? why is that?", max_tokens=12
    )
    assert "Warps diverge" in text and "Streams" not in text


def test_a_table_that_is_the_answer_stays_whole() -> None:
    text, _ = answer("What latency in cycles have register and global memory?", TABLE)
    assert "| register | 1 |\n| global | 400 |" in text


def test_a_sentence_beside_what_repeats_the_question_counts_more() -> None:
    near = scores("When does a queue block?", make_passage("When does a queue block a host? It is full. Dogs bark."))
    assert near["It is full."] > near["Dogs bark."]


def test_a_short_sentence_that_goes_on_is_brought_along() -> None:
    passage = make_passage(
        "The call get_devices used to raise when no device matched. Now it is quiet. "
        "It returns an empty list instead.\n\nBirds sing in the morning, and dogs bark at night near the river.",
        node_id="book-5",
    )
    text, _ = answer("What did the call get_devices do when no device matched? Now it is quiet", passage, max_tokens=45)
    assert "It returns an empty list instead." in text


def test_max_tokens_bounds_the_answer() -> None:
    long = make_passage(" ".join(f"Warp number {i} holds many threads of its own kind." for i in range(60)))
    short, done = answer("What does a warp hold?", long, max_tokens=40)
    usual, _ = answer("What does a warp hold?", long)
    assert len(short.split()) < len(usual.split()) <= 160
    assert 0 < done.usage.completion_tokens <= 60


def test_no_sentence_appears_twice() -> None:
    twice = make_passage("A warp holds 32 threads.\n\nA warp holds 32 threads.\n\nBlocks hold warps.")
    text, _ = answer("How many threads does a warp hold?", twice)
    assert text.count("A warp holds 32 threads.") == 1


def test_no_passages_means_refused() -> None:
    text, done = answer("What is a warp?")
    assert (text, done.refused) == ("", True)


@pytest.mark.parametrize("arm", ["base", "tuned", "rag+tuned"])
def test_arms_that_need_a_model_say_what_to_do(arm: str) -> None:
    generator = ExtractiveGenerator(FiveSignalsReader(hash_embed), "hash")
    with pytest.raises(ArmUnavailable) as caught:
        generator.check(GenerationRequest("q", arm))
    assert "--generator local" in caught.value.hint


def test_a_cancelled_answer_stops() -> None:
    with pytest.raises(Cancelled):
        answer("How many banks?", MEMORY, cancelled=lambda: True)
