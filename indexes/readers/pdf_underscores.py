"""Underscores that a PDF draws as thin rules, put back into the words they belong to.

TeX has no underscore in the fonts of its oldest encoding, which is still the default: `cuda_memcpy` is printed as
letters, a rule three tenths of the type's size wide, and letters. What tells it from rules of tables, fractions, roots
and underlines is that it stands on the letters' baseline, touches letters sideways, and has none above or below it.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from indexes.readers.pdf_word import Word

MAX_WIDTH, MAX_HEIGHT = 20.0, 2.0
"""Points; of larger rules none is asked for more."""
NARROWEST, WIDEST = 0.2, 0.7
"""Width of an underscore in sizes of the type around it; TeX's is 0.3."""
THICKEST = 0.12
"""Height of an underscore in sizes of the type around it."""
BELOW, ABOVE = 0.12, 0.42
"""How far below and above the lower edge of the letters' boxes, in sizes of type, their baseline is looked for."""
TOUCHING = 0.13
"""White space, in sizes of type, between an underscore and its neighbour; a space between words is wider, even where
it is pressed and PDFium adds the pen's width to the rule."""
OVERLAP = 0.15
"""How far an underscore may reach into the box of its neighbour, in sizes of type."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A thin horizontal rule, in points, origin at the page's lower left."""

    x0: float
    x1: float
    bottom: float
    top: float


_Token = Word | Rule


def thin_rules(page: Any, count: int) -> list[Rule]:
    """Short thin rules among the `count` objects of an open PDFium page."""
    import pypdfium2.raw as pdfium

    object_of, type_of, bounds_of = pdfium.FPDFPage_GetObject, pdfium.FPDFPageObj_GetType, pdfium.FPDFPageObj_GetBounds
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    found: list[Rule] = []
    for index in range(count):
        drawn = object_of(page, index)
        if type_of(drawn) != pdfium.FPDF_PAGEOBJ_PATH or not bounds_of(drawn, left, bottom, right, top):
            continue
        width, height = right.value - left.value, top.value - bottom.value
        if height < MAX_HEIGHT and height < width < MAX_WIDTH:
            found.append(Rule(left.value, right.value, bottom.value, top.value))
    return found


def with_underscores(words: Sequence[Word], rules: Sequence[Rule]) -> Sequence[Word]:
    """Words in their order; those that underscores join are one word, in the place of its first part."""
    if not rules:
        return words
    at_height: dict[int, list[int]] = defaultdict(list)
    for index, word in enumerate(words):
        for step in range(_step(word.bottom - BELOW * word.size), _step(word.bottom + ABOVE * word.size) + 1):
            at_height[step].append(index)
    order = {id(word): index for index, word in enumerate(words)}
    replaced: dict[int, Word | None] = {}
    for line in _by_height(rules):
        near = [words[index] for index in at_height[_step(_middle(line[0]))]]
        if not near:
            continue
        for chain in _chains([rule for rule in line if _is_free(rule, near)], near):
            parts = sorted(order[id(part)] for part in chain if isinstance(part, Word))
            if any(part in replaced for part in parts):
                continue
            replaced.update(dict.fromkeys(parts))
            replaced[parts[0]] = _joined(chain)
    kept = (replaced.get(index, word) for index, word in enumerate(words))
    return [word for word in kept if word is not None]


def _step(height: float) -> int:
    return int(height // 4)


def _middle(rule: Rule) -> float:
    return (rule.bottom + rule.top) / 2


def _by_height(rules: Sequence[Rule]) -> Iterator[list[Rule]]:
    """Rules of one height."""
    line: list[Rule] = []
    for rule in sorted(rules, key=_middle):
        if line and _middle(rule) - _middle(line[0]) > 0.3:
            yield line
            line = []
        line.append(rule)
    if line:
        yield line


def _is_free(rule: Rule, near: Sequence[Word]) -> bool:
    """True when no letter stands over the rule, as over an underline or a fraction's bar."""
    return not any(min(rule.x1, word.x1) - max(rule.x0, word.x0) > OVERLAP * word.size for word in near)


def _chains(rules: Sequence[Rule], near: Sequence[Word]) -> Iterator[list[_Token]]:
    """Words and underscores that touch each other, from left to right."""
    chain: list[_Token] = []
    tokens: list[_Token] = [*rules, *near]
    for token in sorted(tokens, key=lambda one: one.x0):
        if chain and not _touch(chain[-1], token, near):
            yield from _whole(chain)
            chain = []
        chain.append(token)
    yield from _whole(chain)


def _whole(chain: list[_Token]) -> Iterator[list[_Token]]:
    words = [part for part in chain if isinstance(part, Word)]
    if len(words) < len(chain) and any(letter.isalnum() for word in words for letter in word.text):
        yield chain


def _touch(last: _Token, token: _Token, near: Sequence[Word]) -> bool:
    """True when an underscore and what stands beside it make one word; two words never do."""
    beside = [part for part in (last, token) if isinstance(part, Word)]
    if len(beside) == 2:
        return False
    size = beside[0].size if beside else max(word.size for word in near)
    for rule in (last, token):
        if isinstance(rule, Rule):
            fits = NARROWEST * size < rule.x1 - rule.x0 < WIDEST * size and rule.top - rule.bottom < THICKEST * size
            baseline = beside[0].bottom if beside else rule.bottom
            if not fits or not -BELOW * size < _middle(rule) - baseline < ABOVE * size:
                return False
    return -OVERLAP * size < token.x0 - last.x1 < TOUCHING * size


def _joined(chain: Sequence[_Token]) -> Word:
    words = [part for part in chain if isinstance(part, Word)]
    main = max(words, key=lambda word: len(word.text))
    text = "".join(part.text if isinstance(part, Word) else "_" for part in chain)
    bottom, top = min(word.bottom for word in words), max(word.top for word in words)
    return replace(main, text=text, x0=chain[0].x0, x1=chain[-1].x1, bottom=bottom, top=top)
