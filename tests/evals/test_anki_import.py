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

IMPORT_TWO = """
import json, sys
from anki.collection import Collection, ImportAnkiPackageRequest

collection = Collection(sys.argv[1])
logs = [collection.import_anki_package(ImportAnkiPackageRequest(package_path=deck)).log for deck in sys.argv[2:]]
notes = [collection.get_note(note_id) for note_id in collection.find_notes("")]
shown = {note["Id"]: dict(note.items()) | {"shown": note.cards()[0].answer()} for note in notes}
print(json.dumps([[len(log.new), len(log.updated)] for log in logs] + [shown]))
"""


@pytest.fixture(scope="module")
def anki_python(pytestconfig: pytest.Config) -> Path:
    """The python of an environment with `anki`, made once; without a package index the test is skipped."""
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


@pytest.mark.slow
@pytest.mark.integration
def test_anki_shows_what_the_deck_holds_and_a_second_import_updates_it(
    anki_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold = {"file": "My Book", "heading": "Memory", "evidence": "`__shared__` is on the chip"}
    fields = {"id": "own-1", "question": "What does `__shared__` mean?", "answer": "Memory.", "gold": [gold]}
    own = parse_question(fields, where="t")
    decks = [tmp_path / "first.apkg", tmp_path / "second.apkg"]
    decks[0].write_bytes(anki_deck([own]))
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)  # Anki takes what is newer
    decks[1].write_bytes(anki_deck([replace(own, answer="Memory of a block.")]))
    command = [anki_python, "-c", IMPORT_TWO, tmp_path / "collection.anki2", *decks]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second, notes = json.loads(said.stdout.splitlines()[-1])
    assert (first, second, list(notes)) == ([1, 0], [0, 1], ["own-1"])
    note: dict[str, Any] = notes["own-1"]
    assert (note["Answer"], note["Quote"]) == ("Memory of a block.", "<code>__shared__</code> is on the chip")
    assert note["Quote"] in note["shown"]
