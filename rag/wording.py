"""What a text says, as comparable pieces: stems of content words, identifiers, numbers.

One view of wording serves the extractive answers, the verdicts on citations and the evidence score, so that they agree
on what "the same word" is. English words are stemmed lightly; Chinese runs become character pairs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"(?P<number>(?<![A-Za-z_0-9.])\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?(?:x\d+)*)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:(?:::|\.|->)[A-Za-z_][A-Za-z0-9_]*)*(?:\(\))?)"
    r"|(?P<cjk>[\u3400-\u9fff\uf900-\ufaff]+)"
)
_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_CAMEL = re.compile(r"[a-z0-9][A-Z]")
_DESIGNATION = re.compile(r"(?=\w*\d)(?=\w*[A-Za-z])\w{3,}$")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SUFFIXES = ("ations", "ation", "ings", "ing", "edly", "ies", "ied", "ers", "er", "ed", "es", "ly", "s", "e")

_CAPITAL = re.compile(r"(?<![\w.\-/:])[A-Z][A-Za-z0-9+#]+(?![\w.]*[A-Za-z0-9_])")
_SENTENCE_START = re.compile(r"(?:^|[.!?:;])[\s\"'(\[*]*$")
_COMMON_CAPITALS = frozenset("gpu gpus cpu cpus id os api apis".split())

_STOP_WORDS = (
    "a about above after again all also although am an and any are as at be because been before being below "
    "between both but by can cannot could did do does doing done down during each either else ever every few "
    "for from further get gets give given gives had has have having he her here hers him his how however i "
    "if in into is it its itself just let like made make makes many may me might more most much must my "
    "neither no nor not now of off often on once one only onto or other our ours out over own per quite "
    "rather said same say see shall she should since so some such than that the their theirs them then there "
    "therefore these they this those though through thus to too under until up upon us use used uses using "
    "very via want was way we well were what whatever when where whether which while who whom whose why will "
    "with within without would yet you your yours explain describe mean means called name named tell please "
    "happen happens between does difference example following kind reason thing things"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that carry no evidence. `difference`, `example` and their like are question words here."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The pieces of one text.

    Attributes:
        stems: content words, stemmed, lower case; parts of identifiers too; pairs of Chinese characters.
        identifiers: names as written (`cudaMemcpyAsync`, `blockIdx.x`, `__syncthreads`), lower case, without `()`.
        numbers: as text, thousands separators removed.
        sequence: stems in order of the text, repeats kept, for measures of closeness.
    """

    stems: frozenset[str]
    identifiers: frozenset[str]
    numbers: frozenset[str]
    sequence: tuple[str, ...]

    @property
    def pieces(self) -> frozenset[str]:
        """Everything that can be matched."""
        return self.stems | self.identifiers | self.numbers


@lru_cache(maxsize=16384)
def wording(text: str) -> Wording:
    """The wording of `text`; kept for the texts seen last."""
    sequence: list[str] = []
    identifiers: set[str] = set()
    numbers: set[str] = set()
    for match in _TOKEN.finditer(text):
        token = match.group()
        if match.lastgroup == "number":
            number = _plain_number(token)
            numbers.add(number)
            sequence.append(number)
        elif match.lastgroup == "cjk":
            sequence.extend(token[i : i + 2] for i in range(max(len(token) - 1, 1)))
        else:
            bare = token.removesuffix("()")
            if is_identifier(token):
                identifiers.add(bare.lower())
                sequence.extend(stem(part.lower()) for part in _PARTS.findall(bare) if part.lower() not in STOP_WORDS)
            elif bare.lower() not in STOP_WORDS:
                sequence.extend(stem(part) for part in bare.lower().split("."))
    stems = frozenset(piece for piece in sequence if piece not in numbers and piece)
    return Wording(stems, frozenset(identifiers), frozenset(numbers), tuple(sequence))


def names_in(text: str) -> frozenset[str]:
    """What a text calls by name: identifiers and designations such as `gfx90a`, lower case, without `()`."""
    return frozenset(
        match.group().removesuffix("()").lower()
        for match in _TOKEN.finditer(text)
        if match.lastgroup == "word" and (is_identifier(match.group()) or _DESIGNATION.match(match.group()))
    )


def proper_names(text: str, *, sentences: bool = True) -> frozenset[str]:
    """Words with a capital, lower case: `numba`, `nccl`. What any GPU book calls by capitals (`GPU`) is none.

    Args:
        sentences: whether the first word of a sentence has its capital from the sentence; never so in Chinese.
    """
    if text.isupper():
        return frozenset()
    sentences = sentences and not _CJK.search(text)
    found: set[str] = set()
    for match in _CAPITAL.finditer(text):
        word = match.group()
        first = sentences and word[1:].islower() and _SENTENCE_START.search(text[: match.start()])
        if not first and word.lower() not in STOP_WORDS and word.lower() not in _COMMON_CAPITALS:
            found.add(word.lower())
    return frozenset(found)


def count_words(text: str) -> int:
    """Words of a text; two Chinese characters count as one."""
    return len(text.split()) + len(_CJK.findall(text)) // 2


def is_identifier(token: str) -> bool:
    """Whether a token is a name from code: underscores, inner capitals, `::`, `->`, a dot within, or `()`."""
    bare = token.removesuffix("()")
    if bare != token or "::" in bare or "->" in bare or "_" in bare.strip("_") or bare.startswith("__"):
        return True
    return bool(_CAMEL.search(bare)) or ("." in bare and not bare[0].isupper())


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """A light stem: the longest common suffix off, as long as three letters stay."""
    if len(word) <= 3 or not word.isalpha() or not word.isascii():
        return word
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            root = word[: -len(suffix)]
            if suffix in ("ies", "ied"):
                return root + "i"
            if suffix == "s" and root.endswith("s"):
                return word
            if len(root) > 3 and root[-1] == root[-2] and root[-1] not in "lsz":
                root = root[:-1]
            return root[:-1] + "i" if root.endswith("y") and len(root) > 3 else root.rstrip("e") or root
    return word[:-1] + "i" if word.endswith("y") and len(word) > 3 else word


def _plain_number(token: str) -> str:
    number = token.rstrip(".,")
    return re.sub(r",(?=\d{3}(?!\d))", "", number)
