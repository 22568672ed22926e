"""Laws of seeing what kind of answer a question asks for, and of knowing a definition."""

from __future__ import annotations

import time

import pytest

from rag.answer_forms import defines
from rag.question import question_kind, sides_of, subject_of


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("What is a warp?", "define"),
        ("what are warps", "define"),
        ("explain thread divergence", "define"),
        ("warp divergence", "define"),
        ("什么是线程束？", "define"),
        ("线程束是什么？", "define"),
        ("How many threads does a warp hold?", "number"),
        ("一个线程束有多少线程？", "number"),
        ("Why do bank conflicts slow a kernel down?", "why"),
        ("为什么要合并访存？", "why"),
        ("How do I avoid bank conflicts?", "how"),
        ("What is occupancy and what limits it?", "how"),
        ("如何避免 bank 冲突？", "how"),
        ("What is the difference between a block and a warp?", "compare"),
        ("hipMalloc vs hipMallocManaged", "compare"),
        ("whats the diffrence of a block to a warp", "compare"),
        ("What do malloc and calloc do differently?", "compare"),
        ("Can threads of different blocks share data?", "yes_no"),
        ("What are the memory spaces of a GPU?", "list"),
        ("What are typical bottlenecks of a program?", "list"),
        ("In which ways can memory be shared?", "list"),
        ("Which extensions must be installed?", "list"),
        ("GPU 有哪些内存？", "list"),
        ("Show a kernel that adds two vectors", "code"),
        ("How do I declare shared memory?", "code"),
        ("What is the command to compile a kernel?", "code"),
        ("What is a command queue used for?", "fact"),
        ("Is unified memory always slower?", "yes_no"),
        ("Do I need to learn assembly to program a GPU?", "yes_no"),
        ("统一内存总是更慢吗？", "yes_no"),
        ("Which flag selects the architecture?", "fact"),
    ],
)
def test_a_questions_words_tell_its_kind(question: str, kind: str) -> None:
    assert question_kind(question) == kind


@pytest.mark.parametrize(
    ("question", "subject"),
    [
        ("What is a warp?", "warp"),
        ("so what's a warp exactly?", "warp"),
        ("what exactly is a warp?", "warp"),
        ("explain like I'm five: what is a GPU", "GPU"),
        ("What is a kernel in CUDA?", "kernel"),
        ("what does SPMD stand for", "SPMD"),
        ("help me understand occupancy", "occupancy"),
        ("I dont understand bank conflicts", "bank conflicts"),
        ("i dont get any speedup", ""),
        ("I don't understand why warps diverge", ""),
        ("i cant get my kernel to run", ""),
        ("What is the largest size of a block?", ""),
        ("what is it?", ""),
        ("show the code", ""),
    ],
)
def test_the_name_to_be_defined_is_found(question: str, subject: str) -> None:
    assert subject_of(question) == subject


@pytest.mark.parametrize(
    ("subject", "sentence", "defined"),
    [
        ("warp", "A *warp* is a group of 32 threads.", True),
        ("warps", "Threads come in units of 32, called warps, that run in lockstep.", True),
        ("warp", "**Warp**: 32 threads that run in lockstep.", True),
        ("occupancy", "The occupancy (of an SM) is the share of resident warps.", True),
        ("default stream", "The default stream, also called null stream, is a stream of its own.", True),
        ("race condition", "Such an error is known as a race condition.", True),
        ("warp", "With a stride of two floats the warp touches 8 sectors.", False),
        ("warp", "The warp is executed by one scheduler.", False),
        ("warp", "A warp is not a block.", False),
        ("CUDA", "CUDA graphs are a way to launch many kernels.", False),
        ("warp", "Warp divergence is a cost.", False),
    ],
)
def test_a_definition_is_known_by_its_form(subject: str, sentence: str, defined: bool) -> None:
    assert defines(subject, sentence) is defined


@pytest.mark.parametrize("hostile", ["what is a " * 2000, "what is " + "a" * 19_000, "?" * 20_000, "a or " * 4000])
def test_the_longest_question_is_read_in_no_time(hostile: str) -> None:
    started = time.process_time()
    question_kind(hostile)
    defines("warp", hostile)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "question",
    [
        "What is the difference between a block and a warp?",
        "How do a block and a warp differ in size?",
        "What separates a block from a warp?",
        "How does a block compare with a warp?",
        "block vs warp",
    ],
)
def test_the_two_sides_of_a_comparison_are_found(question: str) -> None:
    assert [side.removeprefix("a ") for side in sides_of(question)] == ["block", "warp"]
