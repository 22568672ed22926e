"""The comparison end to end over made-up records and a scripted engine: planted faults must show."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder, hash_embed

from evals.arms import GoldPassages, parse_arms
from evals.comparison import compare, compare_runs, verdict_sentence
from evals.question_checks import check_leakage
from evals.questions import BankQuestion, parse_question
from evals.records import PassageRecord, Record, RecordFile
from evals.run import Runner, RunSpec, plan_jobs, unread_passages, without_likelihoods
from evals.scoring import Row, fact_flow, score_records
from indexes.errors import Conflict
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from rag.errors import ArmUnavailable, GenerationFailed
from rag.generators.protocol import ChoiceScores
from rag.retrieval import PassageBudget


def make_question(number: int, kind: str = "choice", *, seen: bool = False, answerable: bool = True) -> BankQuestion:
    heading = f"Part {number % 10}"
    record: dict[str, Any] = {
        "id": f"q{number:03}",
        "type": kind,
        "question": f"What is the value number {number} of the device called here?",
        "answer": f"The value is item{number} for sure.",
        "key_facts": [f"item{number}"],
        "section": f"01.md#{heading}",
        "gold": [{"file": "01.md", "heading": heading, "part": 1, "evidence": f"item{number} stands here"}],
        "seen": seen,
    }
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


def test_a_retriever_that_returns_noise_shows_as_no_better_than_random() -> None:
    result = compared(random=pattern(0.3), rag=pattern(0.3, shift=4), oracle=pattern(0.9))
    verdicts = {(c.control, c.treatment): c.verdict for c in result.comparisons}
    assert verdicts["random", "rag"] != "better"
    assert verdicts["rag", "oracle"] == "better"


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
    records = [Record(q.id, "rag", 0, "open", answer="x", refused=number < 2) for number, q in enumerate(questions)]
    arm = compare(scored(records, questions)).arms["rag"]
    values = {name: arm.metrics[name].value for name in ("abstention_precision", "abstention_recall", "false_refusals")}
    assert values == {"abstention_precision": 0.5, "abstention_recall": 0.5, "false_refusals": 0.5}
    answered = compare(scored([replace(records[1], refused=False)], questions)).arms["rag"]
    assert "abstention_precision" not in answered.metrics


def test_what_is_not_in_the_book_is_caught_by_refusing_or_by_a_warning() -> None:
    questions = [make_question(number, "short", answerable=number == 3) for number in range(5)]
    questions[4] = replace(questions[4], kind="off_topic")
    evidence = ["none", "weak", "strong", "weak", "weak"]
    records = [
        Record(question.id, "rag", 0, "open", answer="x", refused=number == 0, evidence=evidence[number])
        for number, question in enumerate(questions)
    ]
    arm = compare(scored(records, questions)).arms["rag"]
    assert arm.metrics["unanswerable_caught"].value == pytest.approx(2 / 3)
    assert arm.metrics["unanswerable_caught"].n == 3
    assert (arm.metrics["off_topic_refused"].value, arm.metrics["marked_weak"].value) == (0.0, 1.0)


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
    extra = {"letters": (0.0, 1.0, 0.0, 0.0), "sum_logprob": (2.0, 1.0, 0.0, 0.0)}
    (row,) = scored([replace(FIRST, extra=extra)])
    names = ("accuracy", "accuracy_by_letter", "accuracy_sum_logprob")
    assert [row.metrics[name] for name in names] == [1.0, 0.0, 1.0]
    assert without_likelihoods([replace(FIRST, extra={"letters": extra["letters"]})])
    assert without_likelihoods([replace(FIRST, extra=extra)]) == without_likelihoods([FIRST]) == ""


def test_fact_flow_by_hand() -> None:
    question = make_question(5, "short")
    passage = PassageRecord("d", ("Part 5",), 1, "item5 stands here")
    empty = PassageRecord("d", ("Part 1",), 1, "nothing")
    cases = [("item5", passage), ("no", passage), ("item5", empty), ("no", empty)]
    rows = scored(
        [Record(question.id, "rag", n, "open", answer=said, passages=(held,)) for n, (said, held) in enumerate(cases)],
        [question],
    )
    assert list(fact_flow(rows).values()) == [1, 1, 1, 1]
    assert [rows[place].metrics["recall_at_5"] for place in (0, 2)] == [1.0, 0.0]


def test_evidence_that_was_not_read_is_evidence_missed() -> None:
    unread, closed = scored([replace(FIRST, passages_left_out=3), FIRST])
    assert unread.metrics["recall_at_5"] == 0.0
    assert closed.metrics.get("recall_at_5") is None


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
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """A book in which the sixty items stand in ten sections, six in each, between sections of other text."""
    folder = tmp_path_factory.mktemp("gold")
    parts = []
    for number in range(10):
        items = " ".join(f"item{number + tens} stands here." for tens in range(0, 60, 10))
        parts.append(f"### Part {number}\n\n{items}")
        parts += [f"### Other {number}{letter}\n\nOther text of {number}{letter}." for letter in "abcdefghij"]
    (folder / "book.md").write_text("# Book\n\n## Chapter\n\n" + "\n\n".join(parts), encoding="utf-8")
    library = open_library(IndexSettings(folder / "home"), embedder=HashEncoder())
    library.add(folder / "book.md")
    yield library
    library.close()


def gold_passages(library: Library, most: int = 60, most_each: int = 20) -> GoldPassages:
    (document,) = library.documents()
    budget = PassageBudget(most=most, most_each=most_each)
    return GoldPassages(library, library.nodes_of(document.document_id), budget)


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
    texts = [passage.text for seed in range(200) for passage in gold.random(make_question(5), 5, seed)]
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


def test_four_cyclic_shifts_are_averaged_back_into_place(library: Library, tmp_path: Path) -> None:
    class Letters(Engine):
        """Cannot name an option in words."""

        def ask(self, *_: Any, **__: Any) -> None:
            raise GenerationFailed("nothing")

    engine = Letters()
    spec = RunSpec(tuple(QUESTIONS[7:8]), parse_arms(["oracle"]), with_model=True, remote=True)
    records = ran(engine, spec, library, tmp_path)
    assert len({options[0] for options in engine.asked}) == 4
    assert records[0].scores == (1.0, 0.0, 0.0, 0.0)


def test_an_arm_that_cannot_run_stops_the_comparison(library: Library, tmp_path: Path) -> None:
    class NoAdapter(Engine):
        def choose(self, *_: Any, **__: Any) -> ChoiceScores:
            raise ArmUnavailable("no adapter")

    with pytest.raises(ArmUnavailable):
        ran(NoAdapter(), RunSpec(tuple(QUESTIONS[:1]), parse_arms(["tuned"])), library, tmp_path)


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
