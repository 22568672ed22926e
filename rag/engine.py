"""The one path from a question to a cited answer; REST, page, command line and evaluation all drive it.

`stream` yields `PassagesFound`, then `TextDelta`s, then `AnswerDone`, always in this order, for refusals too; the
deltas joined are the answer. Errors are raised, not yielded. The engine holds no lock while a generator writes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from indexes.errors import Cancelled, InvalidInput
from indexes.types import Filters
from rag.admission import admit
from rag.citations import MarkerFilter, resolve
from rag.conversations import ConversationStore
from rag.errors import GenerationFailed
from rag.evidence import EvidenceJudge
from rag.explanation import Explanation, explain
from rag.generators.protocol import ChoiceScorer, ChoiceScores, GenerationDone, GenerationRequest, Generator
from rag.generators.stop_strings import end_before
from rag.passages import PassageBudget, select_passages
from rag.question_checks import check_question, check_top_k, clean_text
from rag.refusals import empty_library, not_found, nothing_matches
from rag.retrieval.hybrid import HybridRetriever, Retrieval
from rag.retrieval.protocol import SearchableLibrary
from rag.types import (
    RETRIEVING_ARMS,
    TUNED_ARMS,
    Answer,
    AnswerDone,
    Arm,
    Event,
    Passage,
    PassagesFound,
    Question,
    TextDelta,
    Timings,
    Turn,
    Usage,
)

_REFUSED = GenerationDone(Usage(), 0.0, 0, refused=True)


class AnswerEngine:
    """Answers questions from a library with one generator.

    Args:
        generator: writes answers.
        chooser: scores the options of choice questions; often the generator itself.
        judge: tells whether what was found can answer a question.
        load: loads the models that answering needs.
    """

    def __init__(
        self,
        library: SearchableLibrary,
        retriever: HybridRetriever,
        generator: Generator,
        conversations: ConversationStore,
        *,
        chooser: ChoiceScorer,
        judge: EvidenceJudge,
        budget: PassageBudget | None = None,
        load: Callable[[], None] = lambda: None,
    ) -> None:
        self.library = library
        self.generator = generator
        self.conversations = conversations
        self.chooser = chooser
        self._retriever = retriever
        self._judge = judge
        self._budget = budget or PassageBudget()
        self._load = load

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Arms that can run with what is configured."""
        return self.generator.arms

    def load(self) -> None:
        """Loads whatever answering needs, so that the first question does not wait for it."""
        self._load()

    def close(self) -> None:
        """Frees the generator and closes the conversations; the library is the caller's."""
        self.generator.close()
        self.conversations.close()

    def stream(
        self,
        question: Question,
        cancelled: Callable[[], bool] | None = None,
        *,
        passages: Sequence[Passage] | None = None,
        keep: bool = True,
    ) -> Iterator[Event]:
        """The events of one answer. Closing the iterator stops the generator.

        Args:
            cancelled: polled while the answer is written.
            passages: evidence to answer from instead of searching, never refused (`oracle` and `random` evaluation).
            keep: whether the answer goes into a conversation; if not, its `conversation_id` is the question's or "".

        Raises:
            InvalidInput, TooLarge: the question cannot be used.
            NotFound: the conversation does not exist.
            ArmUnavailable, PromptTooLong: before any search.
            Cancelled, GenerationFailed, Busy: while the answer is written.
        """
        started = time.perf_counter()
        question, request = admit(question, self.generator, self.conversations, cancelled or (lambda: False))
        refusal = None
        found = tuple(passages or ())
        if passages is None and question.arm in RETRIEVING_ARMS:
            retrieval, found = self._find(question.text, question.top_k, question.filters, request.turns)
            refusal = self._refusal(retrieval, found)
            request = replace(request, question=retrieval.query.text)
        retrieved = time.perf_counter()
        if request.cancelled():
            raise Cancelled("the question was withdrawn")
        yield PassagesFound(found)

        pieces: list[str] = []
        done = _REFUSED
        first_text = 0.0
        writing = self._write(replace(request, passages=found)) if refusal is None else iter((refusal, _REFUSED))
        for piece in writing:
            if isinstance(piece, GenerationDone):
                done = piece
            else:
                first_text = first_text or time.perf_counter()
                pieces.append(piece)
                yield TextDelta(piece)
        ended = time.perf_counter()
        written = "".join(pieces)
        if done.passages_used is not None and refusal is None:
            found = found[: done.passages_used]  # the answer shows what was read; what did not fit was dropped
        answer = Answer(
            id=uuid.uuid4().hex,
            conversation_id=self._conversation_id(question, keep),
            question=question.text,
            answer=written,
            refused=done.refused,
            arm=question.arm,
            generator=self.generator.name,
            model=self.generator.model_name,
            adapter=question.adapter,
            citations=() if done.refused else resolve(written, found),
            passages=found,
            timings=Timings(retrieved - started, (first_text or ended) - started, ended - started),
            usage=done.usage,
            tokens_per_s=done.tokens_per_s,
            peak_memory_bytes=done.peak_memory_bytes,
        )
        if keep:
            self.conversations.append(answer)
        yield AnswerDone(answer)

    def ask(
        self,
        question: Question,
        cancelled: Callable[[], bool] | None = None,
        *,
        passages: Sequence[Passage] | None = None,
        keep: bool = True,
    ) -> Answer:
        """The finished answer; arguments and errors as for `stream`."""
        for event in self.stream(question, cancelled, passages=passages, keep=keep):
            if isinstance(event, AnswerDone):
                return event.answer
            if cancelled is not None and cancelled():
                raise Cancelled("the question was withdrawn")
        raise GenerationFailed("the answer ended without its last event")

    def search(self, query: str, top_k: int = 5, filters: Filters | None = None) -> tuple[Passage, ...]:
        """The passages that `ask` would be given.

        Raises:
            InvalidInput, TooLarge: the query or `top_k` cannot be used.
        """
        check_top_k(top_k)
        return self._find(clean_text(query, "query"), top_k, filters or Filters(), ())[1]

    def compare(
        self,
        question: Question,
        arms: Sequence[Arm] = (),
        cancelled: Callable[[], bool] | None = None,
        *,
        keep: bool = True,
    ) -> tuple[Answer, ...]:
        """One answer an arm, in the order asked; all arms that can run when none is named.

        Kept answers go into one conversation together, once all are there: no arm reads what another one said.

        Raises:
            ArmUnavailable: one of the arms cannot run; then none is run.
        """
        wanted = tuple(dict.fromkeys(arms)) or self.arms
        questions = [
            replace(question, arm=arm, adapter=question.adapter if arm in TUNED_ARMS else None) for arm in wanted
        ]
        for one in questions:
            admit(one, self.generator, self.conversations, lambda: False)
        answers = tuple(self.ask(one, cancelled, keep=False) for one in questions)
        if not keep:
            return answers
        conversation_id = question.conversation_id or self.conversations.of(question.owner).create().id
        kept = tuple(replace(answer, conversation_id=conversation_id) for answer in answers)
        for answer in kept:
            self.conversations.append(answer)
        return kept

    def choose(
        self,
        question_text: str,
        choices: Sequence[str],
        arm: Arm = "rag",
        *,
        adapter: str | None = None,
        top_k: int = 5,
        filters: Filters | None = None,
        passages: Sequence[Passage] | None = None,
    ) -> ChoiceScores:
        """Scores the options of a choice question, higher is better, with passages in the retrieving arms.

        Raises:
            InvalidInput: fewer than two options, or one that is empty.
            ArmUnavailable: the chooser cannot run this arm.
        """
        if len(choices) < 2 or not all(choice.strip() for choice in choices):
            raise InvalidInput(f"{len(choices)} choices", hint="give at least two choices, none of them empty")
        question = check_question(Question(question_text, arm=arm, adapter=adapter, top_k=top_k))
        found = tuple(passages or ())
        if passages is None and arm in RETRIEVING_ARMS:
            found = self._find(question.text, top_k, filters or Filters(), ())[1]
        request = GenerationRequest(question.text, arm, found, adapter=adapter)
        return self.chooser.score_choices(request, tuple(choices))

    def explain(
        self, query: str, document_id: str, *, page: int | None = None, node_id: str | None = None
    ) -> Explanation:
        """Where the nodes of a page, or one node, stand in each ranking for `query`: the why-not-found panel."""
        retrieval = self._retriever.search(clean_text(query, "query"), Filters())
        return explain(retrieval, self.library, document_id, page=page, node_id=node_id)

    def _find(
        self, text: str, top_k: int, filters: Filters, turns: Sequence[Turn]
    ) -> tuple[Retrieval, tuple[Passage, ...]]:
        retrieval = self._retriever.search(text, filters, turns)
        return retrieval, select_passages(retrieval.hits, self.library, top_k, self._budget)

    def _refusal(self, retrieval: Retrieval, found: Sequence[Passage]) -> str | None:
        """What to say instead of answering, None when the evidence suffices."""
        question = retrieval.query.text
        if not found:
            return nothing_matches(question) if self.library.documents() else empty_library(question)
        return None if self._judge.suffices(retrieval, found) else not_found(question)

    def _write(self, request: GenerationRequest) -> Iterator[str | GenerationDone]:
        """The generator's text without dangling markers, then its figures; never no text at all."""
        markers = MarkerFilter(len(request.passages))
        done: GenerationDone | None = None
        empty = True
        pieces = end_before(self.generator.stream(request), request.stop)
        try:
            for piece in pieces:
                if isinstance(piece, GenerationDone):
                    done = piece
                    break
                if text := markers.feed(piece.text):
                    empty = False
                    yield text
        finally:
            pieces.close()
        if done is None:
            raise GenerationFailed(f"{self.generator.name} stopped without finishing")
        if text := markers.finish():
            empty = False
            yield text
        if empty:
            done = replace(done, refused=True)
            yield not_found(request.question)
        yield done

    def _conversation_id(self, question: Question, keep: bool) -> str:
        if question.conversation_id is not None:
            return question.conversation_id
        return self.conversations.of(question.owner).create().id if keep else ""
