"""Runs the engine for every entry point: admission limit, one thread per answer, metrics, cancel when clients leave.

An answer in work is an `AnswerRun`, apart from the clients that read it: a page that is loaded again, or a client that
lost its connection, follows the same run from its start.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import NotReady, RateLimited, describe, reply_for
from api.metrics import Metrics
from api.schemas.answers import Pick, Unfinished, wire_event
from api.settings import CoalesceSettings
from api.streaming import Followed, Named
from indexes.cores import usable_cores
from indexes.errors import Busy, Cancelled, CoalesceError, InvalidInput, NotFound
from indexes.messages import msg
from rag.errors import ArmUnavailable
from rag.types import (
    TUNED_ARMS,
    Answer,
    AnswerDone,
    Arm,
    Event,
    Question,
    Variant,
)

if TYPE_CHECKING:
    from api.server_state import AnswersApart
    from api.shared_runs import SharedRuns
    from rag.conversations import Vote
    from rag.engine import AnswerEngine
    from rag.explanation import Explanation

T = TypeVar("T")
IsCancelled = Callable[[], bool]
MAX_CLIENTS_REMEMBERED = 10_000
COMPUTE_AT_ONCE = 4
"""Most answers and searches that compute at once where no language model answers: more only take the interpreter's
lock from each other, and from the thread that takes calls. With a model the `answer_threads` take them: most wait."""
STOPPING_RETRY_S = 10.0
RUNS_REMEMBERED = 500
"""Newest runs that can be followed again."""
COMPARISONS_REMEMBERED = 50
"""The same of comparisons, each with all of its answers."""
ANSWERING_PATHS = frozenset(
    {"/v1/ask", "/v1/chat/completions", "/v1/choose", "/v1/compare", "/v1/explain", "/v1/search"}
)
MOST_EXPLAINED = 6
"""Nodes of one section that are explained."""


class AdmissionLimit:
    """Counts running and waiting answers.

    Args:
        capacity: most answers at once, running or waiting.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._inside = 0
        self._left_at: deque[float] = deque(maxlen=16)
        self._lock = threading.Lock()

    @property
    def inside(self) -> int:
        """Answers in work or waiting now."""
        return self._inside

    def enter(self) -> None:
        """Takes a slot; `leave` gives it back. Raises Busy when every slot is taken."""
        with self._lock:
            self.check()
            self._inside += 1

    def check(self) -> None:
        """Raises Busy when every slot is taken."""
        if self._inside >= self._capacity:
            raise Busy(
                msg("Server busy: {} answers running or queued", self._inside),
                hint="Try again in a moment, or raise COALESCE_MAX_WAITING_ASKS.",
                retry_after_s=self._until_a_slot_s(),
            )

    def leave(self) -> None:
        """Gives a slot back."""
        with self._lock:
            self._inside -= 1
            self._left_at.append(time.monotonic())

    def _until_a_slot_s(self) -> float:
        """The mean time between those who left lately; 5 s before two have."""
        left_at = tuple(self._left_at)
        if len(left_at) < 2:
            return 5.0
        return max((time.monotonic() - left_at[0]) / len(left_at), 1.0)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Takes a slot for a `with` block; raises Busy."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


class BusyGate:
    """ASGI middleware: 503 for calls that answer, while every slot is taken, before their body is read.

    Args:
        check: raises Busy while none is free.
    """

    def __init__(self, app: ASGIApp, check: Callable[[], None]) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses, or hands on."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in ANSWERING_PATHS:
            try:
                self._check()
            except Busy as error:
                await reply_for(Request(scope), describe(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class RateLimit:
    """Limits the questions of each client: a bucket that holds a minute's worth and fills steadily.

    Args:
        per_minute: questions per minute; 0 sets no limit.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Counts one question; raises RateLimited, with the seconds to wait, when the client's bucket is empty."""
        if not self._per_minute:
            return
        name = hashlib.sha256(client.encode()).hexdigest()  # other servers hear it: a key's digest would let in
        rate_per_s = self._per_minute / 60
        with self._lock:
            level = self._level(name)
            allowed = level >= 1
            if allowed:
                self._spend(name, level, 1)
                self._taken[name] += 1
                _forget_oldest(self._taken)
        if not allowed:
            raise RateLimited(
                msg("more than {} questions per minute", self._per_minute),
                hint="Wait as long as Retry-After says, or raise COALESCE_RATE_LIMIT_PER_MINUTE.",
                retry_after_s=(1 - level) / rate_per_s,
            )

    def share(self, exchange: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        """Counts what clients asked elsewhere too; `exchange` gets what they asked here since the last time."""
        with self._lock:
            here, self._taken = self._taken, Counter()
        try:
            elsewhere = exchange(here)
        except CoalesceError:
            with self._lock:
                self._taken += here
            raise
        with self._lock:
            for name, count in elsewhere.items():
                self._spend(name, self._level(name), count)

    def _level(self, name: str) -> float:
        level, seen = self._buckets.get(name, (float(self._per_minute), self._clock()))
        return min(self._per_minute, level + (self._clock() - seen) * self._per_minute / 60)

    def _spend(self, name: str, level: float, count: int) -> None:
        self._buckets.pop(name, None)
        self._buckets[name] = (level - count, self._clock())
        _forget_oldest(self._buckets)


def _forget_oldest(clients: dict[str, Any]) -> None:
    while len(clients) > MAX_CLIENTS_REMEMBERED:
        clients.pop(next(iter(clients)))


class AnswerRun(Followed[Event]):
    """One answer from its question to its end, written by a thread of its own.

    One thread drives the engine's iterator from its first event to its last: a model's state may be bound to a thread
    (`torch.inference_mode` is).

    Args:
        start: makes the iterator; gets a function that returns True when the run should stop.
        finished: called on the thread when the iterator is closed, whatever happened.
        grace_s: how long the run goes on after its last client has left.

    Attributes:
        done: the finished answer, None until then.
    """

    def __init__(
        self,
        question: Question,
        start: Callable[[IsCancelled], Iterator[Event]],
        executor: Executor,
        finished: Callable[[], None],
        grace_s: float,
    ) -> None:
        super().__init__(grace_s)
        self.question = question
        self.done: Answer | None = None
        self._start = start
        self._finished = finished
        self._gone = threading.Event()
        executor.submit(self._drive)

    @property
    def id(self) -> str:
        """The id of the answer, known before it is written."""
        return self.question.answer_id or ""

    def stop(self, error: CoalesceError | None = None) -> None:
        """Stops the generator; what is written stays. With an error, clients get it at once."""
        self._gone.set()
        if error is not None:
            self._end(error)

    async def answer(self) -> Answer:
        """Waits for the finished answer; raises what ended the run instead."""
        try:
            async for _ in self.events():
                pass
        except Exception:
            if self.done is None:
                raise
        if self.done is None:
            raise Cancelled("the answer was stopped")
        return self.done

    def _drive(self) -> None:
        error: BaseException | None = None
        try:
            if not self._gone.is_set():
                self._pass_on()
        except BaseException as caught:  # noqa: BLE001  clients get it; on this thread nobody would see it
            error = caught
        finally:
            self._finished()
            self._send(self._end, error)

    def _pass_on(self) -> None:
        events = self._start(self._gone.is_set)
        try:
            for event in events:
                if self._gone.is_set():
                    return
                self._send(self._add, event)
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()

    def _send(self, change: Callable[[T], None], value: T) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has stopped and nobody reads
            self.loop.call_soon_threadsafe(change, value)

    def _add(self, event: Event) -> None:
        if isinstance(event, AnswerDone):
            self.done = event.answer
        super()._add(event)


class Answering:
    """Runs the engine for every entry point.

    Args:
        engine: gives the engine; raises NotReady until it can answer.
        settings: answers at once, answers waiting, questions per minute.
        metrics: counts answers and failures.
        to_come: what to say of an arm that cannot run yet, while a language model is being loaded.
        apart: keeps answers that no conversation does for the other servers of a database.
        shared: the runs of those servers.
    """

    def __init__(
        self,
        engine: Callable[[], AnswerEngine],
        settings: CoalesceSettings,
        metrics: Metrics,
        to_come: Callable[[], NotReady | None] = lambda: None,
        apart: AnswersApart | None = None,
        shared: SharedRuns | None = None,
    ) -> None:
        self._apart = apart
        self._shared = shared
        self._engine = engine
        self._metrics = metrics
        self._to_come = to_come
        self.rate = RateLimit(settings.rate_limit_per_minute)
        self._runs: OrderedDict[str, AnswerRun] = OrderedDict()
        self._comparisons: OrderedDict[str, tuple[str | None, Followed[Any]]] = OrderedDict()
        self._threads = ThreadPoolExecutor(settings.answer_threads, thread_name_prefix="coalesce-answer")
        self._computing = ThreadPoolExecutor(
            min(COMPUTE_AT_ONCE, usable_cores(), settings.answer_threads), thread_name_prefix="coalesce-compute"
        )
        self.limit = AdmissionLimit(settings.answer_threads + settings.max_waiting_asks)
        self._lock = threading.Lock()
        self._users: Counter[int] = Counter()
        self._when_unused: dict[int, Callable[[], None]] = {}

    def start(
        self, question: Question, client: str, *, keep: bool = True, grace_s: float = 0.0, found: bool = False
    ) -> AnswerRun:
        """Begins an answer.

        Args:
            client: who asks, for the rate limit.
            keep: whether the answer goes into a conversation.
            grace_s: how long the answer is written on after its last client has left.
            found: whether anybody may look for it while it is written.

        Raises:
            NotReady, RateLimited, Busy: before anything begins.
        """
        with self._using() as engine:
            self.rate.take(client)
            self.limit.enter()
            run = self._begin(engine, question, self.limit.leave, keep=keep, grace_s=grace_s)
        if found and self._shared is not None:
            where = {"conversation_id": question.conversation_id, "replaces": question.replaces}
            self._shared.add(run.id, question.owner, run, wire_event, question=question.text, **where)
        return run

    async def compare(
        self, question: Question, arms: Sequence[Arm], client: str, variants: Sequence[Variant] = ()
    ) -> AsyncGenerator[AnswerRun]:
        """Answers with each variant or arm in turn and yields each run as it begins; by default, all arms that can run.

        Close the iterator (`contextlib.aclosing`) to stop. The answers are not kept: see `AnswerEngine.keep_together`.

        Raises:
            NotReady, RateLimited, Busy, ArmUnavailable: before anything begins.
        """
        with self._using() as engine:
            with self._or_not_ready():
                questions = engine.comparison(question, arms, variants)
            self.rate.take(client)
            with self.limit.slot():
                for one in questions:
                    run = self._begin(engine, one, lambda: None, keep=False, grace_s=0.0)
                    try:
                        yield run
                        await run.answer()
                    finally:
                        run.stop()

    def keep_comparison(self, comparison_id: str, owner: str | None, events: Followed[Named]) -> None:
        """Lets the events of a comparison be followed by its id."""
        self._comparisons[comparison_id] = (owner, events)
        if self._shared is not None:
            self._shared.add(comparison_id, owner, events)
        while len(self._comparisons) > COMPARISONS_REMEMBERED:
            self._comparisons.popitem(last=False)

    def follow_comparison(self, comparison_id: str, owner: str | None) -> AsyncGenerator[Named]:
        """The events of a comparison that is going on or has just ended; raises NotFound, for another owner's too."""
        try:
            return self._find_comparison(comparison_id, owner).events()
        except NotFound as unknown:
            if self._shared is None:
                raise
            return self._shared.follow(comparison_id, owner, unknown)

    async def stop_comparison(self, comparison_id: str, owner: str | None) -> None:
        """Stops a comparison; raises NotFound, for another owner's too."""
        try:
            self._find_comparison(comparison_id, owner).stop()
        except NotFound:
            if self._shared is None or await self._shared.stop(comparison_id, owner) is None:
                raise

    def _find_comparison(self, comparison_id: str, owner: str | None) -> Followed[Named]:
        whose, events = self._comparisons.get(comparison_id, (None, None))
        if events is None or (owner is not None and whose != owner):
            raise NotFound(
                msg("no comparison {} is being made or has just ended", f"{comparison_id!r:.80}"),
                hint="Make it again: POST /v1/compare.",
            )
        return events

    async def run(self, work: Callable[[], T], client: str) -> T:
        """Runs other work of the engine under the same limits; raises as `start` does."""
        with self._using() as engine, self.limit.slot():  # the generator may be the one that chooses an option
            self.rate.take(client)
            return await asyncio.get_running_loop().run_in_executor(self._threads_for(engine), work)

    def find(self, answer_id: str, owner: str | None) -> AnswerRun:
        """A run that is going on or has just ended; raises NotFound, for another owner's run too."""
        run = self._runs.get(answer_id)
        if run is None or (owner is not None and run.question.owner != owner):
            raise NotFound(
                msg("no answer {} is being written or has just ended", f"{answer_id!r:.80}"),
                hint="Finished answers are in their conversation: GET /v1/conversations/ID.",
            )
        return run

    def follow(self, answer_id: str, owner: str | None) -> AsyncGenerator[Named]:
        """The events of an answer as they are sent, at whichever server it is written; raises as `find`."""
        try:
            return named(self.find(answer_id, owner).events())
        except NotFound as unknown:
            if self._shared is None:
                raise
            return self._shared.follow(answer_id, owner, unknown)

    def answer(self, answer_id: str, owner: str | None) -> Answer:
        """A finished answer: one that has just ended, or one that a conversation keeps; raises NotFound."""
        with suppress(NotFound):
            if done := self.find(answer_id, owner).done:
                return done
        try:
            return self._engine().conversations.of(owner).answer(answer_id)
        except NotFound:
            found = self._apart.get(answer_id, owner) if self._apart is not None else None
            if found is None:
                raise
            return found

    def vote(self, answer_ids: Sequence[str], preferred: str | None, owner: str | None, *, blind: bool = True) -> Vote:
        """Keeps a vote between answers of one question; `preferred` is None when none is better.

        Raises:
            InvalidInput: fewer than two answers, answers of several questions, or a preferred one that is not theirs.
            NotFound: no answer has one of the ids.
        """
        answers = [self.answer(answer_id, owner) for answer_id in dict.fromkeys(answer_ids)]
        if preferred is not None and preferred not in answer_ids:
            raise InvalidInput(
                f"the preferred answer {preferred!r:.80} is not among the answers", hint="Name one of them, or null."
            )
        if len({answer.question for answer in answers}) > 1:
            raise InvalidInput("the answers belong to several questions", hint="Vote between answers to one question.")
        winner = next((answer.name for answer in answers if answer.id == preferred), "")
        return self._engine().conversations.vote(answers, winner, blind=blind)

    def explain(
        self, question: str, document_id: str, *, page: int | None = None, section: Sequence[str] = ()
    ) -> Explanation:
        """Why a page or a section of a book was not found: the ranks of its nodes for `question`.

        Args:
            section: the heading path.

        Raises:
            InvalidInput: neither page nor section is given, or both, or the question cannot be used.
            NotFound: the book, the page or the section does not exist.
        """
        engine = self._engine()
        document = engine.library.document(document_id)
        if (page is None) == (not section):
            raise InvalidInput("give either a page or a section", hint="Use `page`, or the heading path as `section`.")
        if page is not None:
            return engine.explain(question, document_id, page=page)
        path = tuple(section)
        node_ids = [node.node_id for node in engine.library.nodes_of(document_id) if node.heading_path == path]
        if not node_ids:
            raise NotFound(
                f"the book {document.title!r} has no section {' › '.join(path)!r:.200}",
                hint="Use the heading path of a passage.",
            )
        return engine.explain(question, document_id, node_ids=node_ids[:MOST_EXPLAINED])

    def choose(
        self,
        question: str,
        choices: Sequence[str],
        arms: Sequence[Arm] | None = None,
        *,
        adapter: str | None = None,
        top_k: int = 5,
    ) -> tuple[Pick, ...]:
        """Which option of a choice question each arm takes, by default each arm that can choose; raises as `choose`."""
        engine = self._engine()
        picks = []
        for arm in dict.fromkeys(arms or engine.chooser.arms):
            named = adapter if arm in TUNED_ARMS else None
            scores = engine.choose(question, choices, arm, adapter=named, top_k=top_k).scores
            picks.append(Pick(arm, max(range(len(scores)), key=scores.__getitem__), scores))
        return tuple(picks)

    def stop(self, answer_id: str, owner: str | None) -> bool:
        """Stops an answer that is being written, which is not kept; False where none is."""
        with suppress(NotFound):
            run = self.find(answer_id, owner)
            if not run.ended:
                run.stop()
                return True
        return False

    async def stop_elsewhere(self, answer_id: str, owner: str | None) -> bool:
        """As `stop`, of an answer that another server writes."""
        return self._shared is not None and await self._shared.stop(answer_id, owner) is True

    def unfinished(self, conversation_id: str) -> Unfinished | None:
        """The newest run of a conversation, unless it has ended."""
        for run in reversed(self._of(conversation_id)):
            if not run.ended and run.done is None:
                return Unfinished(run.id, run.question.text, run.question.replaces)
            break
        elsewhere = self._shared.unfinished(conversation_id) if self._shared is not None else ()
        return next((run for _, run in elsewhere if run.id not in self._runs), None)

    def conversations(self) -> set[str]:
        """The conversations of the runs that can be followed, and of those that other servers write."""
        here = {run.question.conversation_id for run in list(self._runs.values()) if run.question.conversation_id}
        return here.union(where for where, _ in self._shared.unfinished()) if self._shared is not None else here

    def forget(self, conversation_id: str) -> None:
        """Stops and drops the runs of a conversation that is deleted."""
        for run in self._of(conversation_id):
            run.stop()
            self._runs.pop(run.id, None)
        if self._shared is not None:
            self._shared.stop_all_of(conversation_id)

    def when_unused(self, engine: AnswerEngine, act: Callable[[], None]) -> None:
        """Calls `act` once no answer of an engine that was replaced is in work."""
        with self._lock:
            if self._users[id(engine)]:
                self._when_unused[id(engine)] = act
                return
        act()

    def stop_all(self) -> None:
        """Stops every answer in work and tells its clients; on the event loop."""
        for run in list(self._runs.values()):
            run.stop(Busy("the server is stopping", hint="Ask again in a moment.", retry_after_s=STOPPING_RETRY_S))

    def close(self) -> None:
        """Takes no more; answers in work run to their end or until their clients leave."""
        for threads in (self._threads, self._computing):
            threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _using(self) -> Iterator[AnswerEngine]:
        """The engine that answers now, not freed before the block ends."""
        with self._lock:
            engine = self._engine()
            self._users[id(engine)] += 1
        try:
            yield engine
        finally:
            self._leave(engine)

    def _threads_for(self, engine: AnswerEngine) -> ThreadPoolExecutor:
        return self._threads if engine.has_model else self._computing

    def _leave(self, engine: AnswerEngine) -> None:
        with self._lock:
            self._users[id(engine)] -= 1
            if self._users[id(engine)]:
                return
            del self._users[id(engine)]
            act = self._when_unused.pop(id(engine), None)
        if act is not None:  # on a thread of its own: this may be the event loop
            threading.Thread(target=act, name="coalesce-unused").start()

    def _of(self, conversation_id: str) -> list[AnswerRun]:
        """The runs of a conversation, oldest first; from any thread."""
        return [run for run in list(self._runs.values()) if run.question.conversation_id == conversation_id]

    def _begin(
        self, engine: AnswerEngine, question: Question, finished: Callable[[], None], *, keep: bool, grace_s: float
    ) -> AnswerRun:
        question = replace(question, answer_id=uuid.uuid4().hex)
        with self._lock:
            self._users[id(engine)] += 1

        def ended() -> None:
            finished()
            self._leave(engine)

        run = AnswerRun(
            question,
            lambda cancelled: self._counted(engine.stream(question, cancelled, keep=keep), question.owner, keep=keep),
            self._threads_for(engine),
            ended,
            grace_s,
        )
        self._runs[run.id] = run
        while len(self._runs) > RUNS_REMEMBERED:
            self._runs.popitem(last=False)
        return run

    @contextmanager
    def _or_not_ready(self) -> Iterator[None]:
        """Raises NotReady in place of ArmUnavailable where the arm runs as soon as the language model is loaded."""
        try:
            yield
        except ArmUnavailable as error:
            if (waiting := self._to_come()) is not None:
                raise waiting from error
            raise

    def _counted(self, events: Iterator[Event], owner: str | None, *, keep: bool) -> Iterator[Event]:
        try:
            with self._or_not_ready():
                for event in events:
                    if isinstance(event, AnswerDone):
                        self._metrics.count_answer(event.answer)
                        if self._apart is not None and not keep:
                            with suppress(CoalesceError):  # it is there for votes at other servers
                                self._apart.keep(event.answer, owner)
                    yield event
        except Exception as error:
            self._metrics.count_failure(describe(error).type)
            raise
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()


async def named(events: AsyncGenerator[Event]) -> AsyncGenerator[Named]:
    """The events of an answer as they are sent."""
    async with aclosing(events):
        async for event in events:
            yield wire_event(event)
