"""A question in the books' words: Chinese terms in English, misspelt words corrected, one maker's names for another's.

**Glossary.** `glossary.tsv` holds one entry per line: Chinese forms separated by `|`, a tab, the English words that an
English book would use: the best rendering first, after ` / ` other words that books use too. Sections begin with `#`;
those whose name begins with `Everyday words` hold no terms of the subject. A question is covered with entries so that
as few characters as possible stay uncovered, then by the fewest entries: 共享内存 is `shared memory`, not 共享 and 内存
apart.

**Spelling.** 'coalesing' is searched for as 'coalescing'. A word is right when the library holds it, or when it is an
English word that the library happens not to hold: the bundled encoder's list of words, the glossary's and
`english_words.tsv` are the dictionary. Where only 'coalesced' is held, 'uncoalesced' becomes 'un-coalesced'. Any other
word becomes the library's most frequent word one edit away (Damerau: a letter more, less or other, or two neighbours
swapped), or two edits away if it is long. A name from code takes only an edit that makes no other name of it.

**Other words for the same thing.** Where the books lack LDS, a question about it is asked about shared memory.
`vendor_words.tsv` holds one thing per line: its words separated by `|`, then, after a tab, words that mean it in some
books and something else in others (OpenCL's local memory): they are taken where the books have no other, and a question
that has them is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

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


# --- spelling

LEAST_LETTERS = 4
LONG_LETTERS = 8
"""From this length on two edits are allowed."""
NAME_LETTERS = 8
"""Least length of a name from code that is corrected."""
LEAST_NODES = 2
"""A word outside the dictionary that fewer nodes hold may be a misspelling itself."""
MOST_STRANGE = 4
"""Words outside the dictionary in a text of any length."""
NODES_READ = 20
"""Best nodes for a word that are looked at for the word itself."""
MOST_TRIED = 5
"""Corrections of a word that are looked for in the library."""

_LETTER = rf"[^\W{CJK}]"
"""Part of a word; a Chinese character beside a name is none."""
_WORD = re.compile(rf"(?<!{_LETTER})(?<![.:/@#-])[A-Za-z_]{_LETTER}*(?:(?:::|\.|->){_LETTER}+)*(?!{_LETTER}|[/@-])")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SPOKEN = frozenset(
    "whats thats dont doesnt didnt isnt arent wasnt cant couldnt shouldnt wouldnt wont havent ive".split()
)
"""As typed without their apostrophes."""
_ENDINGS = (
    ("s", 3),
    ("able", 4),
    ("or", 4),
    ("ors", 4),
    ("es", 4),
    ("ly", 4),
    ("ed", 5),
    ("ing", 5),
    ("er", 5),
    ("ers", 5),
)
"""Endings of English words, each with the fewest letters before it."""
_NAMES = frozenset(
    "alpaka arrayfire chapel cublas cudf cudnn cufft cuml cupy curand cusolver cusparse cutlass dask directx futhark "
    "halide hipblas hipcc jax julia keras kokkos metal miopen nccl nvcc nvlink numba numpy onnx openacc opencl opencv "
    "opengl openmp pytorch raja rapids rccl rocm rust scipy spirv sycl taichi tensorflow tensorrt thrust triton vulkan "
    "webgpu".split()
)
"""Product names one letter away from other words; never corrected."""


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
    pieces: list[str] = []
    corrections: dict[str, None] = {}
    position = 0
    for match in _WORD.finditer(text):
        better = _better(match.group(), library)
        if better is not None:
            pieces.extend((text[position : match.start()], better))
            position = match.end()
            if better not in STOP_WORDS:
                corrections[better] = None
    return Spelled("".join((*pieces, text[position:])), tuple(corrections))


def _better(word: str, library: SearchableLibrary) -> str | None:
    """The correction of a misspelt word; None if the word is right or no known word is near."""
    if is_identifier(word):
        return _nearest_name(word, library) if len(word) >= NAME_LETTERS and not _holds(library, word) else None
    word = word if word.isupper() else word.lower()
    if (plain := word.removeprefix("un")) != word and len(plain) >= LONG_LETTERS and _holds(library, plain):
        return None if _holds(library, word) else f"un-{plain}"
    if len(word) < LEAST_LETTERS or not word.isalpha() or word.isupper() or is_english(word) or _holds(library, word):
        return None
    near = _edits(word)
    if meant := {one for one in near & STOP_WORDS if one[0] == word[0]}:
        return _likeliest(word, dict.fromkeys(meant, 0))[0]
    for candidates in (near, _two_edits(word) if len(word) >= LONG_LETTERS else set()):
        terms = {one: term[0] for one in candidates if one[0] == word[0] and (term := index_terms(one))}
        counts = library.count_terms(sorted(set(terms.values())))
        held = {one: counts[term] for one, term in terms.items() if counts[term]}
        for one in _likeliest(word, held)[:MOST_TRIED]:
            if (is_english(one) or held[one] >= LEAST_NODES) and _holds(library, one):
                return one if terms[one] != stem(word) else None
    return None


def _nearest_name(name: str, library: SearchableLibrary) -> str | None:
    """The library's name for one with a letter left out or doubled, or two swapped: `cudaMaloc`."""
    near = {name[: match.start()] + name[match.start() + 1 :] for match in re.finditer(r"([a-z])(?=\1)", name)}
    for match in re.finditer(r"(?<=[a-zA-Z])(?=[a-z])", name):
        near |= {name[: match.start()] + letter + name[match.start() :] for letter in _LETTERS}
    for match in re.finditer(r"[a-z](?=[a-z])", name):
        place = match.start()
        near.add(name[:place] + name[place + 1] + name[place] + name[place + 2 :])
    terms = {one: index_terms(one)[0] for one in near if is_identifier(one)}
    counts = library.count_terms(sorted(set(terms.values())))
    return max((one for one in terms if counts[terms[one]]), key=lambda one: counts[terms[one]], default=None)


def _holds(library: SearchableLibrary, word: str) -> bool:
    """Whether the library has the word itself (an English one also with an ending), not only its stem."""
    ending = "(?:e?s|e?d|ing)?" if is_english(word) else ""
    written = re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}{ending}(?![A-Za-z0-9])", re.IGNORECASE)
    return any(
        written.search(" ".join((*hit.node.heading_path, hit.node.text))) for hit in library.lexical(word, NODES_READ)
    )


def _likeliest(word: str, counts: Mapping[str, int]) -> list[str]:
    """Corrections in order: of the same letters (swapped or doubled) first, then English ones, then by frequency."""
    return sorted(counts, key=lambda one: (set(one) != set(word), not is_english(one), -counts[one], -len(one), one))


def _edits(word: str) -> set[str]:
    """All words one edit away."""
    splits = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    found = {left + right[1:] for left, right in splits if right}
    found |= {left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1}
    found |= {left + letter + right for left, right in splits for letter in _LETTERS}
    found |= {left + letter + right[1:] for left, right in splits if right for letter in _LETTERS}
    return found - {word}


def _two_edits(word: str) -> set[str]:
    """Dictionary words two edits away with the same first letter."""
    letters = set(word)
    alike = (other for other in _by_first_letter().get(word[0], ()) if len(letters ^ set(other)) <= 4)
    return {other for other in alike if _distance(word, other) == 2}


def _distance(one: str, other: str) -> int:
    """Edits between two words, neighbours swapped counting as one (optimal string alignment); 3 for any above 2."""
    most = 2
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, row, older = row, [i], before
        for j, b in enumerate(other, 1):
            cost = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        before = previous
        if min(row) > most:
            return most + 1
    return row[-1]


def is_english(word: str) -> bool:
    """Whether the dictionary has this lower-case word, as it is or without its ending."""
    if word in _known_words() or word in _other_words() or word in _SPOKEN or word in _NAMES:
        return True
    if word.removeprefix("un") in _known_words():
        return True
    bases = (
        word.removesuffix(ending)
        for ending, least in _ENDINGS
        if word.endswith(ending) and len(word) >= least + len(ending)
    )
    return any(form in _known_words() for base in bases for form in (base, f"{base}e"))


@cache
def _known_words() -> frozenset[str]:
    """English words: the bundled encoder's whole words and those of the glossary."""
    encoder = (bundled_model_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    glossary = (f"{entry.best} {entry.others}" for entry in load_glossary().values())
    both = {word for words in (encoder, *map(str.split, glossary)) for word in _plain(words)}
    return frozenset(both | STOP_WORDS)


@cache
def _other_words() -> frozenset[str]:
    """Everyday English words beyond those: bake, schema, infer."""
    text = files("rag").joinpath("english_words.tsv").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _plain(words: Iterable[str]) -> Iterator[str]:
    return (word.lower() for word in words if len(word) > 2 and word.isascii() and word.isalpha())


@cache
def _by_first_letter() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in sorted(_known_words()):
        found.setdefault(word[0], []).append(word)
    return found


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
