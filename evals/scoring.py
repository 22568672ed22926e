"""Records to scores: one row a record, one column a metric; None where a metric does not apply or cannot be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evals.hand_labels import GRADES, AnswerKey
from evals.metrics.citations import citation_scores, gold_citation_scores
from evals.metrics.key_facts import fact_met, key_fact_recall, normalize
from evals.metrics.retrieval import all_parts_recall_at_k, ndcg_at_k, recall_at_k, reciprocal_rank
from evals.metrics.text_overlap import chrf, exact_match, token_f1
from evals.metrics.unsupported_terms import unsupported_term_rate
from evals.questions import BankQuestion
from evals.records import PassageRecord, Record

RETRIEVAL_K = 5
HIGHER_IS_BETTER = frozenset(
    {
        "accuracy",
        "accuracy_norm",
        "key_fact_recall",
        "judge_score",
        "exact_match",
        "token_f1",
        "chrf",
        "citation_recall",
        "citation_precision",
        "gold_citation_recall",
        "gold_citation_precision",
        f"recall_at_{RETRIEVAL_K}",
        f"evidence_recall_at_{RETRIEVAL_K}",
        f"all_parts_recall_at_{RETRIEVAL_K}",
        "mrr",
        f"ndcg_at_{RETRIEVAL_K}",
    }
)


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
) -> list[Row]:
    """Scores every record of a known question; `grades` are those of a judge, where there was one."""
    return [
        Row(
            record,
            questions[record.question_id],
            _metrics(record, questions[record.question_id]) | _judge_score(record, questions, grades),
        )
        for record in records
        if record.question_id in questions
    ]


def _metrics(record: Record, question: BankQuestion) -> dict[str, float | None]:
    if record.error:
        return {}
    metrics: dict[str, float | None] = {
        "retrieve_s": record.retrieve_s if record.passages else None,
        "total_s": record.total_s,
        "prompt_tokens": float(record.prompt_tokens) if record.prompt_tokens else None,
        "peak_memory_bytes": float(record.peak_memory_bytes) if record.peak_memory_bytes else None,
    }
    if record.passages or record.passages_left_out:
        metrics["passages_left_out"] = float(record.passages_left_out)
        metrics |= _retrieval_metrics(record.passages, question)
    if record.mode == "open":
        return metrics | _open_metrics(record, question)
    if record.mode == "generated-choice":
        right = float(record.picked == question.answer_index)
        return metrics | {"generated_accuracy": right, "unparsed": float(record.picked is None)}
    metrics["accuracy"] = float(record.picked == question.answer_index)
    for name, scores in record.extra.items():
        best = max(range(len(scores)), key=lambda index: scores[index])
        metrics[f"accuracy_{name}"] = float(best == question.answer_index)
    return metrics


def _judge_score(
    record: Record, questions: Mapping[str, BankQuestion], grades: Mapping[AnswerKey, str | None] | None
) -> dict[str, float | None]:
    """1, 0.5 or 0 by grade; 0 for refusing what the book answers; None where the judge named no grade."""
    if grades is None or record.mode != "open" or record.error or not questions[record.question_id].answerable:
        return {}
    grade = "wrong" if record.refused else grades.get((record.question_id, record.arm, record.repetition))
    return {"judge_score": None if grade is None else GRADES[grade]}


def _open_metrics(record: Record, question: BankQuestion) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {
        "refused": float(record.refused),
        "tokens_per_s": record.tokens_per_s or None,
        "ttft_s": record.ttft_s or None,
    }
    if not question.answerable:
        return metrics
    answer = "" if record.refused else record.answer
    metrics |= {
        "key_fact_recall": key_fact_recall(question.key_facts, answer),
        "answer_words": float(len(answer.split())),
        "exact_match": exact_match(answer, question.answer),
        "token_f1": token_f1(answer, question.answer),
        "chrf": chrf(answer, question.answer),
    }
    if record.refused:
        return metrics
    texts = [passage.text for passage in record.passages]
    metrics["unsupported_terms"] = unsupported_term_rate(answer, "\n".join(texts), question.question) if texts else None
    if texts:
        cited = citation_scores(answer, texts)
        gold = gold_citation_scores(record.quotes, _evidence_by_part(question))
        metrics |= {
            "citation_recall": cited.recall,
            "citation_precision": cited.precision,
            "gold_citation_recall": gold.recall,
            "gold_citation_precision": gold.precision,
        }
    return metrics


def _retrieval_metrics(passages: Sequence[PassageRecord], question: BankQuestion) -> dict[str, float | None]:
    if not question.gold:
        return {}
    parts = set(question.parts)
    by_section = [_parts_by_section(passage, question) for passage in passages]
    by_evidence = [_parts_by_evidence(passage, question) for passage in passages]
    return {
        f"recall_at_{RETRIEVAL_K}": recall_at_k(by_section, parts, RETRIEVAL_K),
        f"evidence_recall_at_{RETRIEVAL_K}": recall_at_k(by_evidence, parts, RETRIEVAL_K),
        f"all_parts_recall_at_{RETRIEVAL_K}": (
            all_parts_recall_at_k(by_section, parts, RETRIEVAL_K) if len(parts) > 1 else None
        ),
        "mrr": reciprocal_rank(by_section, parts),
        f"ndcg_at_{RETRIEVAL_K}": ndcg_at_k(by_section, parts, RETRIEVAL_K),
    }


def _parts_by_section(passage: PassageRecord, question: BankQuestion) -> set[int]:
    headings = {normalize(heading) for heading in passage.section}
    return {gold.part for gold in question.gold if normalize(gold.heading) in headings} | _parts_by_evidence(
        passage, question
    )


def _parts_by_evidence(passage: PassageRecord, question: BankQuestion) -> set[int]:
    text = normalize(passage.text)
    return {gold.part for gold in question.gold if gold.evidence and normalize(gold.evidence) in text}


def _evidence_by_part(question: BankQuestion) -> list[list[str]]:
    return [[gold.evidence for gold in question.gold if gold.part == part] for part in question.parts]


FACT_FLOWS = ("used", "reader lost it", "self-knowledge", "missed")


def fact_flow(rows: Sequence[Row]) -> dict[str, int]:
    """How key facts went from passages to answers, over open answers with passages (RAGChecker's split, by key facts).

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
