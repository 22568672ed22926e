"""Laws of the glossary: what it holds, how it cuts a question, and which terms it names."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pytest

from indexes.words import CJK
from rag.wording import (
    KEY_TERMS,
    _load_table,
    cover,
    key_terms,
    load_glossary,
    note_on_english,
    translate_terms,
    unknown_nouns,
)

ROOT = Path(__file__).parents[2]
FIT_SETS = ROOT / "evals" / "question_sets" / "fit"
SAMPLE_BOOK = ROOT / "indexes" / "sample_book"


def test_next_to_nothing_of_students_questions_is_left_out() -> None:
    """At most 2 % of their characters, words of other subjects included."""
    runs = [
        run
        for path in FIT_SETS.glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
        for run in re.findall(f"[{CJK}]+", json.loads(line)["question_zh"])
    ]
    covered = sum(len(rendering.chinese) for run in runs for rendering in cover(run))
    assert covered / sum(map(len, runs)) >= 0.98


RENDERED = {
    "占用率": "occupancy",
    "快表": "TLB",
    "共享内存的存储体冲突": "shared memory bank conflict",
    "简述归约的优缺点": "summarize reduction advantages and disadvantages",
    "请列举三种内存": "list three memory",
    "cudaMalloc 分配 1024 字节魑魅": "cudaMalloc allocate 1024 byte",
    "用cudaMemcpy复制数据": "use cudaMemcpy copy data",
}


def test_the_longest_terms_are_rendered_as_books_have_them_and_unknown_characters_go() -> None:
    assert {chinese: translate_terms(chinese) for chinese in RENDERED} == RENDERED


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("为什么占用率会受到寄存器的影响？", {"占用率": "occupancy", "寄存器": "register"}),
        ("共享内存里的存储体冲突怎么避免？", {"共享内存": "shared memory", "存储体冲突": "bank conflict"}),
        *((text, {}) for text in ("What is a warp?", "为什么会这样？", "cudaMalloc 是什么？", "物流", "")),
    ],
)
def test_key_terms_are_those_of_the_subject_in_the_questions_order(text: str, terms: dict[str, str]) -> None:
    assert dict(key_terms(text)) == terms


def test_the_most_specific_key_terms_are_named() -> None:
    named = key_terms("线程束调度器、存储体冲突、寄存器溢出、合并访问和指针哪个重要？")
    assert len(named) == KEY_TERMS and ("指针", "pointer") not in named


def test_who_asks_in_chinese_is_told_that_the_books_are_english() -> None:
    asked = "为什么占用率会受到寄存器的影响？"
    assert note_on_english(asked, ["Registers limit it."]) == (
        "书是英文的；关键词：占用率 = occupancy，寄存器 = register。"
    )
    assert note_on_english("为什么会这样？", ["Registers limit it."]) == "书是英文的。"
    assert note_on_english(asked, ["Registers limit it.", "寄存器限制占用率。"]) is None
    assert note_on_english("What limits occupancy?", ["Registers limit it."]) is None
    assert note_on_english(asked, []) is None


def test_a_long_run_of_chinese_is_covered_in_little_memory() -> None:
    """What covers the longest question took a gigabyte: a copy of all before it for every character."""
    short = cover("什么是线程束")
    load_glossary()
    tracemalloc.start()
    covered = cover("什么是线程束" * 1000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert covered == short * 1000
    assert peak_bytes < 10e6


@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        ("怎么申请贷款？", ("贷款",)),
        ("天空为什么是蓝色的？", ("天空", "蓝色")),
        ("什么是共享内存的存储体冲突？", ()),
        ("这个核函数为什么还要等其他线程？", ()),
        ("What is a warp?", ()),
    ],
)
def test_nouns_that_the_glossary_lacks_are_known_as_such(question: str, unknown: tuple[str, ...]) -> None:
    assert unknown_nouns(question) == unknown


def test_no_word_stands_for_two_things() -> None:
    asked = [word.casefold() for words, _ in _load_table() for word in words]
    assert len(asked) == len(set(asked))
