"""The encoder's adapter: the same seed gives the same adapter, and it belongs to its base."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import make_library

from evals.encoder_tuning import ChoiceExample, EncoderTuning, tune_encoder
from indexes.embedder import bundled_model_folder
from indexes.errors import Cancelled, InvalidInput
from rag.assemble import _encoder
from rag.errors import AdapterMismatch
from rag.generators.encoder import KEPT_FOLDER, RECORD_FILE, open_encoder_adapter
from rag.settings import GeneratorSettings

pytestmark = pytest.mark.integration
EXAMPLES = [
    ChoiceExample(f"How many lanes has unit {number}?", f"{number} lanes", (f"{number + 1} lanes", "none"))
    for number in range(6)
]
SHORT = EncoderTuning(epochs=1, batch_size=3, dropout=0.1, seed=5)


def vectors(folder: Path) -> np.ndarray:  # type: ignore[type-arg]
    return open_encoder_adapter(bundled_model_folder(), folder)(["a warp has 32 lanes", "unit 1"])


def test_the_same_seed_gives_the_same_adapter_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        tune_encoder(EXAMPLES, bundled_model_folder(), tmp_path / name, replace(SHORT, seed=seed))
        assert json.loads((tmp_path / name / RECORD_FILE).read_text("utf-8"))["steps"] == 2
    a, b, c = (vectors(tmp_path / name) for name in "abc")
    assert np.array_equal(a, b)
    assert not np.allclose(a, c, atol=1e-6)
    assert np.allclose(np.linalg.norm(a, axis=1), 1.0, atol=1e-5)


def test_an_adapter_of_another_encoder_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterMismatch, match="holds no adapter"):
        open_encoder_adapter(bundled_model_folder(), tmp_path)
    (tmp_path / RECORD_FILE).write_text(json.dumps({"base": "0" * 64}), encoding="utf-8")
    with pytest.raises(AdapterMismatch, match="another encoder"):
        open_encoder_adapter(bundled_model_folder(), tmp_path)


def test_nothing_is_written_when_stopped_or_without_examples(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        tune_encoder(EXAMPLES, bundled_model_folder(), tmp_path / "x", SHORT, progress=stop)
    with pytest.raises(InvalidInput):
        tune_encoder([], bundled_model_folder(), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_adapter_that_a_comparison_tuned_last_serves_the_tuned_arms_without_a_restart(tmp_path: Path) -> None:
    chooser = _encoder(GeneratorSettings(kind="extractive", home=tmp_path), make_library(tmp_path / "library"))
    assert chooser.arms == ("base", "rag")
    for age, name in enumerate(("encoder-new", "encoder-old")):
        folder = tmp_path / KEPT_FOLDER / name
        folder.mkdir(parents=True)
        (folder / RECORD_FILE).touch()
        os.utime(folder, (1000 - age, 1000 - age))
    assert chooser.adapters == ("encoder-new",)
    assert chooser.arms == ("base", "tuned", "rag", "rag+tuned")
