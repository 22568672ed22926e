"""Settings: which source wins, and that a misspelt name is an error."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.chosen_generator import GeneratorChoice
from api.settings import CoalesceSettings, load_settings, parse_pair
from evals.experiment import _open_library, plan_run
from indexes.errors import InvalidInput
from rag.assemble import resolve_kind
from rag.settings import GeneratorSettings
from tools.configuration_page import configuration_page


def test_command_line_beats_environment_beats_file_beats_default(tmp_path, monkeypatch):
    (tmp_path / "coalesce.toml").write_text('port = 1111\nhost = "127.0.0.2"\ncandidates = 7\n')
    for name, value in (("HOME", str(tmp_path)), ("PORT", "2222"), ("HOST", "127.0.0.3")):
        monkeypatch.setenv(f"COALESCE_{name}", value)
    settings = load_settings({"port": 3333, "host": None})
    assert (settings.port, settings.host, settings.candidates, settings.max_tokens) == (3333, "127.0.0.3", 7, 512)


def refused(settings: dict[str, Any]) -> str:
    """What the error of settings that cannot be says."""
    with pytest.raises(InvalidInput) as error:
        load_settings(settings)
    return error.value.message + error.value.hint


@pytest.mark.parametrize(
    ("name", "nearest"), [("COALESCE_MODLE", "COALESCE_MODEL"), ("COALESCE_API_KEY", "COALESCE_API_KEYS")]
)
def test_a_misspelt_name_is_refused_with_the_nearest_right_one(name, nearest, monkeypatch, tmp_path):
    (tmp_path / "coalesce.toml").write_text('quantisation = "nf4"\n')
    said = refused({"home": tmp_path})
    assert "quantisation" in said and "quantization" in said
    monkeypatch.setenv(name, "x")
    said = refused({"home": tmp_path / "other"})
    assert name in said and nearest in said.replace(name, "", 1)


@pytest.mark.parametrize(
    "content", [b"port = ", b"\xef\xbf\xbd\x00", b'home = "/tmp"', b'port = "many"', b"port = 70000", b'model = "\xff"']
)
def test_a_file_that_cannot_be_used_is_an_error_that_names_it(content, tmp_path):
    (tmp_path / "coalesce.toml").write_bytes(content)
    assert "coalesce.toml" in refused({"home": tmp_path})


def test_adapters_come_as_pairs_or_as_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("COALESCE_ADAPTERS", "cuda=adapters/cuda, exam=adapters/exam")
    assert load_settings({"home": tmp_path}).adapters == {"cuda": "adapters/cuda", "exam": "adapters/exam"}
    monkeypatch.delenv("COALESCE_ADAPTERS")
    (tmp_path / "coalesce.toml").write_text('[adapters]\ncuda = "a"\n')
    assert load_settings({"home": tmp_path}).rag.generator.adapters == {"cuda": "a"}
    for pair in ("cuda", "=path", "name=", " = "):
        with pytest.raises(InvalidInput):
            parse_pair(pair)


def test_keys_and_arguments_of_a_store_are_not_shown_when_settings_are_printed_or_refused(tmp_path, monkeypatch):
    named = "llama_index:llama_index.vector_stores.qdrant:QdrantVectorStore?collection_name=books&api_key=hidden"
    monkeypatch.setenv("COALESCE_API_KEYS", "first-hidden,second-hidden")
    monkeypatch.setenv("COALESCE_VECTOR_STORE", named)
    settings = load_settings({"home": tmp_path})
    assert [key.get_secret_value() for key in settings.api_keys] == ["first-hidden", "second-hidden"]
    assert settings.index.vector_store == named
    assert "hidden" not in repr(settings) + str(settings) + repr(settings.index)
    assert "12345" not in refused({"home": tmp_path, "api_keys": 12345})


def test_each_floor_gets_its_own_part_and_a_named_model_is_a_local_one(tmp_path):
    settings = load_settings({"home": tmp_path, "embedder": "e", "candidates": 9, "model": "m", "device": "cpu"})
    assert resolve_kind(settings.rag.generator) == "local"
    assert resolve_kind(load_settings({"home": tmp_path}).rag.generator) == "extractive"
    assert settings.index.embedder == "e"
    assert settings.index.catalog_path.parent == Path(tmp_path)
    assert settings.rag.retrieval.candidates == 9
    assert (settings.rag.generator.model, settings.rag.generator.device) == ("m", "cpu")


def test_libraries_made_beside_the_users_are_never_in_its_database(tmp_path: Path) -> None:
    index = load_settings({"home": tmp_path, "database_url": "postgresql://host/x", "chunk_tokens": 99}).index
    beside = index.in_folder(tmp_path / "cache")
    assert (beside.database_url, beside.home, beside.chunk_tokens) == (None, tmp_path / "cache", 99)
    spec = plan_run("bank:test", GeneratorSettings(), limit=1)
    with closing(_open_library(replace(spec, own_library=False, texts={"a": tmp_path}), index)) as library:
        assert library.documents() == () and list((tmp_path / "cache").rglob("library.sqlite3"))


def test_a_judge_needs_its_address_and_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COALESCE_JUDGE_API_KEY", "secret")
    address = "http://127.0.0.1:9/v1"
    assert load_settings({"home": tmp_path}).judge is None
    found = load_settings({"home": tmp_path, "judge_url": address, "judge_model": "m"}).judge
    assert found is not None
    assert (found.kind, found.base_url, found.model, found.api_key) == ("remote", address, "m", "secret")
    with pytest.raises(InvalidInput):
        _ = load_settings({"home": tmp_path, "judge_model": "m"}).judge


@pytest.mark.parametrize("value", ["chroma", "milvus", "milvus:http://engine:19530#course", "faiss:x"])
def test_an_unknown_vector_store_is_refused(value, tmp_path):
    assert "vector_store" in refused({"home": tmp_path, "vector_store": value})


def test_the_page_of_settings_is_up_to_date():
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
    assert page == configuration_page(), "run: python -m tools.configuration_page > docs/configuration.md"
    assert [name for name, field in CoalesceSettings.model_fields.items() if not field.description] == []


def test_a_fetched_model_brings_its_adapter_also_where_it_is_chosen_later_unless_another_is_named(tmp_path):
    def adapters(**named):
        return load_settings({"home": tmp_path, **named}).rag.generator.adapters

    settings = load_settings({"home": tmp_path, "answers": "quotes"})
    chosen = settings.rag_with(GeneratorChoice(generator="local", model="smollm2-135m")).generator
    assert (chosen.adapters, chosen.answers) == (adapters(model="smollm2-135m"), "quotes")
    by_default = load_settings({"home": tmp_path})
    measured = [each.measured(each.rag).generator.answers for each in (by_default, settings)]
    assert (by_default.rag.generator.answers, measured) == ("both", ["unchecked", "quotes"])
    (name, folder) = next(iter(chosen.adapters.items()))
    assert (Path(folder) / "adapter_model.safetensors").stat().st_size < 10_000_000
    assert name == "gpu-books"
    assert adapters(model="smollm2-135m", adapters={"mine": "a"}) == {"mine": "a"}
    assert adapters(model="smollm2-135m", generator="remote", base_url="http://127.0.0.1:1/v1") == {}
    assert adapters(model="Qwen/Qwen3-0.6B") == {}
