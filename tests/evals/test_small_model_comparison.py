"""The comparison with a real language model comes out as README and RESULTS say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from api.settings import load_settings
from evals.arms import parse_arms
from evals.experiment import choose_questions, run_experiment
from evals.run import RunSpec

pytestmark = [pytest.mark.integration, pytest.mark.slow]
QUESTIONS = 40
LOGGED = {"base": 0.229, "tuned": 0.236, "rag": 0.593, "rag+tuned": 0.629}
"""Right options by likelihood, of the 140 choice questions of the test split."""


@pytest.mark.timeout(3600)
def test_forty_questions_come_out_as_logged_within_noise(small_model_home: Path, tmp_path: Path) -> None:
    settings = load_settings({"home": small_model_home, "model": "smollm2-135m", "quantization": "none"})
    spec = RunSpec(
        choose_questions("bank:test", QUESTIONS, types=("choice",)), parse_arms(list(LOGGED)), with_model=True
    )
    report = run_experiment(spec, settings.index, settings.rag, tmp_path, lambda *_: None)
    for arm, logged in LOGGED.items():
        found = report["arms"][arm]["metrics"]["accuracy"]["value"]
        assert found == pytest.approx(logged, abs=3 * math.sqrt(logged * (1 - logged) / QUESTIONS)), arm
