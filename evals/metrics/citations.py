"""Citation recall and precision by ALCE's algorithm, with lexical support in place of an entailment model.

An answer is cut into sentences; each cites the passages whose `[n]` stand in or right behind it.

    recall      share of sentences that the passages they cite support together; a sentence without a citation, or with
                one that points at no passage, is not supported
    precision   share of citations that count: the sentence is supported, and this passage either supports it alone or
                the others no longer do without it

Support is that of `rag.support`: every number and identifier of the sentence, and most of its content words. Gold-based
scores need no support at all: a citation counts when its quote lies in, or holds, a gold evidence text.
Source: Gao et al. 2023 (arXiv 2305.14627), section 4; the entailment model is replaced because it needs an 11B model.

Edge cases: no sentence -> recall None; no citation -> precision None; no gold -> gold scores None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evals.metrics.key_facts import normalize
from rag.sentences import Span, split_spans
from rag.support import support_of

_MARKER = re.compile(r"\[(\d{1,3})\]")


@dataclass(frozen=True, slots=True)
class CitationScores:
    """Recall and precision, None where there was nothing to score."""

    recall: float | None
    precision: float | None


def cited_sentences(answer: str) -> list[tuple[str, tuple[int, ...]]]:
    """The answer's sentences and listings without markers, each with the passage numbers it cites."""
    found: list[tuple[str, tuple[int, ...]]] = []
    end = 0
    for span in split_spans(answer):
        leading = _numbers(answer[end : span.start])
        text = answer[span.start : span.end]
        if span.kind != "code":
            opening = re.match(r"(?:\[\d{1,3}\]\s*)+", text)
            if opening and found:  # markers behind the full stop belong to the sentence before
                leading += _numbers(opening.group(0))
                text = text[opening.end() :]
        if leading and found:
            found[-1] = (found[-1][0], tuple(dict.fromkeys(found[-1][1] + leading)))
        # Brackets inside a listing are subscripts; only what follows its closing fence is a marker.
        body, marked = (
            re.split(r"(?<=```)(?=[ \t\[\]\d]*$)", text, maxsplit=1) if _ends_marked(span, text) else (text, "")
        )
        numbers = _numbers(marked if span.kind == "code" else text)
        sentence = body if span.kind == "code" else _MARKER.sub("", text).strip()
        if sentence.strip(" .!?。"):
            found.append((sentence, numbers))
        end = span.end
    trailing = _numbers(answer[end:])
    if trailing and found:
        found[-1] = (found[-1][0], tuple(dict.fromkeys(found[-1][1] + trailing)))
    return found


def citation_scores(answer: str, passages: Sequence[str]) -> CitationScores:
    """Scores one answer against its numbered passages (`[1]` is `passages[0]`)."""
    sentences = cited_sentences(answer)
    if not sentences:
        return CitationScores(None, None)
    supported, counting, citations = 0, 0, 0
    for sentence, numbers in sentences:
        citations += len(numbers)
        valid = [number for number in numbers if 1 <= number <= len(passages)]
        if not valid or len(valid) < len(numbers):
            continue
        texts = {number: passages[number - 1] for number in valid}
        if not _supports("\n".join(texts.values()), sentence):
            continue
        supported += 1
        for number, text in texts.items():
            others = "\n".join(other for key, other in texts.items() if key != number)
            counting += _supports(text, sentence) or not _supports(others, sentence)
    return CitationScores(supported / len(sentences), counting / citations if citations else None)


def gold_citation_scores(quotes: Sequence[str], evidence_by_part: Sequence[Sequence[str]]) -> CitationScores:
    """Precision: quotes that overlap a gold evidence text; recall: parts that some quote covers.

    Args:
        evidence_by_part: for each needed part, the evidence texts of which one is enough.
    """
    if not evidence_by_part:
        return CitationScores(None, None)
    levelled = [[normalize(text) for text in part] for part in evidence_by_part]
    cited = [normalize(quote) for quote in quotes]
    covered = sum(any(_overlap(quote, text) for quote in cited for text in part) for part in levelled)
    right = sum(any(_overlap(quote, text) for part in levelled for text in part) for quote in cited)
    return CitationScores(covered / len(levelled), right / len(cited) if cited else None)


def _ends_marked(span: Span, text: str) -> bool:
    return span.kind == "code" and re.search(r"```[ \t\[\]\d]*$", text) is not None


def _overlap(quote: str, evidence: str) -> bool:
    return bool(quote and evidence) and (quote in evidence or evidence in quote)


def _supports(text: str, sentence: str) -> bool:
    return bool(text) and support_of(sentence, text).verdict == "supported"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(number) for number in _MARKER.findall(text)))
