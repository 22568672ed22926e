"""One arm's column of a comparison: its answer as it is written, then what it cost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from api.pages.answer_card import QUOTING
from api.pages.controls import tag
from api.pages.frame import Visit, show_problem
from api.pages.marked_answer import REDRAW_S, THINKING, MarkedAnswer
from api.pages.runs import AnswerRun
from api.pages.source_panel import SourcePanel
from indexes.errors import Cancelled, CoalesceError
from rag.types import Answer, Arm, Question

MEBIBYTE = 2**20


class ArmAnswer:
    """A column. With a `letter` the arm stays hidden until `reveal`."""

    def __init__(self, visit: Visit, source: SourcePanel, arm: Arm, letter: str) -> None:
        self._visit = visit
        self._t = visit.t
        self._arm = arm
        self._answer: Answer | None = None
        self._run: AnswerRun | None = None
        self.name = visit.t("compare.answer", letter=letter) if letter else visit.t(f"arm.{arm}")
        with tag("article", "", "card arm-answer"):
            self._title = tag("h2", self.name)
            self._text = MarkedAnswer(visit.t, source, f'<p class="soft">{visit.t("compare.waits")}</p>')
            self._figures = tag("dl", "", "arm-figures")

    async def run(self, question: Question) -> Answer | None:
        """Answers with this arm; None when it was stopped or failed, which the column says."""
        adapters = self._visit.page.services.engine.generator.adapters
        adapter = adapters[0] if adapters and self._arm in ("tuned", "rag+tuned") else None
        self._text.set_html(THINKING)
        try:
            run = self._run = self._visit.page.runs.start_unkept(
                replace(question, arm=self._arm, adapter=adapter), self._visit.address
            )
        except CoalesceError as error:
            self._fail(error)
            return None
        async for _ in run.follow():
            self._text.passages = run.passages
            if run.text:
                self._text.draw(run.text)
                await asyncio.sleep(REDRAW_S)
        if run.done is None:
            self._fail(run.error)
            return None
        self._answer = run.done
        self._text.citations = run.done.citations
        self._text.draw(run.done.answer)
        return run.done

    def stop(self) -> None:
        """Stops the generator."""
        if self._run is not None:
            self._run.stop()

    def reveal(self) -> None:
        """Shows the arm and its figures."""
        self._title.set_text(self._t(f"arm.{self._arm}"))
        answer = self._answer
        if answer is None:
            return
        supported = sum(citation.verdict == "supported" for citation in answer.citations)
        rows = [
            ("first", self._t("compare.ms", n=f"{1000 * answer.timings.ttft_s:,.0f}")),
            ("total", self._t("compare.ms", n=f"{1000 * answer.timings.total_s:,.0f}")),
            ("speed", f"{answer.tokens_per_s:,.1f}" if answer.tokens_per_s and answer.generator != QUOTING else "–"),
            ("memory", f"{answer.peak_memory_bytes / MEBIBYTE:,.0f} MiB" if answer.peak_memory_bytes else "–"),
            ("citations", self._t("compare.supported", n=len(answer.citations), supported=supported)),
            ("model", answer.model if answer.adapter is None else f"{answer.model} + {answer.adapter}"),
        ]
        self._figures.clear()
        with self._figures:
            for name, value in rows:
                tag("dt", self._t(f"compare.{name}"))
                tag("dd", value)

    def _fail(self, error: BaseException | None) -> None:
        if self._run is None or not self._run.text:
            self._text.set_html("")
        with self._figures:
            if error is None or isinstance(error, Cancelled):
                tag("p", self._t("compare.stopped"), "note")
            else:
                show_problem(self._visit, error)
