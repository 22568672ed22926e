"""Questions, answers and runs in other tools' formats: feedback as questions, BEIR, TREC and lm-eval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.questions import BankQuestion, sections_of
from evals.records import PassageRecord, Record
from evals.text_match import normalize
from indexes.jsonl import to_jsonl
from indexes.sample import SAMPLE_PATH
from rag.citations import without_markers
from rag.conversations import Feedback
from rag.types import Answer


def feedback_cases(feedback: Iterable[tuple[Feedback, Answer]]) -> Iterator[dict[str, Any]]:
    """Readers' feedback as records of a question file; `rating` and `comment` say where a case comes from.

    A good answer gives its text as the reference answer and its supported quotes as evidence. A bad one gives the
    reader's comment as the reference; without a comment the case is left out, since nothing could be compared with it.
    """
    for given, answer in feedback:
        good = given.rating == "up"
        reference = without_markers(answer.answer).strip() if good else given.comment.strip()
        if not reference:
            continue
        yield {
            "id": f"feedback-{answer.id}",
            "type": "short",
            "question": answer.question,
            "answer": reference,
            "answerable": not (answer.refused and good),
            "gold": [
                {
                    "file": citation.title,
                    "heading": citation.section[-1] if citation.section else citation.title,
                    "part": 1,
                    "evidence": citation.quote,
                }
                for citation in answer.citations
                if good and citation.verdict == "supported"
            ],
            "rating": given.rating,
            "comment": given.comment,
        }


def export_run(folder: Path, records: Sequence[Record], questions: Mapping[str, BankQuestion]) -> None:
    """Writes a run for others to check its numbers.

    `samples.jsonl` holds every scored choice question, like lm-eval's logged samples. For questions with gold in the
    bundled book the folder is also a BEIR data set (Thakur et al. 2021), whose documents are the book's sections, and
    holds `runs/ARM.trec`, the sections that each arm retrieved, best first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.jsonl").write_text(to_jsonl(_samples(records, questions)), encoding="utf-8")
    sections = _book_sections()
    judged = {question.id: _gold_sections(question) & sections.keys() for question in questions.values()}
    judged = {question_id: gold for question_id, gold in judged.items() if gold}
    if not judged:
        return
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "runs").mkdir(exist_ok=True)
    corpus = ({"_id": name, "title": name.partition("#")[2], "text": text} for name, text in sections.items())
    queries = ({"_id": name, "text": questions[name].question, "metadata": {}} for name in judged)
    qrels = [f"{name}\t{section}\t1" for name, gold in judged.items() for section in sorted(gold)]
    (folder / "corpus.jsonl").write_text(to_jsonl(corpus), encoding="utf-8")
    (folder / "queries.jsonl").write_text(to_jsonl(queries), encoding="utf-8")
    _write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *qrels])
    for arm in dict.fromkeys(record.arm for record in records):
        if lines := _trec_lines([record for record in records if record.arm == arm], questions):
            _write_lines(folder / "runs" / f"{arm}.trec", lines)


def _samples(records: Sequence[Record], questions: Mapping[str, BankQuestion]) -> Iterator[dict[str, Any]]:
    for record in records:
        if record.mode == "choice" and not record.error and record.question_id in questions:
            question = questions[record.question_id]
            yield {
                "doc_id": question.id,
                "doc": {"question": question.question, "choices": list(question.choices)},
                "target": question.answer_index,
                "arm": record.arm,
                "repetition": record.repetition,
                "filtered_resps": list(record.scores),
                "acc": float(record.picked == question.answer_index),
            }


def _trec_lines(records: Sequence[Record], questions: Mapping[str, BankQuestion]) -> list[str]:
    """`query Q0 section rank score tag` for what one arm retrieved, each section once per question."""
    lines = []
    for record in records:
        question = questions.get(record.question_id)
        if question is None or record.repetition or not record.passages:
            continue
        if record.mode != "choice" and question.choices:
            continue  # the choice record of the same question has the same passages
        ranked = dict.fromkeys(_section_read(passage) for passage in record.passages)
        lines += [
            f"{question.id}\tQ0\t{section}\t{rank}\t{1 / rank:.6f}\tcoalesce"
            for rank, section in enumerate(ranked, start=1)
        ]
    return lines


def _book_sections() -> dict[str, str]:
    """The text of every section of the bundled book by `_section_id`."""
    return {
        _section_id(path.name, heading): text
        for path in sorted(SAMPLE_PATH.glob("*.md"))
        for heading, text in sections_of(path).items()
    }


def _gold_sections(question: BankQuestion) -> set[str]:
    return {_section_id(gold.file, gold.heading) for gold in question.gold}


def _section_read(passage: PassageRecord) -> str:
    """The section of the bundled book that a passage is from: its `##` heading, or the chapter's beginning."""
    file = sorted(SAMPLE_PATH.glob("*.md"))[passage.chapter - 1]
    headings = {normalize(heading): heading for heading in sections_of(file)}
    found = (headings[name] for name in map(normalize, passage.section) if name in headings)
    return _section_id(file.name, next(found, ""))


def _section_id(file: str, heading: str) -> str:
    return f"{file}#{heading}".replace(" ", "_")  # TREC files separate fields by white space


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
