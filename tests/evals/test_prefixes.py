"""How much of a prompt stood at the beginning of an earlier one."""

from __future__ import annotations

import pytest

from evals.bench.prefixes import reused_share


def test_only_the_longest_beginning_of_an_earlier_prompt_counts() -> None:
    prompts = ["a b c d".split(), "a x".split(), "a b c y".split(), "b c d".split()]
    assert reused_share(prompts, [2]) == 3 / 4
    assert reused_share(prompts, [0, 3]) == 0
    assert reused_share(prompts, range(4)) == pytest.approx((0 + 1 + 3 + 0) / 13)
