"""Votes between arms are kept whole and counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import make_passage

from indexes.errors import InvalidInput
from rag.types import Answer, Timings, Usage
from rag.votes import VoteStore


def answer(arm: str) -> Answer:
    one = Answer(
        id=arm, conversation_id="", question="What is a warp?", answer="32 threads. [1]", refused=False, arm="rag",
        generator="scripted", model="script", adapter=None, citations=(), passages=(make_passage("A warp."),),
        timings=Timings(), usage=Usage(), tokens_per_s=0.0, peak_memory_bytes=0,
    )  # fmt: skip
    return replace(one, arm=arm)  # type: ignore[arg-type]


def test_a_vote_is_kept_with_its_answers_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "home" / "conversations.sqlite3"
    VoteStore(path).keep([answer("rag"), answer("base")], "rag", blind=True)
    VoteStore(path).keep([answer("rag"), answer("base")], "", blind=False)
    kept = VoteStore(path).all()
    assert [(vote.winner, vote.blind) for vote in kept] == [("rag", True), ("", False)]
    assert kept[0].answers == (answer("rag"), answer("base"))
    assert VoteStore(path).tally() == {"rag": 1, "": 1}


@pytest.mark.parametrize(("arms", "winner"), [(["rag"], "rag"), (["rag", "base"], "tuned")])
def test_a_vote_among_too_few_or_for_a_stranger_is_refused(tmp_path: Path, arms: list[str], winner: str) -> None:
    store = VoteStore(tmp_path / "votes.sqlite3")
    with pytest.raises(InvalidInput):
        store.keep([answer(arm) for arm in arms], winner, blind=True)
    assert store.tally() == {}
