"""Laws of separating questions from talk, and of what is searched for."""

from __future__ import annotations

import time

import pytest
from fakes import FakeLibrary, make_node

from rag.question import (
    ChapterAsked,
    asks_in_chinese,
    chapter_asked,
    code_in,
    looked_up,
    message_kind,
    only_about_code,
    options_of,
    parts_of,
    question_kind,
    standing_question,
    without_greeting,
    without_style,
)
from rag.retrieval import prepare_query
from rag.types import Turn

TALK = {
    "greeting": "hi|Hello!|hey there|你好|Good morning|how are you?",
    "thanks": "thanks|thanks a lot, bye|Thank you so much!|ok, thanks|谢谢！|👍|got it|good bye",
    "about": "who are you?|What can you do?|help|你是谁？|你能做什么|are you an AI?",
    "quiz": (
        "can you quiz me on shared memory?|give me a practice question about warps|test me|some exam questions please|"
        "make me a quiz about tiling|quiz|考考我|给我出几道关于线程束的练习题|出一道题"
    ),
    "recall": (
        "what did I ask first?|What was my last question?|what have I asked so far?|我刚才问了什么？|"
        "repeat my last question"
    ),
    "shorter": (
        "shorter please|too long, in one sentence please|Summarize that in one sentence|can you make it shorter?|tl;dr|"
        "短一点|一句话总结|总结一下"
    ),
    "reword": (
        "simpler please|in Chinese please|explain it like I'm five|translate that into German|"
        "I don't understand|用中文|说简单点|can you explain that in simple terms?|auf Deutsch bitte|"
        "can you explain that better"
    ),
    "listing": (
        "show the code|give me an example|show me the code please|code?|for example?|代码呢？|举个例子|and the code?"
    ),
    "where": (
        "what page is that on?|which page?|and which chapter is it in?|where is that written?|"
        "where did you get that from?|sources?|show me the sources|where does it say that?|"
        "在哪一页？|出处？|这句话在第几页"
    ),
    "doubt": (
        "are you sure?|really?|that's wrong|that is not right|you are wrong|wrong answer|that is not what I asked|"
        "That doesn't answer my question|你确定吗？|不对|答非所问"
    ),
    "chapter": (
        "summarise chapter 5|What does chapter 8 cover?|第五章讲了什么？|what is in the last chapter?|"
        "chapter 12 summary|what does the chapter on streams cover?|总结第三章|and chapter 5?|Chapter 5"
    ),
    "library": "what is this book about?|summarise the book|这本书讲了什么|which books do you have?|有哪些书",
    "question": (
        "why?|and on AMD?|how do I query it?|What does chapter 5 say about bank conflicts?|什么是线程束|"
        "explain like I'm five: what is a GPU|thanks, and what is a warp?|"
        "show the code for the tiled matrix product|give me an example of a stencil|"
        "what is a summary statistic|What is shared memory about?|code coverage|"
        "translate cudaMemcpy to HIP|what is help in gdb|what does the book say about streams?|"
        "hi, what is a warp?|what is short-circuit evaluation|Explain warps in simple words|"
        "What is in shared memory?|is that true?|where is it stored?|which page size does the GPU use?|"
        "what is wrong with it?|which section explains streams?|where does the kernel run?|"
        "what are the sources of divergence?|哪一页内存被锁定|"
        "how do I test a kernel?|what is a unit test|"
        "测试一下我的核函数性能|出现问题|来看这个问题|test questions of the CUDA driver?"
    ),
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TALK.items() for text in texts.split("|")])
def test_only_a_message_that_is_nothing_else_is_talk(kind: str, text: str) -> None:
    assert message_kind(text) == kind


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("summarise chapter five", ChapterAsked(5)),
        ("第二十三章讲了什么", ChapterAsked(23)),
        ("第十章讲了什么", ChapterAsked(10)),
        ("summary of the third chapter", ChapterAsked(3)),
        ("overview of the 12th chapter", ChapterAsked(12)),
        ("what is in the last chapter?", ChapterAsked(-1)),
        ("what does the chapter on streams cover?", ChapterAsked(title="streams")),
    ],
)
def test_a_chapter_is_named_by_number_word_or_title(text: str, asked: ChapterAsked) -> None:
    assert chapter_asked(text) == asked


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("What is a warp? And how many threads does it have?", 2),
        ("1. What is a warp?\n2. What is a block?\n3) Why is a barrier needed?", 3),
        ("什么是线程束？它有多少线程？", 2),
        ("what is occupancy and how do I improve it", 2),
        ("what is occupancy and why shuld i care", 2),
        ("ok and how do I improve it?", 1),
        ("Why is it slow and how do I improve it?", 1),
        ("my kernel hangs, what's going on??", 1),
        ("What is a warp? I mean on AMD.", 1),
        ("It does this:\n1. load data\n2. compute\nwhy is it slow?", 1),
        ("```\na ? b : c;\n```\nWhat is a? What is b?", 1),
    ],
)
def test_several_questions_are_parted_and_other_texts_are_not(text: str, parts: int) -> None:
    assert len(parts_of(text)) == parts


def test_a_follow_up_is_about_the_newest_question_that_needs_no_other() -> None:
    turns = [Turn(text, "") for text in ("What is occupancy?", "thanks", "And what limits it?", "shorter please")]
    assert standing_question(turns, "why?") == "What is occupancy? And what limits it?"
    assert standing_question(turns, "and on AMD GPUs?") == standing_question(turns[:2], "why?") == "What is occupancy?"
    assert standing_question([Turn("hello", "Hello!")]) == ""
    query = prepare_query("why?", turns)
    assert query.english == "What is occupancy? And what limits it? why?" and query.text == "why?"
    assert any("earlier question" in note for note in query.notes)


def test_a_wish_for_simple_words_is_not_searched_for() -> None:
    assert without_style("explain like I'm five: what is a GPU") == "what is a GPU"
    assert without_style("like I'm five") == "like I'm five"


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("hello, what is a kernel?", "what is a kernel?"),
        ("Hi how do I launch it", "how do I launch it"),
        ("你好，什么是线程束？", "什么是线程束？"),
        ("hello world kernel", "hello world kernel"),
        ("wat is coalescing", "what is coalescing"),
        ("hidden latency", "hidden latency"),
    ],
)
def test_a_greeting_before_a_question_is_not_searched_for(typed: str, asked: str) -> None:
    assert without_greeting(typed) == asked


def test_one_line_of_code_is_code_where_the_rest_is_about_it() -> None:
    assert code_in("def f(x): return x\nwhat does this code do?") == ("what does this code do?", "def f(x): return x")
    assert code_in("What is a warp?\nreturn codes matter")[1] == ""


@pytest.mark.parametrize("hostile", [f"a{',' * 200_000}b", "(" * 200_000, f"x = {'(' * 200_000}", f"a{' ' * 200_000}b"])
def test_a_long_run_of_marks_is_read_in_no_time(hostile: str) -> None:
    """20,000 of them took seconds, in which nothing else ran; ten times as many, minutes."""
    started = time.process_time()
    assert message_kind(hostile) == "question"
    assert code_in(hostile) == (hostile, "")
    assert without_style(hostile) == hostile
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("y = f(x);", "y = f(x);"),
        ("dim3 grid = make(2) {", "dim3 grid = make(2) {"),
        ("and so on;", ""),
        ("a (b) c", ""),
    ],
)
def test_a_line_alone_is_code_where_it_assigns_or_calls_and_ends_as_code(line: str, code: str) -> None:
    assert code_in(line)[1] == code


def test_pasted_code_is_separated_from_prose() -> None:
    prose, code = code_in("what does this code do?\n__global__ void f(float* x) {\n  x[0] = 1;\n}")
    assert "__global__" in code and only_about_code(prose)
    assert code_in("What does depend(in: x) mean?")[1] == ""
    assert not only_about_code("why is the transpose slow on AMD")


SPELLING = FakeLibrary(
    [
        make_node(f"Memory coalescing needs aligned threads {i}; cudaMalloc allocates. Kokkos does too.", i)
        for i in range(3)
    ]
    + [make_node("The base number of steps is small. A prefix helps. Prefill the table. sinf is fast.", 9)]
)


def test_code_is_searched_for_by_the_names_that_the_library_holds() -> None:
    query = prepare_query("what does this do?\nfloat* p;\ncudaMalloc(&p, myBytes_of(n));\n", library=SPELLING)
    assert query.lexical == "cudaMalloc" and "cudaMalloc" in query.notes[0]
    assert query.text.startswith("what does this do?")


@pytest.mark.parametrize("asked", ["are there bank conflicts here?", "有没有存储体冲突？"])
def test_a_question_about_pasted_code_is_searched_for_by_its_own_words(asked: str) -> None:
    query = prepare_query(f"{asked}\nfloat* p;\ncudaMalloc(&p, myBytes_of(n));\n", library=SPELLING)
    assert "cudaMalloc" not in query.lexical + query.english
    assert "conflict" in query.english
    assert query.notes == ()


def test_a_name_pasted_on_one_line_stays_in_the_question() -> None:
    query = prepare_query("When is this needed?\n```cuda\ncudaMalloc(&p, n);\n```", library=SPELLING)
    assert query.lexical == "When is this needed? cudaMalloc"


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        ("which chapter talks about tiling", "What is tiling?"),
        ("Which section is about bank conflicts?", "What is bank conflicts?"),
        ("In which chapter is occupancy explained?", "What is occupancy?"),
        ("what should I read about synchronization", "What is synchronization?"),
        ("which section explains how to use streams", "how to use streams?"),
        ("哪一章讲线程束", "什么是线程束？"),
        ("哪一章讲如何使用流", "如何使用流？"),
        ("共享内存在哪一章？", "什么是共享内存？"),
        ("which chapters are long?", ""),
        ("what page size does CUDA use", ""),
        ("where is local memory stored", ""),
        ("What can I find in chapter 5?", ""),
    ],
)
def test_a_question_for_a_place_is_searched_for_as_one_for_what_stands_there(text: str, searched: str) -> None:
    assert looked_up(text) == searched
    assert prepare_query(text).standalone == (searched or text)


@pytest.mark.parametrize(
    ("pasted", "searched"),
    [
        ("1. How many threads has a warp?\n(a) 16 (b) 32 (c) 64", "How many threads has a warp?"),
        ("Q3: What is a warp?\nA. a unit\nB. a cable", "What is a warp?"),
        ("线程束有多少线程？ A. 16 B. 32", "线程束有多少线程？"),
        (
            "Which of the following is memory?\nA) a warp\nB) a cache",
            "Which of the following is memory?\nA) a warp\nB) a cache",
        ),
        ("2D grids: what are they?", "2D grids: what are they?"),
        ("Is it a) host or b) device code?", "Is it a) host or b) device code?"),
        ("Is plan A better than plan B?", "Is plan A better than plan B?"),
    ],
)
def test_an_exam_question_is_searched_for_without_number_and_options(pasted: str, searched: str) -> None:
    assert prepare_query(pasted).standalone == searched
    assert question_kind(pasted) == question_kind(searched)


@pytest.mark.parametrize(
    ("pasted", "options"),
    [
        ("1. How many threads has a warp?\n(a) 16 (b) 32 (c) 64", ("16", "32", "64")),
        ("What is a warp?\nA. a unit, i.e. threads\nB. a cable; C. both", ("a unit, i.e. threads", "a cable", "both")),
        ("线程束有多少线程？ A. 16 B、32；C：64", ("16", "32", "64")),
        ("Coalescing means that\nA) a\nB) b", ("a", "b")),
        ("Is it a) host or b) device code?", ()),
        ("What is plan A. Or B?", ()),
    ],
)
def test_options_of_an_exam_question_are_told_apart(pasted: str, options: tuple[str, ...]) -> None:
    assert options_of(pasted) == options


@pytest.mark.parametrize("nonsense", ["A." * 10_000, "?A. x " * 3_300, "\nA) " * 5_000])
def test_letters_without_end_are_read_in_no_time(nonsense: str) -> None:
    began = time.perf_counter()
    options_of(nonsense)
    assert time.perf_counter() - began < 0.5


def test_code_in_a_chinese_message_does_not_make_it_english() -> None:
    code = "\n".join(f"float value{number} = cudaMalloc(&pointer, bytes_of_{number});" for number in range(9))
    query = prepare_query(f"解释一下这段代码\n{code}", library=SPELLING)
    assert query.notes == ("按您代码中的名称搜索：cudaMalloc。",)
    assert asks_in_chinese(f"这个核函数为什么慢？\n{code}") and not asks_in_chinese(f"why is this slow?\n{code}")
    assert asks_in_chinese("int x = 1; // 第一个变量的值")


def test_a_very_long_text_is_searched_for_by_its_beginning() -> None:
    query = prepare_query("xqzv " * 4000, library=SPELLING)
    assert len(query.lexical) <= 2000 and "beginning" in query.notes[0]


def test_a_follow_up_to_a_question_for_a_place_is_about_what_stands_there() -> None:
    turns = [Turn("Which chapter talks about tiling?", "Tiling.")]
    query = prepare_query("why does it help?", turns, library=SPELLING)
    assert query.standalone == "why does tiling help?"


def test_of_a_very_long_earlier_question_the_beginning_is_searched_for() -> None:
    query = prepare_query("why?", [Turn("What makes memory slow? " + "xqzv " * 4000, "Banks.")], library=SPELLING)
    assert query.standalone.startswith("What makes memory slow?")
    assert len(query.lexical) < 2100 and len(query.notes[0]) < 2100
