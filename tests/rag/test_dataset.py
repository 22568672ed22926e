"""Training data in the three formats: what is written is read back, what is broken is named by file and number."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag.errors import MalformedTrainingData
from rag.generators.prompts import render_choices
from rag.tuning.data import (
    FORMATS,
    Format,
    RowPassage,
    TrainingRow,
    read_dataset,
    rows_sha256,
    split_rows,
    write_dataset,
)
from rag.tuning.run_folder import draw_curve, points_of

ROWS = (
    TrainingRow("What is a warp?", "32 threads.", section="warps"),
    TrainingRow("And a block?", "Up to 1024 threads.", (("What is a grid?", "Blocks."),), "Be brief.", section="grids"),
    TrainingRow("什么是线程束？", "三十二个线程。", passages=(RowPassage("A Book", ("One", "Two"), "A warp is…"),)),
)
ALPACA = {"instruction": "What is a warp?", "input": "", "output": "32 threads."}


def lines(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records)


texts = st.text(min_size=1, max_size=30).filter(lambda text: text.strip() != "")


@given(
    st.lists(st.builds(TrainingRow, texts, texts, st.lists(st.tuples(texts, texts), max_size=2).map(tuple)), min_size=1)
)
@example(list(ROWS))
@pytest.mark.parametrize("file_format", FORMATS)
def test_what_is_written_is_read_back_whatever_its_text_with_or_without_its_info_file(
    tmp_path_factory: pytest.TempPathFactory, file_format: Format, rows: list[TrainingRow]
) -> None:
    folder = tmp_path_factory.mktemp("data")
    file = write_dataset(rows, folder, file_format=file_format)
    assert read_dataset(folder) == read_dataset(file) == rows
    (folder / "dataset_info.json").unlink()
    assert read_dataset(file) == rows


def test_several_datasets_share_one_info_file(tmp_path: Path) -> None:
    write_dataset(ROWS[:1], tmp_path, name="one", file_format="alpaca")
    write_dataset(ROWS[1:2], tmp_path, name="two", file_format="sharegpt")
    assert read_dataset(tmp_path) == list(ROWS[:2])


def test_columns_and_tags_of_dataset_info_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines({"q": "What?", "more": "Exactly?", "a": "That."}), "utf-8")
    chat = {"talk": [{"who": "me", "says": "Hello?"}, {"who": "it", "says": "Yes."}]}
    (tmp_path / "b.json").write_text(json.dumps([chat]), "utf-8")
    info = {
        "alpaca": {"file_name": "a.jsonl", "columns": {"prompt": "q", "query": "more", "response": "a"}},
        "chat": {
            "file_name": "b.json",
            "formatting": "sharegpt",
            "columns": {"messages": "talk"},
            "tags": {"role_tag": "who", "content_tag": "says", "user_tag": "me", "assistant_tag": "it"},
        },
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(info), "utf-8")
    assert read_dataset(tmp_path) == [TrainingRow("What?\nExactly?", "That."), TrainingRow("Hello?", "Yes.")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lines(ALPACA) + "\n\n{broken", ":3: not JSON"),
        (lines(ALPACA, {"instruction": "x"}), "data.jsonl:2: `output` is missing"),
        (lines(ALPACA, ALPACA | {"output": "  "}), "data.jsonl:2: `output` is empty"),
        (lines(ALPACA, ALPACA | {"instruction": 7}), "data.jsonl:2: `instruction` must be text, not int"),
        (lines(ALPACA, [1]), "data.jsonl:2: expected an object, found list"),
        (lines({"text": "x"}), "data.jsonl:1: expected the key"),
        (json.dumps([ALPACA, {"instruction": "x"}]), "row 2: `output` is missing"),
        ("[\n{},\n oops]", ":3: not JSON"),
        (lines(ALPACA | {"history": [["only one"]]}), "`history` is not a list of"),
        (lines({"messages": [{"role": "user", "content": "x"}]}), "does not end with an answer"),
        (lines({"messages": [{"role": "assistant", "content": "x"}]}), "role 'assistant' is out of turn"),
        (lines({"conversations": "x"}), "`conversations` is not a list of messages"),
        (lines(ALPACA | {"passages": [{"title": "x"}]}), "`text` is missing"),
        ("", "no training rows"),
    ],
)
def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(content, "utf-8")
    with pytest.raises(MalformedTrainingData) as error:
        read_dataset(file)
    assert said in error.value.message
    assert "data.jsonl" in error.value.message


def test_a_bad_row_is_left_out_and_told_of_where_others_are_good(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    chat = {"conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "That."}]}
    ends_early = {"conversations": chat["conversations"][:1]}
    file.write_text(lines(chat, ends_early) + "\n{broken\n" + lines(chat), "utf-8")
    bad: list[MalformedTrainingData] = []
    assert read_dataset(file, bad.append) == [TrainingRow("What?", "That.")] * 2
    assert [error.message.partition(": ")[0] for error in bad] == ["data.jsonl:2", "data.jsonl:3"]
    file.write_text(lines(ends_early), "utf-8")
    with pytest.raises(MalformedTrainingData, match=r"data\.jsonl:1"):
        read_dataset(file, bad.append)


def test_a_missing_file_or_one_that_is_not_text_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MalformedTrainingData, match="no training data"):
        read_dataset(tmp_path / "nothing")
    with pytest.raises(MalformedTrainingData, match="no training rows"):
        read_dataset(tmp_path)
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MalformedTrainingData, match="cannot be read"):
        read_dataset(tmp_path)
    (tmp_path / "dataset_info.json").write_text(json.dumps({"a": {"file_name": "gone.json"}}), "utf-8")
    with pytest.raises(MalformedTrainingData, match=r"gone\.json, which does not exist"):
        read_dataset(tmp_path)


def test_no_section_is_on_both_sides_of_the_split() -> None:
    rows = [TrainingRow(f"q{n}", "a", section=f"s{n % 7}") for n in range(100)]
    split = split_rows(rows, 0.2, seed=3)
    assert split.by == "section"
    assert {row.section for row in split.train}.isdisjoint(row.section for row in split.validation)
    assert 10 <= len(split.validation) <= 35
    assert split_rows(rows, 0.2, seed=3) == split
    assert split_rows(rows, 0.2, seed=4) != split


@pytest.mark.parametrize("section", ["", "only"])
def test_rows_of_one_section_or_none_are_split_by_row_and_neither_side_is_empty(section: str) -> None:
    rows = [TrainingRow(f"q{n}", "a", section=section) for n in range(20)]
    split = split_rows(rows, 0.1)
    assert (split.by, len(split.train), len(split.validation)) == ("row", 18, 2)
    with pytest.raises(MalformedTrainingData, match="One side of the split is empty"):
        split_rows(rows[:1], 0.1)
    assert split_rows(rows[:1], 0).validation == ()


def test_the_datas_hash_follows_content_and_order() -> None:
    assert rows_sha256(ROWS) == rows_sha256(list(ROWS))
    assert len({rows_sha256(ROWS), rows_sha256(ROWS[::-1]), rows_sha256(ROWS[:2])}) == 3


def test_every_answer_of_a_conversation_becomes_a_row() -> None:
    row = TrainingRow("c?", "C", (("a?", "A"), ("b?", "B")))
    assert [(r.question, r.answer, len(r.history)) for r in row.exchanges()] == [
        ("a?", "A", 0), ("b?", "B", 1), ("c?", "C", 2),
    ]  # fmt: skip
    assert [r.choices for r in replace(row, choices=("C", "D")).exchanges()] == [(), (), ("C", "D")]


def test_the_training_prompt_is_the_serving_prompt() -> None:
    messages = ROWS[2].messages()
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert "[1] A Book > One > Two\nA warp is…" in messages[1]["content"]
    assert messages[-1]["content"] == "三十二个线程。"
    assert ROWS[1].messages()[0]["content"] == "Be brief."


def test_a_choice_is_asked_as_it_is_scored_and_its_row_survives_the_file(tmp_path: Path) -> None:
    row = TrainingRow("How wide is a warp?", "B", choices=("16", "32"))
    write_dataset([row], tmp_path)
    assert read_dataset(tmp_path) == [row]
    asked = row.messages()[-2]["content"]
    assert asked.startswith(render_choices(row.question, row.choices))
    assert replace(row, system="Be brief.").messages()[-2]["content"] == render_choices(row.question, row.choices)
    query = row.request().query
    assert query is not None and query.english == row.question, "options choose no passages"


def test_a_loss_curve_draws_what_is_a_number() -> None:
    history = [{"step": 1, "epoch": 0.5, "loss": 3.0}, {"step": 2, "epoch": 1.0, "loss": float("nan")}]
    history += [{"step": 2, "epoch": 1.0, "eval_loss": 2.0}, {"step": 2, "train_runtime": 3.0}]
    points = points_of(history)
    assert len(points) == 3
    assert draw_curve(points).count("<polyline") == 2 and draw_curve([]).count("<polyline") == 0
