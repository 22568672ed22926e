"""Training rows of questions: none that measure, the right passage anywhere or absent, citations that are right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fakes import HashEncoder, make_passage

from evals.errors import LeakageFound
from evals.questions import JUDGED_FOLDER, BankQuestion, Gold, Split, load_bank
from evals.training_rows import (
    ReadingRows,
    bank_source,
    cited,
    closed_book_rows,
    few_refusals,
    file_source,
    some_of,
    write_closed_book,
)
from indexes.jsonl import to_jsonl
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from rag.generators.prompts import REFUSAL, says_unknown
from rag.retrieval import PassageBudget
from rag.tuning.data import TrainingRow, read_dataset
from rag.types import Passage

TEXTS = {
    "Warps": "A warp is a group of 32 threads.",
    "Banks": "Each bank of shared memory delivers one word per cycle.",
    **{f"S{n}": f"Chapter {n} is about compilers." for n in range(2, 9)},
}
OTHERS = [make_passage(TEXTS[f"S{n}"], node_id=f"other-{n}", section=("GPUs", f"S{n}")) for n in range(2, 9)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """Each text is a book of its own, so that no passage reaches into another."""
    folder = tmp_path_factory.mktemp("rows")
    library = open_library(IndexSettings(folder / "home"), embedder=HashEncoder())
    for name, text in TEXTS.items():
        (folder / f"{name}.md").write_text(f"# GPUs\n\n## {name}\n\n{text}\n", encoding="utf-8")
        library.add(folder / f"{name}.md")
    yield library
    library.close()


def question(number: int = 0, **fields: object) -> BankQuestion:
    values: dict[str, object] = {
        "id": f"q{number}",
        "question": f"What is warp {number}?",
        "answer": "A warp is a group of 32 threads.",
        "key_facts": ("32",),
        "gold": (Gold("book.md", "Warps", 1, "a group of 32 threads"),),
    }
    return BankQuestion(**(values | fields))  # type: ignore[arg-type]


def rows_of(
    library: Library, questions: Sequence[BankQuestion], found: Sequence[Passage], *, shown: int = 3
) -> list[TrainingRow]:
    nodes = [node for document in library.documents() for node in library.nodes_of(document.document_id)]
    maker = ReadingRows(lambda _, top_k: found[:top_k], library, nodes, shown=shown, budget=PassageBudget(200))
    return [row for one in questions for row in maker.of(one)]


def test_dataset_info_names_columns_and_tags_as_llama_factory_documents_them(tmp_path: Path) -> None:
    write_closed_book(bank_source("tune"), tmp_path / "alpaca", file_format="alpaca")
    write_closed_book(bank_source("tune"), tmp_path / "sharegpt", file_format="sharegpt")
    alpaca = json.loads((tmp_path / "alpaca" / "dataset_info.json").read_text("utf-8"))["coalesce_tune"]
    chat = json.loads((tmp_path / "sharegpt" / "dataset_info.json").read_text("utf-8"))["coalesce_tune"]
    assert alpaca["file_name"] == "coalesce_tune.json"
    assert alpaca["columns"]["prompt"] == "instruction"
    assert alpaca["columns"]["response"] == "output"
    assert (chat["formatting"], chat["columns"]["messages"]) == ("sharegpt", "conversations")
    assert (chat["tags"]["user_tag"], chat["tags"]["assistant_tag"]) == ("human", "gpt")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_questions_that_measure_leave_only_when_allowed(tmp_path: Path, split: Split) -> None:
    with pytest.raises(LeakageFound, match=split):
        bank_source(split)
    written = write_closed_book(bank_source(split, allow_test=True), tmp_path)
    assert written.data_file.name == f"coalesce_{split}.jsonl"


def test_the_rows_hold_the_tuning_questions_and_no_wording_of_a_measuring_one(tmp_path: Path) -> None:
    written = write_closed_book(bank_source("tune"), tmp_path)
    rows = closed_book_rows(load_bank(split="tune"))
    assert read_dataset(tmp_path) == rows
    assert (written.rows, written.questions) == (len(rows), len(rows) // 3)
    assert all(row.section for row in rows), "wordings of one question stay in one split"
    text = written.data_file.read_text("utf-8")
    assert not [q.id for q in load_bank() if q.split != "tune" and json.dumps(q.question, ensure_ascii=False) in text]


def test_a_passage_that_was_not_found_takes_the_last_ones_place_and_its_place_tells_nothing(library: Library) -> None:
    rows = [row for row in rows_of(library, [question(n) for n in range(60)], OTHERS) if row.answer != REFUSAL]
    places = [next(i for i, p in enumerate(row.passages) if "32 threads" in p.text) for row in rows]
    assert len(rows) == 60
    assert all(len(row.passages) == 3 for row in rows)
    assert {places.count(place) > 8 for place in range(3)} == {True}
    assert [row.answer for row in rows] == [f"A warp is a group of 32 threads. [{place + 1}]" for place in places]


def test_some_questions_are_also_shown_without_the_right_passage_and_refused(library: Library) -> None:
    near = make_passage("Warps have 32 lanes.", section=("GPUs", "Elsewhere"))  # it may answer, so it is not shown
    rows = rows_of(library, [question(n) for n in range(200)], [near, *OTHERS])
    refused = [row for row in rows if row.answer == REFUSAL]
    assert 20 <= len(refused) <= 60
    assert len(rows) == 200 + len(refused)
    assert not any("32" in passage.text for row in refused for passage in row.passages)
    assert says_unknown(REFUSAL)


def test_refusals_are_a_tenth_of_the_rows(library: Library) -> None:
    unknown = [question(n, answerable=False, gold=()) for n in range(1000, 1020)]
    rows = rows_of(library, [*(question(n) for n in range(100)), *unknown], OTHERS)
    assert [(row.answer, len(row.passages)) for row in rows[-20:]] == [(REFUSAL, 3)] * 20
    few = few_refusals(rows)
    assert [row.answer == REFUSAL for row in few].count(True) == 11
    assert [row for row in few if row.answer != REFUSAL] == [row for row in rows if row.answer != REFUSAL]
    assert [row for row in rows if row in few] == few == few_refusals(rows) != few_refusals(rows, seed=1)


def test_each_sentence_cites_the_passage_that_supports_it(library: Library) -> None:
    both = question(
        answer="A warp is a group of 32 threads. A bank delivers one word per cycle.",
        gold=(Gold("b.md", "Warps", 1, "32 threads"), Gold("b.md", "Banks", 2, "one word per cycle")),
    )
    row = rows_of(library, [both], OTHERS)[0]
    places = [next(i for i, p in enumerate(row.passages, 1) if part in p.text) for part in ("32 threads", "one word")]
    assert row.answer == (
        f"A warp is a group of 32 threads. [{places[0]}] A bank delivers one word per cycle. [{places[1]}]"
    )
    assert rows_of(library, [both], OTHERS, shown=1) == []  # both parts do not fit


def test_a_choice_is_asked_with_its_options_in_any_order_and_its_other_wordings_openly(library: Library) -> None:
    asked = [
        question(n, type="choice", choices=("32", "64", "8", "4"), answer_index=0, paraphrases=("How wide is it?",))
        for n in range(40)
    ]
    for rows in (closed_book_rows(asked), rows_of(library, asked, OTHERS)):
        chosen = [row for row in rows if row.choices]
        assert [row.question for row in chosen] == [each.question for each in asked]
        assert all(row.choices["ABCD".index(row.answer)] == "32" for row in chosen)
        assert {row.answer for row in chosen} == set("ABCD")
        assert len([row for row in rows if not row.choices and row.answer != REFUSAL]) == 40
    assert len(closed_book_rows(asked, wordings=1)) == 40


def test_a_listing_is_cited_behind_it() -> None:
    passage = make_passage("Use this:\n```\nint i = threadIdx.x;\n```")
    text = "Use this:\n```\nint i = threadIdx.x;\n```"
    assert cited(text, [passage], [passage]).startswith("Use this: [1]\n```")


def test_passages_stay_within_the_budget(library: Library) -> None:
    wide = [make_passage(f"Compilers {n} " + "word " * 150, section=("GPUs", f"S{n}")) for n in range(3)]
    row = rows_of(library, [question()], wide)[0]
    assert len(row.passages) == 2  # 200 words


def test_some_questions_are_the_same_ones_in_their_order_every_time() -> None:
    source = bank_source("tune")
    some = some_of(source, 20, seed=1)
    assert some == some_of(source, 20, seed=1) != some_of(source, 20, seed=2)
    assert [question for question in source.questions if question in some.questions] == list(some.questions)
    assert len(some.questions) == 20 and some_of(source, 999, seed=1) == source


def test_a_question_file_gives_what_can_be_understood_alone_and_none_that_is_only_reported_on(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    records = [
        {"id": "a", "question": "What is a warp?", "answer": "32 threads."},
        {"id": "b", "question": "And a block?", "answer": "Many warps.", "after": "What is a warp?"},
    ]
    file.write_text(to_jsonl(records), "utf-8")
    source = file_source(file, ())
    assert (source.name, [one.id for one in source.questions]) == ("mine", ["a"])
    with pytest.raises(LeakageFound):
        file_source(next(JUDGED_FOLDER.glob("*.jsonl")), ())
