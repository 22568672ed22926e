"""The `Generator` Protocol: what the engine asks of anything that writes answers.

llama-index's `LLM` has no typed place for the first token's time, cancellation, adapters or cached prompt tokens,
so the seam is our own; `rag/llama_index.py` puts its LLMs behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from indexes.messages import msg
from rag.errors import ArmUnavailable, GenerationFailed
from rag.query import Query
from rag.question import asks_in_chinese
from rag.types import ARMS, TUNED_ARMS, Arm, Passage, Quoted, Thinking, Turn, Usage, Waiting


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Sentences of one passage, in reading order; `number` is the passage's, from 1, and `section` its heading path."""

    number: int
    section: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Everything a generator needs for one answer.

    Attributes:
        question: the user's words.
        query: the question as it was understood, for choosing sentences; None in arms without passages. A generator
            that reads `turns` does not need it.
        passages: numbered evidence, best first; empty for arms without retrieval.
        turns: earlier exchanges, oldest first.
        said: what a generator of sentences should not say again, since it was not enough ('why?').
        excerpts: what the model is shown of the passages, best first; empty where it reads them whole.
        adapter: name of the LoRA adapter, None for the bare base model.
        system: what the caller tells a language model beside our own rules.
        max_tokens: longest answer; None is the generator's default.
        stop: the answer ends before the first of these strings.
        schema: of the JSON that is written, where the engine can be held to one; others are only asked for it.
        cancelled: polled between tokens; the generator stops within two tokens of its becoming true.
    """

    question: str
    arm: Arm
    passages: tuple[Passage, ...] = ()
    turns: tuple[Turn, ...] = ()
    adapter: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    sampling_top_p: float = 1.0
    sampling_top_k: int = 0
    system: str = ""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    query: Query | None = None
    said: str = ""
    excerpts: tuple[Excerpt, ...] = ()
    schema: str = ""
    cancelled: Callable[[], bool] = field(default=lambda: False)

    @property
    def chinese(self) -> bool:
        """Whether it was asked in Chinese."""
        return asks_in_chinese(self.question) if self.query is None else self.query.chinese


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the answer's text; markers such as `[1]` name passages by number.

    Attributes:
        quoted: what the piece quotes, where the generator knows it; such a piece ends with its marker.
    """

    text: str
    quoted: Quoted | None = None


@dataclass(frozen=True, slots=True)
class GenerationDone:
    """The last thing a generator yields.

    Attributes:
        usage: tokens read, reused and written.
        tokens_per_s: decoding speed after the first token, 0.0 when fewer than two tokens were written.
        peak_memory_bytes: of the device (CUDA), or of the process on CPU.
        refused: the generator itself found no answer in the passages.
        passages_used: how many of the passages fitted the prompt (the lowest are dropped first).
        notes: what a reader should know of the text.
        written: a sentence of a language model is in it.
    """

    usage: Usage
    tokens_per_s: float
    peak_memory_bytes: int
    refused: bool = False
    passages_used: int | None = None
    notes: tuple[str, ...] = ()
    written: bool = False


Item: TypeAlias = TextPiece | Waiting | Thinking | GenerationDone
"""What a generator yields."""


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """How a generator scores the options of a choice question: higher is better, one number per option.

    A model that follows instructions says most by a letter: one of 1.5 billion weights is right for 17 of 43 questions
    by letters and 12 by likelihood, with passages for 24 and 20 of 28. A small one does not know its letters.

    Attributes:
        scores: the log-probability of each option's letter, behind a prompt that lists the options; 1 and 0 where an
            engine says only which letter it writes; of an encoder, similarities.
        extra: other scorings by name. `likelihood`, where the engine gives it, is the log-probability of an option's
            own text per byte, behind a prompt without the options.
        small: the model is too small for letters, so `likelihood` decides.
        passages_used: as in `GenerationDone`.
    """

    scores: tuple[float, ...]
    usage: Usage = field(default_factory=Usage)
    extra: dict[str, tuple[float, ...]] = field(default_factory=dict)
    small: bool = False
    passages_used: int | None = None

    @property
    def by_likelihood(self) -> bool:
        """Whether the likelihood decides, not `scores`."""
        return self.small and "likelihood" in self.extra


class RunsArms(Protocol):
    """What generators and scorers of choices say of themselves."""

    @property
    def name(self) -> str:
        """`extractive`, `local`, `remote`, `vllm` or `encoder`."""
        ...

    @property
    def model_name(self) -> str:
        """The model that answers, for the answer's `model` field."""
        ...

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Arms that can run now."""
        ...

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that can be asked for."""
        ...


@runtime_checkable
class Generator(RunsArms, Protocol):
    """Writes an answer from passages and a question."""

    def check(self, request: GenerationRequest) -> None:
        """Refuses, before retrieval, a request that can never run.

        Raises:
            ArmUnavailable: no model or adapter for the arm, with what to do.
            PromptTooLong: the question alone exceeds the context.
        """
        ...

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """Yields pieces of text, then one `GenerationDone`; closing the iterator stops the model.

        A model that thinks first yields one `Thinking` before its text; its reasoning is never a piece. One that others
        use too may yield `Waiting` before.

        Raises:
            GenerationFailed: the model thought and wrote no answer, or failed.
        """
        ...

    def close(self) -> None:
        """Frees the model."""
        ...


@runtime_checkable
class ChoiceScorer(RunsArms, Protocol):
    """Scores the options of a choice question without writing text."""

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """Scores each option, with the passages of the request when it has any."""
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """A generator whose tokenizer is at hand, so that passages are cut to what they really cost."""

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text."""
        ...


def quantization_of(generator: object) -> str | None:
    """What a model in this process is held in: `none`, `int8`, `nf4` or a GGUF file's own such as `q4_k`; else None."""
    return getattr(getattr(generator, "loaded", None), "quantization", None)


def arms_with(adapters: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of a language model with these adapters: the tuned ones need one."""
    return tuple(arm for arm in ARMS if adapters or arm not in TUNED_ARMS)


def only_thought(model: str, usage: Usage) -> GenerationFailed:
    """The error for an answer that was all reasoning."""
    told = "{} stopped thinking after {} tokens and wrote no answer."
    if usage.finish == "length":
        told = "{} was still thinking after {} tokens and wrote no answer."
    return GenerationFailed(
        msg(told, model, f"{usage.reasoning_tokens:,}"),
        hint="Raise COALESCE_REASONING_TOKENS, turn reasoning off in the engine, or use a model that does not reason.",
    )


def adapter_of(request: GenerationRequest, loaded: Sequence[str]) -> str | None:
    """The adapter that runs a request, None for the bare model.

    Raises:
        ArmUnavailable: the arm is a tuned one, and its adapter is not loaded.
    """
    if request.arm not in TUNED_ARMS:
        return None
    if request.adapter in loaded:
        return request.adapter
    raise ArmUnavailable(
        msg(
            "arm {}: adapter {} is not loaded; loaded: {}",
            repr(request.arm),
            repr(request.adapter),
            ", ".join(loaded) or "none",
        ),
        hint="Start with --adapter NAME=FOLDER (`coalesce tune` makes one), or name a loaded one with `adapter`.",
    )
