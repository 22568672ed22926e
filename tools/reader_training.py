"""Trains the sentence reader that ships: `python -m tools.reader_training --texts FOLDER`.

`FOLDER` holds the texts that `evals/question_sets/README.md` lists, one folder each. The reader is fitted on the
bundled book, with the bank's questions that are not for testing, and on two of the texts; the third, `DEVELOPMENT`,
chose the settings. Takes some fifty minutes on two cores: a few minutes to read the books, then the training runs, each
on one core. Half of them see newcomers' questions as well.

The reader is a LoRA adapter of the bundled encoder, and a head. The loss is listwise: the sentences that answer against
those that do not and against a sentence of logit 0, which stands for 'nothing here answers'. That one is right for
questions without an answer, and for some whose answering sentences are held back (near misses), so a score above 0
means an answer in any list. The mean of all runs ships: one forward pass, but steadier than any of them (Wortsman et
al. 2022, 'Model soups').
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from evals.questions import BANK_FOLDER, BankQuestion, load_bank, load_questions
from evals.text_match import fact_met, tokens
from indexes.embedder import BUNDLED_SHA256, bundled_model_folder
from indexes.errors import InvalidInput
from indexes.library import Library, open_library
from indexes.sample import SAMPLE_PATH, add_sample
from indexes.settings import IndexSettings
from indexes.types import Filters
from rag.query import Query, understand
from rag.retrieval import HybridRetriever, PassageBudget, select_passages
from rag.sentence_reader import (
    EncodedPair,
    Pair,
    PairTokenizer,
    candidates,
    pad,
    read_adapter,
    score_hidden,
    write_adapter,
)
from rag.settings import RetrievalSettings
from rag.types import Passage, Turn

QUESTION_SETS = BANK_FOLDER.parent / "question_sets"
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
NEAR = 10
"""Candidates before this place, by their signals, are the near ones."""
CHUNK = 8
"""Pairs of similar length in one forward pass."""


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
        yield ReadingExample(asked.english, tuple(labelled), form.question.answerable, share)


def judged_examples(library: Library, document_id: str, path: Path) -> Iterator[ReadingExample]:
    """The reader's input for each newcomer's question about one book, in English and in Chinese, as judged."""
    search = book_search(library, document_id)
    for record in map(json.loads, _lines(path)):
        asked, passages = search(record["question"])
        good, part = set(record["good"]), set(record["part"])
        # What was judged was found by the English wording, so the Chinese one is read with the same passages.
        for query, share in ((asked, 1.0), (search(record["question_zh"])[0], CHINESE_SHARE)):
            labelled = []
            for unit, pair in zip(*candidates(query, passages), strict=True):
                # A long table was judged by its beginning only.
                wrong = unit.text not in good | part and unit.kind != "table"
                labelled.append(Candidate(pair, unit.text in good, wrong))
            yield ReadingExample(query.english, tuple(labelled[:JUDGED_CANDIDATES]), record["answerable"], share)


def book_search(library: Library, document_id: str) -> Callable[..., tuple[Query, tuple[Passage, ...]]]:
    """A search of one book: a question, and one that it follows up, as understood, and the passages."""
    retriever = HybridRetriever(library, RetrievalSettings())
    filters = Filters(document_ids=(document_id,))
    budget = PassageBudget.of_tokens(RetrievalSettings().passage_budget_tokens)

    def search(question: str, after: str = "") -> tuple[Query, tuple[Passage, ...]]:
        found = retriever.search(understand(question, library, filters, (Turn(after, ""),) if after else ()))
        return found.query, select_passages(found.hits, library, PASSAGES, budget)

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair with its label; a pair that is neither `answers` nor `wrong` is left out of the loss."""

    pair: Pair
    answers: bool
    wrong: bool


@dataclass(frozen=True, slots=True)
class ReadingExample:
    """A question in English words with its candidates, best signals first.

    Attributes:
        answerable: whether its book answers it.
        share: the probability that a run uses it at all.
    """

    question: str
    candidates: tuple[Candidate, ...]
    answerable: bool
    share: float = 1.0

    @property
    def usable(self) -> bool:
        """Whether the loss can use it: its answer is among the candidates, or the question has none."""
        return not self.answerable or any(candidate.answers for candidate in self.candidates)


@dataclass(frozen=True, slots=True)
class ReaderTuning:
    """Settings of a run; `held_back` is the share of questions that lose their answering sentences."""

    rank: int = 32
    epochs: int = 1
    questions_per_step: int = 4
    most_answers: int = 2
    near_negatives: int = 4
    negatives: int = 6
    held_back: float = 0.15
    held_back_weight: float = 0.5
    learning_rate: float = 8e-4
    head_learning_rate: float = 1e-3
    mix_learning_rate: float = 2e-2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _List:
    """One question's part of a step: its encoded candidates, the first `answers` of them right."""

    pairs: list[EncodedPair]
    answers: int
    weight: float


def tune_reader(
    examples: Sequence[ReadingExample],
    out: Path,
    settings: ReaderTuning | None = None,
    *,
    progress: Callable[[int, int, float], None] | None = None,
) -> float:
    """Trains and writes the adapter to `out`; the mean loss of the last fifth of the steps.

    Args:
        progress: called with step, number of steps and the step's loss.

    Raises:
        InvalidInput: no example can be learned from.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import BertModel

    settings = settings or ReaderTuning()
    rng = random.Random(settings.seed)
    chosen = [one for one in examples if one.usable and (one.share == 1.0 or rng.random() < one.share)]
    steps = len(chosen) * settings.epochs // settings.questions_per_step
    if not steps:
        raise InvalidInput(f"{len(examples)} examples are too few to train on", hint="give questions with evidence")
    started = time.perf_counter()
    torch.set_num_threads(1)  # how sums are split among threads changes their last bits, and so the adapter
    torch.manual_seed(settings.seed)
    base = BertModel.from_pretrained(bundled_model_folder(), add_pooling_layer=False)
    lora = LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, target_modules=["query", "key", "value", "dense"])
    model: Any = get_peft_model(base, lora)
    dimension = base.config.hidden_size
    head = torch.nn.Linear(2 * dimension, 1)
    torch.nn.init.normal_(head.weight, std=0.02)
    torch.nn.init.zeros_(head.bias)
    mix = torch.nn.Parameter(torch.tensor([5.0, 4.0, -6.0]))
    tuned = [weight for weight in model.parameters() if weight.requires_grad]
    rates = [settings.learning_rate, settings.head_learning_rate, settings.mix_learning_rate]
    groups = [tuned, list(head.parameters()), [mix]]
    optimizer = torch.optim.AdamW(
        [{"params": group, "lr": rate} for group, rate in zip(groups, rates, strict=True)], weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rates, total_steps=steps, pct_start=0.1, anneal_strategy="linear"
    )

    def logits(pairs: list[EncodedPair]) -> Any:
        order = sorted(range(len(pairs)), key=lambda index: len(pairs[index].ids))
        parts = []
        for first in range(0, len(order), CHUNK):
            chunk = [pairs[index] for index in order[first : first + CHUNK]]
            ids, mask = pad(chunk)
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
            parts.append(score_hidden(hidden, mask, chunk, head.weight, head.bias, mix))
        return torch.cat(parts)[torch.tensor(np.argsort(order))]

    losses = []
    for step, lists in zip(range(1, steps + 1), _steps(chosen, settings, rng), strict=False):
        scores = logits([pair for one in lists for pair in one.pairs])
        loss: Any = torch.zeros(())
        first = 0
        for one in lists:
            z = torch.cat([scores[first : first + len(one.pairs)], torch.zeros(1)])
            first += len(one.pairs)
            right = torch.logsumexp(z[: one.answers], 0) if one.answers else z[-1]
            loss = loss + one.weight * (torch.logsumexp(z, 0) - right)
        loss = loss / len(lists)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tuned, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if progress is not None:
            progress(step, steps, losses[-1])
    weights = {
        name.removeprefix("base_model.model.")
        .replace(".lora_A.default.weight", ".lora_A")
        .replace(".lora_B.default.weight", ".lora_B"): weight.detach().to(torch.float16).contiguous()
        for name, weight in model.state_dict().items()
        if "lora_" in name
    }
    weights |= {"head.weight": head.weight.detach(), "head.bias": head.bias.detach(), "mix": mix.detach()}
    last = float(np.mean(losses[-max(1, steps // 5) :]))
    write_adapter(
        out,
        weights,
        {
            "base": f"sha256:{BUNDLED_SHA256}",
            "scale": 2.0,
            "settings": asdict(settings),
            "examples": len(chosen),
            "steps": steps,
            "train_loss": round(last, 4),
            "minutes": round((time.perf_counter() - started) / 60, 1),
        },
    )
    return last


def average_readers(runs: Sequence[Path], out: Path, record: dict[str, Any]) -> None:
    """Writes the mean of the runs' readers to `out`: each layer's mean change in its best `rank` factors, mean heads.

    Args:
        runs: folders that `tune_reader` wrote, with the same settings but the seed; their examples may differ.
        record: kept with the adapter, together with the first run's.
    """
    import torch

    read = [read_adapter(run) for run in runs]
    (first, kept), count = read[0], len(read)
    rank = kept["settings"]["rank"]
    weights = {name: sum(run[name] for run, _ in read) / count for name in ("head.weight", "head.bias", "mix")}
    for name in (name.removesuffix(".lora_A") for name in first if name.endswith(".lora_A")):
        change = sum(run[f"{name}.lora_B"].float() @ run[f"{name}.lora_A"].float() for run, _ in read) / count
        left, strength, right = torch.linalg.svd(change, full_matrices=False)
        root = strength[:rank].sqrt()
        weights[f"{name}.lora_A"] = (root[:, None] * right[:rank]).to(torch.float16).contiguous()
        weights[f"{name}.lora_B"] = (left[:, :rank] * root).to(torch.float16).contiguous()
    each = {key: [one[key] for _, one in read] for key in ("examples", "steps", "train_loss")}
    minutes = round(sum(one["minutes"] for _, one in read), 1)
    write_adapter(out, weights, {**kept, **record, **each, "runs": count, "minutes": minutes})


def _steps(examples: Sequence[ReadingExample], settings: ReaderTuning, rng: random.Random) -> Iterator[list[_List]]:
    """Yields the lists of each step without end; uses every example once before repeating any."""
    tokenizer = PairTokenizer()
    queue: list[ReadingExample] = []
    while True:
        lists = []
        for _ in range(settings.questions_per_step):
            if not queue:
                queue = list(examples)
                rng.shuffle(queue)
            lists.append(_draw(queue.pop(), settings, rng, tokenizer))
        yield lists


def _draw(example: ReadingExample, settings: ReaderTuning, rng: random.Random, tokenizer: PairTokenizer) -> _List:
    right = [candidate for candidate in example.candidates if candidate.answers]
    near = [candidate for candidate in example.candidates[:NEAR] if candidate.wrong]
    far = [candidate for candidate in example.candidates[NEAR:] if candidate.wrong]
    held_back = example.answerable and rng.random() < settings.held_back
    if held_back:
        right = []
    drawn = rng.sample(right, min(settings.most_answers, len(right)))
    wrong = rng.sample(near, min(settings.near_negatives, len(near)))
    wrong += rng.sample(far, min(settings.negatives - len(wrong), len(far)))
    pairs = tokenizer.encode(example.question, [candidate.pair for candidate in (*drawn, *wrong)])
    return _List(pairs, len(drawn), settings.held_back_weight if held_back else 1.0)


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
        record = {"command": "python -m tools.reader_training --texts FOLDER", "books": [SAMPLE_SET, *FITTED]}
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
