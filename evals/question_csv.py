"""Question files as tables (CSV), for people who write questions in a spreadsheet.

`question` and `answer` are needed. A choice has its options in `option_a` to `option_d` and its letter in `right`, or
as the answer. `key_facts` has one fact a line. `answerable` is `no` where no book answers. `source`, `section` and
`quote` say where a book answers it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from indexes.errors import CoalesceError

LETTERS = "abcd"
COLUMNS = (
    "id", "chapter", "type", "question", "question_zh", *(f"option_{letter}" for letter in LETTERS), "right", "answer",
    "key_facts", "difficulty", "answerable", "source", "section", "quote",
)  # fmt: skip
_DELIMITERS = ",;\t"
_PLAIN = ("id", "type", "question", "question_zh", "answer")
_NUMBERS = ("chapter", "difficulty")


def read_csv(text: str, name: str, failure: type[CoalesceError]) -> Iterator[tuple[str, dict[str, Any]]]:
    """`(file:line, record)` of every row of a table whose columns comma, semicolon or tab divide.

    Raises:
        failure: a needed column is missing, a row has more cells than the header, or the table cannot be read.
    """
    header = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=header.count), strict=True)
    try:
        columns = [column.strip().lower() for column in rows.fieldnames or ()]
        rows.fieldnames = columns
        if missing := [column for column in ("question", "answer") if column not in columns]:
            raise failure(f"{name}: no column is named {missing[0]!r}", hint=f"Columns are {', '.join(COLUMNS)}.")
        for row in rows:
            where = f"{name}:{rows.line_num}"
            if None in row:
                raise failure(f"{where}: more cells than the header has", hint="Put text with commas in quotes.")
            cells = {column: cell.strip() for column, cell in row.items() if cell and cell.strip()}
            if cells:
                yield where, _record(cells)
    except csv.Error as error:
        raise failure(f"{name}:{rows.line_num}: {error}", hint="Save the table as CSV in UTF-8.") from None


def write_csv(records: Iterable[Mapping[str, Any]]) -> str:
    """The records as a table with a header; of several places where a book answers, the first."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="")
    writer.writeheader()
    for record in records:
        choices, index = record.get("choices") or (), record.get("answer_index")
        gold: Mapping[str, str] = next(iter(record.get("gold") or ()), {})
        writer.writerow(
            {name: record[name] for name in (*_PLAIN, *_NUMBERS) if name in record}
            | {f"option_{letter}": choice for letter, choice in zip(LETTERS, choices, strict=False)}
            | ({"right": LETTERS[index].upper()} if choices and index is not None else {})
            | ({"answerable": "no"} if record.get("answerable") is False else {})
            | {"key_facts": "\n".join(record.get("key_facts") or ())}
            | {"source": gold.get("file", ""), "section": gold.get("heading", ""), "quote": gold.get("evidence", "")}
        )
    return out.getvalue()


def _record(cells: Mapping[str, str]) -> dict[str, Any]:
    record: dict[str, Any] = {name: cells[name] for name in _PLAIN if name in cells}
    record |= {name: _number(cells[name]) for name in _NUMBERS if name in cells}
    if cells.get("answerable", "yes").lower() in ("no", "false", "0"):
        record["answerable"] = False
    if "key_facts" in cells:
        record["key_facts"] = [fact.strip() for fact in cells["key_facts"].splitlines() if fact.strip()]
    if "quote" in cells or "source" in cells:
        gold = {"heading": cells.get("section", ""), "evidence": cells.get("quote", "")}
        record["gold"] = [{"file": cells.get("source", "source"), **gold}]
    choices = [cells[f"option_{letter}"] for letter in LETTERS if f"option_{letter}" in cells]
    if choices:
        right = cells.get("right", cells.get("answer", ""))
        record |= {"type": record.get("type", "choice"), "choices": choices, "answer_index": _place(right, choices)}
        if record.get("answer", "").lower() in LETTERS and record["answer_index"] is not None:
            record["answer"] = choices[record["answer_index"]]
    return record


def _place(right: str, choices: list[str]) -> int | None:
    if right in choices:
        return choices.index(right)
    place = LETTERS.find(right.lower()) if len(right) == 1 else -1
    return place if 0 <= place < len(choices) else None


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
