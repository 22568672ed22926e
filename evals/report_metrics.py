"""What a report's rows are called and what they mean to somebody who was not there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricNote:
    """A metric of the report: its key in `report.json`, its label, and what it says in a sentence."""

    name: str
    label: str
    meaning: str


METRIC_GROUPS: tuple[tuple[str, tuple[MetricNote, ...]], ...] = (
    (
        "Choice questions",
        (
            MetricNote(
                "accuracy", "accuracy (choice)", "Right options of all asked; four options, so guessing gets 25 %."
            ),
            MetricNote("accuracy_norm", "accuracy, per byte", "The same with an option's score divided by its length."),
            MetricNote(
                "generated_accuracy", "accuracy, option named in words", "Right options among answers in words."
            ),
            MetricNote("unparsed", "no option named", "Answers in words that name no option."),
        ),
    ),
    (
        "Open questions",
        (
            MetricNote(
                "key_fact_recall", "key-fact recall (open)", "Share of the facts a right answer holds that it states."
            ),
            MetricNote(
                "judge_score", "judge's grade (open)", "Another language model's grade: right 1, in part 0.5, wrong 0."
            ),
            MetricNote(
                "answer_words", "words an answer", "How long answers are: long ones state more facts by chance."
            ),
            MetricNote("exact_match", "exact match", "Answers that are the reference answer word for word."),
            MetricNote("token_f1", "token F1", "Overlap of its words with the reference answer's."),
            MetricNote("chrf", "chrF", "Overlap of its letter sequences with the reference answer's."),
            MetricNote(
                "unsupported_terms", "unsupported numbers and names", "Numbers and code names that no passage holds."
            ),
        ),
    ),
    (
        "Citations",
        (
            MetricNote("citation_recall", "citation recall", "Sentences that what they cite supports."),
            MetricNote("citation_precision", "citation precision", "Citations that support their sentence."),
            MetricNote("gold_citation_recall", "citation recall, gold", "Needed evidence that some quote covers."),
            MetricNote("gold_citation_precision", "citation precision, gold", "Quotes that lie on needed evidence."),
        ),
    ),
    (
        "Refusals",
        (
            MetricNote(
                "abstention_recall", "unanswerable refused", "Questions the book does not answer that were refused."
            ),
            MetricNote(
                "abstention_precision", "refusals that were right", "Refusals of questions the book does not answer."
            ),
            MetricNote("false_refusals", "answerable refused", "Questions the book does answer that were refused."),
        ),
    ),
    (
        "Retrieval",
        (
            MetricNote("recall_at_5", "gold section in top 5", "Needed sections among the first five passages."),
            MetricNote(
                "evidence_recall_at_5", "gold evidence in top 5", "Needed sentences among the first five passages."
            ),
            MetricNote(
                "all_parts_recall_at_5", "both passages in top 5", "Of questions that need two passages, both found."
            ),
            MetricNote("mrr", "MRR", "One over the rank of the first passage that helps: 100 % is always first."),
            MetricNote(
                "passages_left_out",
                "passages left out",
                "Passages found for a question that were too long for the model's context: it did not read them.",
            ),
            MetricNote("ndcg_at_5", "nDCG@5", "How near the order is to the best one."),
        ),
    ),
    (
        "Cost",
        (
            MetricNote("prompt_tokens", "prompt tokens", "Tokens read before the first is written."),
            MetricNote("tokens_per_s", "tokens a second", "While an answer is written."),
            MetricNote("ttft_s", "time to first text, ms", "From the question on."),
            MetricNote("retrieve_s", "retrieval, ms", "Of that, finding the passages."),
            MetricNote("total_s", "time a question, ms", "Over all the questions that the arm was asked."),
            MetricNote("peak_memory_bytes", "peak memory, MiB", "Most memory held while the arm ran."),
        ),
    ),
)
METRIC_LABELS = tuple((note.name, note.label) for _, notes in METRIC_GROUPS for note in notes)
ARM_NOTES = {
    "base": "the model alone, without the book",
    "tuned": "the model after LoRA tuning on questions about the book, without the book",
    "rag": "the model with the passages that retrieval finds",
    "rag+tuned": "the tuned model with those passages",
    "oracle": "given the passages that hold the answer: the most that retrieval could bring",
    "random": "given passages drawn at random: what any text at all brings",
    "oracle+tuned": "the tuned model, given the passages that hold the answer",
}


def arm_note(arm: str) -> str:
    """What an arm is, in words; `ARM@ADAPTER` names its adapter."""
    kind, _, adapter = arm.partition("@")
    note = ARM_NOTES.get(kind, "")
    if not adapter:
        return note
    return f"{note}; its adapter is {adapter!r}" if adapter != "passages" else f"{note}; tuned on passages too"


WITHOUT_MEANING = {"extractive": frozenset({"prompt_tokens", "tokens_per_s", "exact_match"})}
"""Metrics that say nothing of a generator: one that quotes whole sentences reads no prompt, writes no tokens, and never
gives the reference answer word for word."""
