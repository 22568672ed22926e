"""The exported deck in Anki itself: the `anki` package imports it, in an environment of its own (it is AGPL)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from evals.anki import anki_deck
from evals.questions import parse_question

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SCRIPT = Path(__file__).with_name("anki_import.py")


@pytest.fixture(scope="module")
def anki_python(pytestconfig: pytest.Config) -> Path:
    """The python of an environment with `anki`, made once; without a package index the tests are skipped."""
    folder = pytestconfig.cache.mkdir("anki")
    python = folder / "env" / "bin" / "python"
    with FileLock(folder / "lock"):
        if not (folder / "made").is_file():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "env"], check=True)
            got = subprocess.run([python, "-m", "pip", "install", "-q", "anki"], capture_output=True, text=True)
            if got.returncode:
                pytest.skip(f"no package index has anki: {got.stderr[-200:]}")
            (folder / "made").touch()
    return python


def test_anki_shows_code_formulas_quotes_tags_and_subdecks_and_updates_what_it_has(
    anki_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"question": "What does `__shared__` mean for $n^2$?", "answer": "**Shared** memory.", "chapter": 5}
    gold = {"file": "My Book", "heading": "Memory", "evidence": "`__shared__` is on the chip"}
    own = parse_question(fields | {"id": "own-1", "book": "b", "gold": [gold]}, where="t")
    choice = {"type": "choice", "choices": ["one", "two", "3 < 4", "four"], "answer_index": 2, "answer": "3 < 4"}
    other = parse_question({"id": "own-2", "question": "Which?", **choice}, where="t")
    decks = [tmp_path / "first.apkg", tmp_path / "second.apkg"]
    decks[0].write_bytes(anki_deck([own, other]))
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)  # Anki takes what is newer
    decks[1].write_bytes(anki_deck([replace(own, answer="Memory of a block."), other]))
    said = subprocess.run(
        [anki_python, SCRIPT, tmp_path / "collection.anki2", *decks], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    first, second = found["imports"]
    assert (first["new"], second["new"], second["updated"]) == (2, 0, 2)
    notes = {note["id"]: note for note in found["notes"]}
    assert set(notes) == {"own-1", "own-2"}, "a second import updates, it does not double"
    note = notes["own-1"]
    assert note["fields"]["Question"] == r"What does <code>__shared__</code> mean for \(n^2\)?"
    assert note["fields"]["Answer"] == "Memory of a block."
    assert note["fields"]["Quote"] == "<code>__shared__</code> is on the chip"
    assert "My Book" in note["fields"]["Source"] and note["fields"]["Quote"] in note["answer"]
    assert note["deck"] == "Coalesce::My Book"
    assert set(note["tags"]) == {"book::My_Book", "chapter::05"}
    assert "<b>C.</b> 3 &lt; 4" in notes["own-2"]["fields"]["Answer"]
