"""Scores records: one row per record, one column per metric. None means unscored, never zero.

Retrieval, over the parts (needed facts) that each passage holds, best passage first:
    recall@k            parts found in the first k / parts
    all-parts recall    1 when every part is found in the first k
    MRR                 1 / rank of the first passage with a needed part; 0 when no passage has one
    nDCG@k              DCG / DCG of the ideal order (Järvelin & Kekäläinen 2002); a part gains once, at its first rank
Answers:
    key-fact recall     key facts stated / key facts; string matching with aliases, as in ASQA and ALCE (str-EM); in
                        the whole answer, and in its first two sentences, where being long does not help
    words               words of an answer that is given, without listings and markers
    unsupported terms   numbers and identifiers in no passage and not in the question / those in the answer
Refusals, each over the questions it is about, 1 or 0:
    false refusals      answerable, refused
    marked weak         answerable, answered with weak evidence
    unanswerable caught not answered by the book, refused or answered with weak evidence
    off-topic refused   about something else, refused
    refusal recall, refusal precision   unanswerable ones refused; refused ones unanswerable
Citations (Gao et al. 2023, arXiv 2305.14627, section 4), with `rag.citations` in place of the 11B entailment model:
    recall              sentences that the passages they cite support together / sentences
    precision           citations that count / citations: the sentence is supported, and this passage supports it alone
                        or the others do not without it
    gold recall         needed parts that some quote covers / parts
    gold precision      quotes that overlap a gold evidence text / quotes
A text holds an evidence when it has at least `HELD_SHARE` of its runs of three words: evidence is quoted from the
book's source, whose links and roles the readers take away.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evals.questions import BankQuestion
from evals.records import AnswerKey, PassageRecord, Record
from evals.statistics import Scores, area_under_curve, wilson_interval
from evals.text_match import fact_met, ngrams, normalize
from indexes.sentences import split_spans
from indexes.words import count_words, terms_of
from rag.citations import find_markers, support_of, without_markers

RETRIEVAL_K = 5
HELD_SHARE = 0.8
OFF_TOPIC = "off_topic"
"""The kind of a question that is not about the book's subject."""
SCORE_BINS = 10
"""Of the evidence score."""
GRADES: Mapping[str, float] = {"correct": 1.0, "partial": 0.5, "wrong": 0.0}
"""A judge's grades and their scores."""
FACT_FLOWS = ("used", "reader lost it", "self-knowledge", "missed")
_OTHER_SCORINGS = {
    "letters": "accuracy_by_letter",
    "likelihood": "accuracy_by_likelihood",
}
"""Metrics of a generator's other scorings of the options, by the name the generator gives them."""
_LINK = re.compile(r"\[([^\]]*)\]\([^)\s]*\)")
_NUMBERING = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """The scores of one record."""

    record: Record
    question: BankQuestion
    metrics: Mapping[str, float | None]


def score_records(
    records: Sequence[Record],
    questions: Mapping[str, BankQuestion],
    grades: Mapping[AnswerKey, str | None] | None = None,
    readers: Mapping[AnswerKey, float] | None = None,
) -> list[Row]:
    """Scores every record of a known question.

    Args:
        grades: a judge's, where one was asked.
        readers: people's, as `evals.judge.reader_scores` gives them.
    """
    rows = []
    for record in records:
        if (question := questions.get(record.question_id)) is not None:
            metrics = _metrics(record, question) | _judge_score(record, question, grades)
            if readers and record.mode == "open" and question.answerable:
                metrics["reader_score"] = readers.get(record.answer_key)
            rows.append(Row(record, question, metrics))
    return rows


def _metrics(record: Record, question: BankQuestion) -> dict[str, float | None]:
    if record.error or record.mode not in ("choice", "open"):  # an earlier version's run had a third
        return {}
    asked_together = record.mode == "choice" and record.picked_by in ("letter", "likelihood")
    metrics: dict[str, float | None] = {
        "retrieve_s": record.retrieve_s if record.passages and not asked_together else None,
        "total_s": None if asked_together else record.total_s,
        "prompt_tokens": float(record.prompt_tokens) if record.prompt_tokens and record.mode == "open" else None,
        "peak_memory_bytes": float(record.peak_memory_bytes) if record.peak_memory_bytes else None,
    }
    if record.passages or record.passages_left_out:
        metrics["passages_left_out"] = float(record.passages_left_out)
        metrics |= _retrieval_metrics(record.passages, question)
    if record.mode == "open":
        return metrics | _open_metrics(record, question)
    metrics["accuracy"] = float(record.picked == question.answer_index)
    for name, metric in _OTHER_SCORINGS.items():
        if (scores := record.extra.get(name)) and scores != record.scores:
            metrics[metric] = float(scores.index(max(scores)) == question.answer_index)
    return metrics


def _judge_score(
    record: Record, question: BankQuestion, grades: Mapping[AnswerKey, str | None] | None
) -> dict[str, float | None]:
    """1, 0.5 or 0 by grade; 0 for refusing an answerable question; None where the judge gave no grade."""
    if grades is None or record.mode != "open" or record.error or not question.answerable:
        return {}
    grade = "wrong" if record.refused else grades.get(record.answer_key)
    return {"judge_score": None if grade is None else GRADES[grade]}


def _open_metrics(record: Record, question: BankQuestion) -> dict[str, float | None]:
    metrics = {"tokens_per_s": record.tokens_per_s or None, "ttft_s": record.ttft_s or None}
    metrics |= _refusal_metrics(record, question)
    if not question.answerable:
        return metrics
    answer = "" if record.refused else record.answer
    metrics |= {
        "key_facts_first_two": key_fact_recall(question.key_facts, first_sentences(answer)),
        "key_fact_recall": key_fact_recall(question.key_facts, answer),
    }
    if record.refused:
        return metrics
    metrics["answer_words"] = float(prose_words(answer))
    if texts := [passage.text for passage in record.passages]:
        metrics["unsupported_terms"] = unsupported_term_rate(answer, "\n".join(texts), question.question)
        evidence = [[gold.evidence for gold in question.gold if gold.part == part] for part in question.parts]
        metrics["citation_recall"], metrics["citation_precision"] = citation_scores(answer, texts)
        gold_recall, gold_precision = gold_citation_scores(record.quotes, evidence)
        metrics |= {"gold_citation_recall": gold_recall, "gold_citation_precision": gold_precision}
    return metrics


def _refusal_metrics(record: Record, question: BankQuestion) -> dict[str, float | None]:
    refused = float(record.refused)
    weak = None if record.evidence is None else float(not record.refused and record.evidence == "weak")
    metrics: dict[str, float | None] = {"abstention_precision": float(not question.answerable) if refused else None}
    if question.answerable:
        return metrics | {"false_refusals": refused, "marked_weak": weak}
    if question.kind == OFF_TOPIC:
        return metrics | {"abstention_recall": refused, "off_topic_refused": refused}
    return metrics | {"abstention_recall": refused, "unanswerable_caught": max(refused, weak or 0.0)}


def _retrieval_metrics(passages: Sequence[PassageRecord], question: BankQuestion) -> dict[str, float | None]:
    parts = set(question.parts)
    if not parts:
        return {}
    by_evidence = [_parts_by_evidence(passage, question) for passage in passages]
    by_section = [
        _parts_by_section(passage, question) | held for passage, held in zip(passages, by_evidence, strict=True)
    ]
    recall = recall_at_k(by_section, parts, RETRIEVAL_K)
    return {
        f"recall_at_{RETRIEVAL_K}": recall,
        f"evidence_recall_at_{RETRIEVAL_K}": recall_at_k(by_evidence, parts, RETRIEVAL_K),
        f"all_parts_recall_at_{RETRIEVAL_K}": float(recall == 1) if len(parts) > 1 else None,
        "mrr": reciprocal_rank(by_section, parts),
        f"ndcg_at_{RETRIEVAL_K}": ndcg_at_k(by_section, parts, RETRIEVAL_K),
    }


def _parts_by_section(passage: PassageRecord, question: BankQuestion) -> set[int]:
    headings = {normalize(heading) for heading in passage.section}
    return {gold.part for gold in question.gold if normalize(gold.heading) in headings}


def _parts_by_evidence(passage: PassageRecord, question: BankQuestion) -> set[int]:
    return {gold.part for gold in question.gold if gold.evidence and holds(passage.text, gold.evidence)}


def fact_flow(rows: Sequence[Row]) -> dict[str, int]:
    """Counts where key facts were used or lost, over open answers with passages (RAGChecker's split, by key facts).

    `used`: in passages and in the answer; `reader lost it`: in passages only; `self-knowledge`: in the answer only;
    `missed`: in neither.
    """
    counts = dict.fromkeys(FACT_FLOWS, 0)
    for row in rows:
        if row.record.mode != "open" or row.record.error or not row.record.passages:
            continue
        context = "\n".join(passage.text for passage in row.record.passages)
        for fact in row.question.key_facts:
            read = fact_met(fact, context)
            said = not row.record.refused and fact_met(fact, row.record.answer)
            flow = ("used" if said else "reader lost it") if read else ("self-knowledge" if said else "missed")
            counts[flow] += 1
    return counts


def calibration_data(rows: Sequence[Row], thresholds: Mapping[str, float]) -> dict[str, Any] | None:
    """How well the evidence score separates answerable questions; None where nothing was judged.

    Their share by score and the area under the curve, over all open questions, and by book where there are several.

    Args:
        thresholds: least score of each step of evidence, to be shown.
    """
    by_question = {
        row.question.id: (row.question.book, row.record.evidence_score, row.question.answerable)
        for row in rows
        if row.record.mode == "open" and row.record.evidence_score is not None
    }
    if not by_question:
        return None
    judged = list(by_question.values())
    groups = {"all": judged}
    if len(books := sorted({book for book, _, _ in judged if book})) > 1:
        groups |= {book: [one for one in judged if one[0] == book] for book in books}
    return {
        "thresholds": dict(thresholds),
        "groups": {
            name: _reliability(np.array([one[1] for one in group]), np.array([one[2] for one in group]))
            for name, group in groups.items()
        },
    }


def _reliability(scores: Scores, answerable: NDArray[np.bool_]) -> dict[str, Any]:
    bins = []
    numbers = np.minimum((scores * SCORE_BINS).astype(int), SCORE_BINS - 1)
    for number in sorted(set(numbers.tolist())):
        held = numbers == number
        n = int(held.sum())
        share = wilson_interval(int(answerable[held].sum()), n)
        bounds = {"answerable": share.value, "low": share.low, "high": share.high}
        bins.append({"score": float(scores[held].mean()), "n": n, **bounds})
    area = area_under_curve(scores, answerable)
    return {"n": len(scores), "answerable": int(answerable.sum()), "area": area, "bins": bins}


def recall_at_k(found: Sequence[Set[int]], parts: Set[int], k: int) -> float:
    """Share of `parts` found in the first `k` passages.

    Args:
        found: the parts that each passage holds, best first.
        parts: the parts that are needed, at least one.
    """
    return len(set[int]().union(*found[:k]) & parts) / len(parts)


def reciprocal_rank(found: Sequence[Set[int]], parts: Set[int]) -> float:
    """1 / rank of the first passage that holds a needed part, 0.0 when none does."""
    return next((1 / rank for rank, held in enumerate(found, start=1) if held & parts), 0.0)


def ndcg_at_k(found: Sequence[Set[int]], parts: Set[int], k: int) -> float:
    """Discounted gain of the order over the best possible, 0.0 to 1.0."""
    gain, known = 0.0, set[int]()
    for rank, held in enumerate(found[:k], start=1):
        if (held & parts) - known:
            gain += 1 / math.log2(rank + 1)
            known |= held & parts
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(parts), k) + 1))


def key_fact_recall(facts: Sequence[str], answer: str) -> float | None:
    """Share of `facts` that `answer` states, 0.0 to 1.0; None without facts."""
    if not facts:
        return None
    return sum(fact_met(fact, answer) for fact in facts) / len(facts)


def first_sentences(answer: str, count: int = 2) -> str:
    """The answer up to the end of its sentence number `count`; a list item and a listing count as one, headings not."""
    text = without_markers(answer)
    spans = [
        span for span in split_spans(text) if span.kind != "heading" and text[span.start : span.end].strip(" .!?。")
    ]
    return text[: spans[min(count, len(spans)) - 1].end] if spans else ""


def prose_words(answer: str) -> int:
    """Words of an answer without its listings and markers; two Chinese characters count as one."""
    text = without_markers(answer)
    return sum(count_words(text[span.start : span.end]) for span in split_spans(text) if span.kind != "code")


def unsupported_term_rate(answer: str, passages: str, question: str = "") -> float | None:
    """Share of the answer's numbers and identifiers that nothing supports, 0.0 to 1.0; None without such terms.

    A made-up `cudaXyz` needs no judge. Citation markers and list numbering do not count as numbers.
    """
    said = terms_of(_NUMBERING.sub(" ", without_markers(answer)))
    read, asked = terms_of(passages), terms_of(question)
    terms = said.identifiers | said.numbers
    if not terms:
        return None
    known = read.identifiers | read.numbers | read.stems | asked.identifiers | asked.numbers | asked.stems
    return len(terms - known) / len(terms)


def citation_scores(answer: str, passages: Sequence[str]) -> tuple[float | None, float | None]:
    """Recall and precision of an answer's citations of its numbered passages (`[1]` is `passages[0]`).

    A sentence without a citation, or with one that names no passage, is not supported. Recall is None without a
    sentence, precision without a citation.
    """
    sentences = cited_sentences(answer)
    if not sentences:
        return None, None
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
    return supported / len(sentences), counting / citations if citations else None


def gold_citation_scores(
    quotes: Sequence[str], evidence_by_part: Sequence[Sequence[str]]
) -> tuple[float | None, float | None]:
    """Recall and precision of an answer's quotes over the gold evidence; no support model is needed. None without gold.

    Args:
        evidence_by_part: for each needed part, the evidence texts of which one is enough.
    """
    if not evidence_by_part:
        return None, None
    covered = sum(any(_overlap(quote, text) for quote in quotes for text in part) for part in evidence_by_part)
    right = sum(any(_overlap(quote, text) for part in evidence_by_part for text in part) for quote in quotes)
    return covered / len(evidence_by_part), right / len(quotes) if quotes else None


def cited_sentences(answer: str) -> list[tuple[str, tuple[int, ...]]]:
    """The answer's sentences and listings without markers, each with the passage numbers cited in or right after it."""
    text, markers = answer, list(find_markers(answer))
    for marker in markers:
        blank = " " * (marker.marker_end - marker.marker_start)  # keeps the offsets of later markers
        text = text[: marker.marker_start] + blank + text[marker.marker_end :]
    spans = [span for span in split_spans(text) if text[span.start : span.end].strip(" .!?。")]
    starts = [span.start for span in spans]
    cited: list[list[int]] = [[] for _ in spans]
    for marker in markers:
        if spans:
            cited[max(0, bisect_right(starts, marker.marker_start) - 1)].append(marker.number)
    return [
        (text[span.start : span.end], tuple(dict.fromkeys(numbers))) for span, numbers in zip(spans, cited, strict=True)
    ]


def _overlap(quote: str, evidence: str) -> bool:
    return bool(quote and evidence) and (holds(evidence, quote) or holds(quote, evidence))


def holds(text: str, evidence: str) -> bool:
    """Whether `text` has the stretch `evidence` of the book's source: verbatim, or nearly all of its words."""
    if normalize(evidence) in normalize(text):
        return True
    wanted = _triples(_LINK.sub(r"\1", evidence))
    return bool(wanted) and len(wanted & _triples(text)) >= HELD_SHARE * len(wanted)


@lru_cache(maxsize=4096)
def _triples(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(ngrams(text, 3))


def _supports(text: str, sentence: str) -> bool:
    return bool(text) and support_of(sentence, text).verdict == "supported"
