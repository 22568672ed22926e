"""The report: what it leaves out and withholds, how it is shown later, and that a stranger can read it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.translation import report_in_chinese
from evals.arms import parse_arms
from evals.comparison import compare
from evals.question_checks import Leak, LeakageReport
from evals.questions import parse_question
from evals.records import PassageRecord, Record
from evals.report import (
    CHOSEN_BY,
    GUESSES,
    RunFacts,
    limits,
    list_reports,
    metric_notes,
    read_report,
    render,
    report_data,
    report_page,
    write_report,
)
from evals.run import RunSpec
from evals.scoring import Row, calibration_data, score_records
from indexes.errors import NotFound

QUESTION = parse_question(
    {
        "id": "q1", "type": "choice", "question": "How many threads are in a <warp>?", "answer": "32",
        "key_facts": ["32"], "choices": ["32", "16", "64", "8"], "answer_index": 0,
    },
    where="test:1",
)  # fmt: skip
RECORD = Record("q1", "rag", 0, "choice", picked=0, scores=(1.0, 0.0, 0.0, 0.0))
WRONG = replace(RECORD, arm="base", picked=1)
SPEC = RunSpec((QUESTION,), parse_arms(["base", "rag"]))
FACTS = RunFacts("2026-01-02T03:04:05+00:00", "encoder", "m", "e", 1, {}, {})
CLEAN = LeakageReport((), (), 1, 1, 0, 1, "", "")


def data_of(*records: Record, leakage: LeakageReport | None = CLEAN, **facts: Any) -> dict[str, Any]:
    rows = score_records(records, {"q1": QUESTION})
    return report_data(SPEC, replace(FACTS, **facts), compare(rows), rows, leakage)


def test_the_report_has_its_three_forms_and_shows_text_as_text(tmp_path: Path) -> None:
    data = data_of(WRONG, RECORD, quantization="q4_k")
    write_report(tmp_path / "one", data)
    page = (tmp_path / "one" / "report.html").read_text(encoding="utf-8")
    assert "a <warp>" not in page and "a &lt;warp&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert data["verdict"] in page.replace("&#43;", "+")
    assert data["asked"] == {"questions": 1, "choice": 1, "open": 0, "unanswerable": 0}
    assert data["verdict"] in (tmp_path / "one" / "report.md").read_text(encoding="utf-8")
    assert all("q4_k" in (tmp_path / "one" / f"report.{form}").read_text(encoding="utf-8") for form in ("html", "md"))
    assert json.loads((tmp_path / "one" / "report.json").read_text(encoding="utf-8")) == data
    (report,) = list_reports(tmp_path)
    assert (report["id"], report["choice_questions"], report["questions"]) == ("one", 1, "bank:test")
    assert [(c["control"], c["treatment"], c["difference"]) for c in report["comparisons"]] == [("base", "rag", 1.0)]
    with pytest.raises(NotFound):
        read_report(tmp_path, "../one")


def test_the_verdict_is_withheld_unless_the_questions_are_known_to_be_unseen() -> None:
    leaked = replace(CLEAN, leaks=(Leak("exact", "q1", "", ""),))
    for leakage in (None, leaked):
        data = data_of(WRONG, RECORD, leakage=leakage)
        assert data["verdict"] is None and data["verdict_withheld"]
    assert data_of(WRONG, RECORD)["verdict"]


def test_where_there_is_no_interval_the_report_shows_none() -> None:
    data = data_of(WRONG, RECORD)
    accuracy = data["arms"]["rag"]["metrics"]["accuracy"]
    assert (accuracy["value"], accuracy["low"], accuracy["high"]) == (1.0, None, None)
    for template in ("report.html.j2", "report.md.j2"):
        assert not re.search(r"nan|None|\[–", render(data, template))


def test_what_is_true_of_quotes_by_construction_is_left_out() -> None:
    passage = PassageRecord("d", ("Warps",), 1, "A warp has 32 threads.")
    record = replace(RECORD, mode="open", answer="A warp has 32 threads. [1]", passages=(passage,), tokens_per_s=7.0)
    written = data_of(record, generator="local")["arms"]["rag"]["metrics"]
    for quoted in (
        data_of(record, generator="extractive")["arms"]["rag"]["metrics"],
        data_of(replace(record, arm="quotes"), generator="local")["arms"]["quotes"]["metrics"],
    ):
        assert written.keys() - quoted.keys() == {
            "citation_recall",
            "citation_precision",
            "unsupported_terms",
            "tokens_per_s",
        }


def test_who_reads_the_headline_alone_learns_that_an_encoder_holds_no_facts(tmp_path: Path) -> None:
    near, letter = (data_of(WRONG, RECORD, picked_by={by: 2}) for by in ("similarity", "letter"))
    assert near["verdict"] == f"{GUESSES} {letter['verdict']}"
    for data in (near, letter):
        write_report(tmp_path, data)
        page = (tmp_path / "report.md").read_text(encoding="utf-8")
        assert all(f"- {limit}" in page for limit in limits(data))
        assert "| base | 0.0 %, n 1 |" in page and "base</text>" in (tmp_path / "arms.svg").read_text(encoding="utf-8")
    assert set(limits(near)) - set(limits(letter)) == {GUESSES}


def test_a_report_is_shown_as_it_was_written_and_an_older_one_without_its_page_too(tmp_path: Path) -> None:
    data = data_of(RECORD)
    write_report(tmp_path / "one", data)
    (tmp_path / "one" / "report.html").write_text("as written", encoding="utf-8")
    assert report_page(tmp_path, "one") == "as written"
    (tmp_path / "one" / "report.html").unlink()
    older = {name: value for name, value in data.items() if name != "judge"}
    (tmp_path / "one" / "report.json").write_text(json.dumps(older), encoding="utf-8")
    assert "<h1>" in report_page(tmp_path, "one")


def test_a_report_in_chinese_leaves_no_english_but_the_runs_own_words() -> None:
    refused = replace(RECORD, mode="open", answer="32", refused=True)
    kinds = dict.fromkeys(CHOSEN_BY, 1)
    data = data_of(WRONG, RECORD, refused, not_run={"open questions, arm tuned": "why"}, picked_by=kinds)
    verdict = (
        "In accuracy, tuning over the bare model: +1.0 points [0.0, 2.0], better; retrieving over the bare model: "
        "+1.0 points, cannot tell. One tuning seed: another tuning run may differ."
    )
    page = report_in_chinese(render(data | {"verdict": verdict}, "report.html.j2"))
    assert "How many threads are in a &lt;warp&gt;?" in page, "a question stays as it was asked"
    told = re.sub(r'(?s)<style>.*?</style>|<code>.*?</code>|<td class="text">.*?</td>', "", page)
    assert re.findall(r">[^<>]*?[a-z]{2,} [a-z]{2,} [a-z]{2,}[^<>]*<", told) == []
    texts = (text for note in metric_notes().values() for text in (note.group, note.label, note.meaning))
    shown = report_in_chinese("".join(f"<p>{text}</p>" for text in texts))
    assert [one for one in re.findall("<p>(.*?)</p>", shown) if one.isascii()] == ["MRR", "nDCG@5"]


def test_calibration_counts_answerable_questions_by_score_and_by_book() -> None:
    scores = {"a": [(0.95, True), (0.92, True), (0.15, False)], "b": [(0.55, False), (0.51, True), (0.12, False)]}
    rows = []
    for book, judged in scores.items():
        for score, answerable in judged:
            question = replace(QUESTION, id=f"{book}{score}", book=book, answerable=answerable)
            rows.append(Row(replace(RECORD, question_id=question.id, mode="open", evidence_score=score), question, {}))
    data = calibration_data(rows, {"strong": 0.8})
    assert data is not None
    whole = data["groups"]["all"]
    assert [(one["n"], one["answerable"]) for one in whole["bins"]] == [(2, 0.0), (2, 0.5), (2, 1.0)]
    assert whole["area"] == pytest.approx((3 + 3 + 2) / 9)
    assert {name: group["n"] for name, group in data["groups"].items()} == {"all": 6, "a": 3, "b": 3}
    assert calibration_data([replace(rows[0], record=RECORD)], {}) is None
    page = render(data_of(RECORD) | {"calibration": data}, "report.html.j2")
    assert page.count("evidence score</text>") == 3


def test_a_difference_from_an_earlier_run_is_in_the_unit_of_its_row() -> None:
    grown = {"before": 2**20, "after": 3 * 2**20, "difference": 2**21, "low": 2**20, "high": 3 * 2**20}
    row = grown | {"arm": "rag", "n": 2, "metric": "peak_memory_bytes"}
    page = render(data_of(RECORD) | {"against": {"run": "one", "differences": [row]}}, "report.md.j2")
    assert "1.0 → 3.0: +2.0 [+1.0, +3.0]" in page
