"""A comparison from beginning to end: what fails before a model loads, which library is asked, what is written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder

from api.settings import load_settings
from evals.arms import parse_arms
from evals.experiment import choose_questions, find_texts, plan_run, run_experiment, tuning_costs
from evals.questions import BankQuestion
from evals.records import read_records
from evals.run import RunSpec
from indexes.errors import Conflict, InvalidInput, NotFound
from indexes.jsonl import to_jsonl
from indexes.library import open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.errors import ArmUnavailable
from rag.generators.openai_client import OpenAIClient
from rag.models.home import shipped_adapters
from rag.settings import GeneratorSettings, RagSettings

REMOTE = GeneratorSettings(kind="remote", base_url="http://127.0.0.1:9/v1", model="m")
QUESTIONS = choose_questions("bank:dev", 6)


def spec_of(*arms: str, **fields: Any) -> RunSpec:
    return RunSpec(QUESTIONS, parse_arms(arms), **fields)


def run(spec: RunSpec, home: Path, out: Path, generator: GeneratorSettings | None = None) -> dict[str, Any]:
    return run_experiment(
        spec, IndexSettings(home), RagSettings(home=home, generator=generator or GeneratorSettings()), out
    )


def held_in(home: Path) -> list[tuple[str, bool]]:
    """The books of the library there: their files and whether they are the sample."""
    library = open_library(IndexSettings(home), create=False)
    books = [(Path(document.source).name, document.sample) for document in library.documents()]
    library.close()
    return books


def put_mine(home: Path, encoder: HashEncoder, *, sample: bool) -> None:
    """A library whose book is not the bundled one of this installation."""
    home.parent.mkdir(parents=True, exist_ok=True)
    (home.parent / "mine.md").write_text("# Mine\n\nA warp has 32 threads.\n", encoding="utf-8")
    library = open_library(IndexSettings(home), embedder=encoder)
    library.add(home.parent / "mine.md", sample=sample)
    library.close()


@pytest.fixture
def home(tmp_path: Path, hashed_home: Path) -> Path:
    """A home of the test's own that holds just the bundled book."""
    return Path(shutil.copytree(hashed_home, tmp_path / "home"))


def test_a_run_writes_its_report_and_its_export_and_continues_for_nothing(
    tmp_path: Path, home: Path, hashed: HashEncoder
) -> None:
    out, export = tmp_path / "report", tmp_path / "export"
    spec = spec_of("base", "rag", "oracle", export=export)
    data = run(spec, home, out)
    assert {path.name for path in out.iterdir()} >= {"report.html", "report.md", "report.json", "records.jsonl"}
    assert (data["run"]["seed"], data["run"]["top_k"], data["run"]["command"]) == (0, 5, "coalesce eval")
    assert data["arms"]["oracle"]["metrics"]["evidence_recall_at_5"]["value"] == 1.0
    assert data["verdict"]
    assert sorted(path.name for path in (export / "runs").iterdir()) == ["oracle.trec", "rag.trec"]
    before = (out / "records.jsonl").read_bytes()
    again = run(spec, home, out)
    assert (out / "records.jsonl").read_bytes() == before
    assert again["arms"] == json.loads(json.dumps(data["arms"]))
    more = run(spec_of("base", "quotes", "rag", "oracle"), home, out)
    assert (out / "records.jsonl").read_bytes().startswith(before)
    assert list(more["arms"]) == ["base", "quotes", "rag", "oracle"]
    said = {(record.arm, record.question_id): record.answer for record in read_records(out) if record.mode == "open"}
    asked = [question for arm, question in said if arm == "quotes"]
    assert asked and all(said["quotes", each] == said["rag", each] for each in asked), "no model is there to write"
    assert "accuracy" not in more["arms"]["quotes"]["metrics"]
    with pytest.raises(Conflict, match="seed"):
        run(spec_of("base", "rag", "oracle", seed=1), home, out)


def test_a_home_that_holds_just_the_bundled_book_is_not_embedded_again(
    tmp_path: Path, home: Path, hashed: HashEncoder
) -> None:
    run(spec_of("base"), home, tmp_path / "one")
    assert not (home / "cache").exists()
    assert len(hashed.encoded) < 1000, "only questions and options were embedded"


@pytest.mark.parametrize("sample", [False, True], ids=["another book", "the bundled book of another installation"])
def test_a_home_with_other_books_is_left_alone(tmp_path: Path, hashed: HashEncoder, sample: bool) -> None:
    home = tmp_path / "home"
    put_mine(home, hashed, sample=sample)
    put_mine(home / "cache" / "sample-library", hashed, sample=True)
    run(spec_of("base"), home, tmp_path / "one")
    assert held_in(home) == [("mine.md", sample)]
    assert held_in(home / "cache" / "sample-library") == [(SAMPLE_PATH.name, True)], "searched beside no other"


@pytest.fixture
def two_sets(tmp_path: Path) -> tuple[BankQuestion, ...]:
    """Question sets on two little texts, which lie in `tmp_path / "texts"`."""
    asked: list[BankQuestion] = []
    for name, number in (("warps", "32"), ("blocks", "1024")):
        (tmp_path / "texts" / name).mkdir(parents=True)
        text = f"# {name.capitalize()}\n\nOne of the {name} has {number} threads. They run in lockstep.\n"
        (tmp_path / "texts" / name / "1.md").write_text(text, encoding="utf-8")
        first = f"How many threads has one of the {name}?"
        gold = [{"file": "1.md", "heading": name.capitalize(), "evidence": f"{number} threads"}]
        answer = {"answer": number, "key_facts": [number], "gold": gold}
        rows = [
            {"id": f"{name}-1", "kind": "number", "style": "typo", "question": first} | answer,
            {"id": f"{name}-2", "kind": "why", "question": "and why?", "after": first} | answer,
            {"id": f"{name}-3", "kind": "off_topic", "question": "Who won?", "answer": "No.", "answerable": False},
        ]
        path = tmp_path / f"{name}.jsonl"
        path.write_text(to_jsonl(rows), encoding="utf-8")
        asked += choose_questions(str(path))
    return tuple(asked)


def test_a_question_set_is_asked_of_its_own_book(
    tmp_path: Path, hashed: HashEncoder, two_sets: tuple[BankQuestion, ...]
) -> None:
    texts = find_texts(two_sets, tmp_path / "texts")
    spec = RunSpec(two_sets, parse_arms(["rag"]), texts=texts)
    data = run(spec, tmp_path, tmp_path / "one")
    records = read_records(tmp_path / "one")
    held = {(record.question_id.split("-")[0], passage.section[0]) for record in records for passage in record.passages}
    assert held == {("warps", "Warps"), ("blocks", "Blocks")}
    kinds, books = data["groups"]["kind"], data["groups"]["book"]
    assert list(kinds) == ["number", "why", "typo", "follow-up", "off_topic"]
    assert set(books) == {"warps", "blocks"}
    assert kinds["number"]["rag"]["n"] == 2
    assert kinds["off_topic"]["rag"]["metrics"].keys() == {"off_topic_refused"}
    assert data["verdict"].startswith("rag: key facts in the first two sentences")
    again = replace(spec, against=tmp_path / "one")
    compared = run(again, tmp_path, tmp_path / "two")
    differences = {one["metric"]: one for one in compared["against"]["differences"]}
    assert differences["key_facts_first_two"]["n"] == 4
    assert {differences[name]["difference"] for name in ("key_fact_recall", "off_topic_refused")} == {0.0}
    asked = two_sets[:3]
    fewer = RunSpec(asked, parse_arms(["rag"]), texts=find_texts(asked, tmp_path / "texts"))
    run(fewer, tmp_path, tmp_path / "three")
    assert held_in(tmp_path / "cache" / "texts") == [("warps", False)], "books of an earlier run are not searched"


def test_a_missing_text_or_earlier_run_is_named_before_anything_runs(
    tmp_path: Path, two_sets: tuple[BankQuestion, ...]
) -> None:
    with pytest.raises(InvalidInput, match="'warps'"):
        find_texts(two_sets, tmp_path)
    with pytest.raises(NotFound, match="gone"):
        run(spec_of("rag", against=tmp_path / "gone"), tmp_path, tmp_path / "one")


def test_which_questions_are_chosen() -> None:
    """Few are spread over the chapters; those of some types are asked openly unless choice is among them."""
    assert len({question.chapter for question in choose_questions("bank:test", 14)}) == 14
    assert len(choose_questions("bank:test", quick=True)) == 48
    assert choose_questions("bank:dev", 6) == QUESTIONS != choose_questions("bank:dev", 6, seed=1)
    options = choose_questions("bank:test", types=("choice",))
    assert {question.type for question in options} == {"choice"}
    assert sum(bool(question.choices) for question in options) == 140
    open_ones = choose_questions("bank:test", 9, types=("why", "code"))
    assert [question.type in ("why", "code") and not question.choices for question in open_ones] == [True] * 9
    with pytest.raises(InvalidInput, match="'train'"):
        choose_questions("bank:train")
    with pytest.raises(InvalidInput, match="no question of type whi"):
        choose_questions("bank:test", types=("whi",))


def test_an_adapter_that_the_engine_does_not_list_ends_the_comparison_before_anything_is_asked(
    tmp_path: Path, hashed: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine might answer with the base model, and tuning would seem to gain nothing."""
    monkeypatch.setattr(OpenAIClient, "_get", lambda *_: {"data": [{"id": "m"}]})
    with pytest.raises(ArmUnavailable, match="does not list the adapter 'qa'; it lists 'm'"):
        run(
            spec_of("base", "tuned", with_model=True),
            tmp_path,
            tmp_path / "out",
            replace(REMOTE, adapters={"qa": "qa"}),
        )
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_what_is_compared_depends_on_what_can_answer() -> None:
    def planned(generator: GeneratorSettings, **more: Any) -> RunSpec:
        return plan_run("bank:test", generator, limit=3, **more)

    open_ones = {"types": ("why",)}
    plain, model = GeneratorSettings(kind="extractive"), GeneratorSettings(kind="local", model="m", answers="free")
    assert [arm.name for arm in planned(plain).arms] == ["base", "tuned", "rag", "rag+tuned", "oracle", "random"]
    assert [arm.name for arm in planned(plain, **open_ones).arms] == ["rag"]
    assert [arm.name for arm in planned(plain, arms=["base"], **open_ones).arms] == ["base"]
    assert [arm.name for arm in planned(model, **open_ones).arms] == ["base", "tuned", "rag", "rag+tuned", "quotes"]
    found = [(spec.with_model, spec.together > 1) for spec in map(planned, (plain, model, REMOTE))]
    assert found == [(False, False), (True, True), (True, False)]
    whole = plan_run("bank:test", model)
    written = [question for question in whole.questions if question.id in (whole.opened or ())]
    assert sum(question.answerable for question in written) == 100
    assert {each.id for each in whole.questions if not each.answerable} <= {each.id for each in written}
    with pytest.raises(InvalidInput, match="bundled book"):
        planned(plain, texts=Path("texts"))


def test_an_adapter_says_itself_how_long_its_training_took() -> None:
    ((_, folder),) = shipped_adapters("smollm2-135m").items()
    kept = json.loads((Path(folder) / "coalesce_adapter.json").read_text("utf-8"))["metrics"]["seconds"]
    adapters = {"qa": folder, "elsewhere": "a-name-of-the-engine"}
    costs = tuning_costs(GeneratorSettings(adapters=adapters), {"tuned": ("qa",), "rag+tuned": ("qa", "elsewhere")})
    assert costs == {"tuning qa": kept} and kept > 0


LOGGED_GAIN = 0.343
"""Share of right options with retrieval less that without, by likelihood, on the 140 choice questions for testing."""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_retrieval_gains_with_a_real_model_what_is_logged(small_model_home: Path, tmp_path: Path) -> None:
    settings = load_settings({"home": small_model_home, "model": "smollm2-135m", "quantization": "none"})
    spec = plan_run("bank:test", settings.rag.generator, arms=["base", "rag"], limit=40, types=("choice",))
    (gain,) = run_experiment(spec, settings.index, settings.rag, tmp_path)["comparisons"]
    assert gain["verdict"] == "better"
    assert gain["low"] <= LOGGED_GAIN <= gain["high"]
