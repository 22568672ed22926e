"""Comparisons run by a job of the server: the quick one, with what answers now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from api.jobs import Job, JobHandle, JobQueue
from api.settings import CoalesceSettings
from evals.questions import BankQuestion
from evals.run import RunSpec
from indexes.errors import Cancelled, Conflict
from indexes.settings import IndexSettings
from rag.assemble import resolve_kind
from rag.settings import LANGUAGE_MODELS, RagSettings
from rag.types import Arm

QUESTIONS = "bank:test"
REPORT = "report"
"""The kind of the job."""
Run = Callable[[RunSpec, IndexSettings, RagSettings, Path, Callable[[str, int, int], None]], Mapping[str, Any]]


class Comparisons:
    """Queues comparisons.

    Args:
        rag: settings of what answers now; arms: those that it can run.
        run: runs one and writes its report; by default `evals.experiment.run_experiment`.
    """

    def __init__(
        self,
        settings: CoalesceSettings,
        jobs: JobQueue,
        rag: Callable[[], RagSettings],
        arms: Callable[[], tuple[Arm, ...]],
        run: Run | None = None,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._rag = rag
        self._arms = arms
        self._run = run

    def run_quick(
        self, document_id: str | None = None, of_book: Callable[[str], Sequence[BankQuestion]] = lambda _: ()
    ) -> Job:
        """Queues `coalesce eval --quick`; the job's last message is the id of the report.

        Args:
            document_id: the book whose questions, given by `of_book`, are asked in place of the bank's.

        Raises:
            NotReady: nothing answers yet.
            Conflict: a comparison is running already.
        """
        self._arms()
        source = QUESTIONS if document_id is None else f"book:{document_id}"
        work = partial(self._compare, source, of_book)
        return self._jobs.submit_alone(
            REPORT,
            work,
            lambda _: Conflict("a comparison is running already", hint="Wait for its report, or cancel its job."),
            document_id=document_id,
        )

    def _compare(self, source: str, of_book: Callable[[str], Sequence[BankQuestion]], handle: JobHandle) -> str:
        from evals.experiment import plan_run, run_experiment

        def tell(step: str, done: int, total: int) -> None:
            if handle.cancelled():
                raise Cancelled("the comparison was cancelled")
            handle.progress(done, total, step)

        rag = self._rag()
        spec = plan_run(
            source,
            rag.generator,
            arms=self._arms() if resolve_kind(rag.generator) in LANGUAGE_MODELS else None,
            of_book=of_book,
            quick=True,
            command=f"coalesce eval --quick --questions {source}",
        )
        folder = self._settings.reports_folder / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
        (self._run or run_experiment)(spec, self._settings.index, rag, folder, tell)
        return folder.name
