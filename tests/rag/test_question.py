"""Laws of seeing whether a message is a question, what kind of answer it wants, and what it points back to."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fakes import section

from indexes.library import Library
from rag.forms import definition_share
from rag.query import understand
from rag.question import (
    chapter_of,
    options_of,
    question_kind,
    refers_to_earlier,
    standing_question,
    subject_of,
    talk_kind,
)
from rag.types import Turn
from rag.wording import unknown_nouns

TALK = {
    "greeting": "hi|Hello!|hey there|你好|Good morning|how are you?|Hello... how are you?",
    "thanks": "thanks|thanks a lot, bye|Thank you so much!|ok, thanks|谢谢！|👍|got it|good bye",
    "about": "who are you?|What can you do?|help|你是谁？|你能做什么|are you an AI?",
    "rewrite": (
        "shorter please|Summarize that in one sentence|summarise chapter 5|"
        "simpler please|in Chinese please|give me an example|短一点|一句话总结|用中文|说简单点|"
        "举个例子|总结第三章"
    ),
    "exam": "quiz me|Please test me on chapter 5.|examine me about warps please|考考我|请给我出几道题吧|考我",
    None: (
        "why?|and on AMD?|什么是线程束|thanks, and what is a warp?|hi, what is a warp?|show the code for a stencil|"
        "give me an example of a stencil|what is a summary statistic|translate cudaMemcpy to HIP|"
        "what is short-circuit evaluation|how do I test my kernel|what does test mean|"
        "如何测试核函数|Explain warps in simple words|是否需要简单的核函数|warp|5|???"
    ),
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TALK.items() for text in texts.split("|")])
def test_only_a_message_that_is_nothing_else_is_talk(kind: str | None, text: str) -> None:
    assert talk_kind(text) == kind


@pytest.mark.parametrize(
    ("wish", "chapter"),
    [("Summarise chapter five", 5), ("总结第12章", 12), ("总结第九章", 9), ("总结第十章", 10), ("总结第十二章", 12),
     ("总结第二十一章", 21), ("in one sentence", None), ("总结", None)],
)  # fmt: skip
def test_a_chapter_is_named_by_a_number_in_digits_or_in_words(wish: str, chapter: int | None) -> None:
    assert chapter_of(wish) == chapter


KINDS = {
    "define": "What is a warp?|what are warps|explain thread divergence|warp divergence|什么是线程束？|线程束是什么？|"
    "What is block size?",
    "list": "What are the memory spaces of a GPU?|In which ways can memory be shared?|GPU 有哪些内存？",
    "code": "Show a kernel that adds two vectors|How do I declare shared memory?|example of cudaMemcpy|"
    "用什么命令编译？|看看代码",
    "fact": "Why do bank conflicts slow a kernel down?|为什么要合并访存？|hipMalloc vs hipMallocManaged|"
    "How do I avoid bank conflicts?|Is unified memory slower?|"
    "What is a command queue used for?|tell me what happens when a warp diverges",
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in KINDS.items() for text in texts.split("|")])
def test_a_questions_words_tell_its_kind(kind: str, text: str) -> None:
    assert question_kind(text) == kind


@pytest.mark.parametrize(
    ("question", "subject"),
    [
        ("so what's a warp exactly?", "warp"),
        ("What is a kernel in CUDA?", "kernel"),
        ("what does SPMD stand for", "SPMD"),
        ("i dont get any speedup", ""),
        ("What is the largest size of a block?", ""),
        ("what is it?", ""),
        ("show the code", ""),
    ],
)
def test_the_name_to_be_defined_is_found(question: str, subject: str) -> None:
    assert subject_of(question) == subject


@pytest.mark.parametrize(
    ("pasted", "asked", "options"),
    [
        ("What is a warp?\nA. a unit, i.e. threads\nB. a cable; C. both", "What is a warp?",
         ("a unit, i.e. threads", "a cable", "both")),
        ("线程束有多少线程？ A. 16 B、32；C：64", "线程束有多少线程？", ("16", "32", "64")),
        ("Coalescing means that\nA) a\nB) b", "Coalescing means that", ("a", "b")),
        ("Is it a) host or b) device code?", "Is it a) host or b) device code?", ()),
        ("What is plan A. Or B?", "What is plan A. Or B?", ()),
        ("A. 16 B. 32", "A. 16 B. 32", ()),
    ],
)  # fmt: skip
def test_options_of_an_exam_question_are_told_apart(pasted: str, asked: str, options: tuple[str, ...]) -> None:
    assert options_of(pasted) == (asked, options)


@pytest.mark.parametrize(
    ("text", "refers"),
    [
        *((text, True) for text in ("Why?", "And how large is it?", "What about texture memory?", "它有多大？")),
        *((text, False) for text in ("Why does MPI need datatypes?", "MPI 是什么？", "Is constant memory slow?")),
        ("Can two kernels run at the same time?", False),
    ],
)
def test_short_and_pointing_questions_refer_to_the_one_before(text: str, refers: bool) -> None:
    assert refers_to_earlier(text) is refers


def test_a_follow_up_is_about_the_newest_question_that_needs_no_other() -> None:
    turns = [Turn(text, "") for text in ("What is occupancy?", "thanks", "And what limits it?", "shorter please")]
    assert standing_question(turns, "why?") == "What is occupancy? And what limits it?"
    assert standing_question(turns, "and on AMD GPUs?") == standing_question(turns[:2], "why?") == "What is occupancy?"
    assert standing_question([Turn("hello", "Hello!")], "why?") == ""
    first = "What does a pool do and how is its memory freed?"
    assert standing_question([Turn(first, "It frees.")], "show me code for that") == first


HOSTILE = (
    "a" * 20_000, "a or " * 4000, "what is a " * 2000, "abc.def::" * 2222, "贷款" * 10_000, f"a{' ' * 19_998}b",
    f"x = {'(' * 19_990}", "?" * 20_000, "A." * 10_000, "?A. x " * 3333, "\nA) " * 5000, "```\n" * 5000, "a;\n" * 6666,
    "#a " * 6666, "@1 " * 6666, '@"a ' * 5000, "ok, " * 5000, "简单" * 10_000,
)  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: repr(text[:6]))
def test_the_longest_message_is_understood_in_no_time(hostile: str, library_of: Callable[..., Library]) -> None:
    """Alone and as the question that a follow-up is about; each takes some 20 ms, and some once took minutes."""
    library = library_of(section("A warp is a group of 32 threads."))
    understand("warp", library)  # loads the dictionary
    started = time.process_time()
    talk_kind(hostile)
    understand(hostile, library)
    understand("why is it?", library, turns=[Turn(hostile, "")])
    definition_share("warp", hostile)
    unknown_nouns(hostile)
    assert time.process_time() - started < 2
