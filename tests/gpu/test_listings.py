"""The book's programs on a real device."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu.run_listings import compile_all, listings, run_program, why_not_run


@pytest.mark.gpu
def test_every_program_of_the_book_prints_pass(tmp_path: Path) -> None:
    if missing := why_not_run():
        pytest.skip(missing)
    programs = [listing for listing in listings() if listing.is_program]
    assert compile_all(programs, tmp_path, "-arch=native", link=True) == {}
    wrong = {listing.name: run_program(listing, tmp_path) for listing in programs}
    assert {name: outcome for name, outcome in wrong.items() if outcome is not None} == {}
