"""The report: what it leaves out, how it is shown later, and that a stranger can read it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from evals.arms import parse_arms
from evals.comparison import compare
from evals.plots import ScatterPoint, arms_plot, scatter_plot, together
from evals.questions import parse_question
from evals.records import Record
from evals.report import (
    METRIC_GROUPS,
    RunFacts,
    _difference_cell,
    list_reports,
    render,
    report_data,
    report_page,
    write_report,
)
from evals.report_chinese import in_chinese
from evals.run import RunSpec
from evals.scoring import Row, calibration_data, score_records

QUESTION = parse_question(
    {
        "id": "q1",
        "type": "choice",
        "question": "How many threads are in a warp?",
        "answer": "32",
        "key_facts": ["32"],
        "choices": ["32", "16", "64", "8"],
        "answer_index": 0,
    },
    where="test:1",
)
RECORD = Record("q1", "rag", 0, "choice", picked=0, scores=(1.0, 0.0, 0.0, 0.0))
SPEC = RunSpec((QUESTION,), parse_arms(["base", "rag"]))
FACTS = RunFacts("2026-01-02T03:04:05+00:00", "encoder", "m", "e", 1, {}, {})


def scored(record: Record) -> list[Row]:
    return score_records([record], {"q1": QUESTION})


def test_what_says_nothing_of_a_generator_is_left_out() -> None:
    rows = scored(replace(RECORD, mode="open", answer="32", tokens_per_s=70_000.0))
    quoted = report_data(SPEC, replace(FACTS, generator="extractive"), compare(rows), rows, None)
    written = report_data(SPEC, replace(FACTS, generator="local"), compare(rows), rows, None)
    left_out = {"tokens_per_s", "prompt_tokens"}
    assert not left_out & set(quoted["arms"]["rag"]["metrics"])
    assert "tokens_per_s" in written["arms"]["rag"]["metrics"]


def test_a_report_is_shown_as_it_was_written_and_an_older_one_without_its_page_too(tmp_path: Path) -> None:
    rows = scored(RECORD)
    data = report_data(SPEC, FACTS, compare(rows), rows, None)
    write_report(tmp_path / "one", data)
    (tmp_path / "one" / "report.html").write_text("as written", encoding="utf-8")
    assert report_page(tmp_path, "one") == "as written"
    (tmp_path / "one" / "report.html").unlink()
    older = {name: value for name, value in data.items() if name != "judge"}
    (tmp_path / "one" / "report.json").write_text(json.dumps(older), encoding="utf-8")
    page = report_page(tmp_path, "one")
    assert "How well does rag answer?" in page and "What each step gains" not in page


def test_a_report_in_chinese_leaves_no_english_but_the_runs_own_words(tmp_path: Path) -> None:
    rows = score_records([replace(RECORD, arm="base", picked=1), RECORD], {"q1": QUESTION})
    rows += scored(replace(RECORD, mode="open", answer="32", refused=True))
    data = report_data(SPEC, replace(FACTS, not_run={"open questions, arm tuned": "why"}), compare(rows), rows, None)
    verdict = (
        "In accuracy, tuning over the bare model: +1.0 points [0.0, 2.0], better. "
        "One tuning seed: another tuning run may differ."
    )
    page = in_chinese(render(data | {"verdict": verdict}, "report.html.j2"))
    assert "正确率：微调，相对于只用模型：+1.0 个百分点 [0.0, 2.0]，更好。只用了一个微调种子" in page
    assert "How many threads are in a warp?" in page, "a question stays as it was asked"
    told = re.sub(r'(?s)<style>.*?</style>|<code>.*?</code>|<td class="text">.*?</td>', "", page)
    assert re.findall(r">[^<>]*?[a-z]{2,} [a-z]{2,} [a-z]{2,}[^<>]*<", told) == []
    notes = [note for _, group in METRIC_GROUPS for note in group]
    shown = in_chinese("".join(f"<p>{text}</p>" for note in notes for text in (note.label, note.meaning)))
    assert [one for one in re.findall("<p>(.*?)</p>", shown) if one.isascii()] == ["MRR", "nDCG@5"]


def test_every_metric_of_the_report_is_explained_once() -> None:
    notes = [note for _, group in METRIC_GROUPS for note in group]
    assert len({note.name for note in notes}) == len(notes)
    assert all(note.label and note.meaning.endswith(".") for note in notes)


def test_labels_of_arms_with_like_speed_do_not_lie_on_each_other() -> None:
    points = [ScatterPoint(name, 20.0 + shift, 0.6, 0.5, 0.7) for shift, name in enumerate("abcd")]
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="note">', scatter_plot(points, "x", "y"))
    heights = sorted(float(y) for _, y in places)
    assert len(heights) == 4
    assert min(later - earlier for earlier, later in pairwise(heights)) > 14


def test_calibration_counts_answerable_questions_by_score_and_by_book(tmp_path: Path) -> None:
    scores = {"a": [(0.95, True), (0.92, True), (0.15, False)], "b": [(0.55, False), (0.51, True), (0.12, False)]}
    rows = []
    for book, judged in scores.items():
        for number, (score, answerable) in enumerate(judged):
            question = replace(QUESTION, id=f"{book}{number}", book=book, answerable=answerable)
            rows.append(Row(replace(RECORD, question_id=question.id, mode="open", evidence_score=score), question, {}))
    data = calibration_data(rows, {"strong": 0.8})
    assert data is not None
    whole = data["groups"]["all"]
    assert [(one["n"], one["answerable"]) for one in whole["bins"]] == [(2, 0.0), (2, 0.5), (2, 1.0)]
    assert whole["area"] == pytest.approx((3 + 3 + 2) / 9)
    assert {name: group["n"] for name, group in data["groups"].items()} == {"all": 6, "a": 3, "b": 3}
    assert calibration_data([replace(rows[0], record=RECORD)], {}) is None
    written = report_data(SPEC, FACTS, compare(scored(RECORD)), rows, None)
    write_report(tmp_path, written)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("evidence score</text>") == 3
    assert "area under the curve 0.889" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_list_names_the_steps_in_accuracy(tmp_path: Path) -> None:
    rows = score_records([replace(RECORD, arm="base", picked=1), RECORD], {"q1": QUESTION})
    write_report(tmp_path / "one", report_data(SPEC, FACTS, compare(rows), rows, None))
    (report,) = list_reports(tmp_path)
    assert report["choice_questions"] == 1
    assert report["questions"] == "bank:test"
    assert [(step["control"], step["treatment"]) for step in report["comparisons"]] == [("base", "rag")]
    assert report["comparisons"][0]["difference"] == 1.0


def test_a_reports_arms_are_drawn_alone_with_their_intervals() -> None:
    share = {"value": 0.5, "low": 0.25, "high": 0.75}
    arms = {"base": {"metrics": {"accuracy": share}}, "rag": {"metrics": {"accuracy": share | {"value": None}}}}
    drawn = arms_plot({"arms": arms}, {"accuracy": "right <options>", "missing": "not drawn"})
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "right &lt;options&gt;" in drawn
    assert "not drawn" not in drawn
    assert drawn.count("<circle") == 1  # nothing is drawn where nothing was scored
    assert '<line x1="247.5" y1="51.0" x2="522.5" y2="51.0" class="whisker"/>' in drawn


def test_several_reports_are_drawn_as_one_and_what_one_did_not_score_stays() -> None:
    share = {"value": 0.5, "low": 0.25, "high": 0.75}
    unscored = share | {"value": None}
    choices = {"arms": {"rag": {"metrics": {"accuracy": share}}}}
    opened = {"arms": {"rag": {"metrics": {"accuracy": unscored, "key_fact_recall": share}}}}
    assert together([("", choices), ("", opened), ("quoting", opened)])["arms"] == {
        "rag": {"metrics": {"accuracy": share, "key_fact_recall": share}},
        "quoting": {"metrics": {"key_fact_recall": share}},
    }


def test_a_difference_from_an_earlier_run_is_in_the_unit_of_its_row() -> None:
    grown = {
        "metric": "peak_memory_bytes",
        "before": 2**20,
        "after": 3 * 2**20,
        "difference": 2**21,
        "low": 0,
        "high": 0,
    }
    assert _difference_cell(grown).startswith("1.0 → 3.0: +2.0")
