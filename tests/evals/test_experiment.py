"""A comparison from beginning to end: what fails before a model loads, which library is asked, what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder

from evals.arms import parse_arms
from evals.errors import MalformedQuestions
from evals.experiment import choose_questions, run_experiment
from evals.judge import JudgeSettings
from evals.run import RunSpec
from indexes.errors import CoalesceError, Conflict, InvalidInput
from indexes.library import Library, open_library
from indexes.sample import add_sample
from indexes.settings import IndexSettings
from rag.errors import ArmUnavailable
from rag.generators.openai_client import OpenAIClient
from rag.settings import GeneratorSettings, RagSettings

REMOTE = GeneratorSettings(kind="remote", base_url="http://127.0.0.1:9/v1", model="m")
QUESTIONS = choose_questions("bank:dev", 6)


def spec_of(*arms: str, **fields: Any) -> RunSpec:
    return RunSpec(QUESTIONS, parse_arms(arms), **fields)


def rag_settings(home: Path, generator: GeneratorSettings | None = None) -> RagSettings:
    return RagSettings(home=home, generator=generator or GeneratorSettings())


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> HashEncoder:
    encoder = HashEncoder()
    monkeypatch.setattr("evals.experiment.open_library", partial(open_library, embedder=encoder))
    return encoder


@pytest.mark.parametrize(
    ("arms", "generator", "fields", "error"),
    [
        (["tuned"], REMOTE, {"with_model": True}, ArmUnavailable),
        (["rag+tuned@raft"], REMOTE, {"with_model": True}, ArmUnavailable),
        (["rag"], GeneratorSettings(kind="local"), {"with_model": True}, InvalidInput),
        (["rag"], GeneratorSettings(kind="remote", model="m"), {"with_model": True}, InvalidInput),
        (["tuned@raft"], GeneratorSettings(), {}, InvalidInput),
        (["base"], GeneratorSettings(), {"judge": JudgeSettings(REMOTE, Path("gone.jsonl"))}, MalformedQuestions),
    ],
)
def test_what_cannot_run_fails_before_a_model_loads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arms: list[str],
    generator: GeneratorSettings,
    fields: dict[str, Any],
    error: type[CoalesceError],
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Library, "load", loaded)
    monkeypatch.setattr("evals.arms.tune_encoder", loaded)
    with pytest.raises(error):
        run_experiment(spec_of(*arms, **fields), IndexSettings(tmp_path), rag_settings(tmp_path, generator), tmp_path)


def test_a_run_writes_its_report_and_its_export_and_continues_for_nothing(tmp_path: Path, hashed: HashEncoder) -> None:
    out, export = tmp_path / "report", tmp_path / "export"
    spec = spec_of("base", "rag", "oracle", export=export)
    data = run_experiment(spec, IndexSettings(tmp_path), rag_settings(tmp_path), out)
    assert {path.name for path in out.iterdir()} >= {"report.html", "report.md", "report.json", "records.jsonl"}
    assert (data["run"]["seed"], data["run"]["top_k"], data["run"]["command"]) == (0, 5, "coalesce eval")
    assert data["arms"]["oracle"]["metrics"]["evidence_recall_at_5"]["value"] == 1.0
    assert data["verdict"]
    assert sorted(path.name for path in (export / "runs").iterdir()) == ["oracle.trec", "rag.trec"]
    before = (out / "records.jsonl").read_bytes()
    again = run_experiment(spec, IndexSettings(tmp_path), rag_settings(tmp_path), out)
    assert (out / "records.jsonl").read_bytes() == before
    assert again["arms"] == json.loads(json.dumps(data["arms"]))
    with pytest.raises(Conflict, match="seed"):
        run_experiment(spec_of("base", "rag", "oracle", seed=1), IndexSettings(tmp_path), rag_settings(tmp_path), out)


def test_a_home_that_holds_just_the_bundled_book_is_not_embedded_again(tmp_path: Path, hashed: HashEncoder) -> None:
    index = IndexSettings(tmp_path / "home")
    library = open_library(index, embedder=hashed)
    add_sample(library)
    library.close()
    passages = len(hashed.encoded)
    run_experiment(spec_of("base"), index, rag_settings(index.home), tmp_path / "one")
    assert not (index.home / "cache").exists()
    assert len(hashed.encoded) < passages + 1000, "only questions and options were embedded"


def test_a_home_with_other_books_is_left_alone(tmp_path: Path, hashed: HashEncoder) -> None:
    index = IndexSettings(tmp_path / "home")
    book = tmp_path / "mine.md"
    book.write_text("# Mine\n\nA warp has 32 threads.\n", encoding="utf-8")
    library = open_library(index, embedder=hashed)
    library.add(book)
    library.close()
    run_experiment(spec_of("base"), index, rag_settings(index.home), tmp_path / "one")
    library = open_library(index, create=False)
    assert [document.sample for document in library.documents()] == [False]
    library.close()
    assert (index.home / "cache" / "sample-library").is_dir()


def test_few_questions_are_spread_over_the_chapters() -> None:
    assert len({question.chapter for question in choose_questions("bank:test", 14)}) == 14
    assert len(choose_questions("bank:test", quick=True)) == 48
    assert choose_questions("bank:dev", 6) == QUESTIONS != choose_questions("bank:dev", 6, seed=1)
    with pytest.raises(InvalidInput, match="'train'"):
        choose_questions("bank:train")


def test_an_adapter_that_the_engine_does_not_list_ends_the_comparison_before_anything_is_asked(
    tmp_path: Path, hashed: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine might answer with the base model, and tuning would seem to gain nothing."""
    monkeypatch.setattr(OpenAIClient, "get", lambda *_: {"data": [{"id": "m"}]})
    rag = rag_settings(tmp_path, replace(REMOTE, adapters={"qa": "qa"}))
    with pytest.raises(ArmUnavailable, match="does not list the adapter 'qa'; it lists 'm'"):
        run_experiment(spec_of("base", "tuned", with_model=True), IndexSettings(home=tmp_path), rag, tmp_path / "out")
    assert not (tmp_path / "out" / "records.jsonl").exists()
