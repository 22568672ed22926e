"""Runs arms over questions through the engine that serves users, and appends a record for each.

What is there already is not asked again, so a killed run goes on where it stopped. A question that fails becomes a
record with its error: unscored, never wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evals.arms import ArmSpec, GoldPassages
from evals.option_parsing import choice_prompt, parse_option
from evals.questions import BankQuestion
from evals.records import PassageRecord, Record, RecordFile
from indexes.errors import CoalesceError
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable, DoesNotFitInMemory, GenerationFailed, PromptTooLong
from rag.types import RETRIEVING_ARMS, Answer, AnswerDone, Passage, PassagesFound, Question

# Failures of one question; anything else (a full disk, an engine out of reach, Ctrl-C) stops the run.
_OF_ONE_QUESTION = (PromptTooLong, DoesNotFitInMemory, GenerationFailed)


@dataclass(frozen=True, slots=True)
class Job:
    """One question to one arm: `mode` as in `Record`, `repetition` the number of the tuning seed."""

    question: BankQuestion
    arm: ArmSpec
    repetition: int
    mode: str


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How arms are run.

    Attributes:
        adapters: by tuned arm, the name of the adapter of each repetition.
        shifts: cyclic orders of the options to score and average: 1 where order cannot matter, else 4.
        generate_choices: also ask for the option in words (language models).
        language: `en` or `zh`, which wording of the question is asked.
    """

    adapters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    top_k: int = 5
    seed: int = 0
    shifts: int = 1
    generate_choices: bool = False
    language: str = "en"


def plan_jobs(
    questions: Sequence[BankQuestion], arms: Sequence[ArmSpec], options: RunOptions, open_arms: frozenset[str]
) -> list[Job]:
    """Every job of a run, question by question so that an interrupted run has all arms of what it has.

    Args:
        open_arms: engine arms that the generator can answer openly in.
    """
    jobs: list[Job] = []
    for question in questions:
        for arm in arms:
            if not question.gold and arm.evidence in ("gold", "random"):
                continue
            for repetition in range(max(1, len(options.adapters.get(arm.name, ())))):
                if question.choices:
                    jobs.append(Job(question, arm, repetition, "choice"))
                    if options.generate_choices:
                        jobs.append(Job(question, arm, repetition, "generated-choice"))
                if question.type != "choice" and arm.engine_arm in open_arms:
                    jobs.append(Job(question, arm, repetition, "open"))
    return jobs


class Runner:
    """Asks the engine and writes records."""

    def __init__(self, engine: AnswerEngine, gold: GoldPassages, options: RunOptions) -> None:
        self._engine = engine
        self._gold = gold
        self._options = options

    def run(
        self, jobs: Sequence[Job], records: RecordFile, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[int]:
        """Runs what is missing; yields how many jobs are done. Stops between questions when cancelled."""
        for done, job in enumerate(jobs, start=1):
            if cancelled():
                return
            if (job.question.id, job.arm.name, job.repetition, job.mode) not in records:
                records.append(self._ask(job))
            yield done

    def _ask(self, job: Job) -> Record:
        text = job.question.question
        if self._options.language == "zh" and job.question.question_zh:
            text = job.question.question_zh
        started = time.perf_counter()
        try:
            passages = self._passages(job, text)
            retrieve_s = time.perf_counter() - started
            if job.mode == "choice":
                return self._choose(job, text, passages, retrieve_s)
            return self._answer(job, text, passages, retrieve_s)
        except ArmUnavailable:
            raise
        except _OF_ONE_QUESTION as error:
            return Record(job.question.id, job.arm.name, job.repetition, job.mode, error=_line(error))

    def _passages(self, job: Job, text: str) -> tuple[Passage, ...] | None:
        if job.arm.evidence == "gold":
            return self._gold.gold(job.question, self._options.top_k)
        if job.arm.evidence == "random":
            return self._gold.random(job.question, self._options.top_k, self._options.seed)
        # An open question is searched by the engine itself, so that refusal is measured as it is served.
        if job.mode != "open" and job.arm.engine_arm in RETRIEVING_ARMS:
            return self._engine.search(text, self._options.top_k)
        return None

    def _choose(self, job: Job, text: str, passages: tuple[Passage, ...] | None, retrieve_s: float) -> Record:
        started = time.perf_counter()
        choices = job.question.choices
        totals = np.zeros(len(choices))
        extra: dict[str, np.ndarray] = {}
        prompt_tokens = 0
        read = len(passages or ())
        for shift in range(self._options.shifts):
            order = [(index + shift) % len(choices) for index in range(len(choices))]
            scored = self._engine.choose(
                text,
                [choices[index] for index in order],
                job.arm.engine_arm,
                adapter=self._adapter(job),
                top_k=self._options.top_k,
                passages=passages,
            )
            prompt_tokens += scored.usage.prompt_tokens
            read = read if scored.passages_used is None else min(read, scored.passages_used)
            totals[order] += scored.scores
            for name, values in scored.extra.items():
                extra.setdefault(name, np.zeros(len(choices)))[order] += values
        return Record(
            job.question.id,
            job.arm.name,
            job.repetition,
            job.mode,
            picked=int(totals.argmax()),
            scores=tuple(map(float, totals / self._options.shifts)),
            extra={name: tuple(map(float, values / self._options.shifts)) for name, values in extra.items()},
            passages=_kept((passages or ())[:read]),
            passages_left_out=len(passages or ()) - read,
            retrieve_s=retrieve_s,
            total_s=retrieve_s + time.perf_counter() - started,
            prompt_tokens=prompt_tokens,
        )

    def _answer(self, job: Job, text: str, passages: tuple[Passage, ...] | None, retrieve_s: float) -> Record:
        if job.mode == "generated-choice":
            text = choice_prompt(text, job.question.choices)
        question = Question(
            text,
            arm=job.arm.engine_arm,
            adapter=self._adapter(job),
            top_k=self._options.top_k,
            seed=self._options.seed,
        )
        found, answer = self._ask_engine(question, passages)
        picked = parse_option(answer.answer, job.question.choices) if job.mode == "generated-choice" else None
        return Record(
            job.question.id,
            job.arm.name,
            job.repetition,
            job.mode,
            answer=answer.answer,
            refused=answer.refused,
            picked=picked,
            passages=_kept(answer.passages),
            passages_left_out=found - len(answer.passages),
            quotes=tuple(citation.quote for citation in answer.citations),
            retrieve_s=retrieve_s if passages is not None else answer.timings.retrieve_s,
            ttft_s=answer.timings.ttft_s,
            total_s=answer.timings.total_s,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            tokens_per_s=answer.tokens_per_s,
            peak_memory_bytes=answer.peak_memory_bytes,
        )

    def _ask_engine(self, question: Question, passages: tuple[Passage, ...] | None) -> tuple[int, Answer]:
        """How many passages were found, and the answer, whose passages are those that fitted."""
        found = 0
        for event in self._engine.stream(question, passages=passages, keep=False):
            if isinstance(event, PassagesFound):
                found = len(event.passages)
            elif isinstance(event, AnswerDone):
                return found, event.answer
        raise GenerationFailed("the answer ended without its last event")

    def _adapter(self, job: Job) -> str | None:
        adapters = self._options.adapters.get(job.arm.name)
        return adapters[job.repetition] if adapters else None


def unread_passages(records: Sequence[Record]) -> str:
    """One sentence on passages that did not fit the model's context; empty when all were read."""
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


def _line(error: CoalesceError) -> str:
    return f"{type(error).__name__}: {error.message}"
