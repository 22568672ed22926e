"""Imports decks into a new Anki collection, one after the other, and prints what is in it then, as JSON.

Run by `test_anki_import.py` in an environment of its own: `python anki_import.py COLLECTION DECK.apkg…`
"""

from __future__ import annotations

import json
import sys

from anki.collection import Collection, ImportAnkiPackageRequest

collection = Collection(sys.argv[1])
imports = []
for deck in sys.argv[2:]:
    log = collection.import_anki_package(ImportAnkiPackageRequest(package_path=deck)).log
    imports.append({name: len(getattr(log, name)) for name in ("new", "updated", "duplicate", "conflicting")})
notes = [collection.get_note(note_id) for note_id in collection.find_notes("")]
shown = [
    {
        "id": note["Id"],
        "fields": dict(note.items()),
        "tags": note.tags,
        "deck": collection.decks.name(note.cards()[0].did),
        "answer": note.cards()[0].answer(),
    }
    for note in notes
]
print(json.dumps({"imports": imports, "notes": shown}))
