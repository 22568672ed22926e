"""How much of a prompt an earlier one began with: `python -m tools.prefixes HOME QUESTIONS.jsonl`.

Prompts are those of serving, over the library of HOME, in words; every earlier prompt is kept. So it is the most that
reused prefixes, here or in an engine, can save. Questions are asked once each, and follow-ups (`after`) behind their
first question.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from evals.questions import load_questions
from indexes.library import open_library
from indexes.settings import IndexSettings
from rag.assemble import build_engine
from rag.generators.prompts import render_messages
from rag.generators.protocol import GenerationDone, GenerationRequest, Item, TextPiece
from rag.retrieval import PassageBudget
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Arm, Question, Usage

MOST_QUESTIONS = 100


class _Listener:
    """A generator that keeps the prompts it is given."""

    name = model_name = "listener"
    arms: tuple[Arm, ...] = ("base", "rag")
    adapters = ()

    def __init__(self) -> None:
        self.prompts: list[list[str]] = []

    def check(self, request: GenerationRequest) -> None:
        """Takes everything."""

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """Keeps the prompt."""
        self.prompts.append(" ".join(message["content"] for message in render_messages(request)).split())
        yield TextPiece("Yes.")
        yield GenerationDone(Usage(), 0.0, 0)

    def close(self) -> None:
        """Holds nothing."""


def reused_share(prompts: Sequence[Sequence[str]], of: Sequence[int]) -> float:
    """Share of the words of some prompts, by number, that the longest common beginning with an earlier one holds."""
    reused = sum(max((_common(prompts[n], each) for each in prompts[:n]), default=0) for n in of)
    return reused / sum(len(prompts[n]) for n in of)


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints both shares."""
    parser = argparse.ArgumentParser(prog="python -m tools.prefixes", description="How much of a prompt repeats.")
    parser.add_argument("home", type=Path, help="folder of the home")
    parser.add_argument("questions", type=Path, help="question file")
    given = parser.parse_args(arguments)
    home, asked = given.home, load_questions(given.questions)
    first = [question for question in asked if not question.after and question.type != "choice"][:MOST_QUESTIONS]
    follow_ups = [question for question in asked if question.after]
    with closing(open_library(IndexSettings(home=home), create=False)) as library:
        library.load()
        settings = RagSettings(home=home, generator=GeneratorSettings("extractive"))
        with closing(build_engine(settings, library)) as built:
            listener = _Listener()
            engine = built.with_generator(listener, built.chooser, PassageBudget(), "unchecked")
            alone, conversations = [], []
            for question in first:
                engine.ask(Question(question.question, answer_anyway=True), keep=False)
                alone.append(len(listener.prompts) - 1)
            for question in follow_ups:
                opening = Question(question.after, answer_anyway=True)
                turns = ((question.after, engine.ask(opening, keep=False).answer),)
                engine.ask(replace(opening, text=question.question, turns=turns), keep=False)
                conversations.append(len(listener.prompts) - 1)
    prompts = listener.prompts
    sys.stdout.write(f"asked once each: {reused_share(prompts, alone):.1%} of {len(alone)} prompts\n")
    sys.stdout.write(f"follow-ups: {reused_share(prompts, conversations):.1%} of {len(conversations)} prompts\n")


if __name__ == "__main__":
    main()
