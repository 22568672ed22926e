"""The one path from a question to a cited answer; REST, page, command line and evaluation all run it.

`stream` yields `PassagesFound`, then `TextDelta`s, then `AnswerDone`, always in this order, for refusals too; the
deltas joined are the answer. Errors are raised, not yielded. The engine holds no lock while a generator writes.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from types import GeneratorType

from indexes.errors import Cancelled, InvalidInput, NotFound
from indexes.types import Filters
from rag.citations import MarkerFilter, resolve
from rag.conversations import ConversationStore
from rag.errors import GenerationFailed
from rag.evidence import (
    JUDGED_BUDGET,
    JUDGED_PASSAGES,
    EvidenceJudge,
    Judgement,
    clear_option,
    not_found,
    where_to_read,
)
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
from rag.question import (
    MOST_PASSAGES,
    asks_in_chinese,
    check_filters,
    check_question,
    check_top_k,
    choose_adapter,
    clean_text,
    code_in,
    looked_up,
    message_kind,
    options_of,
    parts_of,
    question_kind,
    stem_of,
    without_greeting,
    without_style,
)
from rag.replies import not_understood, reply_to
from rag.retrieval import (
    RESCORED,
    HybridRetriever,
    PassageBudget,
    Retrieval,
    note_on_earlier,
    prepare_query,
    select_passages,
    split_inline_filters,
)
from rag.sentence_reader import SentenceReader
from rag.types import (
    EVIDENCE,
    RETRIEVING_ARMS,
    TUNED_ARMS,
    Answer,
    AnswerDone,
    Arm,
    Event,
    Evidence,
    Passage,
    PassagesFound,
    Question,
    Quoted,
    SearchableLibrary,
    Searched,
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
_BLOCK = re.compile(r"[-|`$]")
"""Begins a list, table, listing or formula."""
SEVERAL_TOKENS = 133
"""Longest answer to all questions of one message together, about 100 words; a listing is not bounded."""
_SAID = GenerationDone(Usage(), 0.0, 0)
EARLIER_TURNS = 6
"""Newest turns of a conversation that a generator reads."""
_UNCITED = "The answer names no passage of the books; check it before you rely on it."
_UNCITED_ZH = "答案没有注明书中的出处，采用之前请先核对。"
_NOTHING_SAID = ("The model gave no answer.", "模型没有给出回答。")
_CUT_OFF = ("The model was cut off before its first word.", "模型还没写出第一个字就被截断了。")
_CODE_UNDONE = ("Explaining your own code needs a language model.", "解释您自己的代码需要语言模型。")
_STYLE_UNDONE = (
    "Rewording needs a language model; these are the books' own sentences.",
    "换一种说法需要语言模型，以下是书中的原句。",
)


@dataclass(frozen=True, slots=True)
class _Part:
    """One of several questions: its request, what to say instead of answering it, and its passages' numbers."""

    request: GenerationRequest
    refusal: str | None
    numbers: tuple[int, ...]


@dataclass(slots=True)
class _Prepared:
    """A question ready to be written about.

    Attributes:
        refusal: what to say instead of answering; None when the question is answered.
        said: the answer, where no generator has to write it.
        parts: the questions of a message that asks several, each answered alone.
        notes: sentences beside the answer, in the order in which they are read.
        doubt: the one of them that says that the books may not answer; a refusal says so itself.
    """

    request: GenerationRequest
    evidence: Evidence | None = None
    refusal: str | None = None
    notes: list[str] = field(default_factory=list)
    doubt: str | None = None
    said: tuple[TextPiece, ...] = ()
    parts: tuple[_Part, ...] = ()
    evidence_score: float | None = None

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
        request, found = prepared.request, prepared.request.passages
        retrieved = time.perf_counter()
        if request.cancelled():
            raise Cancelled("the question was withdrawn")
        yield PassagesFound(found, prepared.evidence, prepared.note, prepared.evidence_score)

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
        if done.passages_used is not None and not prepared.parts:
            found = found[: done.passages_used]  # the answer shows what was read; what did not fit was dropped
        bears = partial(self._judge.bears, request.standalone_question, found)
        citations = () if done.refused else resolve(written.text, found, written.quoted, bears)
        if done.refused and prepared.doubt:
            prepared.notes.remove(prepared.doubt)
        elif found and not citations and not done.refused:
            prepared.notes.append(_UNCITED_ZH if asks_in_chinese(question.text) else _UNCITED)
        answer = Answer(
            id=question.answer_id or uuid.uuid4().hex,
            conversation_id=self._conversation_id(question, keep),
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
            evidence=prepared.evidence,
            note=prepared.note,
            variant=question.variant,
            filters=question.filters,
        )
        if keep:
            self.conversations.append(answer, replaces=question.replaces)
        yield AnswerDone(answer)

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
        return self._find(clean_text(query, "query"), top_k, filters, ())[1]

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
        conversation_id = self.conversations.of(owner).create().id
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
            found = self._find(question.text, top_k, Filters(), ())[1]
        request = GenerationRequest(question.text, arm, found, adapter=adapter)
        return self.chooser.score_choices(request, tuple(choices))

    def explain(
        self, query: str, document_id: str, *, page: int | None = None, node_ids: Sequence[str] = ()
    ) -> Explanation:
        """Ranks of some nodes, or of a page's nodes, in each search for `query`: why a page was not found."""
        retrieval = self._retriever.search(clean_text(query, "query"), Filters())
        return explain(retrieval, self.library, document_id, page=page, node_ids=node_ids)

    def evidence_signals(self, question: str, turns: Sequence[Turn] = ()) -> dict[str, float]:
        """The evidence signals of a question, for fitting the calibration (`tools.evidence_calibration`)."""
        retrieval = self._retriever.search(clean_text(question), Filters(), turns)
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

    def _find(
        self, text: str, top_k: int, filters: Filters, turns: Sequence[Turn], searched: Searched = "hybrid"
    ) -> tuple[Retrieval, tuple[Passage, ...]]:
        retrieval = self._retriever.search(text, filters, turns, searched)
        return retrieval, select_passages(retrieval.hits, self.library, top_k, self.budget)

    def _judged_passages(self, retrieval: Retrieval) -> tuple[Passage, ...]:
        """The passages that evidence is judged by, whatever a generator can read."""
        return select_passages(retrieval.hits, self.library, JUDGED_PASSAGES, JUDGED_BUDGET)

    def _judged(self, question: Question, retrieval: Retrieval, passages: Sequence[Passage]) -> Judgement:
        return self._judge.judge(
            retrieval, passages, self.library, writes=self._writes, answer_anyway=question.answer_anyway
        )

    def _prepare(self, question: Question, request: GenerationRequest, passages: Sequence[Passage] | None) -> _Prepared:
        """The request with its passages, and what the search is worth. All notes known before writing are made here."""
        if passages is not None:
            query = prepare_query(question.text, request.turns)
            return _Prepared(replace(request, passages=tuple(passages), standalone_question=query.english))
        if question.arm not in RETRIEVING_ARMS:
            return _Prepared(request)
        text, filters = split_inline_filters(question.text, question.filters, self.library)
        if (kind := message_kind(text)) != "question":
            message, earlier = replace(question, text=text, filters=filters), self._earlier(question)
            reply = reply_to(kind, message, earlier, request.turns, self.library, writes=self._writes)
            if reply is not None:
                request = replace(request, passages=reply.passages)
                return _Prepared(request, notes=[*filter(None, [reply.note])], said=reply.pieces)
        parts = parts_of(without_greeting(question.text))
        if len(parts) > 1:
            return self._prepare_parts(question, request, parts)
        retrieval, found = self._find(
            question.text, question.top_k, question.filters, request.turns, question.retrieval
        )
        query = retrieval.query
        same = question.top_k == JUDGED_PASSAGES and self.budget == JUDGED_BUDGET
        judged = self._judged(question, retrieval, found if same else self._judged_passages(retrieval))
        request = replace(request, question=query.text, standalone_question=query.english, passages=found)
        named = None
        if judged.evidence == "strong" and not self._writes and (options := options_of(text)):
            asked = prepare_query(stem_of(text), request.turns, library=self.library)
            named = clear_option(asked, options, found, self.reader)
        if named is not None:
            request = replace(request, standalone_question=named.reads_as)
        english = note_on_english(query.standalone, [passage.text for passage in found])
        if query.asks_for_more:
            request = replace(request, said=" ".join(turn.answer for turn in request.turns))
        unread = None if self._writes else _left_undone(query.text)
        place = judged.refusal is None and looked_up(without_greeting(text))
        where = where_to_read(text, found) if place else None
        notes = [*query.notes, *filter(None, [named.note if named else None, where, english, unread, judged.note])]
        refusal = judged.refusal
        if refusal is not None:
            refusal = not_understood(query.standalone, self.library) or refusal
        return _Prepared(request, judged.evidence, refusal, notes, judged.note, evidence_score=judged.score)

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

    def _prepare_parts(self, question: Question, request: GenerationRequest, parts: Sequence[str]) -> _Prepared:
        """Several questions in one message: each is searched and judged alone; a later one may refer to an earlier one.

        A language model is given all of it at once.
        """
        turns = list(request.turns)
        retrievals = []
        for part in parts:
            retrievals.append(self._retriever.search(part, question.filters, turns, question.retrieval))
            turns.append(Turn(part, ""))
        best_first = [hit for hits in zip_longest(*(one.hits for one in retrievals)) for hit in hits if hit is not None]
        top_k = min(question.top_k * len(parts), MOST_PASSAGES)
        found = select_passages(best_first, self.library, top_k, self.budget)
        judged = [self._judged(question, one, self._judged_passages(one)) for one in retrievals]
        evidence = max((one.evidence for one in judged), key=EVIDENCE.index)
        refusal = None if any(one.refusal is None for one in judged) else judged[0].refusal
        doubt = next((one.note for one in judged if one.note), None)
        of_itself = {note_on_earlier(part, chinese=chinese) for part in parts for chinese in (False, True)}
        read = (note for one in retrievals for note in one.query.notes if note not in of_itself)
        notes = list(dict.fromkeys([*read, *filter(None, [doubt])]))
        request = replace(
            request, passages=found, standalone_question=" ".join(one.query.english for one in retrievals)
        )
        prepared = _Prepared(request, evidence, refusal, notes, doubt)
        if refusal is None and not self._writes:
            prepared.parts = tuple(map(partial(self._part, request, len(parts)), retrievals, judged))
        return prepared

    def _part(self, request: GenerationRequest, of: int, retrieval: Retrieval, judged: Judgement) -> _Part:
        """One question of several, with only the passages that its own search found, in its own order."""
        rank = {hit.node.node_id: place for place, hit in enumerate(retrieval.hits)}
        ranks = {
            number: min((rank.get(part.node_id, RESCORED) for part in passage.parts), default=RESCORED)
            for number, passage in enumerate(request.passages, 1)
        }
        numbers = sorted((number for number in ranks if ranks[number] < RESCORED), key=lambda number: ranks[number])
        query = retrieval.query
        bound = request.max_tokens and max(request.max_tokens // of, 1)
        if bound is None and question_kind(query.text) != "code":
            bound = SEVERAL_TOKENS // of
        passages = tuple(request.passages[number - 1] for number in numbers)
        request = replace(request, question=query.text, standalone_question=query.english, passages=passages)
        return _Part(replace(request, max_tokens=bound), judged.refusal, tuple(numbers))

    def _pieces(self, prepared: _Prepared) -> Iterator[Item]:
        """The answer's text in pieces, then its figures."""
        if prepared.refusal is not None:
            yield TextPiece(prepared.refusal)
            yield _REFUSED
        elif prepared.said:
            yield from prepared.said
            yield _SAID
        elif prepared.parts:
            yield from self._write_parts(prepared.parts)
        else:
            yield from self._write(prepared.request)

    def _write_parts(self, parts: Sequence[_Part]) -> Iterator[Item]:
        """The answers to several questions, numbered; nothing is said twice; refused only where each of them is."""
        ends: list[GenerationDone] = []
        said: list[str] = []
        for number, part in enumerate(parts, 1):
            gap = "\n\n" if number > 1 else ""
            lead = f"{gap}**{number}.** "
            refused = (TextPiece(part.refusal or ""), _REFUSED)
            request = replace(part.request, said=" ".join(said))
            for piece in refused if part.refusal else self._write(request, part.numbers):
                if isinstance(piece, GenerationDone):
                    ends.append(piece)
                elif isinstance(piece, TextPiece):
                    said.append(piece.text)
                    block = bool(lead) and _BLOCK.match(piece.text) is not None
                    yield replace(piece, text=f"{lead.rstrip()}\n\n{piece.text}" if block else lead + piece.text)
                    lead = ""
        yield GenerationDone(
            Usage(sum(end.usage.prompt_tokens for end in ends), 0, sum(end.usage.completion_tokens for end in ends)),
            max(end.tokens_per_s for end in ends),
            max(end.peak_memory_bytes for end in ends),
            refused=all(end.refused for end in ends),
        )

    def _write(self, request: GenerationRequest, numbers: Sequence[int] | None = None) -> Iterator[Item]:
        """The generator's text without markers that name no passage, then its figures.

        A text without words is a refusal, unless it was cut off: then the answer says so.

        Args:
            numbers: what the request's passages are called in the answer; None is 1, 2, 3.

        Raises:
            GenerationFailed: it did not finish.
        """
        numbers = numbers or range(1, len(request.passages) + 1)
        markers = MarkerFilter(numbers)
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
                    quoted = piece.quoted and replace(piece.quoted, passage=numbers[piece.quoted.passage - 1])
                    yield TextPiece(text, quoted)
        finally:
            if isinstance(pieces, GeneratorType):
                pieces.close()
        if done is None:
            raise GenerationFailed(f"{self.generator.name} stopped without finishing")
        if (text := blank + markers.finish()) and (not empty or text.strip()):
            empty = False
            yield TextPiece(text)
        chinese = asks_in_chinese(request.question)
        if empty and done.usage.finish == "length":
            yield TextPiece(_CUT_OFF[chinese])
        elif empty:
            done = replace(done, refused=True)
            found = request.arm in RETRIEVING_ARMS
            yield TextPiece(not_found(request.question, request.passages) if found else _NOTHING_SAID[chinese])
        yield done

    def _conversation_id(self, question: Question, keep: bool) -> str:
        if question.conversation_id is not None:
            return question.conversation_id
        return self.conversations.of(question.owner).create().id if keep else ""


def _left_undone(text: str) -> str | None:
    """What a message asks beside its question that only a language model could do."""
    chinese = asks_in_chinese(text)
    if code_in(text)[1]:
        return _CODE_UNDONE[chinese]
    return _STYLE_UNDONE[chinese] if without_style(text) != text else None
