"""Trains the sentence reader that ships: `python -m evals.reader_training --texts FOLDER`.

`FOLDER` holds the texts that `evals/question_sets/README.md` lists, one folder each. The reader is fitted on the
bundled book, with the bank's questions that are not for testing, and on two of the texts; the third, `DEVELOPMENT`,
chose the settings. Takes some fifty minutes on two cores: a few minutes to read the books, then the training runs, each
on one core. Half of them see newcomers' questions as well. The mean of all ships.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from rag.types import Passage, Turn

QUESTION_SETS = Path(__file__).parent / "question_sets"
FITTED = ("csc-portable-gpu-programming", "numba-cuda-docs")
SAMPLE_SET = SAMPLE_PATH.name.replace("_", "-")
DEVELOPMENT = "enccs-cuda"
"""Never trained on."""
SHIPPED = Path(__file__).resolve().parents[1] / "rag" / "reader_adapter"
CHINESE_SHARE = 0.25
"""Share of the Chinese wordings that are trained on: in English words they repeat the English ones."""
MOST_CANDIDATES = 32
PASSAGES = 5
JUDGED_CANDIDATES = 18
"""Candidates of each newcomer's question that were judged one by one."""
LEAST_OVERLAP = 0.8
LEAST_TOKENS = 3
RUNS = 2
"""Training runs of either half, by seed from 0."""


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
    search = book_search(library, document_id)
    for form in forms:
        asked, passages = search(form.text, form.after)
        units, pairs = candidates(asked, passages)
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


def judged_examples(library: Library, document_id: str, path: Path) -> Iterator[ReadingExample]:
    """The reader's input for each newcomer's question about one book, in English and in Chinese, as judged."""
    search = book_search(library, document_id)
    for record in map(json.loads, _lines(path)):
        asked, passages = search(record["question"])
        good, part = set(record["good"]), set(record["part"])
        # What was judged was found by the English wording, so the Chinese one is read with the same passages.
        for text, share in ((asked, 1.0), (search(record["question_zh"])[0], CHINESE_SHARE)):
            labelled = []
            for unit, pair in zip(*candidates(text, passages), strict=True):
                # A long table was judged by its beginning only.
                wrong = unit.text not in good | part and unit.kind != "table"
                labelled.append(Candidate(pair, unit.text in good, wrong))
            yield ReadingExample(text, tuple(labelled[:JUDGED_CANDIDATES]), record["answerable"], share)


def book_search(library: Library, document_id: str) -> Callable[..., tuple[str, tuple[Passage, ...]]]:
    """A search of one book: a question, and one that it follows up, to its English words and the passages."""
    retriever = HybridRetriever(library, RetrievalSettings())
    filters = Filters(document_ids=(document_id,))
    budget = PassageBudget.of_tokens(RetrievalSettings().passage_budget_tokens)

    def search(question: str, after: str = "") -> tuple[str, tuple[Passage, ...]]:
        found = retriever.search(question, filters, (Turn(after, ""),) if after else ())
        return found.query.english, select_passages(found.hits, library, PASSAGES, budget)

    return search


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
        made: list[ReadingExample] = []
        every: list[ReadingExample] = []
        for name in (*FITTED, SAMPLE_SET):
            sample = name == SAMPLE_SET
            document_id = (add_sample(library) if sample else library.add(given.texts / name)).document.document_id
            forms = [*asked_forms(QUESTION_SETS / "fit" / f"{name}.jsonl"), *(bank_forms() if sample else ())]
            own = list(reading_examples(library, document_id, forms))
            made += own
            every += [*own, *judged_examples(library, document_id, QUESTION_SETS / "newcomers" / f"{name}.jsonl")]
            _say(f"{name}: {len(every)} examples so far, {len(every) - len(made)} of them newcomers'")
        library.close()

    with tempfile.TemporaryDirectory() as work, ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        runs = [(every, seed) for seed in range(RUNS)] + [(made, seed) for seed in range(RUNS)]  # the long ones first
        folders = [Path(work) / str(number) for number in range(len(runs))]
        for _ in processes.map(_train, *zip(*runs, strict=True), folders):
            pass
        record = {"command": "python -m evals.reader_training --texts FOLDER", "books": [SAMPLE_SET, *FITTED]}
        average_readers(folders, given.out, record)


def _train(examples: Sequence[ReadingExample], seed: int, out: Path) -> None:
    losses: list[float] = []

    def progress(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        if step % 25 == 0 or step == steps:
            _say(f"run {out.name}: step {step} of {steps}, loss {sum(losses[-25:]) / len(losses[-25:]):.3f}")

    tune_reader(examples, out, ReaderTuning(seed=seed), progress=progress)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main()
