"""Brings what a student wrote into one form: numbers, units, spelling and language no longer differ.

A text becomes terms: words without their endings, names from code, and numbers with what they can mean (`3.35 TB/s`,
`3350 GB/s`, `67 %`, `two thirds`, `2^10`). Chinese is read through the glossary.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.distance import OSA

from indexes.words import CJK, NEGATIONS, NUMBER_WORDS, SCALES, STOP_WORDS, number_value, stem
from rag.wording import cover

_KEPT = frozenset("own same before after more most less few first last only once".split())
"""Stop words that a fact may turn on."""
_LEFT_OUT = STOP_WORDS - _KEPT - NEGATIONS

_MARKS = str.maketrans(
    {"‐": "-", "‑": "-", "–": "-", "—": "-", "−": "-", "’": "'", "‘": "'", "²": "^2", "·": "*"}
    | {"，": ", ", "。": ". ", "；": "; ", "：": ": ", "、": ", "}
)
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\u202f|\u2009|(?<!\d\d\d) (?=\d{3}\b(?! \d)))(?=\d{3}\b)")
_CJK_RUN = re.compile(f"[{CJK}]+")
_NOT_CHINESE = re.compile(r"(?:从不|从未|并非|并不|不会|不能|不是|没有|无法|无需|不再|不(?![同仅均少])|没|未必?|非)")
_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九十")} | {"两": 2}
_COUNTED_CHINESE = re.compile(r"([一二两三四五六七八九十])(?=[个次遍倍条块趟位种步级层]|字节|周期|时钟)")
_LARGE_CHINESE = {"万": 1e4, "亿": 1e8}

_PARTS = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10,
    "sixteenth": 16, "twentieth": 20, "sixty-fourth": 64,
}  # fmt: skip
_PART = re.compile(rf"\b(a|an|one|two|three|\d+)[ -]({'|'.join(_PARTS)})s?\b|\b(half|quarter)\b")

_PREFIXES = {
    "k": 1e3, "kilo": 1e3, "ki": 1024.0, "kibi": 1024.0, "m": 1e6, "mega": 1e6, "mi": 2.0**20, "g": 1e9, "giga": 1e9,
    "gi": 2.0**30, "t": 1e12, "tera": 1e12, "p": 1e15, "peta": 1e15, "": 1.0,
}  # fmt: skip
_BASES = {
    "byte": ("b", "byte", "bytes"),
    "flop": ("flop", "flops", "op", "ops"),
    "hertz": ("hz", "hertz"),
    "bit": ("bit", "bits"),
}
_UNITS: dict[str, tuple[str, tuple[float, ...]]] = {
    f"{prefix}{name}": (base, (scale, 1024.0 ** round(math.log(scale, 1000))) if base == "byte" else (scale,))
    for base, names in _BASES.items()
    for prefix, scale in _PREFIXES.items()
    for name in names
}
for _name, _scale in (("", 1.0), ("milli", 1e-3), ("micro", 1e-6), ("nano", 1e-9)):
    _UNITS |= {f"{_name}{second}": ("second", (_scale,)) for second in ("second", "seconds", "sec")}
_UNITS |= {"s": ("second", (1.0,)), "ms": ("second", (1e-3,)), "us": ("second", (1e-6,)), "ns": ("second", (1e-9,))}
_UNITS |= {"μs": ("second", (1e-6,)), "%": ("", (0.01,)), "percent": ("", (0.01,)), "k": ("", (1e3,))}
_UNITS |= {word: ("", (scale,)) for word, scale in SCALES.items()}
_UNITS["b"] = ("", (1.0, 1e9))  # bytes or billions
_NEW_CLAUSE = frozenset("and but with whereas while vs versus than then though instead".split())
_WORDS_FOR_UNITS = {"ms": "millisecond", "us": "microsecond", "μs": "microsecond", "ns": "nanosecond"}

_TOKEN = re.compile(
    r"(?P<number>(?<![a-z_])(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?(?:\s?[*x×]\s?10\s?(?:\^|\*\*)\s?-?\d+"
    r"|\s?(?:\^|\*\*)\s?-?\d+|/\d+(?:\.\d+)?(?![a-z]))?)"
    rf"(?:\s?(?P<unit>%|(?:{'|'.join(sorted(map(re.escape, _UNITS), key=len, reverse=True))})(?![a-zμ])))?"
    r"|(?P<word>[a-zμ_][\w']*)|(?P<break>[.;,:!?](?=\s|$)|\n)"
)
_EQUAL_WORDS = {
    "operation": "flop", "operations": "flop", "ops": "flop", "op": "flop", "flops": "flop", "fewer": "few",
    "less": "few", "greater": "more",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Term:
    """A word or a number of a text.

    Attributes:
        text: the stem or name; of a number, as written.
        values: what a number can mean in base units, as written first; empty for a word.
        unit: `byte`, `flop`, `second`, `hertz` or `bit`, else "".
        clause: which clause of the text it stands in, from 0.
    """

    text: str
    values: tuple[float, ...] = ()
    unit: str = ""
    clause: int = 0

    @property
    def is_number(self) -> bool:
        """Whether it is a number."""
        return bool(self.values)

    def same(self, other: Term) -> bool:
        """Whether both say the same: equal numbers, or words that differ by a slip of the pen."""
        if self.is_number != other.is_number:
            return False
        if not self.is_number:
            return self.text == other.text or one_slip(self.text, other.text)
        if self.unit and other.unit:
            return self.unit == other.unit and any(same_number(a, b) for a in self.values[1:] for b in other.values[1:])
        return any(same_number(a, b) for a in self.values for b in other.values)


@lru_cache(maxsize=8192)
def terms(text: str) -> tuple[Term, ...]:
    """The terms of a text in its order, without stop words; negations stay, as `not`."""
    found: list[Term] = []
    clause = 0
    for match in _TOKEN.finditer(_prepare(text)):
        if match["break"]:
            clause += 1
        elif match["number"]:
            found.extend(_number(match["number"], match["unit"] or "", clause))
        else:
            clause += match["word"] in _NEW_CLAUSE
            found.extend(Term(word, clause=clause) for word in _word(match["word"]))
    return tuple(found)


def in_english(text: str) -> str:
    """The text with the glossary's English for its Chinese."""
    return _CJK_RUN.sub(lambda match: _english(match.group()), text).strip()


def one_slip(first: str, second: str) -> bool:
    """Whether two long words of letters differ by one letter too many, too few, wrong or exchanged.

    The first letter must be right: `inclusive` is not `exclusive` misspelt.
    """
    if max(len(first), len(second)) < 5 or first[0] != second[0]:
        return False
    if any(character.isdigit() for character in first + second):
        return False
    return OSA.distance(first, second, score_cutoff=1) <= 1


def same_number(first: float, second: float) -> bool:
    """Whether two numbers are equal, or one is the other rounded to at least two digits.

    Whole numbers below 10,000 are exact: 1000 is not 1024.
    """
    if math.isclose(first, second, rel_tol=1e-6):
        return True
    return _rounds_to(first, second) or _rounds_to(second, first)


def _rounds_to(exact: float, rounded: float) -> bool:
    if exact == 0 or rounded == 0 or (exact == int(exact) and abs(exact) < 10_000):
        return False
    size = math.floor(math.log10(abs(exact)))
    return any(
        math.isclose(
            math.floor(exact / 10.0 ** (size - kept + 1) + 0.5), rounded / 10.0 ** (size - kept + 1), rel_tol=1e-9
        )
        for kept in (2, 3)
    )


def _prepare(text: str) -> str:
    text = unicodedata.normalize("NFKC", text.translate(_MARKS)).casefold()
    text = re.sub(r"[`$\"“”‖|{}]|\*\*(?!\s?-?\d)", " ", _THOUSANDS.sub("", text))
    text = _CJK_RUN.sub(lambda match: _english(match.group()), _chinese_numbers(text))
    text = _PART.sub(_share, text)
    return NUMBER_WORDS.sub(lambda match: f" {number_value(match[0])} ", text)


def _chinese_numbers(text: str) -> str:
    text = re.sub(r"(\d+(?:\.\d+)?)\s*([万亿])", lambda m: f"{float(m[1]) * _LARGE_CHINESE[m[2]]:.0f}", text)
    return _COUNTED_CHINESE.sub(lambda m: f" {_DIGITS[m[1]]} ", text)


def _english(run: str) -> str:
    parts = []
    at = 0
    for match in _NOT_CHINESE.finditer(run):
        parts += [rendering.best for rendering in cover(run[at : match.start()])] + ["not"]
        at = match.end()
    return f" {' '.join(part for part in parts + [r.best for r in cover(run[at:])] if part)} "


def _share(match: re.Match[str]) -> str:
    if match[3]:
        return f" 1/{_PARTS[match[3]]} "
    count = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3}.get(match[1]) or int(match[1])
    return f" {count}/{_PARTS[match[2]]} "


def _number(written: str, unit: str, clause: int) -> Iterator[Term]:
    value = _value(written)
    if value is None:
        return
    base, scales = _UNITS.get(unit, ("", ()))
    yield Term(written, (value, *(value * scale for scale in scales)), base, clause)


def _value(written: str) -> float | None:
    plain = written.replace(" ", "").replace("**", "^")
    try:
        if match := re.fullmatch(r"(.+?)[*x×]10\^(-?\d+)", plain):
            return float(match[1]) * 10.0 ** int(match[2])
        if "^" in plain:
            base, _, power = plain.partition("^")
            return float(float(base) ** int(power))
        top, _, bottom = plain.partition("/")
        return float(top) / float(bottom) if bottom else float(top)
    except (ValueError, OverflowError, ZeroDivisionError):
        return None


def _word(word: str) -> Iterator[str]:
    word = word.strip("_'")
    if word in NEGATIONS or word.endswith("n't"):
        yield "not"
        return
    if not word or word in _LEFT_OUT:
        return
    word = _WORDS_FOR_UNITS.get(word, word)
    word = _EQUAL_WORDS.get(word, word)
    yield _EQUAL_WORDS.get(stem(word), stem(word))
