"""One row of training data, whatever file format it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from rag.generators.prompts import Message, render_messages
from rag.generators.protocol import GenerationRequest
from rag.types import Arm, Passage, Turn


@dataclass(frozen=True, slots=True)
class RowPassage:
    """Evidence shown with a training question: what the model will read as a numbered passage."""

    title: str
    section: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A question with the answer to learn.

    Attributes:
        history: earlier exchanges (question, answer), oldest first.
        system: replaces the system text that serving uses; None keeps that.
        passages: shown in the prompt (an adapter for the `rag+tuned` arm); empty trains closed book.
        section: what the row is about; rows of one section stay on one side of the validation split.
    """

    question: str
    answer: str
    history: tuple[tuple[str, str], ...] = ()
    system: str | None = None
    passages: tuple[RowPassage, ...] = ()
    section: str | None = None

    def messages(self) -> list[Message]:
        """The chat to train on, ending with the answer: the prompt is the one that serving renders."""
        arm: Arm = "rag" if self.passages else "base"
        passages = tuple(_as_passage(passage) for passage in self.passages)
        turns = tuple(Turn(question, answer) for question, answer in self.history)
        messages = render_messages(GenerationRequest(self.question, arm, passages, turns))
        if self.system is not None:
            messages[0] = {"role": "system", "content": self.system}
            messages[-1] = {"role": "user", "content": self.question}
        return [*messages, {"role": "assistant", "content": self.answer}]

    def exchanges(self) -> list[TrainingRow]:
        """One row for every answer in the conversation, so that each is learnt behind the prompt it is served with."""
        said = (*self.history, (self.question, self.answer))
        return [replace(self, question=q, answer=a, history=said[:place]) for place, (q, a) in enumerate(said)]


def rows_sha256(rows: Iterable[TrainingRow]) -> str:
    """Hash of the rows in their order: names the data in an adapter's record."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(asdict(row), ensure_ascii=False, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _as_passage(passage: RowPassage) -> Passage:
    return Passage("", "", passage.title, passage.section, None, None, None, passage.text, 0.0)
