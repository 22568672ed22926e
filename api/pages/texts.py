"""What the page says, in the reader's language. One data file per language, in `languages/`; the keys are the same."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from api.errors import describe, sentence
from api.translation import translate
from indexes.words import is_chinese

LANGUAGES = {"en": "English", "zh": "中文"}
HTML_LANGUAGES = {"en": "en-US", "zh": "zh-CN"}
FOLDER = Path(__file__).parent / "languages"
_WEIGHT = re.compile(r"\s*([\w*-]+)\s*(?:;\s*q=([\d.]+))?")


class Texts:
    """The strings of one language: `texts("ask.send")`, with values for `{name}` in them."""

    def __init__(self, language: str, table: dict[str, str]) -> None:
        self.language = language
        self._table = table

    def __call__(self, key: str, **values: object) -> str:
        """The text of `key`; raises KeyError for an unknown key."""
        text = self._table[key]
        return text.format(**values) if values else text

    def either(self, key: str, otherwise: str) -> str:
        """The text of `key`, or `otherwise` where there is none: for names that come from elsewhere."""
        return self._table.get(key, otherwise)

    def count(self, key: str, number: int, **values: object) -> str:
        """The text of `key` for a number: `key.one` for 1 where the language distinguishes them."""
        name = f"{key}.one" if number == 1 and f"{key}.one" in self._table else key
        return self(name, n=f"{number:,}", **values)

    def error(self, error: BaseException) -> str:
        """What went wrong and what helps, as sentences."""
        reply = describe(error)
        lead = self.either(f"error.{reply.type}", "")
        return self.sentences(lead, reply.message, reply.hint)

    def sentences(self, *parts: str) -> str:
        """What the program says in English, as sentences in this language where the table has them."""
        spoken = [_ended(self.said(part)) for part in parts if part]
        return "".join(part if part.endswith("。") else f"{part} " for part in spoken).strip()

    def said(self, text: str) -> str:
        """A message of the program in this language; as it is where the table does not have it."""
        return translate(text, self.language)


def _ended(text: str) -> str:
    """A part as a sentence with its full stop."""
    return f"{text.rstrip('。')}。" if is_chinese(text) else sentence(text)


@lru_cache(maxsize=len(LANGUAGES))
def texts_of(language: str) -> Texts:
    """The texts of one of `LANGUAGES`."""
    return Texts(language, json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8")))


def language_of(chosen: str | None, accepted: str) -> str:
    """The language to speak: the one chosen, else the first of `Accept-Language` that there is, else English."""
    if chosen in LANGUAGES:
        return chosen or "en"
    wanted: list[tuple[float, int, str]] = []
    for place, part in enumerate(accepted.split(",")):
        match = _WEIGHT.match(part)
        if match:
            try:
                weight = float(match.group(2) or 1.0)
            except ValueError:
                continue
            wanted.append((-weight, place, match.group(1).lower().split("-")[0]))
    return next((name for _, _, name in sorted(wanted) if name in LANGUAGES), "en")


def cookie_text(value: str | None) -> str:
    """A cookie's value as the page's script wrote it."""
    return unquote(value or "")
