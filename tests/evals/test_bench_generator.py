"""Laws of the generator's benchmark: every way to write an answer is measured, and costs what it must."""

from __future__ import annotations

import pytest

from evals.bench.timing import paired_ratio
from evals.statistics import Interval


def test_a_ratio_is_the_median_of_rounds_with_a_sign_tests_interval() -> None:
    slower, faster = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0], [2.0] * 9
    # of 9 rounds the second from either end: P(median outside) = 2 (1 + 9) / 2**9 = 0.039; the third would be 0.18
    assert paired_ratio(slower, faster) == Interval(5.0, 2.0, 8.0, 9)
    assert paired_ratio([3.0, 5.0], [1.0, 1.0]) == Interval(4.0, 3.0, 5.0, 2)
    assert paired_ratio([2.0, 200.0, 2.0], [1.0, 100.0, 1.0]).value == 2.0, "a slow round does not move it"


@pytest.mark.integration
@pytest.mark.usefixtures("one_thread")
def test_memory_before_and_after_quantization_and_caching_is_as_the_shape_says() -> None:
    from evals.bench.generator import bench_generator
    from evals.bench.local_model import SHAPES

    found = bench_generator(
        "tiny", 2, 64, prefix_tokens=96, prompt_tokens=64, answer_tokens=9, precisions=("none", "nf4")
    )
    rows = found["answers"]
    ways = {(row["precision"], row["kv_cache"]) for row in rows}
    assert ways == {(precision, way) for precision in ("none", "nf4") for way in ("off", "library", "ours")}
    shape = SHAPES["tiny"]
    per_token = 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]  # bytes
    held = 64 + 9
    assert {row["kv_bytes"] for row in rows if row["kv_cache"] == "off"} == {0}
    for row in rows:
        if row["kv_cache"] != "off":  # the last token written is in no cache
            assert (held - 1) * per_token <= row["kv_bytes"] <= 2 * held * per_token
    weights = {row["precision"]: row["weights_bytes"] for row in rows}
    linear, hidden = found["ratios"]["nf4_linear_share_of_bf16"], shape["hidden_size"]
    assert 0.25 < linear < 0.28, "four bits of sixteen, and the scales"
    embedding = 2 * shape["vocab_size"] * hidden
    assert weights["none"] - weights["nf4"] == pytest.approx((1 - linear) * (weights["none"] - embedding), rel=0.02)
    for name, interval in found["intervals"].items():
        assert interval["low"] <= interval["value"] <= interval["high"], name
