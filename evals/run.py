"""Runs arms over questions through the engine that serves users, and logs a record for each.

Questions already in the log are not asked again, so a stopped run continues. A question that fails becomes a record
with its error: unscored, never wrong.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import numpy as np

from evals.arms import ArmAdapters, ArmSpec, GoldPassages
from evals.questions import BankQuestion
from evals.records import PassageRecord, Record, RecordFile
from indexes.types import Filters
from rag.engine import AnswerEngine
from rag.errors import DoesNotFitInMemory, GenerationFailed, PromptTooLong
from rag.settings import GeneratorSettings
from rag.types import RETRIEVING_ARMS, Answer, Event, Passage, PassagesFound, Question

ORDERS = 4
"""Cyclic orders of the options in which a language model is asked for a letter; the scores are averaged."""
ASKED_TOGETHER = 8
"""Choice questions asked at a time of a local model. Open ones come alone: their speed is measured."""
RECENT = 16
"""Answers of a kind that tell how long the next one takes."""
# Failures of one question; anything else (a full disk, an engine out of reach, Ctrl-C) stops the run.
_OF_ONE_QUESTION = (PromptTooLong, DoesNotFitInMemory, GenerationFailed)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to compare and how. Made once where the run is asked for, and passed down unchanged.

    Attributes:
        questions: asked in this order.
        own_library: search the user's library; else the bundled book alone, or `texts`.
        texts: folder of the text that each question set is about, by the set's name; they make one library, and each
            question is asked of its own book.
        opened: ids of the questions to be answered in writing too; None for all that can be.
        with_model: a language model answers; else the embedded encoder, which is tuned on the spot.
        together: choice questions asked at a time; more than one where the model reads several together.
        seed: of tuning, bootstrap and random passages.
        seeds: tuning runs of the encoder, with `seed`, `seed` + 1, and so on.
        quick: train the encoder for a few steps only.
        against: folder of an earlier run, to compare this one with.
        language: `en` or `zh`, the wording that is asked.
        judge: a language model that grades open answers; None for no grades.
        labels: sheets that people filled in, one each.
        export: folder for the run in other tools' formats; None for no export.
        command: the command line, for the report.
    """

    questions: tuple[BankQuestion, ...]
    arms: tuple[ArmSpec, ...]
    own_library: bool = False
    texts: Mapping[str, Path] = field(default_factory=dict)
    opened: frozenset[str] | None = None
    with_model: bool = False
    together: int = 1
    seed: int = 0
    seeds: int = 1
    quick: bool = False
    language: str = "en"
    top_k: int = 5
    judge: GeneratorSettings | None = None
    labels: tuple[Path, ...] = ()
    export: Path | None = None
    against: Path | None = None
    command: str = "coalesce eval"

    @property
    def tuned(self) -> bool:
        """Whether an arm uses an adapter."""
        return any(arm.tuned for arm in self.arms)


@dataclass(frozen=True, slots=True)
class Job:
    """One question for one arm; `repetition` and `mode` as in `Record`."""

    question: BankQuestion
    arm: ArmSpec
    repetition: int
    mode: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Identifies its record, as `Record.key`."""
        return (self.question.id, self.arm.name, self.repetition, self.mode)


def plan_jobs(spec: RunSpec, adapters: ArmAdapters, open_arms: frozenset[str]) -> list[Job]:
    """Every job of a run, question by question, so that a stopped run has asked all arms the same questions.

    The first question to be answered in writing comes first, so that what is left can soon be told; then the choice
    questions; then the other open ones.

    Args:
        open_arms: engine arms that the generator can answer openly in.
    """
    jobs = [
        Job(question, arm, repetition, mode)
        for question in spec.questions
        for mode, asked in (
            ("choice", bool(question.choices)),
            ("open", question.type != "choice" and (spec.opened is None or question.id in spec.opened)),
        )
        if asked
        for arm in spec.arms
        if question.gold or arm.evidence not in ("gold", "random")
        if mode in arm.modes and (mode == "choice" or arm.engine_arm in open_arms)
        for repetition in range(max(1, len(adapters.get(arm.name, ()))))
    ]
    first = next((job.question for job in jobs if job.mode == "open"), None)
    return sorted(jobs, key=lambda job: (job.question is not first, job.mode == "open"))


def seconds_left(spec: RunSpec, jobs: Sequence[Job], records: RecordFile) -> float | None:
    """How long the jobs without a record will take, each as long as the last ones of its arm and mode; None before any.

    The last ones, since what else the machine does changes over hours.
    """
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records.records:
        took[record.arm, record.mode].append(record.total_s / (spec.together if record.mode == "choice" else 1))
    left = Counter((job.arm.name, job.mode) for job in jobs if job.key not in records)
    if not took.keys() >= left.keys():
        return None
    return sum(count * mean(took[kind][-RECENT:]) for kind, count in left.items())


class Runner:
    """Asks the engine and logs records.

    Args:
        documents: id of the book that each question set is about; questions of other sets are asked of the library.
        quoting: answers in the books' own sentences, for the arm `quotes`; `engine` where there is none.
    """

    def __init__(
        self,
        engine: AnswerEngine,
        gold: GoldPassages,
        spec: RunSpec,
        adapters: ArmAdapters,
        documents: Mapping[str, str] | None = None,
        quoting: AnswerEngine | None = None,
    ) -> None:
        self._engine = engine
        self._quoting = quoting or engine
        self._gold = gold
        self._spec = spec
        self._adapters = adapters
        self._documents = documents or {}
        self._in_chinese = {question.question: question.question_zh for question in spec.questions}

    def run(self, jobs: Sequence[Job], records: RecordFile) -> Iterator[int]:
        """Runs the jobs that have no record yet; yields the number of jobs done. Records are logged in their order."""
        left = [job for job in jobs if job.key not in records]
        before = len(jobs) - len(left)
        if before:
            yield before
        done = itertools.count(before + 1)
        for mode, listed in itertools.groupby(left, lambda job: job.mode):
            pool = ThreadPoolExecutor(self._spec.together if mode == "choice" else 1, "asking")
            try:
                for record in pool.map(self._ask, listed):
                    records.append(record)
                    yield next(done)
            finally:
                pool.shutdown(cancel_futures=True)

    def _ask(self, job: Job) -> Record:
        text = self._worded(job.question.question, job.question.question_zh)
        started = time.perf_counter()
        try:
            passages = self._passages(job, text)
            retrieve_s = time.perf_counter() - started
            if job.mode == "choice":
                return self._choose(job, text, passages, retrieve_s)
            return self._answer(job, text, passages, retrieve_s)
        except _OF_ONE_QUESTION as error:
            return Record(*job.key, error=f"{type(error).__name__}: {error.message}")

    def _passages(self, job: Job, text: str) -> tuple[Passage, ...] | None:
        if job.arm.evidence == "gold":
            return self._gold.gold(job.question, self._spec.top_k)
        if job.arm.evidence == "random":
            return self._gold.random(job.question, self._spec.top_k, self._spec.seed)
        # The engine searches for an open question itself, so that refusals are measured as served.
        if job.mode != "open" and job.arm.engine_arm in RETRIEVING_ARMS:
            return self._engine.search(text, self._spec.top_k, self._filters(job))
        return None

    def _worded(self, english: str, chinese: str) -> str:
        """The question in the run's language, in English where it has no Chinese wording."""
        return chinese or english if self._spec.language == "zh" else english

    def _filters(self, job: Job) -> Filters:
        document = self._documents.get(job.question.book)
        return Filters(document_ids=(document,)) if document else Filters()

    def _choose(self, job: Job, text: str, passages: tuple[Passage, ...] | None, retrieve_s: float) -> Record:
        started = time.perf_counter()
        choices = job.question.choices
        totals, scored = np.zeros(len(choices)), []
        for shift in range(0, len(choices), max(1, len(choices) // ORDERS)):
            order = [(index + shift) % len(choices) for index in range(len(choices))]
            scored.append(
                self._engine.choose(
                    text,
                    [choices[index] for index in order],
                    job.arm.engine_arm,
                    adapter=self._adapter(job),
                    top_k=self._spec.top_k,
                    passages=passages,
                )
            )
            totals[order] += scored[-1].scores
            if scored[-1].by_likelihood or not self._spec.with_model:
                break  # neither the likelihood of an option nor its similarity sees the order
        first = scored[0]
        scores, extra = tuple(map(float, totals / len(scored))), dict(first.extra)
        picked_by = "letter" if self._spec.with_model else "similarity"
        if first.by_likelihood:
            scores, extra, picked_by = extra["likelihood"], extra | {"letters": scores}, "likelihood"
        found = len(passages or ())
        read = min(found if each.passages_used is None else each.passages_used for each in scored)
        return Record(
            *job.key,
            picked=int(np.argmax(scores)),
            picked_by=picked_by,
            scores=scores,
            extra=extra,
            passages=_kept((passages or ())[:read]),
            passages_left_out=found - read,
            retrieve_s=retrieve_s,
            total_s=retrieve_s + time.perf_counter() - started,
            prompt_tokens=sum(each.usage.prompt_tokens for each in scored),
        )

    def _answer(self, job: Job, text: str, passages: tuple[Passage, ...] | None, retrieve_s: float) -> Record:
        question = Question(
            text,
            arm=job.arm.engine_arm,
            adapter=self._adapter(job),
            top_k=self._spec.top_k,
            seed=self._spec.seed,
            filters=self._filters(job),
        )
        if job.question.after:
            question = replace(question, turns=self._earlier(question, job.question.after))
        found, answer = self._ask_engine(self._quoting if job.arm.quotes else self._engine, question, passages)
        return Record(
            *job.key,
            answer=answer.answer,
            refused=answer.refused,
            passages=_kept(answer.passages),
            passages_left_out=len(found.passages) - len(answer.passages),
            quotes=tuple(citation.quote for citation in answer.citations),
            retrieve_s=retrieve_s if passages is not None else answer.timings.retrieve_s,
            ttft_s=answer.timings.ttft_s,
            total_s=answer.timings.total_s,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            reasoning_tokens=answer.usage.reasoning_tokens,
            finish=answer.usage.finish,
            tokens_per_s=answer.tokens_per_s,
            peak_memory_bytes=answer.peak_memory_bytes,
            evidence=answer.evidence,
            evidence_score=found.evidence_score,
            note=answer.note or "",
        )

    def _earlier(self, question: Question, asked: str) -> tuple[tuple[str, str], ...]:
        """The turn before a follow-up, as a conversation keeps it: a refused question leaves none."""
        asked = self._worded(asked, self._in_chinese.get(asked, ""))
        answer = self._engine.ask(replace(question, text=asked), keep=False)
        return () if answer.refused else ((asked, answer.answer),)

    def _ask_engine(
        self, engine: AnswerEngine, question: Question, passages: tuple[Passage, ...] | None
    ) -> tuple[PassagesFound, Answer]:
        """What was found, and the answer, which holds the passages that fitted the context."""
        found = PassagesFound(())

        def listen(event: Event) -> None:
            nonlocal found
            if isinstance(event, PassagesFound):
                found = event

        answer = engine.ask(question, passages=passages, keep=False, listen=listen)
        return found, answer

    def _adapter(self, job: Job) -> str | None:
        adapters = self._adapters.get(job.arm.name)
        return adapters[job.repetition] if adapters else None


def unread_passages(records: Sequence[Record]) -> str:
    """A sentence on passages that did not fit the model's context; empty when all were read."""
    retrieving = [record for record in records if record.passages or record.passages_left_out]
    short = sum(bool(record.passages_left_out) for record in retrieving)
    if not short:
        return ""
    left_out = sum(record.passages_left_out for record in retrieving)
    found = left_out + sum(len(record.passages) for record in retrieving)
    return (
        f"the model's context was too short in {short} of {len(retrieving)} prompts with passages: "
        f"{left_out} of {found} passages were left out"
    )


def _kept(passages: Sequence[Passage] | None) -> tuple[PassageRecord, ...]:
    return tuple(PassageRecord(p.document_id, p.section, p.chapter, p.text) for p in passages or ())
