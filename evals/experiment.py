"""One comparison from beginning to end: checks, library, adapters, leakage, questions asked, scores, report."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evals.arms import (
    DEFAULT_ARMS,
    ArmAdapters,
    GoldPassages,
    check_encoder_arms,
    configured_adapters,
    parse_arms,
    trained_encoder_adapters,
)
from evals.comparison import compare, compare_runs
from evals.encoder_tuning import EncoderTuning
from evals.export import export_run
from evals.judge import LABEL_SHEET, agreement, read_labels, reader_scores, run_judge, write_label_sheet
from evals.made_store import is_for_tuning
from evals.question_checks import LeakageReport, check_leakage, shortcut_floors
from evals.questions import SPLITS, BankQuestion, load_bank, load_judged, load_question_set
from evals.records import RECORDS, Record, RecordFile, read_records
from evals.report import RunFacts, against_data, file_hash, power_note, question_hash, report_data, write_report
from evals.run import ASKED_TOGETHER, Runner, RunSpec, plan_jobs, seconds_left, unread_passages
from evals.scoring import score_records
from indexes.errors import IndexMissing, InvalidInput
from indexes.library import Library, open_library
from indexes.messages import msg
from indexes.sample import SAMPLE_PATH, add_sample
from indexes.settings import IndexSettings
from rag.assemble import build_engine, resolve_kind, switch_generator
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable
from rag.generators.encoder import KEPT_FOLDER
from rag.generators.protocol import GenerationRequest, quantization_of
from rag.models.adapters import read_adapter
from rag.settings import LANGUAGE_MODELS, GeneratorSettings, RagSettings
from rag.types import ARMS

CACHE_FOLDER = "cache"
JUDGED = "judged"
QUICK_QUESTIONS = 48
QUICK_STEPS = 12
OPEN_QUESTIONS = 100
"""Answerable questions that a language model answers in writing, of those asked: most of the time goes into them."""
TOLD_TIMES = 50
"""How many times a run updates its estimate of the time left."""
MODEL_ARMS = (*ARMS, "quotes")
"""What is compared of a language model where no arms are named."""
Progress = Callable[[str, int, int], None]
"""Called with a step's name, the units done and the units in all (0, 0 where they are not counted)."""


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a run needs, loaded.

    Attributes:
        quoting: answers in the books' own sentences, for the arm `quotes`.
        costs: seconds of one-time work.
        documents: id of the book that each question set is about.
    """

    spec: RunSpec
    engine: AnswerEngine
    quoting: AnswerEngine
    library: Library
    adapters: ArmAdapters
    tune: Sequence[BankQuestion]
    costs: dict[str, float]
    documents: Mapping[str, str]

    @property
    def open_arms(self) -> frozenset[str]:
        """Engine arms that the generator can answer openly in."""
        return frozenset(self.engine.arms)


def choose_questions(
    source: str,
    limit: int | None = None,
    *,
    quick: bool = False,
    seed: int = 0,
    types: Sequence[str] = (),
    of_book: Callable[[str], Sequence[BankQuestion]] = lambda _: (),
    held_out: bool = False,
) -> tuple[BankQuestion, ...]:
    """The questions of `bank:SPLIT`, `book:ID`, `judged` (all sets that only judge) or of a question file, in order.

    Args:
        of_book: the questions on a book, by its id.
        held_out: of made questions, only those that no adapter is tuned on here.
        limit: at most this many, spread over books and chapters; None takes all, or `QUICK_QUESTIONS` when `quick`.
        types: only questions of these types; all where none is named. Without `choice` they lose their options.

    Raises:
        MalformedQuestions: the file cannot be read; the message names file and line.
        InvalidInput: the bank has no such split, or no question of these types.
    """
    if source.startswith("bank:"):
        split = source.removeprefix("bank:")
        if split not in SPLITS:
            raise InvalidInput(f"the bank has no split {split!r}", hint=f"splits are {', '.join(SPLITS)}")
        questions = load_bank(split=split)
    elif source.startswith("book:"):
        questions = tuple(of_book(source.removeprefix("book:")))
        if held_out:
            questions = tuple(question for question in questions if not is_for_tuning(question))
    else:
        questions = load_judged() if source == JUDGED else load_question_set(Path(source))
    if types:
        questions = tuple(question for question in questions if question.type in types)
        if "choice" not in types:
            questions = tuple(replace(question, choices=(), answer_index=None) for question in questions)
        if not questions:
            raise InvalidInput(
                f"{source} has no question of type {', '.join(types)}", hint="types are choice, short, why and code"
            )
    if limit is None and quick:
        limit = QUICK_QUESTIONS
    return questions if limit is None or limit >= len(questions) else _spread(questions, limit, seed)


def _spread(questions: Sequence[BankQuestion], limit: int, seed: int) -> tuple[BankQuestion, ...]:
    """`limit` questions, as evenly as possible over books and chapters, the same for the same seed."""
    by_chapter: dict[str, list[BankQuestion]] = defaultdict(list)
    for question in questions:
        by_chapter[f"{question.book}{question.chapter}"].append(question)
    for chapter, listed in by_chapter.items():
        random.Random(f"{seed}:{chapter}").shuffle(listed)
    picked: set[str] = set()
    while len(picked) < limit:
        for listed in by_chapter.values():
            if listed and len(picked) < limit:
                picked.add(listed.pop().id)
    return tuple(question for question in questions if question.id in picked)


def plan_run(
    source: str,
    generator: GeneratorSettings,
    *,
    arms: Sequence[str] | None = None,
    texts: Path | None = None,
    limit: int | None = None,
    opened: int | None = None,
    types: Sequence[str] = (),
    of_book: Callable[[str], Sequence[BankQuestion]] = lambda _: (),
    **fields: Any,
) -> RunSpec:
    """What to compare and how, with the fallbacks that every interface shares.

    Without a language model or options, passages are all there is to answer from: then `rag` alone is run, where no
    arms are named.

    Args:
        source, limit, types, of_book: as in `choose_questions`.
        arms: names of arms; `DEFAULT_ARMS` where none are named, `MODEL_ARMS` with a language model.
        opened: at most this many answerable questions are answered in writing, spread over books and chapters; None for
            `OPEN_QUESTIONS` with a language model, and all without.
        texts: folder of the texts of question sets.
        fields: the other fields of the `RunSpec`.

    Raises:
        MalformedQuestions, InvalidInput: the questions cannot be read, an arm or a text is not there, or the texts and
            the questions do not go together.
    """
    if source == JUDGED and texts is None:
        raise InvalidInput(
            "the judged question sets are about texts that do not come with Coalesce",
            hint="Fetch them as evals/question_sets/README.md says, and add --texts FOLDER.",
        )
    if source.startswith("bank:") and texts is not None:
        raise InvalidInput(f"{source} is about the bundled book", hint="Leave --texts out.")
    kind = resolve_kind(generator)
    with_model = kind in LANGUAGE_MODELS
    chosen = parse_arms((MODEL_ARMS if with_model else DEFAULT_ARMS) if arms is None else arms)
    questions = choose_questions(
        source,
        limit,
        quick=fields.get("quick", False),
        seed=fields.get("seed", 0),
        types=types,
        of_book=of_book,
        held_out=with_model and any(arm.tuned for arm in chosen),
    )
    if arms is None and not with_model and not any(question.choices for question in questions):
        chosen = parse_arms(["rag"])
    if opened is None and with_model:
        opened = OPEN_QUESTIONS
    return RunSpec(
        questions=questions,
        arms=chosen,
        opened=None if opened is None else _opened(questions, opened, fields.get("seed", 0)),
        own_library=not source.startswith("bank:") and texts is None,
        texts={} if texts is None else find_texts(questions, texts),
        with_model=with_model,
        together=ASKED_TOGETHER if kind == "local" else 1,
        **fields,
    )


def _opened(questions: Sequence[BankQuestion], limit: int, seed: int) -> frozenset[str]:
    """Ids of `limit` answerable questions that are no choice ones, and of all that the books do not answer."""
    answerable = [each for each in questions if each.type != "choice" and each.answerable]
    picked = answerable if limit >= len(answerable) else _spread(answerable, limit, seed)
    return frozenset(each.id for each in (*picked, *(each for each in questions if not each.answerable)))


def find_texts(questions: Sequence[BankQuestion], folder: Path) -> dict[str, Path]:
    """The folder of the text that each question set is about: `folder/NAME OF THE SET`.

    Raises:
        InvalidInput: a text is not there.
    """
    texts = {book: folder / book for book in dict.fromkeys(question.book for question in questions) if book}
    if missing := [book for book, path in texts.items() if not path.is_dir()]:
        raise InvalidInput(
            f"{folder} has no folder {missing[0]!r} with the text of that question set",
            hint="evals/question_sets/README.md says where to get each text",
        )
    return texts


def run_experiment(
    spec: RunSpec, index: IndexSettings, rag: RagSettings, out: Path, progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """Runs a comparison and writes its report folder; gives the report's data.

    What can be checked without a model is checked before one is loaded. Power and leakage are known before anything is
    asked. A run whose records `out` holds already continues where it stopped.

    Raises:
        ArmUnavailable, InvalidInput: an arm lacks its model or adapter; then nothing runs.
        MalformedQuestions: the hand labels cannot be read.
        NotFound: there is no earlier run to compare with.
        IndexMissing: the questions are about the user's library, and there is none.
        Conflict: `out` holds another run.
    """
    adapters: ArmAdapters = {}
    if spec.with_model:
        adapters = configured_adapters(rag.generator, spec.arms)
    else:
        check_encoder_arms(spec.arms, index)
    for sheet in spec.labels:
        read_labels(sheet)
    if spec.against is not None:
        read_records(spec.against)
    tune = load_bank(split="tune")
    costs: dict[str, float] = {}
    with closing(_open_library(spec, index)) as library:
        if spec.tuned and not spec.with_model:
            steps = QUICK_STEPS if spec.quick else None
            tunings = [EncoderTuning(seed=spec.seed + number, max_steps=steps) for number in range(spec.seeds)]
            folder = index.home / KEPT_FOLDER
            trained = trained_encoder_adapters(spec.arms, rag.generator, tune, tunings, folder, progress)
            rag, adapters = replace(rag, generator=trained.generator), trained.by_arm
            costs["tuning"] = trained.seconds
        rag = replace(rag, generator=replace(rag.generator, answer_cache=0))  # every answer is measured
        if spec.with_model:
            costs |= tuning_costs(rag.generator, adapters)
        with closing(build_engine(rag, library)) as engine:
            quoting = switch_generator(engine, replace(rag, generator=GeneratorSettings("extractive")), library)
            setup = _Setup(spec, engine, quoting, library, adapters, tune, costs, {})
            _check_open_arms(setup)
            setup = replace(setup, documents=_load(setup, progress))
            return _compare(setup, out, progress)


def tuning_costs(generator: GeneratorSettings, adapters: ArmAdapters) -> dict[str, float]:
    """Seconds that each adapter of a language model took to train, by its own record."""
    found = {}
    for name in dict.fromkeys(name for names in adapters.values() for name in names):
        folder = Path(generator.adapters[name])
        record = read_adapter(folder).record if folder.is_dir() else None  # a remote engine's is a name
        if record is not None and "seconds" in record.metrics:
            found[f"tuning {name}"] = float(record.metrics["seconds"])
    return found


def _open_library(spec: RunSpec, index: IndexSettings) -> Library:
    """The user's library; for the bank's questions the bundled book alone, in a cache unless the home holds just it.

    The texts of question sets are a library in that cache.
    """
    if spec.texts:
        return open_library(index.in_folder(index.home / CACHE_FOLDER / "texts"))
    if spec.own_library:
        return open_library(index, create=False)
    if index.vector_store == "faiss":  # an outside engine may be in use by the server
        try:
            library = open_library(index, create=False)
            # A copy that another installation added has another id: this one's would be added beside it.
            if [(one.sample, one.source) for one in library.documents()] == [(True, str(SAMPLE_PATH))]:
                return library
            library.close()
        except IndexMissing:
            pass
    return open_library(index.in_folder(index.home / CACHE_FOLDER / "sample-library"))


def _load(setup: _Setup, progress: Progress) -> dict[str, str]:
    """Loads the embedder, and brings the library up to date; gives the id of each question set's book."""
    started = time.perf_counter()
    progress("loading the embedder", 0, 0)
    library, texts = setup.library, setup.spec.texts
    library.load()
    if setup.spec.own_library:
        books = {document.document_id for document in library.documents()}
        return {question.book: question.book for question in setup.spec.questions if question.book in books}
    if not texts:
        added = [
            add_sample(library, progress=lambda p: progress(msg("indexing the book: {}", p.stage), p.done, p.total))
        ]
    else:
        added = []
        for name, path in texts.items():
            progress(f"indexing {name}", len(added), len(texts))
            added.append(library.add(path))
    asked_about = {result.document.document_id for result in added}
    for document in library.documents():  # of an earlier run, or the bundled book of another installation
        if (texts or document.sample) and document.document_id not in asked_about:
            library.remove(document.document_id)
    if any(result.status != "unchanged" for result in added):
        setup.costs["index"] = time.perf_counter() - started
    return {name: result.document.document_id for name, result in zip(texts, added, strict=False)}


def _check_open_arms(setup: _Setup) -> None:
    """A language model must be able to run every arm, with each of its adapters.

    Raises:
        ArmUnavailable: it cannot, or the engine does not list its model or an adapter.
    """
    missing = [arm.name for arm in setup.spec.arms if arm.engine_arm not in setup.open_arms]
    if setup.spec.with_model and missing:
        raise ArmUnavailable(
            f"arm {missing[0]!r} cannot run with generator {setup.engine.generator.name}",
            hint="name a model with `--model`, and for tuned arms `--adapter NAME=FOLDER`",
        )
    if setup.spec.with_model:
        for arm in setup.spec.arms:
            for adapter in setup.adapters.get(arm.name) or (None,):
                setup.engine.generator.check(GenerationRequest("warp", arm.engine_arm, adapter=adapter))


def _compare(setup: _Setup, out: Path, progress: Progress) -> dict[str, Any]:
    """The run itself, from the leakage check to the report."""
    spec = setup.spec
    power = power_note(spec.questions)
    if power["smallest_detectable"] is not None:
        points = 100 * power["smallest_detectable"]
        progress(
            msg("{} choice questions detect a difference of {} points in 8 of 10 runs", power["n"], f"{points:.1f}"),
            0,
            0,
        )
    leakage = _leakage(setup)
    facts = _facts(setup)
    records = _ask(setup, facts, out, progress)
    questions = {question.id: question for question in spec.questions}
    write_label_sheet(out / LABEL_SHEET, records, questions, spec.seed)
    readers = [read_labels(sheet) for sheet in spec.labels]
    grades, judge = None, None
    if spec.judge is not None:
        labels = readers[0] if readers else {}
        grades, judge = run_judge(
            spec.judge, records, questions, out, labels, lambda done, total: progress("judging", done, total)
        )
    progress("scoring", 0, 0)
    rows = score_records(records, questions, grades, reader_scores(readers, records, questions))
    if unread := unread_passages(records):
        progress(unread, 0, 0)
    facts = replace(facts, picked_by=dict(Counter(record.picked_by for record in records if record.picked_by)))
    data = report_data(
        spec,
        facts,
        compare(rows, seed=spec.seed),
        rows,
        leakage,
        judge,
        agreement(*readers[:2]) if len(readers) > 1 else None,
    )
    if spec.against is not None:
        earlier = score_records(read_records(spec.against), questions)
        data |= against_data(spec.against, compare_runs(earlier, rows, seed=spec.seed))
    write_report(out, data)
    if spec.export is not None:
        export_run(spec.export, records, questions)
    return data


def _leakage(setup: _Setup) -> LeakageReport:
    if setup.spec.texts and not setup.spec.tuned:
        return check_leakage([], [], setup.spec.questions, setup.library.encoder.encode)  # nothing is tuned
    texts = [text for question in setup.tune for text in (question.question, *question.paraphrases)]
    sections = [question.section for question in setup.tune if question.section]
    return check_leakage(texts, sections, setup.spec.questions, setup.library.encoder.encode)


def _facts(setup: _Setup) -> RunFacts:
    spec, generator, encoder = setup.spec, setup.engine.generator, setup.library.encoder
    return RunFacts(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        generator=generator.name,
        model=generator.model_name,
        quantization=quantization_of(generator),
        embedder=encoder.fingerprint,
        seeds=max([1, *map(len, setup.adapters.values())]),
        hashes={
            "questions": question_hash(spec.questions),
            "tuning questions": question_hash(setup.tune),
            "book": _book_hash(setup),
        },
        costs=setup.costs,
        not_run={
            f"open questions, arm {arm.name}": f"the {generator.name} generator cannot answer without passages"
            for arm in spec.arms
            if arm.engine_arm not in setup.open_arms
        },
        thresholds=setup.engine.evidence_thresholds,
        floors={name: round(value, 4) for name, value in shortcut_floors(spec.questions, encoder.encode).items()},
    )


def _book_hash(setup: _Setup) -> str:
    if not setup.documents:
        return file_hash(sorted(SAMPLE_PATH.glob("*.md")))
    digests = [setup.library.document(document).sha256 for document in setup.documents.values()]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _ask(setup: _Setup, facts: RunFacts, out: Path, progress: Progress) -> Sequence[Record]:
    """The records of the run, old and new, arm by arm. Raises Conflict where `out` holds records of another run."""
    spec, library = setup.spec, setup.library
    records = RecordFile(
        out / RECORDS,
        {
            "questions": facts.hashes["questions"],
            "book": facts.hashes["book"],
            "arms": [arm.name for arm in spec.arms],
            "adapters": {arm: list(names) for arm, names in setup.adapters.items()},
            "model": facts.model,
            "embedder": facts.embedder,
            "seed": spec.seed,
            "top_k": spec.top_k,
            "language": spec.language,
            "quick": spec.quick,
        },
    )
    nodes = [node for document in library.documents() for node in library.nodes_of(document.document_id)]
    gold = GoldPassages(library, nodes, setup.engine.budget, setup.documents)
    runner = Runner(setup.engine, gold, spec, setup.adapters, setup.documents, setup.quoting)
    jobs = plan_jobs(spec, setup.adapters, setup.open_arms)
    step, told = "asking (estimating the time left)", 0
    for done in runner.run(jobs, records):
        if (not told or done - told >= len(jobs) / TOLD_TIMES) and (left := seconds_left(spec, jobs, records)):
            step, told = f"asking (about {_in_words(left)} left)", done
        progress(step, done, len(jobs))
    order = [arm.name for arm in spec.arms]
    return sorted(records.records, key=lambda each: order.index(each.arm) if each.arm in order else len(order))


def _in_words(seconds: float) -> str:
    minutes = round(seconds / 60)
    return "a minute" if minutes < 2 else f"{minutes} minutes" if minutes < 100 else f"{seconds / 3600:.1f} hours"
