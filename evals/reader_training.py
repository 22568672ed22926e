"""Trains the sentence reader that ships: `python -m evals.reader_training --texts FOLDER`.

`FOLDER` holds the texts that `evals/question_sets/README.md` lists, one folder each. The reader is fitted on the
bundled book, with the bank's questions that are not for testing, and on two of the texts; the third, `DEVELOPMENT`,
chose the settings. Takes about half an hour on two cores: a few minutes to read the books, then `RUNS` training runs,
each on one core; their mean ships.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from evals.questions import BankQuestion, load_bank, load_questions
from evals.text_match import fact_met, tokens
from indexes.library import Library, open_library
from indexes.sample import SAMPLE_PATH, add_sample
from indexes.settings import IndexSettings
from indexes.types import Filters
from rag.retrieval import HybridRetriever, PassageBudget, select_passages
from rag.sentence_reader import candidates
from rag.settings import RetrievalSettings
from rag.tuning.reader import Candidate, ReaderTuning, ReadingExample, average_readers, tune_reader
from rag.types import Turn

QUESTION_SETS = Path(__file__).parent / "question_sets"
FITTED = ("csc-portable-gpu-programming", "numba-cuda-docs")
DEVELOPMENT = "enccs-cuda"
"""Never trained on."""
SHIPPED = Path(__file__).resolve().parents[1] / "rag" / "reader_adapter"
CHINESE_SHARE = 0.25
"""Share of the Chinese wordings that are trained on: in English words they repeat the English ones."""
MOST_CANDIDATES = 32
LEAST_OVERLAP = 0.8
LEAST_TOKENS = 3
RUNS = 3
"""Training runs, by seed from 0."""


@dataclass(frozen=True, slots=True)
class AskedForm:
    """One wording of a question, and the question that it follows up, if any."""

    question: BankQuestion
    text: str
    chinese: bool = False
    after: str = ""


def asked_forms(path: Path) -> list[AskedForm]:
    """Every question of a set, in English and in Chinese."""
    questions = load_questions(path)
    by_id = {question.id: question for question in questions}
    follows = {record["id"]: record.get("after", "") for record in map(json.loads, _lines(path))}
    forms = []
    for question in questions:
        earlier = by_id.get(follows[question.id])
        after = earlier.question if earlier else follows[question.id]
        after_zh = earlier.question_zh if earlier else follows[question.id]
        forms.append(AskedForm(question, question.question, after=after))
        forms.append(AskedForm(question, question.question_zh, chinese=True, after=after_zh))
    return forms


def bank_forms() -> list[AskedForm]:
    """The bank's questions that are not for testing, in English, Chinese and one other wording."""
    forms = []
    for question in load_bank():
        if question.split != "test":
            forms.append(AskedForm(question, question.question))
            forms.append(AskedForm(question, question.question_zh, chinese=True))
            forms += [AskedForm(question, text) for text in question.paraphrases[:1]]
    return forms


def reading_examples(library: Library, document_id: str, forms: Sequence[AskedForm]) -> Iterator[ReadingExample]:
    """The reader's input for each question about one book, labelled by the question's evidence."""
    retriever = HybridRetriever(library, RetrievalSettings())
    filters = Filters(document_ids=(document_id,))
    budget = PassageBudget.of_tokens(RetrievalSettings().passage_budget_tokens)
    for form in forms:
        found = retriever.search(form.text, filters, (Turn(form.after, ""),) if form.after else ())
        asked = found.query.english
        units, pairs = candidates(asked, select_passages(found.hits, library, 5, budget))
        evidence = [frozenset(tokens(gold.evidence)) for gold in form.question.gold]
        labelled = []
        for place, (unit, pair) in enumerate(zip(units, pairs, strict=True)):
            answers = any(_overlap(unit.text, one) for one in evidence)
            # A sentence that states every key fact may answer too, though it is not the evidence.
            facts = [fact_met(fact, unit.text) for fact in form.question.key_facts]
            if answers or place < MOST_CANDIDATES:
                labelled.append(Candidate(pair, answers, not answers and not (facts and all(facts))))
        share = CHINESE_SHARE if form.chinese else 1.0
        yield ReadingExample(asked, tuple(labelled), form.question.answerable, share)


def _overlap(text: str, evidence: frozenset[str]) -> bool:
    """Whether most of the sentence is in the evidence, or most of the evidence in the sentence."""
    said = tokens(text)
    if len(said) < LEAST_TOKENS:
        return False
    common = len(evidence.intersection(said))
    inside = sum(token in evidence for token in said) / len(said)
    return inside >= LEAST_OVERLAP or (len(evidence) > LEAST_TOKENS and common / len(evidence) >= LEAST_OVERLAP)


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train the sentence reader that ships.")
    parser.add_argument("--texts", type=Path, required=True, help="folder of the texts, one folder each")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="where the adapter goes (default: %(default)s)")
    given = parser.parse_args(arguments)
    missing = [name for name in FITTED if not (given.texts / name).is_dir()]
    if missing:
        parser.error(
            f"{given.texts} has no folder {missing[0]}; evals/question_sets/README.md says where it comes from"
        )
    with tempfile.TemporaryDirectory() as home:
        library = open_library(IndexSettings(home=Path(home)))
        library.load()
        examples: list[ReadingExample] = []
        for name in FITTED:
            added = library.add(given.texts / name)
            forms = asked_forms(QUESTION_SETS / "fit" / f"{name}.jsonl")
            examples += reading_examples(library, added.document.document_id, forms)
            _say(f"{name}: {len(examples)} examples so far")
        added = add_sample(library)
        forms = [*asked_forms(QUESTION_SETS / "fit" / f"{SAMPLE_PATH.name.replace('_', '-')}.jsonl"), *bank_forms()]
        examples += reading_examples(library, added.document.document_id, forms)
        _say(f"{len(examples)} examples")
        library.close()

    with tempfile.TemporaryDirectory() as work, ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        runs = [Path(work) / str(seed) for seed in range(RUNS)]
        for _ in processes.map(_train, [examples] * RUNS, runs, range(RUNS)):
            pass
        record = {"command": "python -m evals.reader_training --texts FOLDER", "books": ["sample-book", *FITTED]}
        average_readers(runs, given.out, record)


def _train(examples: Sequence[ReadingExample], out: Path, seed: int) -> None:
    losses: list[float] = []

    def progress(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        if step % 25 == 0 or step == steps:
            _say(f"run {seed + 1}: step {step} of {steps}, loss {sum(losses[-25:]) / len(losses[-25:]):.3f}")

    tune_reader(examples, out, ReaderTuning(seed=seed), progress=progress)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main()
