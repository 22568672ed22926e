"""With a real language model retrieval gains what README and RESULTS say."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.settings import load_settings
from evals.experiment import plan_run, run_experiment

LOGGED_GAIN = 0.343
"""Share of right options with retrieval less that without, by likelihood, on the 140 choice questions for testing."""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_retrieval_gains_what_is_logged(small_model_home: Path, tmp_path: Path) -> None:
    settings = load_settings({"home": small_model_home, "model": "smollm2-135m", "quantization": "none"})
    spec = plan_run("bank:test", settings.rag.generator, arms=["base", "rag"], limit=40, types=("choice",))
    (gain,) = run_experiment(spec, settings.index, settings.rag, tmp_path)["comparisons"]
    assert gain["verdict"] == "better"
    assert gain["low"] <= LOGGED_GAIN <= gain["high"]
