"""Studying: exams set and marked, misses turned into cards, cards reviewed, progress by chapter.

An exam past its deadline is closed with its draft when it, or anything that follows from it, is next read.

What a learner's own key sees (`Study.seen_by`) answers no question of an exam that this learner has not handed in:
cards of any open exam stay hidden; questions of a class's open exam are not drawn, marked or counted elsewhere either,
and while it runs no question of the learner's is answered unless the teacher lets the assistant help.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evals.errors import ExamClosed
from evals.exam import (
    MAX_ANSWER_CHARACTERS,
    PASSED,
    ExamPlan,
    Given,
    Mark,
    Result,
    draw_exam,
    mark_answers,
    readable_answer,
)
from evals.learners import DEFAULT_LEARNER, checked_learner
from evals.marking import AskJudge, By
from evals.questions import BankQuestion, csv_table, load_bank, sections_of
from evals.schedule import review
from evals.study_store import Attempt, StoredCard, StoredExam, StudyStore
from evals.text_match import Embed, normalize
from indexes.errors import Conflict, InvalidInput, NotFound
from indexes.messages import msg
from indexes.sample import SAMPLE_PATH
from indexes.types import Hit
from rag.question import reject_control_characters
from rag.retrieval import PassageBudget, select_passages
from rag.types import Passage, SearchableLibrary

Clock = Callable[[], datetime]
FindPassage = Callable[[BankQuestion], Passage | None]
"""The passage that justifies a question's answer, or None."""

FORECAST_DAYS = 7
MAX_LEARNERS = 200
"""Most learners of one class."""
_EVIDENCE_CANDIDATES = 8

_Chapter: TypeAlias = tuple[str, int]
"""A book's document id, "" for other questions, and a chapter's number."""


@dataclass(frozen=True, slots=True)
class ChapterProgress:
    """How far a learner is in one chapter.

    Attributes:
        book: its document id where the questions were made from a book; chapters of several books are told apart.
        questions: answerable questions there are; seen: asked at least once; right: newest attempt right.
        due: cards due now; forecast: cards coming due on each of the next `FORECAST_DAYS` days, today's rest first.
    """

    book: str
    chapter: int
    questions: int
    seen: int
    right: int
    due: int
    forecast: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress by chapter; `weak_sections` are those missed most, worst first: `(section, missed, seen)`."""

    learner: str
    chapters: tuple[ChapterProgress, ...]
    weak_sections: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions of open exams, known again by id or by text: another file may ask the same."""

    ids: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    evidence: frozenset[str] = frozenset()

    @classmethod
    def of(cls, exams: Iterable[StoredExam]) -> Self:
        """All questions of some exams."""
        questions = [question for exam in exams for question in exam.questions]
        return cls(
            frozenset(question.id for question in questions),
            frozenset(normalize(question.question) for question in questions),
            frozenset(normalize(gold.evidence) for question in questions for gold in question.gold) - {""},
        )

    def rests_on(self, quote: str) -> bool:
        """Whether the answer to one of them stands in a sentence, or the sentence in what proves it."""
        sentence = normalize(quote)
        return any(sentence in proof or proof in sentence for proof in self.evidence)

    def __bool__(self) -> bool:
        return bool(self.ids)

    def __contains__(self, question: BankQuestion) -> bool:
        return bool(self) and (question.id in self.ids or normalize(question.question) in self.texts)


class Study:
    """Exams, cards and progress of every learner.

    Args:
        find_passage: finds the passage that justifies a question's answer, kept with each mark.
        questions: the questions that exams draw from and progress counts.
        clock: the time now, with a time zone.
        embed: the bundled encoder, which compares open answers with the reference; by default loaded when first used.
        judge: a model that grades open answers, where one is configured.
    """

    def __init__(
        self,
        store: StudyStore,
        find_passage: FindPassage,
        questions: Callable[[], Sequence[BankQuestion]] = load_bank,
        clock: Clock = lambda: datetime.now(UTC),
        embed: Embed | None = None,
        judge: AskJudge | None = None,
    ) -> None:
        self._store = store
        self._find_passage = find_passage
        self._questions = questions
        self._clock = clock
        self._embed = embed or _embed
        self._judge = judge
        self._caller: str | None = None

    def seen_by(self, learner: str | None) -> Study:
        """As the key of a learner sees it, who reads no answer of an open exam; None sees all."""
        if learner == self._caller:
            return self
        seen = copy.copy(self)
        seen._caller = learner
        return seen

    def close(self) -> None:
        """Closes the store."""
        self._store.close()

    def start_exam(
        self, plan: ExamPlan, learner: str = DEFAULT_LEARNER, questions: Sequence[BankQuestion] | None = None
    ) -> StoredExam:
        """Draws and keeps an exam, from the bank or from the questions given.

        Raises:
            InvalidInput: a plan that cannot be met, or an invalid learner name.
            Conflict: the learner's class is asked every one of the questions.
        """
        learner = checked_learner(learner)
        pool = self._questions() if questions is None else questions
        hidden = self.asked_of_class()
        others = [question for question in pool if question not in hidden]
        if pool and not others:
            raise Conflict("all of these are questions of your class's open exam", hint="hand it in first")
        now = self._clock()
        exam = StoredExam(_new_id("exam"), learner, now, None, draw_exam(others, plan))
        if plan.time_limit_s is not None:
            exam = replace(exam, deadline=now + timedelta(seconds=plan.time_limit_s))
        self._store.add_exams([exam])
        return exam

    def start_class_exam(
        self,
        plan: ExamPlan,
        learners: Sequence[str],
        questions: Sequence[BankQuestion] | None = None,
        *,
        assistant: bool = False,
    ) -> tuple[StoredExam, ...]:
        """Gives every learner of a class the same questions; each learner's time begins when they begin the exam.

        Args:
            assistant: whether a learner's questions are answered meanwhile.

        Raises:
            InvalidInput: a plan that cannot be met, an invalid name, or not 1 to `MAX_LEARNERS` names.
        """
        names = sorted({checked_learner(name) for name in learners})
        if not 1 <= len(names) <= MAX_LEARNERS:
            raise InvalidInput(
                msg("the class has {} learners", len(names)), hint=msg("name 1 to {}", f"{MAX_LEARNERS:,}")
            )
        drawn = draw_exam(self._questions() if questions is None else questions, plan)
        one = StoredExam("", "", self._clock(), None, drawn, class_id=_new_id("class"), time_limit_s=plan.time_limit_s)
        one = replace(one, assistant=assistant)
        exams = tuple(replace(one, id=_new_id("exam"), learner=name) for name in names)
        self._store.add_exams(exams)
        return exams

    def class_exam(self, class_id: str) -> tuple[StoredExam, ...]:
        """The exams of a class, by learner. Raises NotFound."""
        exams = self._store.class_exams(class_id)
        if not exams:
            raise NotFound(
                msg("no class has the id {}", f"{class_id!r:.80}"), hint="list them with GET /v1/class-exams"
            )
        return tuple(self._current(exam.id) for exam in exams)

    def class_ids(self, limit: int | None = 100) -> tuple[str, ...]:
        """The classes that were given an exam, newest first."""
        return self._store.class_ids(limit)

    def open_exam(self, exam_id: str, learner: str | None = None) -> StoredExam:
        """As `exam`, for the learner who takes it: the time of a class's exam begins. Raises NotFound."""
        exam = self.exam(exam_id, learner)
        if exam.waits:
            self._store.begin(exam, self._clock())
            exam = self._store.exam(exam_id, None)
        return exam

    def exam(self, exam_id: str, learner: str | None = None) -> StoredExam:
        """An exam, with its result once handed in: one learner's, or whoever's when None is named. Raises NotFound."""
        return self._shown([self._current(exam_id, learner)])[0]

    def _current(self, exam_id: str, learner: str | None = None) -> StoredExam:
        """As `exam`, whoever reads it."""
        exam = self._store.exam(exam_id, learner if learner is None else checked_learner(learner))
        if exam.handed_in_at is None and exam.deadline is not None and self._clock() > exam.deadline:
            self._close_at_deadline(exam)
            exam = self._store.exam(exam_id, None)
        return exam

    def exams(
        self, learner: str = DEFAULT_LEARNER, limit: int | None = 20, among: Sequence[str] | None = None
    ) -> tuple[StoredExam, ...]:
        """The newest exams of a learner, newest first; or those of these ids."""
        learner = self._up_to_date(learner)
        return self._shown(self._store.exams(learner, limit if among is None else None, among))

    def exam_ids(self, learner: str = DEFAULT_LEARNER) -> tuple[str, ...]:
        """The ids of a learner's exams, newest first."""
        return self._store.exam_ids(checked_learner(learner))

    def asked_now(self) -> Asked:
        """The questions of exams that the caller has not handed in yet: their answers stay hidden."""
        return Asked.of(self._open_exams())

    def check_assistant(self) -> None:
        """Raises Conflict while the caller's class takes an exam without the assistant's help."""
        running = (exam for exam in self._open_exams() if exam.class_id is not None and not exam.waits)
        if any(not exam.assistant for exam in running):
            raise Conflict(
                "while your class's exam is open, the assistant does not answer", hint="hand in the exam first"
            )

    def asked_of_class(self) -> Asked:
        """Those of them that the caller's class is asked: they are not practised meanwhile."""
        return Asked.of(exam for exam in self._open_exams() if exam.class_id is not None)

    def _open_exams(self) -> tuple[StoredExam, ...]:
        return self._store.open_exams(self._up_to_date(self._caller)) if self._caller is not None else ()

    def _shown(self, exams: Sequence[StoredExam]) -> tuple[StoredExam, ...]:
        """Exams without the marks of questions that the caller's class is asked now."""
        hidden = self.asked_of_class()
        return tuple(replace(exam, result=_without(exam, hidden)) if hidden else exam for exam in exams)

    def time_left_s(self, exam: StoredExam) -> float:
        """Seconds until the deadline, below 0 after it; infinity without a time limit."""
        return (exam.deadline - self._clock()).total_seconds() if exam.deadline is not None else math.inf

    def draft(self, exam_id: str) -> dict[str, Given]:
        """The answers given so far in an open exam, by question id."""
        return self._store.draft(exam_id)

    def keep_draft(self, exam_id: str, answers: Mapping[str, Given], learner: str | None = None) -> None:
        """Keeps the answers given so far, in place of those kept before; what counts if the time runs out.

        Raises:
            NotFound: no such exam of this learner.
            ExamClosed: handed in, or past its deadline.
            InvalidInput: an answer that cannot be marked.
        """
        exam = self._open_exam(exam_id, learner)
        self._store.keep_draft(exam.id, _readable_answers(exam, answers), self._clock())

    def keep_answer(self, exam: StoredExam, question_id: str, answer: Given) -> dict[str, Given]:
        """As `keep_answers`, for one."""
        return self.keep_answers(exam, {question_id: answer})

    def keep_answers(self, exam: StoredExam, answers: Mapping[str, Given]) -> dict[str, Given]:
        """Keeps answers of a draft beside the others, all or none, and returns all; None takes one back.

        Raises as `keep_draft`.
        """
        given = _readable_answers(self._open_exam(exam.id, exam.learner), answers)
        return self._store.keep_draft(exam.id, given, self._clock(), beside=True)

    def hand_in(self, exam_id: str, answers: Mapping[str, Given], learner: str | None = None) -> Result:
        """Marks an exam; what was not answered is 0. Nothing is kept when it raises.

        Raises:
            NotFound: no such exam of this learner.
            ExamClosed: handed in before, or past its deadline.
            InvalidInput: an answer to a question that is not in the exam, or an option that does not exist.
        """
        exam = self._open_exam(exam_id, learner)
        result = self._mark(exam, _readable_answers(exam, answers), self._clock())
        return _without(replace(exam, result=result), self.asked_of_class()) or result

    def decide(self, exam_id: str, question_id: str, share: float, learner: str | None = None) -> Mark:
        """Keeps the caller's own verdict on a mark; the cards are then as if the exam had marked it so.

        The marks of a class's exam are the teacher's: what a learner says of them is kept beside them as a request.

        Args:
            share: of the points, from 0.0 to 1.0.

        Raises:
            NotFound: no such exam of this learner.
            InvalidInput: a question that is not in the exam, or a share outside 0 to 1.
            Conflict: the exam is not marked yet, or a class is asked the question now.
        """
        exam = self.exam(exam_id, learner)
        question = next((question for question in exam.questions if question.id == question_id), None)
        if question is None:
            raise InvalidInput(
                msg("question {} is not in exam {}", repr(question_id), exam.id), hint="Name a question of this exam."
            )
        if not 0 <= share <= 1:
            raise InvalidInput(
                msg("share must be 0 to 1, not {}", share), hint="give 1 for right, 0.5 for in part, 0 for wrong"
            )
        if exam.result is None:
            raise Conflict(
                msg("exam {} is not handed in", exam.id), hint=msg("POST /v1/exams/{}/answers marks it", exam.id)
            )
        if question in self.asked_of_class():
            raise Conflict(msg("question {} is in your class's open exam", repr(question_id)), hint="hand it in first")
        if exam.class_id is not None and self._caller is not None:
            return self._store.keep_request(exam, question, share)
        by: By = "self" if exam.class_id is None else "teacher"
        return self._store.keep_verdict(exam, question, Attempt.of(question, share, self._clock()), by)

    def _open_exam(self, exam_id: str, learner: str | None) -> StoredExam:
        """An exam that answers can still be given to. Raises NotFound, ExamClosed."""
        exam = self.exam(exam_id, learner)
        if exam.closed_by_deadline:
            raise ExamClosed(
                msg("exam {} closed at {}, it is {}", exam.id, exam.deadline, self._clock().isoformat()),
                hint=msg("GET {} shows the marks of what was answered until then", f"/v1/exams/{exam.id}"),
            )
        if exam.handed_in_at is not None:
            raise ExamClosed(
                msg("exam {} was handed in at {}", exam.id, exam.handed_in_at.isoformat()),
                hint=msg("see GET {}", f"/v1/exams/{exam.id}"),
            )
        return exam

    def _close_at_deadline(self, exam: StoredExam) -> None:
        """Marks the draft of an exam whose time ran out, unless another process just did."""
        if exam.deadline is not None:
            with suppress(ExamClosed):
                self._mark(exam, self._store.draft(exam.id), exam.deadline)

    def _up_to_date(self, learner: str) -> str:
        """The learner's name, once the exams whose time ran out are closed: cards and progress follow from them."""
        learner = checked_learner(learner)
        for exam in self._store.overdue(self._clock(), learner):
            self._close_at_deadline(exam)
        return learner

    def _mark(self, exam: StoredExam, answers: Mapping[str, Given], now: datetime) -> Result:
        """Marks an exam as of `now` and keeps result, attempts and cards."""
        marks = mark_answers(exam.questions, answers, self._embed, self._judge)
        marked = list(zip(exam.questions, marks, strict=True))
        result = Result(tuple(replace(mark, passage=self._find_passage(question)) for question, mark in marked))
        attempts = [Attempt.of(question, mark.share, now) for question, mark in marked]
        missed = [question for question, mark in marked if not mark.passed]
        self._store.close_exam(exam, result, attempts, missed, now)
        return result

    def due_cards(self, learner: str = DEFAULT_LEARNER, limit: int = 100) -> tuple[StoredCard, ...]:
        """Cards due now, the longest overdue first."""
        learner, hidden = self._up_to_date(learner), self.asked_now()
        due = self._store.due_cards(learner, self._clock(), None if hidden else limit)
        return tuple(card for card in due if card.question not in hidden)[:limit]

    def count_due(self, learner: str = DEFAULT_LEARNER) -> int:
        """How many cards are due now."""
        now = self._clock()
        return sum(due <= now for due in self.due_times(learner))

    def due_times(self, learner: str = DEFAULT_LEARNER) -> tuple[datetime, ...]:
        """When each card that comes due does, without reading the cards."""
        learner, hidden = self._up_to_date(learner), self.asked_now().ids
        return tuple(due for key, due in self._store.due_times(learner) if key not in hidden)

    def cards(self, learner: str = DEFAULT_LEARNER) -> tuple[StoredCard, ...]:
        """All cards of a learner."""
        learner, hidden = self._up_to_date(learner), self.asked_now()
        return tuple(card for card in self._store.cards(learner) if card.question not in hidden)

    def card(self, card_id: str, learner: str | None = None) -> StoredCard:
        """A card of a learner, or of any when None is named. Raises NotFound, and Conflict while an exam asks it."""
        card = self._store.card(card_id, learner if learner is None else checked_learner(learner))
        if card.question in self.asked_now():
            raise Conflict(msg("card {} asks what your open exam asks", repr(card_id)), hint="hand in the exam first")
        return card

    def review_card(
        self, card_id: str, rating: int, learner: str | None = None, at: datetime | None = None
    ) -> StoredCard:
        """The card with its next due time.

        Args:
            rating: 1 again, 2 hard, 3 good, 4 easy.
            at: when it was reviewed; None is now.

        Raises:
            NotFound, InvalidInput, Conflict: as `evals.schedule.review`; also InvalidInput for a time ahead of now.
        """
        card = self.card(card_id, learner)
        now = self._clock()
        try:
            at = at.astimezone(UTC) if at is not None else None
        except OverflowError:
            raise InvalidInput(
                msg("the review is dated {}, which no calendar holds", at), hint="leave it out"
            ) from None
        if at is not None and at > now + timedelta(minutes=5):
            raise InvalidInput(
                msg("the review is dated {}, ahead of {}", at.isoformat(), now.isoformat()), hint="leave it out"
            )
        when = at or now
        schedule = review(card.fsrs_json, rating, when)
        return self._store.keep_review(card, schedule, rating, Attempt.of(card.question, float(rating > 1), when))

    def undo_review(self, card_id: str, learner: str | None = None) -> StoredCard:
        """The card as it was before its newest review. Raises NotFound, and Conflict where there is none."""
        return self._store.undo_review(self.card(card_id, learner))

    def change_card(
        self,
        card_id: str,
        learner: str | None = None,
        *,
        question: str | None = None,
        answer: str | None = None,
        suspended: bool | None = None,
    ) -> StoredCard:
        """Rewords a card, or keeps it from coming due; None leaves a part as it is. Raises NotFound, InvalidInput."""
        card = self.card(card_id, learner)
        changed = card.question
        if question is not None:
            changed = replace(changed, question=_card_text(question, "question"), question_zh="")
        if answer is not None:
            changed = replace(changed, answer=_card_text(answer, "answer"), key_facts=())
        if changed != card.question:
            card = self._store.change_card(card, changed)
        return card if suspended is None else self._store.suspend(card, on=suspended)

    def delete_card(self, card_id: str, learner: str | None = None) -> None:
        """Removes a card. Raises NotFound."""
        self._store.delete_card(self.card(card_id, learner))

    def save_card(self, question: BankQuestion, learner: str = DEFAULT_LEARNER) -> StoredCard:
        """A card for a question of the learner's own, due now; the same question again makes no second card."""
        question = replace(
            question, question=_card_text(question.question, "question"), answer=_card_text(question.answer, "answer")
        )
        return self._store.add_card(self._up_to_date(learner), question, self._clock())

    def progress(
        self,
        learner: str = DEFAULT_LEARNER,
        about: Sequence[BankQuestion] | None = None,
        made: Sequence[BankQuestion] = (),
    ) -> Progress:
        """What was seen, what was right, what is due and what is coming, by book and chapter.

        Args:
            about: the questions of one book, to count nothing else; None counts all that was ever asked.
            made: the questions made from books, whose chapters then stand by themselves.
        """
        learner = self._up_to_date(learner)
        now = self._clock()
        asked = self._questions() if about is None else about
        questions = {question.id: question for question in (*asked, *made) if question.answerable}
        book_of = {question.id: question.book for question in made}
        hidden = self.asked_of_class().ids

        def counts(key: str) -> bool:
            return key not in hidden and (about is None or key in questions)

        attempts = [attempt for attempt in self._store.latest_attempts(learner) if counts(attempt.question_id)]
        chapter_of = {each.question_id: (book_of.get(each.question_id, ""), each.chapter) for each in attempts}
        chapter_of |= {key: (book_of.get(key, ""), question.chapter) for key, question in questions.items()}
        begun = {book for book, _ in (chapter_of[attempt.question_id] for attempt in attempts)} | {""}
        totals = Counter(chapter_of[key] for key in questions if chapter_of[key][0] in begun)
        seen, right = Counter[_Chapter](), Counter[_Chapter]()
        missed_in: dict[str, list[bool]] = defaultdict(list)
        for attempt in attempts:
            is_right = attempt.score >= PASSED
            seen[chapter_of[attempt.question_id]] += 1
            right[chapter_of[attempt.question_id]] += is_right
            if attempt.section:
                missed_in[attempt.section].append(not is_right)
        due: Counter[_Chapter] = Counter()
        forecast: dict[_Chapter, list[int]] = defaultdict(lambda: [0] * FORECAST_DAYS)
        for question_id, when in self._store.due_times(learner):
            if not counts(question_id):
                continue
            chapter = chapter_of.get(question_id, ("", 0))
            day = int((when - now).total_seconds() // 86_400)
            if when <= now:
                due[chapter] += 1
            elif day < FORECAST_DAYS:
                forecast[chapter][day] += 1
        weak = [(section, sum(missed), len(missed)) for section, missed in missed_in.items() if any(missed)]
        weak.sort(key=lambda row: (-row[1] / row[2], -row[1], row[0]))
        chapters = sorted(set(totals) | set(seen) | set(due))
        return Progress(
            learner,
            tuple(ChapterProgress(*c, totals[c], seen[c], right[c], due[c], tuple(forecast[c])) for c in chapters),
            tuple(weak[:10]),
        )


def class_marks_csv(exams: Sequence[StoredExam]) -> str:
    """The marks of a class: a row for each learner, and after the total three columns for each question: its points,
    how they were given, and the points that the learner asks for instead."""
    numbered = list(enumerate(exams[0].questions, 1))
    asked = [f"{number}. {question.question}" for number, question in numbered]
    made = [f"{number}. {what}" for number, _ in numbered for what in ("marked by", "requested")]
    head = ["learner", "handed_in_at", "score", "max_score", "percent", "needs_check", "requests"]
    rows: list[Sequence[object]] = [[*head, *asked, *made]]
    for exam in exams:
        if exam.result is None or exam.handed_in_at is None:
            rows.append([exam.learner, "", "", len(exam.questions), "", "", "", *[""] * len(asked + made)])
            continue
        score, most, marks = exam.result.score, exam.result.max_score, exam.result.marks
        share, unsure = f"{100 * score / most:.1f}", sum(mark.needs_check for mark in marks)
        handed_in = exam.handed_in_at.isoformat(timespec="seconds")
        asks = [None if mark.requested is None else round(mark.requested * mark.max_score, 4) for mark in marks]
        how = [cell for mark, more in zip(marks, asks, strict=True) for cell in (mark.by, "" if more is None else more)]
        requests = len(asks) - asks.count(None)
        scores = [mark.score for mark in marks]
        rows.append([exam.learner, handed_in, score, most, share, unsure, requests, *scores, *how])
    return csv_table(rows)


def _without(exam: StoredExam, hidden: Asked) -> Result | None:
    """The result of an exam without the marks of some questions."""
    if exam.result is None or not hidden:
        return exam.result
    pairs = zip(exam.questions, exam.result.marks, strict=True)
    return Result(tuple(mark for question, mark in pairs if question not in hidden))


@cache
def _load_encoder() -> Embed:
    from evals.question_checks import bundled_encoder

    return bundled_encoder()


def _embed(texts: Sequence[str]) -> NDArray[np.float32]:
    return _load_encoder()(texts)


def _new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(8)}"


def _card_text(text: str, name: str) -> str:
    reject_control_characters(text, name)
    if not text.strip() or len(text) > MAX_ANSWER_CHARACTERS:
        raise InvalidInput(
            msg("the card's {} has {} characters", name, len(text.strip())),
            hint=msg("write 1 to {}", f"{MAX_ANSWER_CHARACTERS:,}"),
        )
    return text.strip()


def _readable_answers(exam: StoredExam, answers: Mapping[str, Given]) -> dict[str, Given]:
    """Every answer as it will be marked. Raises InvalidInput, naming the question."""
    questions = {question.id: question for question in exam.questions}
    strangers = sorted(set(answers) - set(questions))
    if strangers:
        raise InvalidInput(
            msg("question {} is not in exam {}", repr(strangers[0]), exam.id),
            hint="send answers to questions of this exam only",
        )
    return {name: readable_answer(questions[name], given) for name, given in answers.items()}


def justify(question: BankQuestion, library: SearchableLibrary | None) -> Passage | None:
    """The passage that justifies a question's reference answer.

    The gold evidence is looked up in the library; where the book is not there, the bundled book's own section takes its
    place, without ids that could be opened. A question without gold gets the best passage for question and answer.
    """
    if library is not None:
        for gold in question.gold:
            evidence = normalize(gold.evidence)
            for hit in library.lexical(f"{gold.heading} {gold.evidence}", _EVIDENCE_CANDIDATES):
                if evidence and evidence in normalize(hit.node.text):
                    return _passage(hit, library)
        if not question.gold:
            hits = library.lexical(f"{question.question} {question.answer}", 1)
            return _passage(hits[0], library) if hits else None
    return _bundled_section(question) if question.gold else None


def _passage(hit: Hit, library: SearchableLibrary) -> Passage:
    """The node alone, whose listing may have begun in an earlier one."""
    return select_passages([hit], library, 1, PassageBudget(0, 0))[0]


def _bundled_section(question: BankQuestion) -> Passage | None:
    gold = question.gold[0]
    path = SAMPLE_PATH / gold.file
    if path.parent != SAMPLE_PATH or not path.is_file():
        return None
    text = sections_of(path).get(gold.heading, "").strip()
    if not text:
        return None
    return Passage("", "", "", (gold.heading,), None, None, None, text, 0.0, question.chapter)
