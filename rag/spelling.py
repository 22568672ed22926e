"""Corrects the misspelt words of a question: 'coalesing' is searched for as 'coalescing'.

A word is right when the library holds it, or when it is an English word that the library happens not to hold: the
bundled encoder's list of words, the glossary's and `english_words.tsv` are the dictionary. Any other word becomes the
library's most frequent word one edit away (a letter more, less or other, or two neighbours swapped), or a long one the
word of the dictionary two edits away. A name from code takes only an edit that makes no other name of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, islice

from indexes.embedder import bundled_model_folder
from indexes.words import CJK, STOP_WORDS, index_terms, is_identifier, stem
from rag.types import SearchableLibrary
from rag.wording import load_glossary

LEAST_LETTERS = 4
MOST_LETTERS = 60
"""A longer word is no misspelt one, and has edits by the hundred thousand."""
LONG_LETTERS = 8
"""From this length on a word may be two edits away, and a name from code is corrected."""
LEAST_NODES = 2
"""A word outside the dictionary that fewer nodes hold may be a misspelling itself."""
MOST_STRANGE = 4
"""Words outside the dictionary in a text of any length."""
NODES_READ = 20
"""Best nodes for a word that are looked at for the word itself."""
MOST_TRIED = 5
"""Corrections of a word that are looked for in the library: each reads its nodes."""

_LETTER = rf"[^\W{CJK}]"
"""Part of a word; a Chinese character beside a name is none."""
_WORD = re.compile(rf"(?<!{_LETTER})(?<![.:/@#-])[A-Za-z_]{_LETTER}*(?:(?:::|\.|->){_LETTER}+)*(?!{_LETTER}|[/@-])")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DOUBLED = re.compile(r"([a-z])\1+")
_ENDINGS = {"s": 3, "es": 4, "ly": 4, "or": 4, "ors": 4, "able": 4, "ed": 5, "er": 5, "ers": 5, "ing": 5}
"""Endings of English words, each with the fewest letters before it."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A text with its misspelt words replaced, and the words that replaced them, without 'which' and the like."""

    text: str
    corrections: tuple[str, ...] = ()


def correct(text: str, library: SearchableLibrary) -> Spelled:
    """`text` in the library's spelling. Words in capitals, short words and words with digits stay as they are.

    A text most of whose words are unknown is in another language, and stays too.
    """
    words = [match.group().lower() for match in _WORD.finditer(text)]
    strange = sum(not is_english(word) for word in words if word.isalpha())
    if strange > MOST_STRANGE and strange > len(words) / 2:
        return Spelled(text)
    better = {word: _better(word, library) for word in dict.fromkeys(_WORD.findall(text))}
    found = dict.fromkeys(word for word in better.values() if word is not None and word not in STOP_WORDS)
    return Spelled(_WORD.sub(lambda match: better[match.group()] or match.group(), text), tuple(found))


def is_english(word: str) -> bool:
    """Whether the dictionary has this lower-case word, as it is or without its ending, `un` or `re`."""
    known = _dictionary()
    if word in known or (len(word) > 5 and word.startswith(("un", "re")) and word[2:] in known):
        return True
    bases = (
        word.removesuffix(end)
        for end, least in _ENDINGS.items()
        if word.endswith(end) and len(word) >= least + len(end)
    )
    return any(base in known or f"{base}e" in known for base in bases)


def _better(word: str, library: SearchableLibrary) -> str | None:
    """The correction of a misspelt word; None if the word is right or no known word is near."""
    is_name = is_identifier(word)
    if not is_name and (not word.isalpha() or word.isupper()):
        return None
    word = word if is_name else word.lower()
    is_long = len(word) >= LONG_LETTERS
    if (
        not LEAST_LETTERS <= len(word) <= MOST_LETTERS
        or (is_name and not is_long)
        or is_english(word)
        or _holds(library, word)
    ):
        return None
    near = {one for one in _edits(word) if one[0] == word[0] and (not is_name or _is_same_name(word, one))}
    if meant := near & STOP_WORDS:
        return _likeliest(word, dict.fromkeys(meant, 0))[0]
    for candidates in chain([near], map(_two_edits, [word] if is_long and not is_name else [])):
        terms = {one: found[0] for one in candidates if (found := index_terms(one))}
        counts = library.count_terms(sorted(set(terms.values())))
        held = {one: count for one, term in terms.items() if (count := counts[term])}
        likely = (one for one in _likeliest(word, held) if is_name or held[one] >= LEAST_NODES or is_english(one))
        for one in islice(likely, MOST_TRIED):
            if _holds(library, one):
                return one if terms[one] != stem(word) else None
    return None


def _holds(library: SearchableLibrary, word: str) -> bool:
    """Whether the library has the word itself (an English one also with an ending), not only its stem."""
    ending = "(?:e?s|e?d|ing)?" if is_english(word) else ""
    written = re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}{ending}(?![A-Za-z0-9])", re.IGNORECASE)
    return any(
        written.search(" ".join((*hit.node.heading_path, hit.node.text))) for hit in library.lexical(word, NODES_READ)
    )


def _likeliest(word: str, counts: dict[str, int]) -> list[str]:
    """Corrections in order: of the same letters (swapped or doubled) first, then English ones, then by frequency."""
    return sorted(counts, key=lambda one: (set(one) != set(word), not is_english(one), -counts[one], -len(one), one))


def _is_same_name(name: str, one: str) -> bool:
    """Whether a name one edit away has a letter left out or doubled, or two swapped."""
    same = len(one) > len(name) or sorted(one) == sorted(name) or _DOUBLED.sub(r"\1", one) == _DOUBLED.sub(r"\1", name)
    return same and is_identifier(one)


def _edits(word: str) -> set[str]:
    """All words one edit away."""
    splits = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    found = {left + right[1:] for left, right in splits if right}
    found |= {left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1}
    found |= {left + letter + right for left, right in splits for letter in _LETTERS}
    found |= {left + letter + right[1:] for left, right in splits if right for letter in _LETTERS}
    return found - {word}


def _two_edits(word: str) -> Iterable[str]:
    """Dictionary words with the same first letter up to two edits away (optimal string alignment)."""
    from rapidfuzz import process
    from rapidfuzz.distance import OSA

    alike = _beginning_with(word[0])
    return (one for one, *_ in process.extract(word, alike, scorer=OSA.distance, score_cutoff=2, limit=None))


@cache
def _beginning_with(letter: str) -> list[str]:
    return [word for word in _dictionary() if word[0] == letter]


@cache
def _dictionary() -> frozenset[str]:
    encoder = (bundled_model_folder() / "vocab.txt").read_text(encoding="utf-8")
    everyday = files("rag").joinpath("english_words.tsv").read_text(encoding="utf-8")
    everyday = "\n".join(line for line in everyday.splitlines() if not line.startswith("#"))
    glossary = " ".join(f"{entry.best} {entry.others}" for entry in load_glossary().values())
    words = f"{encoder}\n{everyday}\n{glossary}".lower().split()
    return STOP_WORDS.union(word for word in words if len(word) > 2 and word.isascii() and word.isalpha())
