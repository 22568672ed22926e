"""How often the reader puts a sentence first that answers by itself, for questions as newcomers type them.

    python -m tools.best_sentence --texts FOLDER [--books NAME,…] [--reader FOLDER]

`FOLDER` holds the texts that `evals/question_sets/README.md` lists. Each question of `evals/question_sets/newcomers/`
is asked of its own book, in English and in Chinese; those without an answer are left out. What only the Chinese wording
finds was not judged, and counts as not answering.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from evals.questions import JUDGED_FOLDER
from evals.statistics import wilson_interval
from indexes.library import Library, open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.sentence_reader import CrossEncoder, LearnedReader
from tools.reader_training import QUESTION_SETS, SAMPLE_SET, book_search

NEWCOMERS = QUESTION_SETS / "newcomers"


def answering_places(library: Library, document_id: str, path: Path, reader: LearnedReader) -> Iterator[int | None]:
    """For each wording of a question, the place from 0 of the first sentence that answers; None where none is read."""
    search = book_search(library, document_id)
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        for text in (record["question"], record["question_zh"]) if record["answerable"] else ():
            read = reader.read(*search(text))
            yield next((place for place, item in enumerate(read) if item.unit.text in record["good"]), None)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="How often a sentence that answers comes first.")
    parser.add_argument("--texts", type=Path, required=True, help="folder of the texts, one folder each")
    judged = ",".join(sorted(path.stem for path in JUDGED_FOLDER.glob("*.jsonl")))
    parser.add_argument("--books", default=judged, help="names of question files (default: %(default)s)")
    parser.add_argument("--reader", type=Path, help="folder of a reader's adapter (default: the one that ships)")
    given = parser.parse_args(arguments)
    texts = {name: SAMPLE_PATH if name == SAMPLE_SET else given.texts / name for name in given.books.split(",")}
    for name, text in texts.items():
        if not (NEWCOMERS / f"{name}.jsonl").is_file():
            names = ", ".join(sorted(path.stem for path in NEWCOMERS.glob("*.jsonl")))
            parser.error(f"there are no newcomers' questions about {name!r}, only about {names}")
        if not text.is_dir():
            parser.error(f"{given.texts} has no folder {name}; evals/question_sets/README.md says where it comes from")
    reader = LearnedReader(CrossEncoder(given.reader).score)
    for name, text in texts.items():
        with tempfile.TemporaryDirectory() as home:
            library = open_library(IndexSettings(home=Path(home)))
            library.load()
            document_id = library.add(text).document.document_id
            places = list(answering_places(library, document_id, NEWCOMERS / f"{name}.jsonl", reader))
            library.close()
        for label, wordings in (("English", places[::2]), ("Chinese", places[1::2])):
            first = [sum(place is not None and place < most for place in wordings) for most in (1, 2)]
            shares = [wilson_interval(count, len(wordings)) for count in first]
            one, two = (f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]" for share in shares)
            sys.stdout.write(f"{name}, {label}, n = {len(wordings)}: best one {one}, best two {two}\n")


if __name__ == "__main__":
    main()
