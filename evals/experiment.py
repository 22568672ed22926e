"""One comparison from beginning to end: questions, library, adapters, leakage, run, scores, report.

The order is fixed: power and leakage are known before anything is asked, and the report says so.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evals.arm_adapters import ArmAdapters, configured_adapters, trained_encoder_adapters
from evals.arms import DEFAULT_ARMS, ArmSpec, GoldPassages, parse_arms
from evals.comparison import SMALLEST_EFFECT, compare
from evals.hand_labels import LABEL_SHEET, read_labels, write_label_sheet
from evals.judge import JudgeSettings, run_judge
from evals.leakage import LeakageReport, check_leakage
from evals.question_checks import shortcut_floors
from evals.questions import SPLITS, BankQuestion, load_bank, load_questions
from evals.records import RecordFile
from evals.report import write_report
from evals.report_data import RunFacts, file_hash, power_note, question_hash, report_data
from evals.run import Runner, RunOptions, plan_jobs, unread_passages
from evals.scoring import score_records
from indexes.errors import InvalidInput
from indexes.library import Library, open_library
from indexes.sample import SAMPLE_PATH, add_sample
from indexes.settings import IndexSettings
from rag.assemble import build_engine, resolve_kind
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable
from rag.passages import PassageBudget
from rag.settings import RagSettings
from rag.tuning.encoder import EncoderTuning

CACHE_FOLDER = "cache"
QUICK_QUESTIONS = 48
QUICK_STEPS = 12
LIKELIHOOD_SHIFTS = 4
Listener = Callable[[str, int, int], None]
"""Told a step in words, with `done` of `total` where it counts."""


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """What to compare.

    Attributes:
        arms: names of `evals.arms`; questions: `bank:SPLIT`, or the path of a question file.
        limit: questions at most, spread over the chapters; None takes all.
        seed: of tuning, bootstrap and random passages; seeds: repetitions of the tuned arms, `seed`, `seed` + 1, ….
        quick: few questions and few training steps, for a look.
        judge: another model that grades open answers; None asks none.
        command: how it was called, for the report.
    """

    arms: tuple[str, ...] = DEFAULT_ARMS
    questions: str = "bank:test"
    limit: int | None = None
    seed: int = 0
    seeds: int = 1
    quick: bool = False
    language: str = "en"
    top_k: int = 5
    smallest_effect: float = SMALLEST_EFFECT
    judge: JudgeSettings | None = None
    command: str = "coalesce eval"


def run_experiment(
    plan: ExperimentPlan, index: IndexSettings, rag: RagSettings, out: Path, tell: Listener = lambda *_: None
) -> dict[str, Any]:
    """Runs a comparison and writes its report folder; gives the report's data.

    Raises:
        MalformedQuestions, InvalidInput: the questions or the arms cannot be used.
        ArmUnavailable: an arm has no model or adapter; then nothing is run.
        Conflict: `out` holds another run.
    """
    with_model = resolve_kind(rag.generator) in ("local", "remote")
    arms = parse_arms(plan.arms)
    questions = choose_questions(plan)
    if plan.judge is not None and plan.judge.labels is not None:
        read_labels(plan.judge.labels)  # a broken line is told before the run, not after it
    tune = load_bank(split="tune")
    costs: dict[str, float] = {}
    library = _open_library(plan, index, tell, costs)
    try:
        adapters: ArmAdapters = {}
        if with_model:
            adapters = configured_adapters(rag.generator, arms)
        elif any(arm.tuned for arm in arms):
            steps = QUICK_STEPS if plan.quick else None
            tunings = [EncoderTuning(seed=plan.seed + number, max_steps=steps) for number in range(plan.seeds)]
            folder = index.home / CACHE_FOLDER / "encoder-adapters"
            trained = trained_encoder_adapters(arms, index, rag.generator, tune, tunings, folder, tell)
            rag, adapters = replace(rag, generator=trained.generator), trained.by_arm
            costs["tuning_s"] = trained.seconds
        engine = build_engine(rag, library)
        try:
            return _run(plan, arms, questions, tune, engine, library, adapters, with_model, out, tell, costs)
        finally:
            engine.close()
    finally:
        library.close()


def choose_questions(plan: ExperimentPlan) -> tuple[BankQuestion, ...]:
    """The questions of a plan, in order.

    Raises:
        MalformedQuestions: a broken file, by line.
        InvalidInput: no such split, or no question left.
    """
    if plan.questions.startswith("bank:"):
        split = plan.questions.removeprefix("bank:")
        if split not in SPLITS:
            raise InvalidInput(f"the bank has no split {split!r}", hint=f"splits are {', '.join(SPLITS)}")
        questions: Sequence[BankQuestion] = load_bank(split=split)  # type: ignore[arg-type]  # checked above
    else:
        questions = load_questions(Path(plan.questions))
    limit = plan.limit if plan.limit is not None else (QUICK_QUESTIONS if plan.quick else None)
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is {limit}", hint="give 1 or more")
    return tuple(questions) if limit is None or limit >= len(questions) else _spread(questions, limit, plan.seed)


def _spread(questions: Sequence[BankQuestion], limit: int, seed: int) -> tuple[BankQuestion, ...]:
    """`limit` questions, as evenly as possible over the chapters, the same for the same seed."""
    by_chapter: dict[int, list[BankQuestion]] = defaultdict(list)
    for question in questions:
        by_chapter[question.chapter].append(question)
    for chapter, listed in by_chapter.items():
        random.Random(f"{seed}:{chapter}").shuffle(listed)
    picked: set[str] = set()
    while len(picked) < limit:
        for listed in by_chapter.values():
            if listed and len(picked) < limit:
                picked.add(listed.pop().id)
    return tuple(question for question in questions if question.id in picked)


def _open_library(plan: ExperimentPlan, index: IndexSettings, tell: Listener, costs: dict[str, float]) -> Library:
    """The bank's own book in a cache of its own; a user's questions are asked of the user's library."""
    started = time.perf_counter()
    if not plan.questions.startswith("bank:"):
        library = open_library(index, create=False)
        tell("loading the embedder", 0, 0)
        library.load()
        return library
    library = open_library(replace(index, home=index.home / CACHE_FOLDER / "sample-library"))
    tell("loading the embedder", 0, 0)
    library.load()
    result = add_sample(library, progress=lambda p: tell(f"indexing the book: {p.stage}", p.done, p.total))
    if result.status != "unchanged":
        costs["index_s"] = time.perf_counter() - started
    return library


def _run(
    plan: ExperimentPlan,
    arms: Sequence[ArmSpec],
    questions: Sequence[BankQuestion],
    tune: Sequence[BankQuestion],
    engine: AnswerEngine,
    library: Library,
    adapters: ArmAdapters,
    with_model: bool,
    out: Path,
    tell: Listener,
    costs: dict[str, float],
) -> dict[str, Any]:
    power = power_note(questions)
    if power["smallest_detectable"] is not None:
        tell(
            f"{power['n']} choice questions: a difference of {100 * power['smallest_detectable']:.1f} points is found "
            "in 8 of 10 runs",
            0,
            0,
        )
    leakage = _leakage(questions, tune, library)
    options = RunOptions(
        adapters=adapters,
        top_k=plan.top_k,
        seed=plan.seed,
        shifts=LIKELIHOOD_SHIFTS if with_model else 1,
        generate_choices=with_model,
        language=plan.language,
    )
    open_arms = frozenset(engine.generator.arms)
    if with_model:
        for arm in arms:
            if arm.engine_arm not in open_arms:
                raise ArmUnavailable(
                    f"arm {arm.name!r} cannot run with generator {engine.generator.name}",
                    hint="name a model with `--model`, and for tuned arms `--adapter NAME=FOLDER`",
                )
    jobs = plan_jobs(questions, arms, options, open_arms)
    facts = RunFacts(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=plan.command,
        generator=engine.generator.name,
        model=engine.generator.model_name,
        embedder=library.encoder.fingerprint,
        seed=plan.seed,
        seeds=max([1, *map(len, adapters.values())]),
        top_k=plan.top_k,
        hashes={
            "questions": question_hash(questions),
            "tuning questions": question_hash(tune),
            "book": file_hash(sorted(SAMPLE_PATH.glob("*.md"))),
        },
        costs=costs,
        not_run={
            f"open questions, arm {arm.name}": f"the {engine.generator.name} generator cannot answer without passages"
            for arm in arms
            if arm.engine_arm not in open_arms
        },
        floors={name: round(value, 4) for name, value in shortcut_floors(questions, library.encoder.encode).items()},
    )
    identity = {
        "questions": facts.hashes["questions"],
        "book": facts.hashes["book"],
        "arms": [arm.name for arm in arms],
        "adapters": {arm: list(names) for arm, names in adapters.items()},
        "model": facts.model,
        "embedder": facts.embedder,
        "seed": plan.seed,
        "top_k": plan.top_k,
        "language": plan.language,
        "quick": plan.quick,
    }
    records = RecordFile(out / "records.jsonl", identity)
    nodes = [node for document in library.documents() for node in library.nodes_of(document.document_id)]
    runner = Runner(engine, GoldPassages(library, nodes, PassageBudget()), options)
    for done in runner.run(jobs, records):
        tell("asking", done, len(jobs))
    by_id = {question.id: question for question in questions}
    write_label_sheet(out / LABEL_SHEET, records.records, by_id, plan.seed)
    grades, judge = None, None
    if plan.judge is not None:
        grades, judge = run_judge(
            plan.judge, records.records, by_id, out, lambda done, total: tell("judging", done, total)
        )
    tell("scoring", 0, 0)
    rows = score_records(records.records, by_id, grades)
    if unread := unread_passages(records.records):
        tell(unread, 0, 0)
    result = compare(rows, seed=plan.seed, smallest_effect=plan.smallest_effect)
    data = report_data(facts, result, rows, leakage, judge)
    write_report(out, data)
    return data


def _leakage(questions: Sequence[BankQuestion], tune: Sequence[BankQuestion], library: Library) -> LeakageReport:
    texts = [text for question in tune for text in (question.question, *question.paraphrases)]
    sections = [question.section for question in tune if question.section]
    return check_leakage(texts, sections, questions, library.encoder.encode)
