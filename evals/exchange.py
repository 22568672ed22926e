"""Questions, judgements and runs in the forms other tools read, so that others can recheck the numbers.

    BEIR       corpus.jsonl, queries.jsonl, qrels/test.tsv (Thakur et al. 2021)
    TREC       run files: `query Q0 document rank score tag`
    lm-eval    one JSON object a question, with per-arm picks, like `--log_samples`

Documents of the exchanged corpus are the sections of the book (`file#heading`), because gold is given by section.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.errors import MalformedQuestions
from evals.metrics.key_facts import normalize
from evals.questions import BankQuestion, parse_question
from evals.records import Record


def export_beir(questions: Sequence[BankQuestion], sections: Mapping[str, str], folder: Path) -> None:
    """Writes corpus, queries and qrels. `sections`: text by `file#heading`."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    _write_lines(
        folder / "corpus.jsonl",
        ({"_id": name, "title": name.partition("#")[2], "text": text} for name, text in sections.items()),
    )
    asked = [question for question in questions if question.gold]
    _write_lines(folder / "queries.jsonl", ({"_id": q.id, "text": q.question, "metadata": {}} for q in asked))
    with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["query-id", "corpus-id", "score"])
        for question in asked:
            for name in dict.fromkeys(f"{gold.file}#{gold.heading}" for gold in question.gold):
                writer.writerow([question.id, name, 1])


def import_beir(folder: Path) -> tuple[BankQuestion, ...]:
    """Questions of a BEIR folder; gold holds the judged documents by id, answers are empty of key facts.

    Raises:
        MalformedQuestions: a file that is missing or broken, with file and line.
    """
    queries = {str(record["_id"]): record for record in _read_lines(folder / "queries.jsonl", ("_id", "text"))}
    corpus = {str(record["_id"]): record for record in _read_lines(folder / "corpus.jsonl", ("_id", "text"))}
    judged: dict[str, list[str]] = {}
    path = folder / "qrels" / "test.tsv"
    if not path.is_file():
        raise MalformedQuestions(f"{path} is not there", hint="a BEIR folder has qrels/test.tsv")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split("\t")
        if number == 1 and fields[0] == "query-id":
            continue
        if len(fields) != 3 or fields[0] not in queries or fields[1] not in corpus:
            raise MalformedQuestions(f"{path.name}:{number}: {line!r:.80} judges nothing known", hint="mend the line")
        if float(fields[2]) > 0:
            judged.setdefault(fields[0], []).append(fields[1])
    return tuple(
        parse_question(
            {
                "id": query_id,
                "question": str(record["text"]),
                "answer": str(corpus[judged[query_id][0]]["text"]),
                "gold": [
                    {
                        "file": name.partition("#")[0],
                        "heading": name.partition("#")[2] or str(corpus[name].get("title", "")),
                        "part": 1,
                        "evidence": str(corpus[name]["text"]),
                    }
                    for name in judged[query_id]
                ],
            },
            where=f"queries.jsonl, {query_id}",
        )
        for query_id, record in queries.items()
        if judged.get(query_id)
    )


def export_trec_run(
    records: Sequence[Record], questions: Mapping[str, BankQuestion], arm: str, path: Path, tag: str = "coalesce"
) -> int:
    """Writes the sections an arm retrieved, best first, each section once a question; how many lines."""
    lines = []
    for record in records:
        if record.arm != arm or record.repetition or not record.passages or record.question_id not in questions:
            continue
        if record.mode == "open" and questions[record.question_id].choices:
            continue  # the choice record of the same question has the same passages
        names = dict.fromkeys(_section_name(p.section, p.chapter, questions) for p in record.passages)
        for rank, name in enumerate(names, start=1):
            lines.append(f"{record.question_id}\tQ0\t{name.replace(' ', '_')}\t{rank}\t{1 / rank:.6f}\t{tag}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def export_samples(records: Sequence[Record], questions: Mapping[str, BankQuestion], path: Path) -> int:
    """Writes one object a choice question in the manner of lm-eval's logged samples; how many."""
    samples = [
        {
            "doc_id": record.question_id,
            "doc": {
                "question": questions[record.question_id].question,
                "choices": list(questions[record.question_id].choices),
            },
            "target": questions[record.question_id].answer_index,
            "arm": record.arm,
            "repetition": record.repetition,
            "filtered_resps": list(record.scores),
            "acc": float(record.picked == questions[record.question_id].answer_index),
        }
        for record in records
        if record.mode == "choice" and not record.error and record.question_id in questions
    ]
    _write_lines(path, iter(samples))
    return len(samples)


def _section_name(path: Sequence[str], chapter: int, questions: Mapping[str, BankQuestion]) -> str:
    headings = {normalize(heading) for heading in path}
    for question in questions.values():
        for gold in question.gold:
            if normalize(gold.heading) in headings and gold.file.startswith(f"{chapter:02}"):
                return f"{gold.file}#{gold.heading}"
    return " > ".join(path)


def _write_lines(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _read_lines(path: Path, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise MalformedQuestions(f"{path} is not there", hint="a BEIR folder has corpus.jsonl and queries.jsonl")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise MalformedQuestions(f"{path.name}:{number}: not JSON ({error.msg})", hint="mend the line") from None
        if not isinstance(record, dict) or any(name not in record for name in needed):
            raise MalformedQuestions(f"{path.name}:{number}: needs {' and '.join(needed)}", hint="mend the line")
        yield record
