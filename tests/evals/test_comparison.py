"""The comparison end to end over made-up records and a scripted engine: planted faults must show."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import hash_embed, section

from evals.arms import GoldPassages, parse_arms
from evals.comparison import compare, compare_runs, verdict_sentence
from evals.question_checks import check_leakage
from evals.questions import BankQuestion, parse_question
from evals.records import PassageRecord, Record, RecordFile, read_records
from evals.run import RECENT, Runner, RunSpec, plan_jobs, seconds_left, unread_passages
from evals.scoring import Row, fact_flow, score_records
from indexes.errors import Conflict
from indexes.library import Library
from rag.errors import GenerationFailed
from rag.generators.protocol import ChoiceScores
from rag.retrieval import PassageBudget


def make_question(number: int, kind: str = "choice", *, seen: bool = False, answerable: bool = True) -> BankQuestion:
    heading = f"Part {number % 10}"
    record: dict[str, Any] = {
        "id": f"q{number:03}", "type": kind, "seen": seen,
        "question": f"What is the value number {number} of the device called here?",
        "answer": f"The value is item{number} for sure.", "key_facts": [f"item{number}"],
        "section": f"01.md#{heading}",
        "gold": [{"file": "01.md", "heading": heading, "part": 1, "evidence": f"item{number} stands here"}],
    }  # fmt: skip
    if kind == "choice":
        record |= {"choices": [f"item{number}", "other a", "other b", "other c"], "answer_index": 0}
    if not answerable:
        record |= {"answerable": False, "gold": [], "key_facts": [], "section": None}
    return parse_question(record, where="test:1")


QUESTIONS = [make_question(number) for number in range(60)]
FIRST = Record(QUESTIONS[0].id, "rag", 0, "choice", picked=0, scores=(1.0, 0.0, 0.0, 0.0))


def scored(records: Sequence[Record], questions: Sequence[BankQuestion] = QUESTIONS) -> list[Row]:
    return score_records(records, {question.id: question for question in questions})


def records_of(arm: str, right: Sequence[bool], repetition: int = 0) -> list[Record]:
    return [
        Record(question.id, arm, repetition, "choice", picked=0 if is_right else 1, scores=(1.0, 0.0, 0.0, 0.0))
        for question, is_right in zip(QUESTIONS, right, strict=True)
    ]


def values_of(rows: list[Row], *names: str) -> tuple[float | None, ...]:
    """The metrics of the arm `rag`."""
    return tuple(compare(rows).arms["rag"].metrics[name].value for name in names)


def compared(questions: Sequence[BankQuestion] = QUESTIONS, /, **arms: Sequence[bool]) -> Any:
    records = [record for arm, right in arms.items() for record in records_of(arm.replace("_and_", "+"), right)]
    return compare(scored(records, questions))


def pattern(share: float, shift: int = 0) -> list[bool]:
    return [((number * 7 + shift) % 60) < 60 * share for number in range(60)]


def test_a_clear_gain_is_called_better_and_its_counts_are_by_hand() -> None:
    result = compared(base=pattern(0.25), rag=pattern(0.8))
    (comparison,) = result.comparisons
    assert (comparison.b, comparison.c) == (0, 33)
    assert comparison.difference == pytest.approx(33 / 60)
    assert comparison.verdict == "better"
    assert comparison.low > 0.3
    assert "+55.0 points" in verdict_sentence(result)


def test_a_difference_is_only_called_what_the_questions_can_show() -> None:
    same, shifted = pattern(0.7), pattern(0.7, shift=8)
    assert compared(rag=same, rag_and_tuned=shifted).comparisons[0].verdict == "cannot tell"
    assert compared(rag=same, rag_and_tuned=same).comparisons[0].verdict == "same"
    (few,) = compared(QUESTIONS[:8], rag=same, rag_and_tuned=same).comparisons
    assert (few.low, few.high, few.verdict) == (0.0, 0.0, "cannot tell")


def test_questions_on_one_section_give_no_interval_and_no_verdict() -> None:
    (comparison,) = compared(QUESTIONS[::10], base=[False] * 60, rag=[True] * 60).comparisons
    assert (comparison.n, comparison.difference, comparison.p, comparison.verdict) == (6, 1.0, 2 / 2**6, "cannot tell")
    assert comparison.low != comparison.low


def test_interaction_is_the_difference_of_differences() -> None:
    result = compared(base=pattern(0.25), tuned=pattern(0.5), rag=pattern(0.75), rag_and_tuned=pattern(0.8))
    assert result.interaction["accuracy"].value == pytest.approx((48 - 45) / 60 - (30 - 15) / 60)


def test_several_seeds_are_averaged_and_tested_without_mcnemar() -> None:
    records = records_of("base", pattern(0.25))
    for seed, share in enumerate((0.4, 0.6)):
        records += records_of("tuned", pattern(share), seed)
    result = compare(scored(records))
    assert result.seeds == 2
    assert result.arms["tuned"].metrics["accuracy"].value == pytest.approx(0.5)
    assert result.comparisons[0].b is None


def test_a_failed_question_is_unscored_not_wrong() -> None:
    records = records_of("rag", pattern(1.0))
    records[0] = replace(records[0], picked=None, error="GenerationFailed: out of memory")
    arm = compare(scored(records)).arms["rag"]
    assert (arm.n, arm.unscored, arm.metrics["accuracy"].value) == (59, 1, 1.0)


def test_refusals_by_hand() -> None:
    questions = [make_question(number, "short", answerable=number in (1, 2)) for number in range(4)]
    rows = scored(
        [Record(q.id, "rag", 0, "open", answer="x", refused=number < 2) for number, q in enumerate(questions)],
        questions,
    )
    assert values_of(rows, "abstention_precision", "abstention_recall", "false_refusals") == (0.5, 0.5, 0.5)
    assert "abstention_precision" not in compare(rows[2:]).arms["rag"].metrics, "nothing was refused"


def test_what_is_not_in_the_book_is_caught_by_refusing_or_by_a_warning() -> None:
    questions = [make_question(number, "short", answerable=number == 3) for number in range(5)]
    questions[4] = replace(questions[4], kind="off_topic")
    evidence = ["none", "weak", "strong", "weak", "weak"]
    rows = scored(
        [
            Record(question.id, "rag", 0, "open", answer="x", refused=found == "none", evidence=found)
            for question, found in zip(questions, evidence, strict=True)
        ],
        questions,
    )
    assert values_of(rows, "unanswerable_caught", "off_topic_refused", "marked_weak") == (pytest.approx(2 / 3), 0, 1)


def test_two_runs_are_compared_question_by_question() -> None:
    questions = [make_question(number, "short") for number in range(6)]
    said = [Record(question.id, "rag", 0, "open", answer=question.answer) for question in questions]
    before = [replace(record, answer="Nothing of it.") if number < 3 else record for number, record in enumerate(said)]
    found = compare_runs(scored(before[:5], questions), scored(said, questions))
    (facts,) = (one for one in found if one.metric == "key_fact_recall")
    assert (facts.n, facts.before, facts.after) == (5, pytest.approx(2 / 5), 1.0)
    assert facts.difference == pytest.approx(3 / 5)
    assert 0 <= facts.low < facts.difference < facts.high <= 1


def test_another_scoring_of_the_options_is_a_metric_of_its_own() -> None:
    extra = {"letters": FIRST.scores, "likelihood": (0.0, 1.0, 0.0, 0.0)}
    (row,) = scored([replace(FIRST, extra=extra)])
    names = ("accuracy", "accuracy_by_letter", "accuracy_by_likelihood")
    assert [row.metrics.get(name) for name in names] == [1.0, None, 0.0], "what decides is not told twice"


def test_fact_flow_by_hand_and_evidence_that_was_not_read_is_missed() -> None:
    question = make_question(5, "short")
    passage = PassageRecord("d", ("Part 5",), 1, "item5 stands here")
    empty = PassageRecord("d", ("Part 1",), 1, "nothing")
    cases = [("item5", passage), ("no", passage), ("item5", empty), ("no", empty)]
    records = [
        Record(question.id, "rag", n, "open", answer=said, passages=(held,)) for n, (said, held) in enumerate(cases)
    ]
    rows = scored(records, [question])
    assert list(fact_flow(rows).values()) == [1, 1, 1, 1]
    unread, closed = scored([replace(FIRST, passages_left_out=3), FIRST])
    recalls = [row.metrics.get("recall_at_5") for row in (rows[0], rows[2], unread, closed)]
    assert recalls == [1.0, 0.0, 0.0, None]


# --- records


def test_a_killed_run_goes_on_where_it_stopped_and_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    path, records = tmp_path / "records.jsonl", records_of("rag", pattern(0.5))[:4]
    first = RecordFile(path, {"seed": 1, "arms": ["rag"]})
    for record in records[:3]:
        first.append(record)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"question_id": "q00')  # the line that the kill cut
    again = RecordFile(path, {"seed": 1, "arms": ["rag"]})
    assert again.records == records[:3]
    assert ("q002", "rag", 0, "choice") in again
    again.append(records[3])
    assert RecordFile(path, {"seed": 1, "arms": ["rag"]}).records == records
    with pytest.raises(Conflict, match="different: seed"):
        RecordFile(path, {"seed": 2, "arms": ["rag"]})


def test_arms_are_added_to_a_run_that_has_ended_but_no_other_adapter_under_their_name(tmp_path: Path) -> None:
    path, record = tmp_path / "records.jsonl", records_of("rag", pattern(0.5))[0]
    RecordFile(path, {"seed": 1, "arms": ["rag"], "adapters": {}}).append(record)
    more = {"seed": 1, "arms": ["rag", "tuned"], "adapters": {"tuned": ["a"]}}
    added = RecordFile(path, more)
    assert added.records == [record]
    added.append(replace(record, arm="tuned"))
    whole = path.read_bytes()
    assert len(RecordFile(path, more).records) == len(RecordFile(path, more | {"arms": ["tuned"]}).records) == 2
    assert len(read_records(tmp_path)) == 2
    with pytest.raises(Conflict, match="different: adapters"):
        RecordFile(path, more | {"adapters": {"tuned": ["b"]}})
    assert path.read_bytes().startswith(whole)


# --- running


class Engine:
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


@pytest.fixture(scope="module")
def library(library_of: Any) -> Library:
    """A book in which the sixty items stand in ten sections, six in each, between sections of other text."""
    sections = []
    for number in range(10):
        items = " ".join(f"item{number + tens} stands here." for tens in range(0, 60, 10))
        sections.append(section(items, "Chapter", f"Part {number}"))
        sections += [section(f"Other text of {number}{x}.", "Chapter", f"Other {number}{x}") for x in "abcdefghij"]
    return library_of(*sections)


def gold_passages(library: Library, most: int = 60, most_each: int = 20) -> GoldPassages:
    return GoldPassages(library, library.nodes_of("book"), PassageBudget(most=most, most_each=most_each))


def ran(engine: Engine, spec: RunSpec, library: Library, folder: Path) -> list[Record]:
    """The records of a run in `folder`."""
    records = RecordFile(folder / "r.jsonl", {})
    runner = Runner(engine, gold_passages(library), spec, {})  # type: ignore[arg-type]  # only what the runner calls
    jobs = plan_jobs(spec, {}, frozenset())
    assert list(runner.run(jobs, records))[-1] == len(jobs)
    return records.records


def test_oracle_reads_the_gold_and_random_never_does(library: Library, tmp_path: Path) -> None:
    engine, spec = Engine(), RunSpec(tuple(QUESTIONS), parse_arms(["base", "oracle", "random"]))
    records = ran(engine, spec, library, tmp_path)
    assert len(records) == 180
    oracle = compare(scored(records)).arms["oracle"]
    assert (oracle.metrics["accuracy"].value, oracle.unscored) == (1.0, 1)
    # Without its evidence every option scores alike and the first is taken, which is the right one here.
    assert all(record.scores == (0.0,) * 4 for record in records if record.arm == "random" and not record.error)
    before = len(engine.asked)
    assert ran(engine, spec, library, tmp_path) == records
    assert len(engine.asked) == before, "what is there is not asked again"


def test_questions_asked_together_are_logged_in_their_order(library: Library, tmp_path: Path) -> None:
    four = threading.Barrier(4, timeout=10)

    class Waits(Engine):
        def choose(self, *args: Any, **more: Any) -> ChoiceScores:
            four.wait()
            return super().choose(*args, **more)

    records = ran(Waits(), RunSpec(tuple(QUESTIONS[:20]), parse_arms(["oracle"]), together=4), library, tmp_path)
    assert [record.question_id for record in records] == [question.id for question in QUESTIONS[:20]]
    assert [record.picked for record in records if not record.error] == [0] * 19


def test_random_passages_do_not_reach_into_the_gold_section(library: Library) -> None:
    gold = gold_passages(library, most=200, most_each=24)
    texts = [passage.text for seed in range(50) for passage in gold.random(make_question(5), 5, seed)]
    assert any(text.count("Other text") > 1 for text in texts), "passages reach past their node"
    assert not [text for text in texts if "item5 stands here" in text]


def test_passages_that_were_not_read_are_counted_and_reported(library: Library, tmp_path: Path) -> None:
    class Short(Engine):
        def choose(self, *args: Any, passages: Any = None, **more: Any) -> ChoiceScores:
            return replace(super().choose(*args, passages=passages[:1], **more), passages_used=1)

    records = ran(Short(), RunSpec(tuple(QUESTIONS[:1]), parse_arms(["random"]), top_k=3), library, tmp_path)
    assert [(len(record.passages), record.passages_left_out) for record in records] == [(1, 2)]
    assert "1 of 1 prompts" in unread_passages(records) and "2 of 3 passages" in unread_passages(records)
    assert [row.metrics["passages_left_out"] for row in scored(records)] == [2.0]
    assert unread_passages([replace(record, passages_left_out=0) for record in records]) == ""


@pytest.mark.parametrize("small", [False, True])
def test_letters_are_asked_for_in_every_order_and_decide_unless_the_model_is_small(
    library: Library, tmp_path: Path, small: bool
) -> None:
    class Letters(Engine):
        """Likes the first letter, and the right option a little."""

        def choose(self, text: str, choices: Sequence[str], *args: Any, **more: Any) -> ChoiceScores:
            near = super().choose(text, choices, *args, **more).scores
            letters = tuple(value + 2.0 * (place == 0) for place, value in enumerate(near))
            return ChoiceScores(letters, extra={"likelihood": tuple(float(-n) for n in range(4))}, small=small)

    engine = Letters()
    spec = RunSpec((replace(QUESTIONS[7], choices=("a", "b", "item7", "c")),), parse_arms(["oracle"]), with_model=True)
    (record,) = ran(engine, spec, library, tmp_path)
    if small:
        assert (record.picked, record.picked_by, len(engine.asked)) == (0, "likelihood", 1)
        assert record.extra["letters"] == (2.0, 0.0, 1.0, 0.0)
    else:
        assert (record.picked, record.picked_by) == (2, "letter")
        assert record.scores == (0.5, 0.5, 1.5, 0.5)
        assert {options[0] for options in engine.asked} == {"a", "b", "item7", "c"}


def test_what_is_left_is_told_once_every_arm_was_asked_in_every_way(library: Library, tmp_path: Path) -> None:
    questions = (*QUESTIONS[:2], make_question(2, "short"), make_question(3, "short"))
    spec = RunSpec(questions, parse_arms(["base", "rag"]), together=2, opened=frozenset({"q003"}))
    jobs, records = plan_jobs(spec, {}, frozenset({"base", "rag"})), RecordFile(tmp_path / "r.jsonl", {})
    assert [(job.question.id, job.mode) for job in jobs[::2]] == [
        ("q003", "open"),
        ("q000", "choice"),
        ("q001", "choice"),
    ]
    for job, total_s in zip(jobs[:4], (2.0, 4.0, 3.0, 8.0), strict=True):
        assert seconds_left(spec, jobs, records) is None
        records.append(Record(*job.key, total_s=total_s))
    assert seconds_left(spec, jobs, records) == (3.0 + 8.0) / 2, "two at a time"
    for number in range(RECENT):
        records.append(Record(f"x{number}", "base", 0, "choice", total_s=1.0))
    assert seconds_left(spec, jobs, records) == (1.0 + 8.0) / 2, "as long as the last ones"


# --- leakage


@pytest.mark.parametrize(
    ("leaked", "check"),
    [
        (QUESTIONS[4].question, "exact"),
        (QUESTIONS[4].question.upper().replace("?", " !"), "normalized"),
        (f"Tell me now: {QUESTIONS[4].question[:60]} and so on", "8-gram"),
    ],
)
def test_a_leaked_question_is_found(leaked: str, check: str) -> None:
    report = check_leakage(["something else altogether", leaked], [], QUESTIONS[4:5], hash_embed)
    assert [(leak.check, leak.question_id) for leak in report.leaks] == [(check, "q004")]


def test_a_shared_section_is_a_leak_unless_the_question_is_marked_seen() -> None:
    marked, unmarked = make_question(1, seen=True), make_question(11)
    report = check_leakage(["unrelated words"], ["01.md#Part 1"], [marked, unmarked], hash_embed)
    assert [(leak.check, leak.question_id) for leak in report.leaks] == [("section", "q011")]
    assert (report.seen, report.unseen) == (1, 1)
