"""Export: adapters as engines take them, merged models that answer as the adapter did, quantized folders."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_models import build_adapter, build_model, edit_json

from indexes.errors import Conflict, InvalidInput, StorageFull
from rag.errors import AdapterMismatch, ModelCannotLoad
from rag.models.adapters import base_fingerprint, read_adapter
from rag.models.loading import load_model
from rag.tuning.export import export_adapter, export_merged, lint_adapter, quantize_model

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "wide", hidden_size=256, intermediate_size=512)


@pytest.fixture(scope="module")
def wide_adapter(tmp_path_factory: pytest.TempPathFactory, wide_model: Path) -> Path:
    return build_adapter(tmp_path_factory.mktemp("adapters") / "wide", wide_model, rank=8)


def logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(input_ids=torch.arange(5, 45)[None]).logits.float()


def test_an_exported_adapter_names_the_base_an_engine_serves(tmp_path: Path, tiny_adapter: Path) -> None:
    report = export_adapter(tiny_adapter, tmp_path / "out", base_model="Qwen/Qwen3-8B")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text("utf-8"))
    assert config["base_model_name_or_path"] == "Qwen/Qwen3-8B"
    assert read_adapter(tmp_path / "out").layers == read_adapter(tiny_adapter).layers
    assert report.kind == "adapter"
    assert report.findings == (
        "Rank 4 needs --max-lora-rank 8 in vLLM, which takes 1, 8, 16, 32, 64, 128, 256, 320, 512.",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"bias": "all"}, "biases"),
        ({"rank_pattern": {"q_proj": 4}}, "different ranks"),
    ],
)
def test_what_engines_do_not_take_is_found(
    tmp_path: Path, wide_adapter: Path, change: dict[str, Any], said: str
) -> None:
    assert lint_adapter(read_adapter(wide_adapter)) == ()
    copy = Path(shutil.copytree(wide_adapter, tmp_path / "adapter"))
    edit_json(copy / "adapter_config.json", **change)
    assert any(said in finding for finding in lint_adapter(read_adapter(copy)))


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_merged_model_answers_as_base_and_adapter_did(
    tmp_path: Path, wide_model: Path, wide_adapter: Path, quantization: str
) -> None:
    from peft import PeftModel

    loaded = load_model(str(wide_model), quantization=quantization, dtype="bfloat16", device="cpu", for_training=True)
    loaded.model.eval()
    expected = logits(PeftModel.from_pretrained(loaded.model, str(wide_adapter)))
    bare = logits(load_model(str(wide_model), dtype="bfloat16", device="cpu").model)
    export_merged(str(wide_model), wide_adapter, tmp_path / "merged", quantization=quantization)
    config = json.loads((tmp_path / "merged" / "config.json").read_text("utf-8"))
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"
    merged = logits(load_model(str(tmp_path / "merged"), device="cpu").model)
    off = float((merged - expected).norm() / expected.norm())
    assert off < 0.05
    assert float((bare - expected).norm() / expected.norm()) > 10 * off


def test_merging_into_another_base_is_refused(tmp_path: Path, tiny_model: Path, wide_adapter: Path) -> None:
    with pytest.raises(AdapterMismatch):
        export_merged(str(tiny_model), wide_adapter, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path, tiny_model: Path, tiny_adapter: Path) -> None:
    for call in (
        lambda: export_adapter(tiny_adapter, tmp_path),
        lambda: export_merged(str(tiny_model), tiny_adapter, tmp_path),
        lambda: quantize_model(str(tiny_model), tmp_path),
    ):
        with pytest.raises(Conflict, match="already exists"):
            call()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, tiny_adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageFull):
        export_adapter(tiny_adapter, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_quantized_folder_loads_as_the_same_model(tmp_path: Path, wide_model: Path) -> None:
    import torch

    report = quantize_model(str(wide_model), tmp_path / "nf4")
    assert report.before_bytes is not None
    assert report.after_bytes < 0.5 * report.before_bytes
    again = load_model(str(tmp_path / "nf4"), quantization="nf4", device="cpu")
    direct = load_model(str(wide_model), quantization="nf4", device="cpu")
    assert again.quantization == "nf4"
    assert base_fingerprint(again.model) == base_fingerprint(direct.model)
    assert torch.equal(logits(again.model), logits(direct.model))
    with pytest.raises(InvalidInput, match="cannot be quantized to 'none'"):
        quantize_model(str(wide_model), tmp_path / "x", "none")
    with pytest.raises(ModelCannotLoad, match="quantized as nf4"):
        quantize_model(str(tmp_path / "nf4"), tmp_path / "x", "int8")
