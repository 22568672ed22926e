"""Whether a stretch of text supports a sentence, judged by wording alone.

The level-2 check of citation evaluation without a judge: every identifier and every number of the sentence must occur
in the evidence, and enough of its content words. A made-up `cudaXyz` is caught without any model.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag.types import Verdict
from rag.wording import Wording, wording

SUPPORTED_RECALL = 0.6
"""Least share of a sentence's content stems in its evidence to call it supported: a copied sentence has 1.0, a close
paraphrase about 0.7, an unrelated sentence of the same chapter about 0.2."""
PARTIAL_RECALL = 0.3


@dataclass(frozen=True, slots=True)
class Support:
    """How evidence covers a sentence.

    Attributes:
        recall: share of the sentence's content stems that occur, 1.0 when it has none.
        missing: identifiers and numbers of the sentence that do not occur.
    """

    recall: float
    missing: frozenset[str]

    @property
    def verdict(self) -> Verdict:
        """`supported` needs all identifiers and numbers and most words; `partial` a fair share of the words."""
        if not self.missing and self.recall >= SUPPORTED_RECALL:
            return "supported"
        return "partial" if self.recall >= PARTIAL_RECALL else "unsupported"


def support_of(sentence: str, evidence: str) -> Support:
    """Lexical support of `sentence` by `evidence`."""
    return support_of_wording(wording(sentence), wording(evidence))


def support_of_wording(sentence: Wording, evidence: Wording) -> Support:
    """The same for wordings at hand."""
    missing = (sentence.identifiers - evidence.identifiers - evidence.stems) | (sentence.numbers - evidence.numbers)
    stems = sentence.stems
    recall = len(stems & evidence.stems) / len(stems) if stems else 1.0
    return Support(recall, frozenset(missing))
