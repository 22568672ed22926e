"""Laws of answers made of the book's own sentences."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fakes import make_passage, signals_only

from indexes.errors import Cancelled
from rag.errors import ArmUnavailable
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.sentence_reader import LearnedReader
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


LETTERS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()


def answer(question: str, *passages: Passage, **fields) -> tuple[str, GenerationDone]:
    generator = ExtractiveGenerator(LearnedReader(signals_only), "hash")
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
    return {item.unit.text: item.score for item in LearnedReader(signals_only).read(question, passages)}


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("This", "Accesses hit one bank. [1] This serialises the requests of a warp. [1]"),
        ("Sharing", "Sharing serialises the requests of a warp. [1]"),
    ],
)
def test_a_sentence_that_begins_with_this_brings_the_one_before(subject: str, said: str) -> None:
    passage = make_passage(
        f"Accesses hit one bank. {subject} serialises the requests of a warp. A warp makes all its requests at once."
    )
    text, _ = answer("What serialises the requests of a warp?", passage, max_tokens=17)
    assert text == said


def test_the_best_sentence_comes_first_wherever_it_stands() -> None:
    near = make_passage("Shared memory is fast. Warps read shared memory. Cats sleep.")
    best = make_passage("Cats sleep. Shared memory has 32 banks.", node_id="book-1")
    text, _ = answer("How many banks does shared memory have?", near, best)
    assert text.startswith("Shared memory has 32 banks. [2]")


def test_what_follows_the_best_two_sentences_stands_in_the_books_order() -> None:
    likely = {"Cats sleep.": 0.6, "Dogs bark.": 0.7, "Fish swim.": 0.8, "Birds fly.": 0.9}
    reader = LearnedReader(lambda _, pairs: np.array([likely.get(pair.sentence, 0.0) for pair in pairs], np.float32))
    passages = (
        make_passage("Cats sleep. Nobody knows it. Dogs bark. Nobody cares. Fish swim."),
        make_passage("Birds fly.", node_id="book-1"),
    )
    request = GenerationRequest("Why do animals move?", "rag", passages)
    pieces = [
        event.text for event in ExtractiveGenerator(reader, "hash").stream(request) if isinstance(event, TextPiece)
    ]
    assert "".join(pieces) == "Birds fly. [2] Fish swim. [1] Cats sleep. [1] Dogs bark. [1]"


def test_beside_a_definition_one_that_says_little_is_only_a_sentence() -> None:
    chances = {"Occupancy is the number of resident warps divided by their limit.": 0.9, "Much of it helps.": 0.5}
    reader = LearnedReader(lambda _, pairs: np.array([chances.get(pair.sentence, 0.4) for pair in pairs], np.float32))
    passage = make_passage(" ".join([*chances, "Occupancy is a means."]))
    units = ExtractiveGenerator(reader, "hash").choose("What is occupancy?", [passage])
    assert [unit.text for unit in units][:2] == list(chances)


def test_a_definition_comes_before_sentences_with_more_of_the_questions_words() -> None:
    passage = make_passage(
        "If 32 threads of a warp read at a warp's stride, the warp waits. Threads run in groups, called *warps*. "
        "A warp is executed in lockstep.",
        section=("Memory",),
    )
    text, _ = answer("What is a warp?", passage)
    assert text.startswith("Threads run in groups, called *warps*.")


@pytest.mark.parametrize(
    "empty",
    [
        "How do threads share data in shared memory?",
        "“Why does shared memory make threads share data?”",
        "Figure 3: How threads share data in shared memory.",
        "See the section on how threads share data in shared memory.",
        "This chapter explains how threads share data in shared memory.",
        "For more on how threads share data in shared memory, see the guide.",
        "Threads share data in shared memory as follows:",
        "share(data, memory); threads(shared, memory); data = share(memory);",
        "It lets threads share data in shared memory.",
        "**How threads share data in shared memory**",
    ],
)
def test_a_sentence_that_says_nothing_alone_is_never_chosen(empty: str) -> None:
    passage = make_passage(f"{empty}\n\nThreads of a block write to shared memory and wait at a barrier.")
    text, _ = answer("How do threads share data in shared memory?", passage)
    assert text == "Threads of a block write to shared memory and wait at a barrier. [1]"


def test_an_announcement_of_what_will_be_learnt_is_never_chosen() -> None:
    passage = make_passage("- Understand shared memory banks and their conflicts.", section=("Warps", "Objectives"))
    other = make_passage("Conflicts of banks serialise accesses.", node_id="book-1")
    assert "Understand" not in answer("Why do shared memory banks have conflicts?", passage, other)[0]
    labelled = make_passage("**Objectives**\n\n- Measure them.\n- Understand shared memory banks and their conflicts.")
    assert "Understand" not in answer("Why do shared memory banks have conflicts?", labelled, other)[0]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("How many threads does a warp hold?", 50),
        ("What is a warp?", 60),
        ("Why does a warp hold threads?", 100),
        ("How does a warp hold threads?", 100),
    ],
)
def test_the_kind_of_question_bounds_the_answer(question: str, words: int) -> None:
    passage = make_passage(" ".join(f"Warp {name} holds threads of kind {name}." for name in LETTERS))
    text, _ = answer(question, passage)
    assert 8 <= len(text.replace("[1]", "").split()) <= words


def test_a_formula_comes_whole_with_the_sentence_that_announces_it() -> None:
    passage = make_passage(
        "The roofline model bounds performance $P$ by peak and bandwidth $B$:\n\n"
        "$$\nP = \\min(peak, I B)\n$$\n\nCats sleep."
    )
    text, _ = answer("What is the formula of the roofline model?", passage)
    assert "bandwidth $B$: [1]\n\n$$\nP = \\min(peak, I B)\n$$" in text


def test_a_formula_that_answers_is_chosen_with_the_sentence_before_it() -> None:
    passage = make_passage(
        "Cats sleep in the sun.\n\nFrom both times follows\n\n$$\nspeedup = serial / parallel\n$$\n\nDogs bark."
    )
    text, _ = answer("speedup of serial over parallel", passage)
    assert text.startswith("From both times follows [1]\n\n$$\nspeedup = serial / parallel\n$$")


def test_a_sentence_that_only_goes_on_is_said_though_nothing_before_it_can_be() -> None:
    passage = make_passage("```c\nwait();\n```\n\nHowever, banks serialise the requests of a warp.\n\nCats sleep.")
    assert answer("Why are requests of a warp serialised?", passage)[0].startswith("However, banks serialise")


def test_a_sentence_that_ends_in_a_colon_brings_its_listing_whatever_was_asked() -> None:
    passage = make_passage(
        "To avoid transfers of read-only arrays, copy by hand:\n\n```python\nto_device(a)\n```\n\nCats sleep."
    )
    text, _ = answer("Why would I copy read-only arrays by hand?", passage)
    assert text.startswith("To avoid transfers of read-only arrays, copy by hand: [1]\n\n```python\nto_device(a)\n```")


def test_a_description_below_a_declaration_brings_the_name_along() -> None:
    passage = make_passage(
        "`cudaGetDeviceCount`\n\n```c\nint cudaGetDeviceCount(int* n);\n```\n\nReturns the number of available devices."
    )
    text, _ = answer("which function returns the number of available devices", passage)
    assert text.startswith("`cudaGetDeviceCount` [1]\n\n```c\nint cudaGetDeviceCount(int* n);\n```")


def test_a_list_that_is_asked_for_comes_whole_and_in_order() -> None:
    limits = ["- Registers limit warps.", "- Blocks.", "- Shared memory.", "- Barriers of a block."]
    passage = make_passage("Four things count:\n\n" + "\n".join(limits) + "\n\nDogs bark.")
    text, _ = answer("List what limits warps by registers", passage)
    assert text.replace(" [1]", "") == "Four things count:\n" + "\n".join(limits)


def test_of_lists_within_lists_the_one_asked_for_comes_whole() -> None:
    bottlenecks = ["- Typical bottlenecks", "  - Too many transfers", "  - Too little work", "  - Slow access"]
    passage = make_passage("\n".join(["- Profile first", *bottlenecks, "- Do not guess"]))
    for asked in ("What are typical bottlenecks?", "List what slows by too little work"):
        text, _ = answer(asked, passage)
        assert text.replace(" [1]", "").startswith("\n".join(bottlenecks)), asked


def test_pointers_elsewhere_are_left_out_of_a_list() -> None:
    passage = make_passage("Four libraries for GPUs:\n\n- Kokkos\n- SYCL\n- See the manual for details\n- ...")
    text, _ = answer("List libraries for GPUs", passage)
    assert text.replace(" [1]", "") == "Four libraries for GPUs:\n- Kokkos\n- SYCL"


def test_an_item_brings_the_short_list_below_it() -> None:
    passage = make_passage("- Cats sleep.\n- Small messages are buffered\n  - by MPI\n  - in memory\n- Dogs bark.")
    text, _ = answer("Are small messages buffered?", passage)
    assert text.replace(" [1]", "").startswith("- Small messages are buffered\n  - by MPI\n  - in memory")


def test_an_item_comes_with_the_one_over_it_that_names_what_it_is_about() -> None:
    passage = make_passage("- Cats sleep.\n- MPI is a standard\n  - First version published in 1994\n  - Birds sing.")
    text, _ = answer("When was the first version of MPI published?", passage)
    assert text.startswith("- MPI is a standard [1]\n  - First version published in 1994 [1]")
    by_itself, _ = answer("When was the first version published?", passage)
    assert by_itself.startswith("- First version published in 1994 [1]")


def test_a_comparison_knows_a_side_by_the_item_over_it() -> None:
    passage = make_passage(
        "- Two sorts of memory\n- Registers\n  - Belong to one thread\n- Caches\n  - Serve all others\n- Cats sleep."
    )
    text, _ = answer("What is the difference between registers and caches?", passage)
    assert "- Registers [1]\n  - Belong to one thread [1]" in text
    assert "- Caches [1]\n  - Serve all others [1]" in text


def test_a_comparison_speaks_of_both_sides() -> None:
    text, _ = answer(
        "What is the difference between registers and caches?",
        make_passage(
            "Registers belong to one thread, and registers of a thread are registers of its own. "
            "Registers are many. Caches serve all threads."
        ),
    )
    assert "Registers" in text and "Caches serve all threads." in text


def test_a_title_in_bold_is_no_sentence_to_lean_on() -> None:
    passage = make_passage(
        "Dogs bark.\n\n**Important**\n\nThis makes the warp of a block wait.\n\nA warp waits for memory."
    )
    text, _ = answer("Why does the warp of a block wait?", passage)
    assert text == "A warp waits for memory. [1]"


def test_a_signature_comes_with_its_description() -> None:
    passage = make_passage(
        "`grid(ndim)`\n\nReturns the absolute position of the thread.\n\n`stride(ndim)`\n\nCats sleep."
    )
    text, _ = answer("What does grid do with ndim?", passage)
    assert text.startswith("`grid(ndim)` [1] Returns the absolute position of the thread. [1]")
    by_description, _ = answer("absolute position of thread", passage)
    assert by_description.startswith("`grid(ndim)` [1] Returns the absolute")


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
    limits = make_passage("- Registers limit resident warps.\n- Shared memory limits resident warps.")
    effect = make_passage("Blocks limit resident warps.", node_id="book-1")
    text, _ = answer("What limits resident warps?", limits, effect)
    assert "warps. [1]\n- " in text
    assert "warps. [1]\n\nBlocks limit" in text


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
        p for p in ExtractiveGenerator(LearnedReader(signals_only), "hash").stream(request) if isinstance(p, TextPiece)
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


def test_a_sentence_next_to_one_that_repeats_the_question_scores_higher() -> None:
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


def test_an_item_that_came_with_its_list_is_not_said_again_from_another() -> None:
    item = "- If the variable `CUDA_DEVICE` is set, it names the device."
    passage = make_passage(
        f"A device is chosen by these rules:\n\n{item}\n- Otherwise, all devices are tried.\n\n"
        f"Old names are deprecated.\n\n{item}\n- Otherwise, the first one is taken."
    )
    text, _ = answer("How is a device chosen?", passage)
    assert text.count(item) == 1


def test_no_sentence_appears_twice() -> None:
    twice = make_passage("A warp holds 32 threads.\n\nA warp holds 32 threads.\n\nBlocks hold warps.")
    text, _ = answer("How many threads does a warp hold?", twice)
    assert text.count("A warp holds 32 threads.") == 1


def test_no_passages_means_refused() -> None:
    text, done = answer("What is a warp?")
    assert (text, done.refused) == ("", True)


@pytest.mark.parametrize("arm", ["base", "tuned", "rag+tuned"])
def test_arms_that_need_a_model_say_what_to_do(arm: str) -> None:
    generator = ExtractiveGenerator(LearnedReader(signals_only), "hash")
    with pytest.raises(ArmUnavailable) as caught:
        generator.check(GenerationRequest("q", arm))
    assert "--generator local" in caught.value.hint


def test_a_cancelled_answer_stops() -> None:
    with pytest.raises(Cancelled):
        answer("How many banks?", MEMORY, cancelled=lambda: True)


def test_who_asks_how_to_do_something_sees_its_code_second() -> None:
    passage = make_passage(
        "A stream is created before its first use by the stream runtime. Streams order work. Dogs bark.\n\n"
        "```cuda\ncudaStreamCreate(&stream);\n```\n\nCats sleep."
    )
    text, _ = answer("How do I create a stream?", passage)
    assert text.index("A stream is created") < text.index("cudaStreamCreate") < len(text)
    without, _ = answer("Why is a stream created?", passage)
    assert "cudaStreamCreate" not in without


def test_the_sentence_with_the_number_comes_first() -> None:
    passage = make_passage(
        "Threads of a block share the block, and a block has threads. A block has at most 99 threads."
    )
    assert answer("How many threads can a block have?", passage)[0].startswith("A block has at most 99 threads.")


def test_the_fuller_definition_comes_first() -> None:
    passage = make_passage("Occupancy is a means. Occupancy is the number of resident warps divided by their limit.")
    assert answer("What is occupancy?", passage)[0].startswith("Occupancy is the number")
