"""The arms of a comparison, the passages of its controls, and the adapters of its tuned arms, one per tuning seed.

There are the four arms that users have, and two controls that show where a gain is lost. `oracle` reads the gold
passages: facts missing there were lost by the model, facts missing only in `rag` by the retriever. `random` reads
passages of other sections: what it gets right does not come from reading.

With a language model the adapters are the user's own: `rag+tuned@raft` uses the adapter `raft`, and arms without `@`
use the adapters that no arm names, each as one seed. Without one, the embedded encoder's adapters are trained on the
bank's tune split, closed book, and are kept for the next run.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evals.encoder_tuning import ChoiceExample, EncoderTuning, data_hash, tune_encoder
from evals.questions import BankQuestion
from evals.text_match import normalize
from indexes.embedder import bundled_model_folder
from indexes.errors import InvalidInput
from indexes.settings import EMBEDDED_MODEL, IndexSettings
from indexes.types import Hit, StoredNode
from rag.errors import ArmUnavailable
from rag.generators.encoder import RECORD_FILE, read_record
from rag.retrieval import PassageBudget, select_passages
from rag.settings import GeneratorSettings
from rag.types import ARMS, RETRIEVING_ARMS, TUNED_ARMS, Arm, Passage, SearchableLibrary


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """An arm of a comparison.

    Attributes:
        engine_arm: the arm that the engine runs.
        evidence: where passages come from: `none`, `retrieved`, `gold` or `random`.
        adapter: the name after the @; None for the arm's usual adapters.
        quotes: answers in the books' own sentences, without the language model; it chooses no options.
    """

    name: str
    engine_arm: Arm
    evidence: str
    adapter: str | None = None
    quotes: bool = False

    @property
    def modes(self) -> tuple[str, ...]:
        """How it is asked: `choice`, `open`."""
        return ("open",) if self.quotes else ("choice", "open")

    @property
    def tuned(self) -> bool:
        """Whether it uses an adapter, so that tuning seeds matter."""
        return self.engine_arm in TUNED_ARMS


EVALUATED_ARMS: Mapping[str, ArmSpec] = {
    **{arm: ArmSpec(arm, arm, "retrieved" if arm in RETRIEVING_ARMS else "none") for arm in ARMS},
    "quotes": ArmSpec("quotes", "rag", "retrieved", quotes=True),
    "oracle": ArmSpec("oracle", "rag", "gold"),
    "random": ArmSpec("random", "rag", "random"),
    "oracle+tuned": ArmSpec("oracle+tuned", "rag+tuned", "gold"),
}
_REACH = 4
"""Nodes on each side of the one found that a passage may extend into."""
DEFAULT_ARMS = (*ARMS, "oracle", "random")
ArmAdapters = Mapping[str, tuple[str, ...]]
"""Adapter names of each tuned arm, one per tuning seed."""


@dataclass(frozen=True, slots=True)
class TrainedAdapters:
    """The encoder's adapters: settings that name them, those of each arm, and the seconds their training took."""

    generator: GeneratorSettings
    by_arm: ArmAdapters
    seconds: float


def parse_arms(names: Sequence[str]) -> tuple[ArmSpec, ...]:
    """Arms by name, in the order given, each once; `ARM@ADAPTER` is a tuned arm with an adapter of its own.

    Raises:
        InvalidInput: a name is not an arm's, or names are missing.
    """
    if not names:
        raise InvalidInput("name at least one arm", hint=f"arms are {', '.join(EVALUATED_ARMS)}")
    return tuple(_parse_arm(name) for name in dict.fromkeys(names))


def _parse_arm(name: str) -> ArmSpec:
    kind, at, adapter = name.partition("@")
    if kind not in EVALUATED_ARMS or (at and not adapter):
        raise InvalidInput(f"arm {name!r} is not known", hint=f"arms are {', '.join(EVALUATED_ARMS)}")
    spec = EVALUATED_ARMS[kind]
    if not at:
        return spec
    if not spec.tuned:
        raise InvalidInput(
            f"arm {name!r} names an adapter, but {kind} uses none", hint=f"use tuned@{adapter} or rag+tuned@{adapter}"
        )
    return replace(spec, name=name, adapter=adapter)


class GoldPassages:
    """Finds passages with a question's gold evidence, and passages without it.

    Args:
        nodes: every node of the books that the questions are about.
        documents: id of the book that each question set is about; the others are about all of them.
    """

    def __init__(
        self,
        library: SearchableLibrary,
        nodes: Sequence[StoredNode],
        budget: PassageBudget,
        documents: Mapping[str, str] | None = None,
    ) -> None:
        self._library = library
        self._nodes = nodes
        self._budget = budget
        self._documents = documents or {}
        self._texts = [normalize(node.text) for node in nodes]
        self._headings = [{normalize(heading) for heading in node.heading_path} for node in nodes]

    def gold(self, question: BankQuestion, top_k: int) -> tuple[Passage, ...]:
        """Passages with the evidence of every part, or of the gold section where the evidence spans nodes."""
        hits = [Hit(self._nodes[index], 1.0) for index in self._gold_indexes(question)]
        return select_passages(hits, self._library, top_k, self._budget)

    def random(self, question: BankQuestion, top_k: int, seed: int) -> tuple[Passage, ...]:
        """Up to `top_k` passages of other sections, the same for the same question and seed.

        Passages extend past their node, so nodes near a gold one are not drawn; passages that hold evidence even so are
        left out.
        """
        avoided = {normalize(gold.heading) for gold in question.gold}
        golden = [self._nodes[index] for index, headings in enumerate(self._headings) if headings & avoided]
        near = {(node.document_id, node.ordinal + step) for node in golden for step in range(-_REACH, _REACH + 1)}
        others = [index for index, node in enumerate(self._nodes) if (node.document_id, node.ordinal) not in near]
        picked = random.Random(f"{seed}:{question.id}").sample(others, min(top_k, len(others)))
        hits = [Hit(self._nodes[index], 1.0) for index in picked]
        evidence = [normalize(gold.evidence) for gold in question.gold if gold.evidence]
        return tuple(
            passage
            for passage in select_passages(hits, self._library, top_k, self._budget)
            if not any(snippet in normalize(passage.text) for snippet in evidence)
        )

    def _gold_indexes(self, question: BankQuestion) -> list[int]:
        found: list[int] = []
        document = self._documents.get(question.book)
        for gold in question.gold:
            evidence, heading = normalize(gold.evidence), normalize(gold.heading)
            holding = [i for i, text in enumerate(self._texts) if evidence and evidence in text]
            of_section = [i for i, headings in enumerate(self._headings) if heading in headings]
            found += [i for i in holding if i in set(of_section)] or holding or of_section
        of_book = (i for i in found if document is None or self._nodes[i].document_id == document)
        return list(dict.fromkeys(of_book))


def configured_adapters(generator: GeneratorSettings, arms: Sequence[ArmSpec]) -> ArmAdapters:
    """The user's adapters by arm.

    Raises:
        ArmUnavailable: a tuned arm has no adapter, or names one that is not configured.
    """
    named = {arm.adapter for arm in arms if arm.adapter}
    if missing := sorted(named - generator.adapters.keys()):
        known = f" (configured: {', '.join(generator.adapters)})" if generator.adapters else ""
        raise ArmUnavailable(
            f"an arm names the adapter {missing[0]!r}, which is not configured{known}",
            hint=f"add `--adapter {missing[0]}=FOLDER`",
        )
    others = tuple(name for name in generator.adapters if name not in named)
    by_arm = {arm.name: (arm.adapter,) if arm.adapter else others for arm in arms if arm.tuned}
    if without := [name for name, adapters in by_arm.items() if not adapters]:
        raise ArmUnavailable(
            f"the comparison has tuned arms ({', '.join(without)}), but no adapter is configured for them",
            hint="train one with `coalesce tune`, then add `--adapter NAME=FOLDER`, or leave these arms out",
        )
    return by_arm


def check_encoder_arms(arms: Sequence[ArmSpec], index: IndexSettings) -> None:
    """Refuses tuned arms that the embedded encoder cannot run, before any model is loaded.

    Raises:
        ArmUnavailable: the settings name another embedder than the bundled one.
        InvalidInput: an arm names an adapter.
    """
    tuned = [arm for arm in arms if arm.tuned]
    if tuned and index.embedder != EMBEDDED_MODEL:
        raise ArmUnavailable(
            f"the embedder {index.embedder!r} cannot be tuned here, only {EMBEDDED_MODEL}",
            hint="leave the tuned arms out, or the embedder at its default",
        )
    if named := next((arm for arm in tuned if arm.adapter), None):
        raise InvalidInput(
            f"the encoder has no adapter {named.adapter!r}", hint=f"use {named.engine_arm} without a language model"
        )


def trained_encoder_adapters(
    arms: Sequence[ArmSpec],
    generator: GeneratorSettings,
    questions: Sequence[BankQuestion],
    tunings: Sequence[EncoderTuning],
    folder: Path,
    progress: Callable[[str, int, int], None],
) -> TrainedAdapters:
    """Trains the adapters of the tuned arms, one for each of `tunings`; those that `folder` holds are used again."""
    examples = tuning_examples(questions)
    paths = {f"encoder-seed-{one.seed}": _trained(examples, one, folder, progress) for one in tunings}
    tuned = replace(generator, kind="encoder", adapters={name: str(path) for name, path in paths.items()})
    seconds = sum(float(read_record(path).get("seconds", 0.0)) for path in paths.values())
    return TrainedAdapters(tuned, {arm.name: tuple(paths) for arm in arms if arm.tuned}, seconds)


def tuning_examples(questions: Sequence[BankQuestion]) -> list[ChoiceExample]:
    """An example for every wording of every answerable tune question: its options, or its answer without options."""
    return [
        ChoiceExample(
            wording,
            question.choices[question.answer_index] if question.answer_index is not None else question.answer,
            tuple(choice for index, choice in enumerate(question.choices) if index != question.answer_index),
        )
        for question in questions
        if question.split == "tune" and question.answerable
        for wording in (question.question, *question.paraphrases)
    ]


def _trained(
    examples: Sequence[ChoiceExample], tuning: EncoderTuning, folder: Path, progress: Callable[[str, int, int], None]
) -> Path:
    """The folder of one adapter; trained now unless it was trained on the same data with the same settings before."""
    key = hashlib.sha256(json.dumps([data_hash(examples), asdict(tuning)]).encode()).hexdigest()[:16]
    path = folder / f"encoder-{key}"
    if not (path / RECORD_FILE).is_file():

        def step_done(step: int, steps: int, loss: float) -> None:
            progress(f"tuning, seed {tuning.seed}, loss {loss:.2f}", step, steps)

        tune_encoder(examples, Path(bundled_model_folder()), path, tuning, progress=step_done)
    return path
