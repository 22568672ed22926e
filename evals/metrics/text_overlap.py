"""How far an answer's words are those of the reference: exact match, token F1, chrF. Secondary to key facts.

    exact match   1 when both are the same after levelling (`key_facts.normalize`, final punctuation dropped)
    token F1      2PR / (P + R) over multisets of tokens: words of letters, digits and `_`; Chinese by character (SQuAD)
    chrF          character 6-gram F2 (Popović 2015), by sacrebleu, 0 to 1; works for Chinese and mixed text

Edge cases: an empty reference -> None; an empty answer -> 0.0.
"""

from __future__ import annotations

import re
from collections import Counter

from evals.metrics.key_facts import normalize

_TOKEN = re.compile(r"[a-z0-9_]+|[\u4e00-\u9fff]")


def tokens(text: str) -> list[str]:
    """Levelled tokens: words of letters, digits and `_`, and single Chinese characters."""
    return _TOKEN.findall(normalize(text))


def exact_match(answer: str, reference: str) -> float | None:
    """1.0 or 0.0; None without a reference."""
    if not reference.strip():
        return None
    return float(normalize(answer).rstrip(".。!?") == normalize(reference).rstrip(".。!?"))


def token_f1(answer: str, reference: str) -> float | None:
    """0.0 to 1.0; None without a token in the reference."""
    wanted = Counter(tokens(reference))
    if not wanted:
        return None
    given = Counter(tokens(answer))
    common = sum((given & wanted).values())
    return 2 * common / (sum(given.values()) + sum(wanted.values()))


def chrf(answer: str, reference: str) -> float | None:
    """0.0 to 1.0; None without a reference."""
    if not reference.strip():
        return None
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().sentence_score(answer, [reference]).score) / 100
