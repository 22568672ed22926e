"""The comparison end to end over made-up records and a fake engine: planted faults must show."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeLibrary, hash_embed, make_node
from numpy.typing import NDArray

from evals.arms import GoldPassages, parse_arms
from evals.comparison import compare, compare_runs, verdict_sentence
from evals.question_checks import LeakageReport, check_leakage
from evals.questions import BankQuestion, parse_question
from evals.records import PassageRecord, Record, RecordFile
from evals.report import RunFacts, list_reports, read_report, report_data, write_report
from evals.run import Job, Runner, RunSpec, plan_jobs, unread_passages, without_likelihoods
from evals.scoring import fact_flow, score_records
from indexes.errors import Conflict, InvalidInput, NotFound
from rag.errors import ArmUnavailable, GenerationFailed
from rag.generators.protocol import ChoiceScores
from rag.retrieval import PassageBudget


def make_question(number: int, kind: str = "choice", *, seen: bool = False, answerable: bool = True) -> BankQuestion:
    record: dict[str, Any] = {
        "id": f"q{number:03}",
        "chapter": 1 + number % 3,
        "type": kind,
        "question": f"What is the value number {number} of the device called here?",
        "question_zh": f"第 {number} 个值是什么?",
        "answer": f"The value is item{number} for sure.",
        "key_facts": [f"item{number}"],
        "section": f"01.md#Part {number % 10}",
        "gold": [
            {"file": "01.md", "heading": f"Part {number % 10}", "part": 1, "evidence": f"item{number} stands here"}
        ],
        "seen": seen,
    }
    if kind == "choice":
        record |= {"choices": [f"item{number}", "other a", "other b", "other c"], "answer_index": 0}
    if not answerable:
        record |= {"answerable": False, "gold": [], "key_facts": [], "section": None}
    return parse_question(record, where="test:1")


QUESTIONS = [make_question(number) for number in range(60)]
SPEC = RunSpec(tuple(QUESTIONS), parse_arms(["base", "rag"]))


def records_of(arm: str, right: Sequence[bool], repetition: int = 0) -> list[Record]:
    return [
        Record(question.id, arm, repetition, "choice", picked=0 if is_right else 1, scores=(1.0, 0.0, 0.0, 0.0))
        for question, is_right in zip(QUESTIONS, right, strict=True)
    ]


def compared(**arms: Sequence[bool]) -> Any:
    records = [record for arm, right in arms.items() for record in records_of(arm.replace("_and_", "+"), right)]
    return compare(score_records(records, {question.id: question for question in QUESTIONS}))


def pattern(share: float, shift: int = 0) -> list[bool]:
    return [((number * 7 + shift) % 60) < 60 * share for number in range(60)]


def test_a_clear_gain_is_called_better_and_its_counts_are_by_hand() -> None:
    base, rag = pattern(0.25), pattern(0.8)
    result = compared(base=base, rag=rag)
    (comparison,) = result.comparisons
    assert (comparison.b, comparison.c) == (0, 33)
    assert comparison.difference == pytest.approx(33 / 60)
    assert comparison.verdict == "better"
    assert comparison.low > 0.3
    assert "+55.0 points" in verdict_sentence(result)


def test_a_small_difference_on_few_questions_is_inconclusive() -> None:
    result = compared(rag=pattern(0.7), rag_and_tuned=pattern(0.7, shift=8))
    assert result.comparisons[0].verdict == "cannot tell"


def test_equal_arms_are_the_same_within_the_smallest_effect() -> None:
    assert compared(rag=pattern(0.7), rag_and_tuned=pattern(0.7)).comparisons[0].verdict == "same"


def test_a_few_equal_answers_are_not_called_the_same() -> None:
    records = [record for arm in ("rag", "rag+tuned") for record in records_of(arm, pattern(0.7))]
    few = {question.id: question for question in QUESTIONS[:8]}
    result = compare(score_records([record for record in records if record.question_id in few], few))
    assert (result.comparisons[0].low, result.comparisons[0].high) == (0.0, 0.0)
    assert result.comparisons[0].verdict == "cannot tell"


def test_a_retriever_that_returns_noise_shows_as_no_better_than_random() -> None:
    result = compared(random=pattern(0.3), rag=pattern(0.3, shift=4), oracle=pattern(0.9))
    verdicts = {(c.control, c.treatment): c.verdict for c in result.comparisons}
    assert verdicts["random", "rag"] != "better"
    assert verdicts["rag", "oracle"] == "better"


def test_arms_outside_the_four_still_get_a_sentence() -> None:
    sentence = verdict_sentence(compared(rag=pattern(0.3), oracle=pattern(0.9)))
    assert "perfect passages over retrieved ones: +60.0 points" in sentence


def test_interaction_is_the_difference_of_differences() -> None:
    result = compared(base=pattern(0.25), tuned=pattern(0.5), rag=pattern(0.75), rag_and_tuned=pattern(0.8))
    assert result.interaction["accuracy"].value == pytest.approx((48 - 45) / 60 - (30 - 15) / 60)


def test_several_seeds_are_averaged_and_tested_without_mcnemar() -> None:
    records = records_of("base", pattern(0.25))
    for seed, share in enumerate((0.4, 0.6)):
        records += records_of("tuned", pattern(share), seed)
    result = compare(score_records(records, {question.id: question for question in QUESTIONS}))
    assert result.seeds == 2
    assert result.arms["tuned"].metrics["accuracy"].value == pytest.approx(0.5)
    assert result.comparisons[0].b is None
    assert "One tuning seed" not in verdict_sentence(result)


def test_a_failed_question_is_unscored_not_wrong() -> None:
    records = records_of("rag", pattern(1.0))
    records[0] = replace(records[0], picked=None, error="GenerationFailed: out of memory")
    arm = compare(score_records(records, {question.id: question for question in QUESTIONS})).arms["rag"]
    assert (arm.n, arm.unscored, arm.metrics["accuracy"].value) == (59, 1, 1.0)


def test_refusals_by_hand() -> None:
    questions = [make_question(number, "short", answerable=number in (1, 2)) for number in range(4)]
    records = [Record(q.id, "rag", 0, "open", answer="x", refused=number < 2) for number, q in enumerate(questions)]
    arm = compare(score_records(records, {question.id: question for question in questions})).arms["rag"]
    values = {name: arm.metrics[name].value for name in ("abstention_precision", "abstention_recall", "false_refusals")}
    assert values == {"abstention_precision": 0.5, "abstention_recall": 0.5, "false_refusals": 0.5}
    answered = [replace(records[1], refused=False)]
    assert (
        "abstention_precision"
        not in compare(score_records(answered, {questions[1].id: questions[1]})).arms["rag"].metrics
    )


def test_what_is_not_in_the_book_is_caught_by_refusing_or_by_a_warning() -> None:
    questions = [make_question(number, "short", answerable=number == 3) for number in range(5)]
    questions[4] = replace(questions[4], kind="off_topic")
    evidence = ["none", "weak", "strong", "weak", "weak"]
    records = [
        Record(question.id, "rag", 0, "open", answer="x", refused=number == 0, evidence=evidence[number])
        for number, question in enumerate(questions)
    ]
    arm = compare(score_records(records, {question.id: question for question in questions})).arms["rag"]
    assert arm.metrics["unanswerable_caught"].value == pytest.approx(2 / 3)
    assert arm.scored["unanswerable_caught"] == 3
    assert (arm.metrics["off_topic_refused"].value, arm.metrics["marked_weak"].value) == (0.0, 1.0)


def test_two_runs_are_compared_question_by_question() -> None:
    questions = {question.id: question for question in (make_question(number, "short") for number in range(6))}
    said = [Record(question.id, "rag", 0, "open", answer=question.answer) for question in questions.values()]
    before = [replace(record, answer="Nothing of it.") if number < 3 else record for number, record in enumerate(said)]
    found = compare_runs(score_records(before[:5], questions), score_records(said, questions))
    (facts,) = (one for one in found if one.metric == "key_fact_recall")
    assert (facts.n, facts.before, facts.after) == (5, pytest.approx(2 / 5), 1.0)
    assert facts.difference == pytest.approx(3 / 5)
    assert 0 <= facts.low < facts.difference < facts.high <= 1


def test_another_scoring_of_the_options_is_a_metric_of_its_own() -> None:
    question = QUESTIONS[0]
    extra = {"letters": (0.0, 1.0, 0.0, 0.0), "sum_logprob": (2.0, 1.0, 0.0, 0.0)}
    record = Record(question.id, "base", 0, "choice", picked=0, scores=(1.0, 0.0, 0.0, 0.0), extra=extra)
    (row,) = score_records([record], {question.id: question})
    names = ("accuracy", "accuracy_by_letter", "accuracy_sum_logprob")
    assert [row.metrics[name] for name in names] == [1.0, 0.0, 1.0]


def test_fact_flow_by_hand() -> None:
    question = make_question(5, "short")
    passage = PassageRecord("d", ("Part 5",), 1, "item5 stands here")
    empty = PassageRecord("d", ("Part 1",), 1, "nothing")
    cases = [("item5", passage), ("no", passage), ("item5", empty), ("no", empty)]
    records = [
        Record(question.id, "rag", number, "open", answer=answer, passages=(held,))
        for number, (answer, held) in enumerate(cases)
    ]
    rows = score_records(records, {question.id: question})
    assert list(fact_flow(rows).values()) == [1, 1, 1, 1]
    assert rows[0].metrics["recall_at_5"] == 1.0
    assert rows[2].metrics["recall_at_5"] == 0.0


# --- records


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    first = RecordFile(path, {"seed": 1})
    for record in records_of("rag", pattern(0.5))[:3]:
        first.append(record)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"question_id": "q00')  # the line that the kill cut
    again = RecordFile(path, {"seed": 1})
    assert len(again.records) == 3
    assert ("q002", "rag", 0, "choice") in again
    again.append(records_of("rag", pattern(0.5))[3])
    assert len(RecordFile(path, {"seed": 1}).records) == 4


def test_a_folder_of_another_run_is_refused_by_name_of_what_differs(tmp_path: Path) -> None:
    RecordFile(tmp_path / "records.jsonl", {"seed": 1, "arms": ["rag"]})
    with pytest.raises(Conflict, match="different: seed"):
        RecordFile(tmp_path / "records.jsonl", {"seed": 2, "arms": ["rag"]})


# --- running


class FakeEngine:
    """Picks the option that a passage names; fails on one question."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def search(self, query: str, top_k: int) -> tuple[Any, ...]:
        return ()

    def choose(self, text: str, choices: Sequence[str], arm: str, *, passages: Any = None, **_: Any) -> ChoiceScores:
        self.asked.append(tuple(choices))
        if "number 3 " in text:
            raise GenerationFailed("out of memory")
        context = " ".join(passage.text for passage in passages or ())
        return ChoiceScores(tuple(float(choice in context.split()) for choice in choices))


def gold_library() -> tuple[FakeLibrary, list[Any]]:
    nodes = [
        make_node(f"item{number} stands here", ordinal=number, heading_path=("Chapter", f"Part {number % 10}"))
        for number in range(60)
    ]
    return FakeLibrary(nodes), nodes


def test_oracle_reads_the_gold_and_random_never_does(tmp_path: Path) -> None:
    library, nodes = gold_library()
    gold = GoldPassages(library, nodes, PassageBudget(most=12, most_each=4))
    engine = FakeEngine()
    spec = RunSpec(tuple(QUESTIONS), parse_arms(["base", "oracle", "random"]))
    runner = Runner(engine, gold, spec, {})  # type: ignore[arg-type]  # only what the runner calls
    jobs = plan_jobs(spec, {}, frozenset())
    records = RecordFile(tmp_path / "r.jsonl", {})
    assert list(runner.run(jobs, records))[-1] == len(jobs) == 180
    result = compare(score_records(records.records, {question.id: question for question in QUESTIONS}))
    assert result.arms["oracle"].metrics["accuracy"].value == 1.0
    assert result.arms["oracle"].unscored == 1
    # Without its evidence every option scores alike and the first is taken, which is the right one here.
    assert all(record.scores == (0.0,) * 4 for record in records.records if record.arm == "random" and not record.error)
    before = len(engine.asked)
    assert list(runner.run(jobs, records))[-1] == 180
    assert len(engine.asked) == before, "what is there is not asked again"


def test_questions_asked_together_are_logged_in_their_order(tmp_path: Path) -> None:
    four = threading.Barrier(4, timeout=10)

    class Waits(FakeEngine):
        def choose(self, *args: Any, **more: Any) -> ChoiceScores:
            four.wait()
            return super().choose(*args, **more)

    library, nodes = gold_library()
    gold = GoldPassages(library, nodes, PassageBudget(most=12, most_each=4))
    spec = RunSpec(tuple(QUESTIONS[:20]), parse_arms(["oracle"]), together=4)
    records = RecordFile(tmp_path / "r.jsonl", {})
    runner = Runner(Waits(), gold, spec, {})  # type: ignore[arg-type]
    assert list(runner.run(plan_jobs(spec, {}, frozenset()), records)) == list(range(1, 21))
    assert [record.question_id for record in records.records] == [question.id for question in QUESTIONS[:20]]
    assert [record.picked for record in records.records if not record.error] == [0] * 19


def test_random_passages_do_not_reach_into_the_gold_section() -> None:
    library, nodes = gold_library()
    gold = GoldPassages(library, nodes, PassageBudget(most=200, most_each=24))
    question = make_question(5)
    texts = [passage.text for seed in range(200) for passage in gold.random(question, 5, seed)]
    assert max(len(text.split()) for text in texts) > 6, "passages reach past their node"
    assert not [text for text in texts if "item5 stands here" in text]


def test_passages_that_were_not_read_are_counted_and_reported(tmp_path: Path) -> None:
    class Short(FakeEngine):
        def choose(self, *args: Any, passages: Any = None, **more: Any) -> ChoiceScores:
            return replace(super().choose(*args, passages=passages[:1], **more), passages_used=1)

    library, nodes = gold_library()
    gold = GoldPassages(library, nodes, PassageBudget(most=12, most_each=4))
    spec = RunSpec(tuple(QUESTIONS[:1]), parse_arms(["random"]), top_k=3)
    runner = Runner(Short(), gold, spec, {})  # type: ignore[arg-type]
    records = RecordFile(tmp_path / "r.jsonl", {})
    list(runner.run(plan_jobs(spec, {}, frozenset()), records))
    assert [(len(record.passages), record.passages_left_out) for record in records.records] == [(1, 2)]
    said = "the model's context was too short in 1 of 1 prompts with passages: 2 of 3 passages were left out"
    assert unread_passages(records.records) == said
    rows = score_records(records.records, {question.id: question for question in QUESTIONS})
    assert [row.metrics["passages_left_out"] for row in rows] == [2.0]
    whole = [replace(record, passages_left_out=0) for record in records.records]
    assert unread_passages(whole) == unread_passages([]) == ""


def test_a_comparison_by_letters_alone_says_so() -> None:
    letters, likelihood = {"letters": (1.0, 0.0)}, {"sum_logprob": (-1.0, -2.0)}
    chosen = Record(QUESTIONS[0].id, "rag", 0, "choice", picked=0, scores=(1.0, 0.0))
    assert "letters chose" in without_likelihoods([replace(chosen, extra=letters)])
    assert without_likelihoods([replace(chosen, extra=letters | likelihood)]) == ""
    assert without_likelihoods([chosen]) == without_likelihoods([]) == "", "the bundled encoder has one score only"


def test_evidence_that_was_not_read_is_evidence_missed() -> None:
    record = Record(QUESTIONS[0].id, "rag", 0, "choice", picked=0, scores=(1.0, 0.0, 0.0, 0.0), passages_left_out=3)
    (row,) = score_records([record], {QUESTIONS[0].id: QUESTIONS[0]})
    assert row.metrics["recall_at_5"] == 0.0
    (closed,) = score_records([replace(record, passages_left_out=0)], {QUESTIONS[0].id: QUESTIONS[0]})
    assert closed.metrics.get("recall_at_5") is None


def test_four_cyclic_shifts_are_averaged_back_into_place(tmp_path: Path) -> None:
    library, nodes = gold_library()
    engine = FakeEngine()
    gold = GoldPassages(library, nodes, PassageBudget(most=12, most_each=4))
    spec = RunSpec(tuple(QUESTIONS[7:8]), parse_arms(["oracle"]), with_model=True, remote=True)
    runner = Runner(engine, gold, spec, {})  # type: ignore[arg-type]
    records = RecordFile(tmp_path / "r.jsonl", {})
    list(runner.run([Job(QUESTIONS[7], spec.arms[0], 0, "choice")], records))
    assert len({options[0] for options in engine.asked}) == 4
    assert records.records[0].scores == (1.0, 0.0, 0.0, 0.0)


def test_an_arm_that_cannot_run_stops_the_comparison(tmp_path: Path) -> None:
    class NoAdapter(FakeEngine):
        def choose(self, *_: Any, **__: Any) -> ChoiceScores:
            raise ArmUnavailable("no adapter")

    library, nodes = gold_library()
    spec = RunSpec(tuple(QUESTIONS[:1]), parse_arms(["tuned"]))
    runner = Runner(NoAdapter(), GoldPassages(library, nodes, PassageBudget()), spec, {})  # type: ignore[arg-type]
    with pytest.raises(ArmUnavailable):
        list(runner.run(plan_jobs(spec, {}, frozenset()), RecordFile(tmp_path / "r.jsonl", {})))


def test_an_unknown_arm_is_named() -> None:
    with pytest.raises(InvalidInput, match="'ragg'"):
        parse_arms(["rag", "ragg"])


# --- leakage


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    return hash_embed(list(texts))


@pytest.mark.parametrize(
    ("leaked", "check"),
    [
        (QUESTIONS[4].question, "exact"),
        (QUESTIONS[4].question.upper().replace("?", " !"), "normalized"),
        (f"Tell me now: {QUESTIONS[4].question[:60]} and so on", "8-gram"),
    ],
)
def test_a_leaked_question_is_found_and_withholds_the_verdict(leaked: str, check: str) -> None:
    report = check_leakage(["something else altogether", leaked], [], QUESTIONS[4:5], embed)
    assert [(leak.check, leak.question_id) for leak in report.leaks] == [(check, "q004")]
    rows = score_records(records_of("base", pattern(0.2)), {question.id: question for question in QUESTIONS})
    data = report_data(SPEC, facts(), compare(rows), rows, report)
    assert data["verdict"] is None
    assert "q004" in data["verdict_withheld"]


def test_a_shared_section_is_a_leak_unless_the_question_is_marked_seen() -> None:
    marked, unmarked = make_question(1, seen=True), make_question(11)
    report = check_leakage(["unrelated words"], ["01.md#Part 1"], [marked, unmarked], embed)
    assert [(leak.check, leak.question_id) for leak in report.leaks] == [("section", "q011")]
    assert (report.seen, report.unseen) == (1, 1)


# --- report


def facts() -> RunFacts:
    return RunFacts("2026-01-02T03:04:05+00:00", "encoder", "m", "e", 1, {"questions": "ab"}, {})


def clean() -> LeakageReport:
    return check_leakage(["unrelated words"], [], [], embed)


def test_the_report_has_its_three_forms_and_shows_text_as_text(tmp_path: Path) -> None:
    questions = {question.id: question for question in QUESTIONS}
    questions["q002"] = replace(questions["q002"], question="<script>alert(1)</script>")
    rows = score_records([*records_of("base", pattern(0.2)), *records_of("rag", pattern(0.9))], questions)
    data = report_data(SPEC, facts(), compare(rows), rows, clean())
    write_report(tmp_path / "one", data)
    page = (tmp_path / "one" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert data["verdict"] in page.replace("&#43;", "+")
    assert json.loads((tmp_path / "one" / "report.json").read_text(encoding="utf-8"))["arms"]["rag"]["n"] == 60
    assert [report["id"] for report in list_reports(tmp_path)] == ["one"]
    with pytest.raises(NotFound):
        read_report(tmp_path, "../one")


def test_the_report_withholds_its_verdict_without_a_leakage_check() -> None:
    rows = score_records(records_of("base", pattern(0.2)), {question.id: question for question in QUESTIONS})
    data = report_data(SPEC, facts(), compare(rows), rows, None)
    assert data["verdict"] is None
    assert "No verdict" in data["verdict_withheld"]
