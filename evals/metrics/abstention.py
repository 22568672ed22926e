"""Whether a system refuses what it should refuse and nothing else.

    precision   refused and unanswerable / refused
    recall      refused and unanswerable / unanswerable
    false refusals   refused and answerable / answerable

Edge cases: an empty denominator -> None (unscored).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Abstention:
    """Counts and the three shares; None where there was nothing to count over."""

    refused: int
    unanswerable: int
    refused_unanswerable: int
    answerable: int

    @property
    def precision(self) -> float | None:
        """Share of refusals that were right."""
        return self.refused_unanswerable / self.refused if self.refused else None

    @property
    def recall(self) -> float | None:
        """Share of unanswerable questions that were refused."""
        return self.refused_unanswerable / self.unanswerable if self.unanswerable else None

    @property
    def false_refusals(self) -> float | None:
        """Share of answerable questions that were refused."""
        return (self.refused - self.refused_unanswerable) / self.answerable if self.answerable else None


def abstention(refused: Sequence[bool], answerable: Sequence[bool]) -> Abstention:
    """Counts refusals over questions; both sequences are in the same order."""
    pairs = list(zip(refused, answerable, strict=True))
    return Abstention(
        refused=sum(refusal for refusal, _ in pairs),
        unanswerable=sum(not can for _, can in pairs),
        refused_unanswerable=sum(refusal and not can for refusal, can in pairs),
        answerable=sum(can for _, can in pairs),
    )
