"""The one path from a question to a cited answer; REST, page, command line and evaluation all run it.

`stream` yields `PassagesFound`, then `TextDelta`s, then `AnswerDone`, always in this order, for refusals too; the
deltas joined are the answer. Errors are raised, not yielded. The engine holds no lock while a generator writes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from types import GeneratorType

from indexes.errors import (
    Busy,
    Cancelled,
    CoalesceError,
    HomeNotWritable,
    IndexCorrupt,
    InvalidInput,
    NotFound,
    StorageFull,
)
from indexes.types import Filters
from rag.citations import MarkerFilter, resolve
from rag.conversations import ConversationStore
from rag.errors import GenerationFailed
from rag.evidence import JUDGED_BUDGET, JUDGED_PASSAGES, EvidenceJudge, Judgement, clear_option, not_found
from rag.explanation import Explanation, explain
from rag.generators.protocol import (
    ChoiceScorer,
    ChoiceScores,
    GenerationDone,
    GenerationRequest,
    Generator,
    Item,
    TextPiece,
)
from rag.query import understand
from rag.question import (
    asks_in_chinese,
    check_filters,
    check_question,
    check_top_k,
    choose_adapter,
    clean_text,
    reply_to,
    talk_kind,
)
from rag.retrieval import HybridRetriever, PassageBudget, Retrieval, select_passages
from rag.sentence_reader import SentenceReader
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
    Quoted,
    SearchableLibrary,
    TextDelta,
    Thinking,
    Timings,
    Turn,
    Usage,
    Variant,
    Waiting,
)
from rag.wording import note_on_english

_REFUSED = GenerationDone(Usage(), 0.0, 0, refused=True)
_SAID = GenerationDone(Usage(), 0.0, 0)
EARLIER_TURNS = 6
"""Newest turns of a conversation that a generator reads."""
_UNCITED = (
    "The answer names no passage of the books; check it before you rely on it.",
    "答案没有注明书中的出处，采用之前请先核对。",
)
_NOT_KEPT = ("The answer could not be kept: {reason}", "答案没能保存：{reason}")
_CANNOT_KEEP = (Busy, HomeNotWritable, IndexCorrupt, StorageFull)
_NOTHING_SAID = ("The model gave no answer.", "模型没有给出回答。")
_CUT_OFF = ("The model was cut off before its first word.", "模型还没写出第一个字就被截断了。")


@dataclass(slots=True)
class _Prepared:
    """A question ready to be written about.

    Attributes:
        judged: what the search is worth; None where nothing was searched.
        notes: sentences beside the answer, in the order in which they are read.
        said: the answer, where no generator has to write it.
    """

    request: GenerationRequest
    judged: Judgement | None = None
    notes: list[str] = field(default_factory=list)
    said: str = ""

    @property
    def note(self) -> str | None:
        """The notes as one text."""
        return " ".join(self.notes) or None


class _Written:
    """The answer so far: its text, what is quoted in it, and when its first text came."""

    def __init__(self) -> None:
        self.text = ""
        self.quoted: dict[int, Quoted] = {}
        self.first_at = 0.0

    def add(self, piece: TextPiece) -> None:
        self.first_at = self.first_at or time.perf_counter()
        self.text += piece.text
        if piece.quoted is not None:
            self.quoted[len(self.text)] = piece.quoted


class AnswerEngine:
    """Answers questions from a library with one generator.

    Args:
        generator: writes answers.
        chooser: scores the options of choice questions; often the generator itself.
        judge: decides whether the passages found can answer a question.
        budget: of the passages of a prompt.
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
        self.budget = budget or PassageBudget()
        self._load = load

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Arms that can run with what is configured."""
        return self.generator.arms

    @property
    def evidence_thresholds(self) -> Mapping[str, float]:
        """Least evidence score of `weak` and of `strong`."""
        return {"weak": self._judge.threshold, "strong": self._judge.strong}

    @property
    def reader(self) -> SentenceReader:
        """What reads sentences, for judging evidence and for quoting."""
        return self._judge.reader

    def with_generator(self, generator: Generator, chooser: ChoiceScorer, budget: PassageBudget) -> AnswerEngine:
        """This engine with another generator, over the same library and conversations."""
        other = copy(self)
        other.generator, other.chooser, other.budget = generator, chooser, budget
        return other

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
            NotFound: the conversation does not exist, or a book or chapter that the filters name.
            ArmUnavailable, PromptTooLong: before any search.
            Cancelled, GenerationFailed, Busy: while the answer is written.
        """
        started = time.perf_counter()
        question, request = self._admit(question, cancelled or (lambda: False))
        prepared = self._prepare(question, request, passages)
        request, judged, found = prepared.request, prepared.judged, prepared.request.passages
        evidence = judged.evidence if judged else None
        retrieved = time.perf_counter()
        if request.cancelled():
            raise Cancelled("the question was withdrawn")
        yield PassagesFound(found, evidence, prepared.note, judged.score if judged else None)

        written = _Written()
        for piece in self._pieces(prepared):
            if isinstance(piece, TextPiece):
                written.add(piece)
                yield TextDelta(piece.text)
            elif isinstance(piece, Waiting | Thinking):
                yield piece
            else:
                done = piece
        ended = time.perf_counter()
        if done.passages_used is not None:
            found = found[: done.passages_used]  # the answer shows what was read; what did not fit was dropped
        is_relevant = partial(self._judge.is_relevant, request.query, found) if request.query else None
        citations = () if done.refused else resolve(written.text, found, written.quoted, is_relevant)
        if done.refused and judged and judged.note:
            prepared.notes.remove(judged.note)  # a refusal says so itself
        elif found and not citations and not done.refused:
            prepared.notes.append(_UNCITED[request.chinese])
        answer = Answer(
            id=question.answer_id or uuid.uuid4().hex,
            conversation_id=question.conversation_id or "",
            question=question.text,
            answer=written.text,
            refused=done.refused,
            arm=question.arm,
            generator=self.generator.name,
            model=self.generator.model_name,
            adapter=question.adapter,
            citations=citations,
            passages=found,
            timings=Timings(retrieved - started, (written.first_at or ended) - started, ended - started),
            usage=done.usage,
            tokens_per_s=done.tokens_per_s,
            peak_memory_bytes=done.peak_memory_bytes,
            evidence=evidence,
            note=prepared.note,
            variant=question.variant,
            filters=question.filters,
        )
        yield AnswerDone(self._kept(answer, question) if keep else answer)

    def ask(
        self,
        question: Question,
        cancelled: Callable[[], bool] | None = None,
        *,
        passages: Sequence[Passage] | None = None,
        keep: bool = True,
        listen: Callable[[Event], None] | None = None,
    ) -> Answer:
        """The finished answer; arguments and errors as for `stream`.

        Args:
            listen: called with every event as it comes.
        """
        for event in self.stream(question, cancelled, passages=passages, keep=keep):
            if listen is not None:
                listen(event)
            if isinstance(event, AnswerDone):
                return event.answer
            if cancelled is not None and cancelled():
                raise Cancelled("the question was withdrawn")
        raise GenerationFailed("the answer ended without its last event")

    def search(self, query: str, top_k: int = 5, filters: Filters | None = None) -> tuple[Passage, ...]:
        """The passages that `ask` would be given.

        Raises:
            InvalidInput, TooLarge: the query or `top_k` cannot be used.
            NotFound: the filters name a book or chapter that does not exist.
        """
        check_top_k(top_k)
        filters = filters or Filters()
        check_filters(filters, self.library)
        asked = understand(clean_text(query, "query"), self.library, filters)
        return self._passages(self._retriever.search(asked), top_k)

    def comparison(
        self, question: Question, arms: Sequence[Arm] = (), variants: Sequence[Variant] = ()
    ) -> tuple[Question, ...]:
        """The question put to each variant or arm, in the order asked; to every arm that can run when none is named.

        Raises:
            ArmUnavailable, NotFound: one of the arms cannot run, or the filters name what does not exist; then none
                should be asked.
        """
        questions = tuple(
            replace(question, arm=arm, adapter=question.adapter if arm in TUNED_ARMS else None)
            for arm in dict.fromkeys(arms or self.arms)
        )
        if variants:
            questions = tuple(
                replace(
                    question,
                    arm=one.arm,
                    adapter=question.adapter if one.arm in TUNED_ARMS else None,
                    top_k=one.top_k or question.top_k,
                    retrieval=one.retrieval or question.retrieval,
                    filters=one.filters or question.filters,
                    variant=one.name,
                )
                for one in dict.fromkeys(variants)
            )
        for one in questions:
            self._admit(one, lambda: False)
        return questions

    def keep_together(self, answers: Sequence[Answer], owner: str | None = None) -> tuple[Answer, ...]:
        """Keeps the answers of a comparison in one new conversation, once all are there: no arm reads another's."""
        try:
            conversation_id = self.conversations.of(owner).create().id
            kept = tuple(replace(answer, conversation_id=conversation_id) for answer in answers)
            for answer in kept:
                self.conversations.append(answer)
        except _CANNOT_KEEP as error:
            return tuple(_not_kept(answer, error) for answer in answers)
        return kept

    def choose(
        self,
        question_text: str,
        choices: Sequence[str],
        arm: Arm = "rag",
        *,
        adapter: str | None = None,
        top_k: int = 5,
        passages: Sequence[Passage] | None = None,
    ) -> ChoiceScores:
        """Scores the options of a choice question, higher is better, with passages in the retrieving arms.

        Raises:
            InvalidInput: fewer than two options, or one that is empty.
            ArmUnavailable: the chooser cannot run this arm, or several adapters are loaded and none is named.
        """
        if len(choices) < 2 or not all(choice.strip() for choice in choices):
            raise InvalidInput(f"{len(choices)} choices", hint="give at least two choices, none of them empty")
        question = check_question(Question(question_text, arm=arm, adapter=adapter, top_k=top_k))
        adapter = choose_adapter(arm, adapter, self.chooser.adapters)
        found = tuple(passages or ())
        if passages is None and arm in RETRIEVING_ARMS:
            found = self._passages(self._retriever.search(understand(question.text, self.library)), top_k)
        request = GenerationRequest(question.text, arm, found, adapter=adapter)
        return self.chooser.score_choices(request, tuple(choices))

    def explain(
        self, query: str, document_id: str, *, page: int | None = None, node_ids: Sequence[str] = ()
    ) -> Explanation:
        """Ranks of some nodes, or of a page's nodes, in each search for `query`: why a page was not found."""
        retrieval = self._retriever.search(understand(clean_text(query, "query"), self.library))
        return explain(retrieval, self.library, document_id, page=page, node_ids=node_ids)

    def evidence_signals(self, question: str, turns: Sequence[Turn] = ()) -> dict[str, float]:
        """The evidence signals of a question, for fitting the calibration (`tools.evidence_calibration`)."""
        retrieval = self._retriever.search(understand(clean_text(question), self.library, turns=turns))
        return self._judge.signals(retrieval, self._judged_passages(retrieval))

    def _admit(self, question: Question, cancelled: Callable[[], bool]) -> tuple[Question, GenerationRequest]:
        """The checked question, and the request made of it, still without passages.

        Raises:
            InvalidInput, TooLarge: the question cannot be used.
            NotFound: the conversation does not exist, or a book or chapter that the filters name.
            ArmUnavailable, PromptTooLong: the generator cannot run it.
        """
        question = check_question(question)
        question = replace(question, adapter=choose_adapter(question.arm, question.adapter, self.generator.adapters))
        request = GenerationRequest(
            question=question.text,
            arm=question.arm,
            turns=self._turns(question),
            adapter=question.adapter,
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            sampling_top_p=question.sampling_top_p,
            sampling_top_k=question.sampling_top_k,
            system=question.system,
            seed=question.seed,
            stop=question.stop,
            cancelled=cancelled,
        )
        self.generator.check(request)
        if question.arm in RETRIEVING_ARMS:
            check_filters(question.filters, self.library)
        return question, request

    def _turns(self, question: Question) -> tuple[Turn, ...]:
        if question.conversation_id is None and question.replaces is None:
            turns = tuple(Turn(asked, answered) for asked, answered in question.turns)
        else:
            turns = tuple(Turn(one.question, one.answer) for one in self._earlier(question) if not one.refused)
        return turns[-EARLIER_TURNS:]

    def _passages(self, retrieval: Retrieval, top_k: int) -> tuple[Passage, ...]:
        return select_passages(retrieval.hits, self.library, top_k, self.budget)

    def _judged_passages(self, retrieval: Retrieval) -> tuple[Passage, ...]:
        """The passages that evidence is judged by, whatever a generator can read."""
        return select_passages(retrieval.hits, self.library, JUDGED_PASSAGES, JUDGED_BUDGET)

    def _prepare(self, question: Question, request: GenerationRequest, passages: Sequence[Passage] | None) -> _Prepared:
        """The request with its passages, and what the search is worth. All notes known before writing are made here."""
        if passages is None and question.arm not in RETRIEVING_ARMS:
            return _Prepared(request)
        if passages is None and (reply := self._talk(question, request)) is not None:
            return reply
        query = understand(question.text, self.library, question.filters, request.turns)
        request = replace(request, query=query)
        if passages is not None:
            return _Prepared(replace(request, passages=tuple(passages)))
        retrieval = self._retriever.search(query, question.retrieval)
        found = self._passages(retrieval, question.top_k)
        same = question.top_k == JUDGED_PASSAGES and self.budget == JUDGED_BUDGET
        judged = self._judge.judge(
            retrieval,
            found if same else self._judged_passages(retrieval),
            self.library,
            answer_anyway=question.answer_anyway,
        )
        request = replace(request, passages=found)
        notes = [*query.notes, *filter(None, [note_on_english(query.standalone, [each.text for each in found])])]
        if not self._writes:
            notes += query.undone
            if judged.evidence == "strong" and (named := clear_option(query, found, self.reader)) is not None:
                request = replace(request, query=named[0])
                notes.append(named[1])
        if judged.note:
            notes.append(judged.note)
        if query.asks_for_more:
            request = replace(request, said=" ".join(turn.answer for turn in request.turns))
        return _Prepared(request, judged, notes)

    def _talk(self, question: Question, request: GenerationRequest) -> _Prepared | None:
        """What is said to a message that is no question for the books; None where the library has to be searched."""
        kind = talk_kind(question.text)
        if kind is None:
            return None
        if kind == "rewrite" and self._writes:
            last = next((answer for answer in reversed(self._earlier(question)) if answer.citations), None)
            if last is None and not request.turns:
                return None
            return _Prepared(replace(request, passages=last.passages if last is not None else ()))
        chinese = request.chinese or any(asks_in_chinese(turn.question) for turn in request.turns)
        return _Prepared(request, said=reply_to(kind, self.library, chinese=chinese))

    @property
    def _writes(self) -> bool:
        """Whether the generator is a language model."""
        return "base" in self.generator.arms

    def _earlier(self, question: Question) -> tuple[Answer, ...]:
        """The answers of the conversation but the one to be replaced; raises NotFound."""
        answers: tuple[Answer, ...] = ()
        if question.conversation_id is not None:
            answers = self.conversations.of(question.owner).answers(question.conversation_id)
        kept = tuple(answer for answer in answers if answer.id != question.replaces)
        if question.replaces is not None and len(kept) == len(answers):
            raise NotFound(
                f"the conversation has no answer {question.replaces!r:.80}",
                hint="Name its `conversation_id` and the `id` of an answer in it.",
            )
        return kept

    def _pieces(self, prepared: _Prepared) -> Iterator[Item]:
        """The answer's text in pieces, then its figures."""
        if prepared.judged and prepared.judged.refusal:
            yield TextPiece(prepared.judged.refusal)
            yield _REFUSED
        elif prepared.said:
            yield TextPiece(prepared.said)
            yield _SAID
        else:
            yield from self._write(prepared.request)

    def _write(self, request: GenerationRequest) -> Iterator[Item]:
        """The generator's text without markers that name no passage, then its figures.

        A text without words is a refusal, unless it was cut off: then the answer says so.

        Raises:
            GenerationFailed: it did not finish.
        """
        markers = MarkerFilter(len(request.passages))
        done: GenerationDone | None = None
        blank = ""  # what begins the text before its first word
        empty = True
        pieces = self.generator.stream(request)
        try:
            for piece in pieces:
                if isinstance(piece, GenerationDone):
                    done = piece
                    break
                if isinstance(piece, Waiting | Thinking):
                    yield piece
                elif text := markers.feed(piece.text):
                    if empty and not text.strip():
                        blank += text
                        continue
                    text, blank, empty = blank + text, "", False
                    yield TextPiece(text, piece.quoted)
        finally:
            if isinstance(pieces, GeneratorType):
                pieces.close()
        if done is None:
            raise GenerationFailed(f"{self.generator.name} stopped without finishing")
        if (text := blank + markers.finish()) and (not empty or text.strip()):
            empty = False
            yield TextPiece(text)
        if empty and done.usage.finish == "length":
            yield TextPiece(_CUT_OFF[request.chinese])
        elif empty:
            done = replace(done, refused=True)
            found = request.arm in RETRIEVING_ARMS
            yield TextPiece(not_found(request.chinese, request.passages) if found else _NOTHING_SAID[request.chinese])
        yield done

    def _kept(self, answer: Answer, question: Question) -> Answer:
        """The answer in its conversation, or with a note where it cannot be kept now: it is written, and given."""
        try:
            if question.conversation_id is None:
                conversation_id = self.conversations.of(question.owner).create().id
                answer = replace(answer, conversation_id=conversation_id)
            self.conversations.append(answer, replaces=question.replaces)
        except _CANNOT_KEEP as error:
            return _not_kept(replace(answer, conversation_id=question.conversation_id or ""), error)
        return answer


def _not_kept(answer: Answer, error: CoalesceError) -> Answer:
    notes = (answer.note, _NOT_KEPT[asks_in_chinese(answer.question)].format(reason=error.message))
    return replace(answer, note=" ".join(filter(None, notes)))
