"""The arms of a comparison: the four that users have, and two controls that show where a gain is lost.

`oracle` reads the gold passages (what is missing there, the reader lost; what is missing only in `rag`, the retriever
lost); `random` reads passages of other sections (what still comes out right does not come from reading).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evals.metrics.key_facts import normalize
from evals.questions import BankQuestion
from indexes.errors import InvalidInput
from indexes.types import Hit, StoredNode
from rag.passages import PassageBudget, select_passages
from rag.retrieval.protocol import SearchableLibrary
from rag.types import ARMS, TUNED_ARMS, Arm, Passage


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """An arm: `engine_arm` is what the engine runs, `evidence` where passages come from, `adapter` follows the @."""

    name: str
    engine_arm: Arm
    evidence: str
    adapter: str | None = None

    @property
    def tuned(self) -> bool:
        """Whether it uses an adapter, so that tuning seeds matter."""
        return self.engine_arm in TUNED_ARMS


_EXTRA = {
    "oracle": ArmSpec("oracle", "rag", "gold"),
    "random": ArmSpec("random", "rag", "random"),
    "oracle+tuned": ArmSpec("oracle+tuned", "rag+tuned", "gold"),
}
EVALUATED_ARMS: Mapping[str, ArmSpec] = {
    **{arm: ArmSpec(arm, arm, "retrieved" if "rag" in arm else "none") for arm in ARMS},
    **_EXTRA,
}
_REACH = 4
"""Nodes that a passage may reach to each side of the one that was found."""
DEFAULT_ARMS = ("base", "tuned", "rag", "rag+tuned", "oracle", "random")
PASSAGES_ADAPTER = "passages"
"""`rag+tuned@passages`: the encoder's adapter that was tuned on passages too."""


def parse_arms(names: Sequence[str]) -> tuple[ArmSpec, ...]:
    """Arms by name, in the order given, each once; `ARM@ADAPTER` is a tuned arm with an adapter of its own.

    Raises:
        InvalidInput: a name that is no arm.
    """
    if not names:
        raise InvalidInput("no arm is named", hint=f"arms are {', '.join(EVALUATED_ARMS)}")
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
    """Finds the passages that hold a question's gold evidence, and passages that do not.

    Args:
        nodes: every node of the books that the questions are about.
    """

    def __init__(self, library: SearchableLibrary, nodes: Sequence[StoredNode], budget: PassageBudget) -> None:
        self._library = library
        self._nodes = nodes
        self._budget = budget
        self._texts = [normalize(node.text) for node in nodes]
        self._headings = [{normalize(heading) for heading in node.heading_path} for node in nodes]

    def gold(self, question: BankQuestion, top_k: int) -> tuple[Passage, ...]:
        """Passages with the evidence of every part; of the gold section where the evidence spans nodes."""
        hits = [Hit(self._nodes[index], 1.0) for index in self._gold_indexes(question)]
        return select_passages(hits, self._library, top_k, self._budget)

    def random(self, question: BankQuestion, top_k: int, seed: int) -> tuple[Passage, ...]:
        """Up to `top_k` passages of other sections, the same for the same question and seed.

        A passage reaches past its node, so nodes near a gold one are not drawn, and what holds evidence even so is left
        out.
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
        for gold in question.gold:
            evidence, heading = normalize(gold.evidence), normalize(gold.heading)
            holding = [i for i, text in enumerate(self._texts) if evidence and evidence in text]
            of_section = [i for i, headings in enumerate(self._headings) if heading in headings]
            found += [i for i in holding if i in set(of_section)] or holding or of_section
        return list(dict.fromkeys(found))
