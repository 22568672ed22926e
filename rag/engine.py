"""The one path from a question to a cited answer; REST, page, command line and evaluation all run it.

`stream` yields `PassagesFound`, then `TextDelta`s, then `AnswerDone`, always in this order, for refusals too; the
deltas joined are the answer. Where a language model may write, `QuotesFound` comes before the first delta: the answer
ends with these quotes, and begins with what the model wrote and `rag/written.py` let through. Errors are raised, not
yielded. The engine holds no lock while a generator writes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from indexes.messages import msg
from indexes.types import Filters
from indexes.words import is_chinese
from rag.citations import MARKER, MarkerFilter, resolve
from rag.conversations import ConversationStore
from rag.errors import ArmUnavailable, DoesNotFitInMemory, EngineUnreachable, GenerationFailed
from rag.evidence import JUDGED_BUDGET, JUDGED_PASSAGES, EvidenceJudge, Judgement, clear_option, not_found
from rag.explanation import Explanation, explain
from rag.generators.extractive import ExtractiveGenerator
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
    chapter_of,
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
    Answers,
    Arm,
    Event,
    Passage,
    PassagesFound,
    Question,
    Quoted,
    QuotesFound,
    SearchableLibrary,
    TalkKind,
    TextDelta,
    Thinking,
    Timings,
    Turn,
    Usage,
    Variant,
    Waiting,
)
from rag.wording import note_on_english
from rag.written import DIVIDER, WrittenCheck

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
_FAILED = ("The model wrote no whole answer: {reason}", "模型没有写完回答：{reason}")
_MODEL_FAILS = (Busy, DoesNotFitInMemory, EngineUnreachable, GenerationFailed)
_LEFT_OUT = (
    (
        "{n} sentences that the model wrote are left out: no passage supports them.",
        "模型写的 {n} 句没有段落支持，已略去。",
    ),
    ("One sentence that the model wrote is left out: no passage supports it.", "模型写的 1 句没有段落支持，已略去。"),
)
_UNSUPPORTED = (
    ("{n} sentences of this answer are supported by no passage.", "回答中有 {n} 句没有段落支持。"),
    ("One sentence of this answer is supported by no passage.", "回答中有 1 句没有段落支持。"),
)
_OTHER_LANGUAGE = (
    "What is written is checked in the books' language only, so these are their own sentences.",
    "模型写的内容只能用书的语言核对，因此这里只有书中的原句。",
)
_CUT_OFF = ("The model was cut off before its first word.", "模型还没写出第一个字就被截断了。")


@dataclass(slots=True)
class _Prepared:
    """A question ready to be written about.

    Attributes:
        judged: what the search is worth; None where nothing was searched.
        notes: sentences beside the answer, in the order in which they are read.
        said: the answer, where no generator has to write it; talk: to which kind of message.
    """

    request: GenerationRequest
    judged: Judgement | None = None
    notes: list[str] = field(default_factory=list)
    said: str = ""
    talk: TalkKind | None = None

    @property
    def note(self) -> str | None:
        """The notes as one text."""
        return _one_text(self.notes) or None


@dataclass(frozen=True, slots=True)
class _Quotes:
    """The books' own sentences, known before the first piece of the answer, which will end with them."""

    pieces: tuple[TextPiece, ...]


class _Text:
    """An answer so far: its text, what is quoted in it, and when its first text came."""

    def __init__(self, pieces: Sequence[TextPiece] = ()) -> None:
        self.text = ""
        self.quoted: dict[int, Quoted] = {}
        self.first_at = 0.0
        for piece in pieces:
            self.add(piece)

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
        answers: what a language model's answers are made of, where a question does not say.
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
        answers: Answers = "both",
        budget: PassageBudget | None = None,
        load: Callable[[], None] = lambda: None,
    ) -> None:
        self.library = library
        self.generator = generator
        self.conversations = conversations
        self.chooser = chooser
        self.answers = answers
        self._quoter = ExtractiveGenerator(judge.reader, library.embedder_name)
        self._retriever = retriever
        self._judge = judge
        self.budget = budget or PassageBudget()
        self._load = load

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Arms that can run with what is configured; without passages there is nothing to quote."""
        arms = self.generator.arms
        return tuple(arm for arm in arms if arm in RETRIEVING_ARMS) if self.answers == "quotes" else arms

    @property
    def has_model(self) -> bool:
        """Whether the generator is a language model."""
        return "base" in self.generator.arms

    @property
    def evidence_thresholds(self) -> Mapping[str, float]:
        """Least evidence score of `weak` and of `strong`."""
        return {"weak": self._judge.threshold, "strong": self._judge.strong}

    @property
    def reader(self) -> SentenceReader:
        """What reads sentences, for judging evidence and for quoting."""
        return self._judge.reader

    def with_generator(
        self, generator: Generator, chooser: ChoiceScorer, budget: PassageBudget, answers: Answers
    ) -> AnswerEngine:
        """This engine with another generator, over the same library and conversations."""
        other = copy(self)
        other.generator, other.chooser, other.budget, other.answers = generator, chooser, budget, answers
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
        answers = self._answers(question)
        prepared = self._prepare(question, request, passages, answers)
        request, judged, found = prepared.request, prepared.judged, prepared.request.passages
        evidence = judged.evidence if judged else None
        retrieved = time.perf_counter()
        if request.cancelled():
            raise Cancelled("the question was withdrawn")
        yield PassagesFound(found, evidence, prepared.note, judged.score if judged else None)

        text, quotes = _Text(), ""
        for piece in self._pieces(prepared, answers):
            if isinstance(piece, TextPiece):
                text.add(piece)
                yield TextDelta(piece.text)
            elif isinstance(piece, _Quotes):
                below = _Text(piece.pieces)
                text.first_at, quotes = below.first_at, below.text
                yield QuotesFound(quotes, resolve(quotes, found, below.quoted))
            elif isinstance(piece, Waiting | Thinking):
                yield piece
            else:
                done = piece
        ended = time.perf_counter()
        if done.passages_used is not None:
            found = found[: done.passages_used]  # the answer shows what was read; what did not fit was dropped
        is_relevant = partial(self._judge.is_relevant, request.query, found) if request.query else None
        citations = () if done.refused else resolve(text.text, found, text.quoted, is_relevant)
        if done.refused and judged and judged.note:
            prepared.notes.remove(judged.note)  # a refusal says so itself
        elif found and not citations and not done.refused:
            prepared.notes.append(_UNCITED[request.chinese])
        prepared.notes += done.notes
        writer = self._quoter if answers == "quotes" else self.generator
        answer = Answer(
            id=question.answer_id or uuid.uuid4().hex,
            conversation_id=question.conversation_id or "",
            question=question.text,
            answer=text.text,
            refused=done.refused,
            arm=question.arm,
            generator=writer.name,
            model=writer.model_name,
            adapter=question.adapter,
            citations=citations,
            passages=found,
            timings=Timings(retrieved - started, (text.first_at or ended) - started, ended - started),
            usage=done.usage,
            tokens_per_s=done.tokens_per_s,
            peak_memory_bytes=done.peak_memory_bytes,
            evidence=evidence,
            note=prepared.note,
            variant=question.variant,
            filters=question.filters,
            written=done.written,
            quotes=quotes,
            talk=prepared.talk,
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
                    answers=one.answers or question.answers,
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
        if self._answers(question) != "quotes":
            self.generator.check(request)
        elif question.arm not in RETRIEVING_ARMS:
            raise ArmUnavailable(
                msg("arm {} cannot run where a model only quotes", repr(question.arm)),
                hint="Ask with arm rag, or with answers both or free.",
            )
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

    def _answers(self, question: Question) -> Answers:
        """What an answer is made of; the text as it comes where no model writes, or there is nothing to check it by."""
        if not self.has_model:
            return "unchecked"
        answers = question.answers or self.answers
        return answers if question.arm in RETRIEVING_ARMS or answers == "quotes" else "unchecked"

    def _prepare(
        self, question: Question, request: GenerationRequest, passages: Sequence[Passage] | None, answers: Answers
    ) -> _Prepared:
        """The request with its passages, and what the search is worth. All notes known before writing are made here."""
        if passages is None and question.arm not in RETRIEVING_ARMS:
            return _Prepared(request)
        if passages is None and (reply := self._talk(question, request, answers)) is not None:
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
        writes = self.has_model and answers != "quotes"
        if not writes:
            notes += query.undone
        quotes = not writes or answers == "both"
        if quotes and judged.evidence == "strong" and (named := clear_option(query, found, self.reader)) is not None:
            request = replace(request, query=named[0])
            notes.append(named[1])
        if judged.note:
            notes.append(judged.note)
        if query.asks_for_more:
            request = replace(request, said=" ".join(turn.answer for turn in request.turns))
        return _Prepared(request, judged, notes)

    def _talk(self, question: Question, request: GenerationRequest, answers: Answers) -> _Prepared | None:
        """What is said to a message that is no question for the books; None where the library has to be searched."""
        kind = talk_kind(question.text)
        if kind is None:
            return None
        if kind == "rewrite" and self.has_model and answers != "quotes":
            last = next((answer for answer in reversed(self._earlier(question)) if answer.citations), None)
            if (chapter := chapter_of(question.text)) is not None:
                return self._about_chapter(chapter, question, request, last)
            if last is None:
                return _Prepared(request) if request.turns else None
            query = replace(understand(last.question, self.library, last.filters), chinese=request.chinese)
            asked = f"{last.question}\n{question.text}"  # no passage answers 'shorter' alone
            return _Prepared(replace(request, question=asked, query=query, passages=last.passages))
        chinese = request.chinese or any(asks_in_chinese(turn.question) for turn in request.turns)
        return _Prepared(request, said=reply_to(kind, self.library, chinese=chinese), talk=kind)

    def _about_chapter(
        self, ordinal: int, question: Question, request: GenerationRequest, last: Answer | None
    ) -> _Prepared:
        """A wish over the best passages of a chapter of the books asked about, else of the last answer's first book.

        Raises:
            NotFound: there is no such chapter.
        """
        books = question.filters.document_ids or ((last.passages[0].document_id,) if last else ())
        filters = Filters(books, (ordinal,))
        check_filters(filters, self.library)
        known = books or tuple(each.document_id for each in self.library.documents())
        chapters = [each for book in known for each in self.library.chapters(book) if each.ordinal == ordinal]
        title = chapters[0].title if len(chapters) == 1 else ""
        asked = f"{question.text}: {title}" if title else question.text
        query = replace(understand(title or asked, self.library, filters), chinese=request.chinese)
        found = self._passages(self._retriever.search(query), question.top_k)
        return _Prepared(replace(request, question=asked, query=query, passages=found, turns=()))

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

    def _pieces(self, prepared: _Prepared, answers: Answers) -> Iterator[Item | _Quotes]:
        """The answer's text in pieces, then its figures."""
        request = prepared.request
        if prepared.judged and prepared.judged.refusal:
            yield TextPiece(prepared.judged.refusal)
            yield _REFUSED
        elif prepared.said:
            yield TextPiece(prepared.said)
            yield _SAID
        elif answers == "quotes":
            yield from self._quote(request)
        elif answers == "unchecked" or not request.passages:
            yield from self._write(request, self.generator)
        else:
            yield from self._free(request) if answers == "free" else self._both(request)

    def _free(self, request: GenerationRequest) -> Iterator[Item]:
        """What the model writes, each sentence that holds with its marker."""
        check = WrittenCheck(request.passages, keep_all=True)
        for item in self._write(request, self.generator):
            if isinstance(item, TextPiece):
                yield from check.feed(item.text)
            elif isinstance(item, GenerationDone):
                yield from check.finish(whole=True)
                notes = () if item.refused else _counted(_UNSUPPORTED, check.left_out, request)
                yield replace(item, notes=notes)
            else:
                yield item

    def _both(self, request: GenerationRequest) -> Iterator[Item | _Quotes]:
        """What holds of what the model writes, and the books' own sentences below, which are known first."""
        *pieces, quoted = self._quote(request)
        quotes = tuple(piece for piece in pieces if isinstance(piece, TextPiece))
        found = isinstance(quoted, GenerationDone) and not quoted.refused
        if found:
            yield _Quotes(quotes)
        below = [MARKER.sub("", quote.text) for quote in quotes if found]
        said = [MARKER.sub("", turn.answer) for turn in request.turns]
        known = [quote for quote in below if any(quote.strip() in answer for answer in said)]
        new = [quote for quote in below if quote not in known]
        check = WrittenCheck(request.passages, quotes=new, known=known)
        done, notes = _SAID, []
        if any(is_chinese(passage.text) == request.chinese for passage in request.passages):
            try:
                for item in self._generated(request, self.generator):
                    if isinstance(item, GenerationDone):
                        done = item
                        yield from check.finish(whole=done.usage.finish == "stop")
                    elif isinstance(item, TextPiece):
                        yield from check.feed(item.text)
                    else:
                        yield item
                if not check.heard:
                    notes.append((_CUT_OFF if done.usage.finish == "length" else _NOTHING_SAID)[request.chinese])
            except _MODEL_FAILS as error:
                notes.append(_FAILED[request.chinese].format(reason=error.message))
        else:
            notes.append(_OTHER_LANGUAGE[request.chinese])
        if found and check.written:
            yield TextPiece(DIVIDER)
        if found or not check.written:
            yield from quotes
        notes += _counted(_LEFT_OUT, check.left_out, request)
        refused = not (found or check.written)
        yield replace(done, refused=refused, passages_used=None, notes=tuple(notes), written=check.written)

    def _quote(self, request: GenerationRequest) -> Iterator[Item]:
        """The books' own sentences, whatever the arm."""
        return self._write(replace(request, arm="rag", adapter=None), self._quoter)

    def _generated(self, request: GenerationRequest, generator: Generator) -> Iterator[Item]:
        """What a generator yields, to its end.

        Raises:
            GenerationFailed: it did not finish.
        """
        items = generator.stream(request)
        try:
            for item in items:
                yield item
                if isinstance(item, GenerationDone):
                    return
        finally:
            if isinstance(items, GeneratorType):
                items.close()
        raise GenerationFailed(f"{generator.name} stopped without finishing")

    def _write(self, request: GenerationRequest, generator: Generator) -> Iterator[Item]:
        """The generator's text without markers that name no passage, then its figures.

        A text without words is a refusal, unless it was cut off: then the answer says so.

        Raises:
            GenerationFailed: it did not finish.
        """
        markers = MarkerFilter(len(request.passages))
        done = _SAID
        blank = ""  # what begins the text before its first word
        empty = True
        for piece in self._generated(request, generator):
            if isinstance(piece, GenerationDone):
                done = piece
            elif isinstance(piece, Waiting | Thinking):
                yield piece
            elif text := markers.feed(piece.text):
                if empty and not text.strip():
                    blank += text
                    continue
                text, blank, empty = blank + text, "", False
                yield TextPiece(text, piece.quoted)
        if (text := blank + markers.finish()) and (not empty or text.strip()):
            empty = False
            yield TextPiece(text)
        if empty and done.usage.finish == "length":
            yield TextPiece(_CUT_OFF[request.chinese])
        elif empty:
            done = replace(done, refused=True)
            found = request.arm in RETRIEVING_ARMS
            yield TextPiece(not_found(request.chinese, request.passages) if found else _NOTHING_SAID[request.chinese])
        yield replace(done, written=generator is not self._quoter and self.has_model and not done.refused)

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


def _counted(notes: tuple[tuple[str, str], tuple[str, str]], count: int, request: GenerationRequest) -> tuple[str, ...]:
    """The note on so many sentences, of those for several and for one; none for none."""
    return (notes[count == 1][request.chinese].format(n=count),) if count else ()


def _not_kept(answer: Answer, error: CoalesceError) -> Answer:
    notes = (answer.note, _NOT_KEPT[asks_in_chinese(answer.question)].format(reason=error.message))
    return replace(answer, note=_one_text(filter(None, notes)))


def _one_text(notes: Iterable[str]) -> str:
    """Notes one after the other; behind a Chinese full stop stands no space."""
    return " ".join(notes).replace("。 ", "。")
