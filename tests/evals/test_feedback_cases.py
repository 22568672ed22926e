"""Feedback becomes cases that the question reader takes."""

from __future__ import annotations

import json
from pathlib import Path

from fakes import make_passage

from evals.feedback_cases import feedback_cases
from evals.questions import load_questions
from rag.citations import resolve
from rag.conversations import Feedback
from rag.types import Answer, Timings, Usage


def answer(answer_id: str) -> Answer:
    passage = make_passage("A warp is a group of 32 threads.")
    text = "A warp is a group of 32 threads. [1]"
    return Answer(
        id=answer_id, conversation_id="", question="What is a warp?", answer=text, refused=False, arm="rag",
        generator="scripted", model="script", adapter=None, citations=resolve(text, [passage]), passages=(passage,),
        timings=Timings(), usage=Usage(), tokens_per_s=0.0, peak_memory_bytes=0,
    )  # fmt: skip


def test_good_answers_are_references_and_bad_ones_need_a_comment(tmp_path: Path) -> None:
    given = [
        (Feedback("a", "up", "", "2026-01-01"), answer("a")),
        (Feedback("b", "down", "", "2026-01-01"), answer("b")),
        (Feedback("c", "down", "expected: A Book, page 3", "2026-01-01"), answer("c")),
    ]
    lines = list(feedback_cases(given))
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    cases = load_questions(path)
    assert [case.answer for case in cases] == ["A warp is a group of 32 threads.", "expected: A Book, page 3"]
    assert cases[0].gold[0].evidence == "A warp is a group of 32 threads."
    assert json.loads(lines[1])["rating"] == "down"
