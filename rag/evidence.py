"""Whether what was found can answer the question at all: a score from 0 to 1, and the threshold below which we refuse.

The score is a logistic function of a few signals; weights and threshold were fitted on development questions and stand
in `evidence_calibration.json`, by the embedder they belong to: a cosine of one embedder means nothing to another. An
embedder that is not listed is judged by wording alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rag.retrieval.hybrid import Retrieval
from rag.types import Passage
from rag.wording import names_in, proper_names, wording

LEAST_BESIDE_NAME = 0.5
"""Of what the question says beside its names, the share that must stand in the passage with them."""
_LAST_PART = re.compile(r"^.*(?:\.|::|->)(?=\w{3,}$)")
_MAKERS = {"amd": ("rocm", "hip", "gfx"), "nvidia": ("cuda", "ptx"), "intel": ("oneapi", "sycl")}
"""A maker is spoken of where its platform is."""
FALLBACK = "*"
"""The calibration for embedders that are not listed."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Weights by signal name, the intercept, the least score that is answered, and the least cosine.

    The floor under the cosine is for questions of one everyday word ('hi', 'help'), which any book says somewhere.
    """

    weights: dict[str, float]
    intercept: float
    threshold: float
    least_cosine: float = -1.0

    def score(self, signals: dict[str, float]) -> float:
        """Evidence from 0 to 1."""
        total = self.intercept + sum(weight * signals[name] for name, weight in self.weights.items())
        return 1.0 / (1.0 + math.exp(-max(min(total, 50.0), -50.0)))


@cache
def load_calibrations() -> dict[str, Calibration]:
    """Calibrations by embedder name; `FALLBACK` is always among them."""
    data = json.loads(files("rag").joinpath("evidence_calibration.json").read_text(encoding="utf-8"))
    return {
        name: Calibration(entry["weights"], entry["intercept"], entry["threshold"], entry.get("least_cosine", -1.0))
        for name, entry in data["calibrations"].items()
    }


def calibration_for(embedder: str) -> Calibration:
    """The calibration that belongs to `embedder`, or the fallback."""
    known = load_calibrations()
    return known.get(embedder, known[FALLBACK])


class EvidenceJudge:
    """Says whether evidence suffices, by the calibration of one embedder.

    Args:
        embedder: name of the embedder that made the cosines.
        threshold: overrides the calibrated one; 0 answers everything, 1 nothing.
    """

    def __init__(self, embedder: str, threshold: float | None = None) -> None:
        self._calibration = calibration_for(embedder)
        self.threshold = self._calibration.threshold if threshold is None else threshold

    def score(self, retrieval: Retrieval, passages: Sequence[Passage]) -> float:
        """Evidence from 0 to 1; 0 where even the nearest node is far from the question."""
        signals = evidence_signals(retrieval, passages)
        return self._calibration.score(signals) if signals["cosine"] >= self._calibration.least_cosine else 0.0

    def suffices(self, retrieval: Retrieval, passages: Sequence[Passage]) -> bool:
        """Whether to answer."""
        return self.score(retrieval, passages) >= self.threshold


def evidence_signals(retrieval: Retrieval, passages: Sequence[Passage]) -> dict[str, float]:
    """The signals by name.

    `cosine`: of the nearest node. `coverage`: greatest share of the question's pieces in one passage.
    `coverage_all`: the same over all passages. `unnamed`: 1 when the question names something, an identifier or a
    designation such as `gfx90a`, that no passage holds together with half of its other pieces, or by a word with a
    capital (`NCCL`, `Metal`) that no passage holds at all; else 0.
    """
    asked = wording(retrieval.query.english)
    found = [wording(" ".join((passage.title, *passage.section, passage.text))) for passage in passages]
    pieces = asked.pieces
    together = frozenset().union(*(item.pieces for item in found)) if found else frozenset()
    return {
        "cosine": max((hit.score for hit in retrieval.dense), default=0.0),
        "coverage": max((_share(pieces, item.pieces) for item in found), default=0.0),
        "coverage_all": _share(pieces, together),
        "unnamed": float(
            _unnamed(retrieval.query.english, passages, [item.pieces for item in found])
            or _unheard_of(retrieval.query.text, passages)
        ),
    }


def _unnamed(question: str, passages: Sequence[Passage], pieces: Sequence[frozenset[str]]) -> bool:
    names = names_in(question)
    if not names:
        return False
    other = wording(question).pieces - wording(" ".join(names)).pieces
    texts = [" ".join((passage.title, *passage.section, passage.text)).lower() for passage in passages]
    telling = [
        text for text, held in zip(texts, pieces, strict=True) if not other or _share(other, held) >= LEAST_BESIDE_NAME
    ]
    # `numba.cuda.grid` is named by a book that says `cuda.grid` or `grid`.
    return any(not any(name in text or _LAST_PART.sub("", name) in text for text in telling) for name in names)


def _unheard_of(question: str, passages: Sequence[Passage]) -> bool:
    shown = " ".join(" ".join((passage.title, *passage.section, passage.text)) for passage in passages).lower()
    asked = ((name, *_MAKERS.get(name, ())) for name in proper_names(question))
    return any(
        not any(re.search(rf"(?<![a-z0-9]){re.escape(name.removesuffix('s'))}", shown) for name in names)
        for names in asked
    )


def _share(wanted: frozenset[str], held: frozenset[str]) -> float:
    return len(wanted & held) / len(wanted) if wanted else 0.0
