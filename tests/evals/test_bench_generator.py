"""Laws of the generator's benchmark: every way to write an answer is measured, on the same text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evals.bench.generator import WAYS, ScriptedSampler, script_of
from evals.bench.timing import Ratio, paired_ratio


def test_a_ratio_is_the_median_of_rounds_with_a_sign_tests_interval() -> None:
    slower, faster = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0], [2.0] * 9
    # of 9 rounds the second from either end: P(median outside) = 2 (1 + 9) / 2**9 = 0.039; the third would be 0.18
    assert paired_ratio(slower, faster) == Ratio(5.0, 2.0, 8.0, 9)
    assert paired_ratio([3.0, 5.0], [1.0, 1.0]) == Ratio(4.0, 3.0, 5.0, 2)


def test_a_slow_round_does_not_move_a_ratio() -> None:
    assert paired_ratio([2.0, 200.0, 2.0], [1.0, 100.0, 1.0]).value == 2.0


def test_a_quote_repeats_the_prompt_and_the_other_script_leaves_it_after_two_words() -> None:
    prompt = list(range(100))
    quote = script_of(prompt, "quoting", 10)
    assert quote == prompt[25:35]
    misled = script_of(prompt, "misled", 10)
    pairs = list(zip(misled[::2], misled[1::2], strict=True))
    assert all(second == first + 1 for first, second in pairs)
    assert all(after != before + 1 for (_, before), (after, _) in pairwise(pairs))


@pytest.mark.integration
def test_the_script_is_written_however_much_of_it_is_guessed() -> None:
    import torch

    for guesses in ([[], [2, 3, 4], []], [[], [9, 9], [3, 4, 5]]):
        sampler = ScriptedSampler([1, 2, 3, 4, 5, 6])
        written: list[int] = []
        for guess in guesses:
            written += sampler.accept(torch.zeros(len(guess) + 1, 12), guess)
        assert written == [1, 2, 3, 4, 5, 6][: len(written)]
        assert sampler.steps == 3
    assert len(written) == 6


@pytest.mark.integration
@pytest.mark.usefixtures("one_thread")
def test_the_table_has_every_way_and_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    from evals.bench.generator import bench_generator

    # Half a second before each of its many answers, in a process full of libraries.
    monkeypatch.setattr("evals.bench.local_model.gc.collect", lambda: 0)
    found = bench_generator(
        "tiny", 2, 64, prefix_tokens=96, prompt_tokens=64, answer_tokens=9, precisions=("none", "nf4")
    )
    rows = found["answers"]
    assert len(rows) == 2 * len(WAYS)
    numbers = ("weights_bytes", "ttft_s", "second_token_ms", "tokens_per_s")
    assert all(row[name] > 0 for row in rows for name in numbers)
    assert {row["kv_cache"] for row in rows if row["kv_bytes"] == 0} == {"off"}
    per_step = {(row["kv_cache"], row["speculation"]): row["tokens_per_step"] for row in rows}
    assert per_step["slab", "quoting"] == per_step["dynamic", "quoting"] > 1.5
    assert per_step["slab", "off"] == per_step["slab", "misled"] == 1.0
    for name, interval in found["intervals"].items():
        assert interval["low"] <= interval["value"] <= interval["high"], name
    assert found["ratios"]["nf4_linear_share_of_bf16"] < 0.28


@pytest.mark.integration
@pytest.mark.usefixtures("one_thread")
def test_answers_together_are_measured_with_and_without_recorded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from evals.bench.generator import together_rows
    from evals.bench.local_model import random_model
    from rag.generators.local.decode import static_step
    from rag.generators.local.recorder import Recorder
    from rag.models.loading import load_model

    def record(self: Any, ids: Any, lengths: Any, keys: Any, values: Any) -> Any:
        return lambda fed, held: static_step(self._model, fed, held, keys, values)

    monkeypatch.setattr(Recorder, "_record", record)
    loaded = load_model(str(random_model(tmp_path, "tiny")), device="cpu")
    with torch.inference_mode():
        rows = together_rows({"none": loaded}, 64, 2)
    assert [(row["answers"], row["step"]) for row in rows] == [
        (1, "plain"), (1, "recorded"), (16, "plain"), (16, "recorded"),
    ]  # fmt: skip
    assert all(row["ms"] > 0 for row in rows)
