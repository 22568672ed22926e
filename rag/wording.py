"""A question in the books' words: Chinese terms in English, one maker's names for another's, misspelt words corrected.

**Glossary.** `glossary.tsv` holds one entry per line: Chinese forms separated by `|`, a tab, the English words that an
English book would use: the best rendering first, after ` / ` other words that books use too. Sections begin with `#`;
those whose name begins with `Everyday words` hold no terms of the subject. A question is covered with entries so that
as few characters as possible stay uncovered, then by the fewest entries: 共享内存 is `shared memory`, not 共享 and 内存
apart.

**Other words for the same thing.** Where the books lack LDS, a question about it is asked about shared memory.
`vendor_words.tsv` holds one thing per line: its words separated by `|`, then, after a tab, words that mean it in some
books and something else in others (OpenCL's local memory): they are taken where the books have no other, and a question
that has them is left as it is.

**Spelling.** 'coalesing' is searched for as 'coalescing'. A word is right when the library holds it, or when it is an
English word that the library happens not to hold: the bundled encoder's list of words, the glossary's and
`english_words.tsv` are the dictionary. Any other word becomes the library's most frequent word one edit away (a letter
more, less or other, or two neighbours swapped), or a long one the word of the dictionary two edits away. A name from
code takes only an edit that makes no other name of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, islice

from indexes.embedder import bundled_model_folder
from indexes.types import Filters
from indexes.words import CJK, STOP_WORDS, chinese_words, index_terms, is_chinese, is_identifier, stem
from rag.types import SearchableLibrary

_PIECE = re.compile(rf"[{CJK}]+|[A-Za-z_][A-Za-z0-9_.:<>+#-]*(?:\(\))?|\d[\d.,]*(?:\s?[A-Za-z%]+)?")
_CJK = re.compile(f"[{CJK}]")

SYNONYMS = " / "
NOTHING = "-"
"""The English of words that say nothing in a search (的, 了, 请问)."""
EVERYDAY = "# Everyday words"
KEY_TERMS = 4


@dataclass(frozen=True, slots=True)
class Rendering:
    """English for a Chinese term.

    Attributes:
        chinese: the form as the question has it.
        best: reads as part of a sentence; empty for words that say nothing.
        others: further words to look for.
        technical: whether it is a term of the subject, not an everyday word.
    """

    chinese: str
    best: str
    others: str
    technical: bool


@cache
def load_glossary() -> Mapping[str, Rendering]:
    """Chinese form -> English.

    Raises:
        ValueError: a line without a tab, or a form given twice; the line is named by its number.
    """
    entries: dict[str, Rendering] = {}
    technical = True
    text = files("rag").joinpath("glossary.tsv").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            technical = not line.startswith(EVERYDAY)
            continue
        forms, _, english = line.partition("\t")
        if not english.strip():
            raise ValueError(f"glossary.tsv:{number}: no tab between Chinese and English: {line!r}")
        best, _, others = english.strip().partition(SYNONYMS)
        for form in forms.split("|"):
            if form in entries:
                raise ValueError(f"glossary.tsv:{number}: {form!r} is given twice")
            entries[form] = Rendering(form, "" if best == NOTHING else best, others, technical)
    return entries


def translate_terms(text: str, *, synonyms: bool = False) -> str:
    """The English words for the Chinese terms of `text`, its own Latin words and numbers kept, in its order.

    Args:
        synonyms: also the other words that books use, for a lexical search.
    """
    words: list[str] = []
    for piece in _PIECE.findall(text):
        if not _CJK.match(piece):
            words.append(piece.rstrip(".,:"))
            continue
        for rendering in cover(piece):
            words.extend((rendering.best, rendering.others) if synonyms else (rendering.best,))
    return " ".join(word for word in words if word)


def key_terms(text: str) -> list[tuple[str, str]]:
    """Terms of the subject in a Chinese text with their English, at most `KEY_TERMS`, the longest, in its order."""
    found = {
        rendering.chinese: rendering.best
        for piece in _PIECE.findall(text)
        if _CJK.match(piece)
        for rendering in cover(piece)
        # A lone character is often part of a word that the glossary lacks.
        if rendering.technical and rendering.best and len(rendering.chinese) > 1
    }
    longest = sorted(found, key=lambda term: -len(term))[:KEY_TERMS]
    return [(term, english) for term, english in found.items() if term in longest]


def note_on_english(question: str, texts: Collection[str]) -> str | None:
    """A note for a Chinese question whose passages are all English, with the English of its key terms; else None."""
    if not texts or not is_chinese(question) or any(map(is_chinese, texts)):
        return None
    terms = "，".join(f"{chinese} = {english}" for chinese, english in key_terms(question))
    return f"书是英文的；关键词：{terms}。" if terms else "书是英文的。"


def cover(run: str) -> tuple[Rendering, ...]:
    """Renderings for a run of Chinese characters; characters that no entry covers are left out."""
    return tuple(rendering for _, _, rendering in _parts(run) if rendering is not None)


def unknown_nouns(text: str) -> tuple[str, ...]:
    """The Chinese nouns of `text` that the glossary lacks, so that a search leaves them out: 贷款 (loan).

    A lone character does not count, and its entry does not make a longer word known: 天空 (sky) is not 天 (day) and
    空 (empty). What the dictionary joins across an entry's end does not count either.
    """
    glossary = load_glossary()
    found: list[str] = []
    for run in _PIECE.findall(text):
        if not _CJK.match(run):
            continue
        part_at = [part for part in _parts(run) for _ in range(part[0], part[1])]
        end = 0
        for word, noun in chinese_words(run):
            start, end = end, end + len(word)
            within = part_at[start:end]
            crossed = within[0][0] < start or within[-1][1] > end
            missed = any(rendering is None or last - first == 1 for first, last, rendering in within)
            if noun and len(word) > 1 and word not in glossary and missed and not crossed:
                found.append(word)
    return tuple(found)


def _parts(run: str) -> list[tuple[int, int, Rendering | None]]:
    """A run of Chinese characters in entries of the glossary, from where to where; None for a character without one."""
    glossary = load_glossary()
    longest = _longest_form()
    best: list[tuple[int, int, int, Rendering | None]] = [(0, 0, 0, None)]  # missed, parts, where the last one starts
    for end in range(1, len(run) + 1):
        missed, parts, *_ = best[end - 1]
        options: list[tuple[int, int, int, Rendering | None]] = [(missed + 1, parts, end - 1, None)]
        for start in range(max(0, end - longest), end):
            rendering = glossary.get(run[start:end])
            if rendering is not None:
                missed, parts, *_ = best[start]
                options.append((missed, parts + 1, start, rendering))
        best.append(min(options, key=lambda option: option[:2]))
    found: list[tuple[int, int, Rendering | None]] = []
    end = len(run)
    while end:
        *_, start, rendering = best[end]
        found.append((start, end, rendering))
        end = start
    return found[::-1]


@cache
def _longest_form() -> int:
    return max(map(len, load_glossary()), default=1)


# --- other words for the same thing

_READ = 10
"""Nodes that are looked at for a word of several parts, such as `thread block`."""


@dataclass(frozen=True, slots=True)
class OtherWords:
    """A word of a question that the books lack, and the words that they have for it, at least one."""

    asked: str
    found: tuple[str, ...]


def find_other_words(question: str, library: SearchableLibrary, filters: Filters) -> tuple[OtherWords, ...]:
    """For each word of the table in `question` that no book has: the words for the same thing that the books do have.

    Args:
        question: in English words.
        filters: books that are searched.
    """
    found = []
    for asked, also in _load_table():
        for word in asked:
            if _pattern(word).search(question) and not _occurs(word, library, filters):
                held = _held(asked, library, filters) or _held(also, library, filters)
                if held:
                    found.append(OtherWords(word, held))
    return tuple(found)


def put_into_books_words(text: str, others: Iterable[OtherWords]) -> str:
    """`text` with the books' word in place of each one that they lack."""
    for other in others:
        text = _pattern(other.asked).sub(other.found[0], text)
    return text


@cache
def _load_table() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """For each line the words before the tab, and those after it."""
    text = files("rag").joinpath("vendor_words.tsv").read_text(encoding="utf-8")
    lines = (line.partition("\t") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return tuple((tuple(asked.split("|")), tuple(filter(None, also.split("|")))) for asked, _, also in lines)


def _held(words: Iterable[str], library: SearchableLibrary, filters: Filters) -> tuple[str, ...]:
    return tuple(word for word in words if _occurs(word, library, filters))


def _occurs(word: str, library: SearchableLibrary, filters: Filters) -> bool:
    return any(
        _pattern(word).search(" ".join((*hit.node.heading_path, hit.node.text)))
        for hit in library.lexical(word, _READ, filters)
    )


@cache
def _pattern(word: str) -> re.Pattern[str]:
    """Finds a word with hyphens or without, in the plural too; `LDS` only in capitals."""
    parts = r"[\s-]?".join(map(re.escape, re.split(r"[\s-]", word)))
    return re.compile(rf"(?<!\w){parts}(?:e?s)?(?!\w)", 0 if word.isupper() else re.IGNORECASE)


# --- misspelt words

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
    """Corrections in order: of the same letters (swapped or doubled) first, then by frequency."""
    return sorted(counts, key=lambda one: (set(one) != set(word), -counts[one], -len(one), one))


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
