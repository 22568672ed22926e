"""What leaves: feedback as questions, runs for other tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ir_measures
from fakes import make_answer, make_passage

from evals.export import export_run, feedback_cases
from evals.questions import BankQuestion, chapter_titles, load_bank, load_questions, parse_question
from evals.records import PassageRecord, Record
from evals.scoring import score_records
from indexes.errors import InvalidInput
from indexes.jsonl import read_jsonl, to_jsonl
from rag.conversations import Feedback


def test_good_answers_become_references_and_bad_ones_need_a_comment(tmp_path: Path) -> None:
    passage = make_passage("A warp is a group of 32 threads.")
    ratings = {"a": ("up", ""), "b": ("down", ""), "c": ("down", "expected: A Book, page 3")}
    records = list(
        feedback_cases(
            (Feedback(id_, *rating, "2026-01-01"), make_answer(f"{passage.text} [1]", passage, id=id_))  # type: ignore[arg-type]
            for id_, rating in ratings.items()
        )
    )
    (tmp_path / "cases.jsonl").write_text(to_jsonl(records), encoding="utf-8")
    cases = load_questions(tmp_path / "cases.jsonl")
    assert [case.answer for case in cases] == [passage.text, "expected: A Book, page 3"]
    assert cases[0].gold[0].evidence == passage.text
    assert records[1]["rating"] == "down"


def bank_run() -> tuple[dict[str, BankQuestion], list[Record]]:
    """Three bank questions with one gold section each, found at ranks 1 and 3 and not at all."""
    one_section = [q for q in load_bank(split="test") if q.choices and len({g.heading for g in q.gold}) == 1][:3]
    chapter = chapter_titles()[1]
    noise = [PassageRecord("d", (chapter, heading), 1, "x") for heading in ("Vectors", "Nowhere", "Elsewhere")]
    records = []
    for question, rank in zip(one_section, (1, 3, None), strict=True):
        passages = list(noise)
        if rank is not None:
            found = PassageRecord("d", ("A title", question.gold[0].heading), question.chapter, "y")
            passages.insert(rank - 1, found)
        records.append(Record(question.id, "rag", 0, "choice", picked=0, scores=(1.0,) * 4, passages=tuple(passages)))
    return {question.id: question for question in one_section}, records


def test_an_exported_run_gives_the_same_numbers_in_ir_measures_and_holds_all_that_was_judged(tmp_path: Path) -> None:
    questions, records = bank_run()
    export_run(tmp_path, records, questions)
    header, *lines = (tmp_path / "qrels" / "test.tsv").read_text("utf-8").splitlines()
    judged = [line.split("\t") for line in lines]
    assert header == "query-id\tcorpus-id\tscore"
    qrels = [ir_measures.Qrel(query, section, int(score)) for query, section, score in judged]
    run = list(ir_measures.read_trec_run(str(tmp_path / "runs" / "rag.trec")))
    theirs = {metric.query_id: metric.value for metric in ir_measures.iter_calc([ir_measures.R @ 5], qrels, run)}
    ours = {row.question.id: row.metrics["recall_at_5"] for row in score_records(records, questions)}
    assert theirs == ours
    assert sorted(ours.values()) == [0.0, 1.0, 1.0]  # type: ignore[type-var]
    rows = {
        name: [row for _, row in read_jsonl(tmp_path / f"{name}.jsonl", InvalidInput)] for name in ("corpus", "queries")
    }
    assert {section for _, section, _ in judged} <= {row["_id"] for row in rows["corpus"]}
    assert {row["_id"]: row["text"] for row in rows["queries"]} == {q.id: q.question for q in questions.values()}


def test_choice_samples_are_exported_for_any_questions(tmp_path: Path) -> None:
    own = parse_question(
        {"question": "Which?", "answer": "b", "choices": ["a", "b", "c", "d"], "answer_index": 1}, where="mine:1"
    )
    record = Record(own.id, "base", 0, "choice", picked=1, scores=(0.1, 0.9, 0.2, 0.3))
    export_run(tmp_path, [record, replace(record, arm="rag", error="out of memory")], {own.id: own})
    ((_, sample),) = read_jsonl(tmp_path / "samples.jsonl", InvalidInput)
    assert (sample["doc_id"], sample["target"], sample["acc"]) == ("mine:1", 1, 1.0)
    assert sample["filtered_resps"] == [0.1, 0.9, 0.2, 0.3]
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]
