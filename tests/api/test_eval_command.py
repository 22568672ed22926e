"""`coalesce eval`: one JSON document and a report folder; what cannot run is said before a model loads."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from indexes.library import Library

REMOTE = ["--generator", "remote", "--base-url", "http://127.0.0.1:9/v1", "--model", "m"]


def test_a_comparison_is_one_json_document_a_report_folder_and_an_export(tmp_path, hashed_home, hashed, coalesce):
    shutil.copytree(hashed_home, tmp_path / "home")
    out, export = tmp_path / "report", tmp_path / "export"
    command = ["eval", "--arms", "base,rag", "--questions", "bank:dev", "--limit", "4", "--top-k", "3", "--seed", "2"]
    document = coalesce.gives(*command, "--out", str(out), "--export", str(export))
    assert document == json.loads((out / "report.json").read_text("utf-8"))
    assert list(document["arms"]) == ["base", "rag"]
    assert (document["run"]["seed"], document["run"]["top_k"]) == (2, 3)
    interval = document["arms"]["rag"]["metrics"]["accuracy"]
    assert interval["low"] <= interval["value"] <= interval["high"]
    assert {path.name for path in out.iterdir()} >= {"report.html", "report.md", "records.jsonl"}
    assert (export / "runs" / "rag.trec").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*REMOTE, "--arms", "tuned"], "--adapter"),
        (["--generator", "local", "--arms", "rag"], "--model"),
        (["--generator", "remote", "--model", "m", "--arms", "rag"], "--base-url"),
        ([*REMOTE, "--arms", "rag+tuned@raft", "--adapter", "qa=qa"], "'raft'"),
        (["--labels", "gone.jsonl"], "gone.jsonl"),
        (["--arms", "tuned@raft"], "'raft'"),
        (["--arms", "nonsense"], "'nonsense'"),
        (["--questions", "bank:train"], "'train'"),
        (["--questions", "gone.jsonl"], "gone.jsonl"),
        (["--language", "fr"], "'fr'"),
    ],
)
def test_what_cannot_run_is_reported_before_a_model_loads(monkeypatch, coalesce, arguments, said):
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Library, "load", loaded)
    monkeypatch.setattr("evals.arms.tune_encoder", loaded)
    assert said in coalesce.refuses("eval", *arguments)
