"""Formulas that are marked up symbol by symbol, MathML's and Office's, as a line of text: `2^16`, `(a + b)/2`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from bs4.element import Tag

from indexes.readers.elements import one_line

MAX_DEPTH = 60
"""Symbols nested deeper are read in their order; hostile files nest without end."""
_SILENT = frozenset({"annotation", "annotation-xml", "mphantom", "none", "mprescripts"})
_ATOM = re.compile(r"[^\W_]+(?:\.\d+)?|.|[(\[][^()\[\]]*[)\]]")


def formula_text(tag: Tag) -> str:
    """Text of a `math`, `oMath` or `oMathPara`. Every symbol is kept, in its order; a raised number stays raised."""
    return one_line(_text(tag, 0))


def tex_of(tag: Tag) -> str:
    """The TeX that a formula in MathML was made of, where it is noted; else ''."""
    note = tag.find("annotation", attrs={"encoding": "application/x-tex"})
    return one_line(note.get_text()) if isinstance(note, Tag) else ""


def local_name(tag: Tag) -> str:
    """The name of a tag without its namespace."""
    return str(tag.name).rpartition(":")[2]


def _text(tag: Tag, depth: int) -> str:
    name = local_name(tag)
    if name in _SILENT:
        return ""
    children = [child for child in tag.children if isinstance(child, Tag) and not local_name(child).endswith("Pr")]
    if depth > MAX_DEPTH or not children:
        return " " if name in ("mspace", "br") else _leaf(name, tag.get_text(" " if children else ""))
    parts = [_text(child, depth + 1) for child in children]
    if name == "d":
        parts = [_mark(tag, "begChr", "("), _mark(tag, "sepChr", "|").join(parts), _mark(tag, "endChr", ")")]
    elif name == "mfenced":
        inner = str(tag.get("separators", ","))[:1].join(parts)
        parts = [str(tag.get("open", "(")), inner, str(tag.get("close", ")"))]
    elif name == "nary":
        parts = [_scripts([_mark(tag, "chr", "∫"), *parts[:2]], "_^"), " ", *parts[2:]]
    elif name in _WRITERS:
        return _WRITERS[name](parts)
    return _joined(parts)


def _leaf(name: str, text: str) -> str:
    """A symbol: operators and relations between spaces, functions such as `max` too."""
    if name == "t":  # Office sets its spaces itself
        return re.sub(r"\s+", " ", text)
    text = one_line(text)
    apart = name == "mo" and len(text) == 1 and unicodedata.category(text) == "Sm"
    return f" {text} " if apart or (name == "mi" and len(text) > 1) or name == "mtext" else text


def _mark(tag: Tag, name: str, default: str) -> str:
    """A sign that the properties of one of Office's objects name."""
    own = next((child for child in tag.children if isinstance(child, Tag) and local_name(child).endswith("Pr")), None)
    for child in own.children if own is not None else ():
        if isinstance(child, Tag) and local_name(child) == name:
            return str(child.get("m:val", child.get("val", "")))
    return default


def _joined(parts: Sequence[str]) -> str:
    """Parts side by side; two numbers never run into one, nor a power and what follows it."""
    text, last = "", ""
    for part in parts:
        apart = last[-1:].isalnum() and part[:1].isalnum() and ("^" in last or "_" in last)
        text += f" {part}" if apart or (last[-1:].isdigit() and part[:1].isdigit()) else part
        last = part or last
    return text


def _grouped(part: str) -> str:
    part = one_line(part)
    return part if not part or _ATOM.fullmatch(part) else f"({part})"


def _scripts(parts: Sequence[str], signs: str) -> str:
    """A base with what is below or above it; an empty place says nothing."""
    base, *scripts = parts
    found = [sign + _grouped(script) for sign, script in zip(signs, scripts, strict=False) if script.strip()]
    # A base that ends in another power or is a sum would be read otherwise without brackets.
    return (base.rstrip() if " " not in base.strip() else _grouped(base)) + "".join(found)


def _script(signs: str) -> Callable[[Sequence[str]], str]:
    return lambda parts: _scripts(parts, signs)


def _between(sign: str) -> Callable[[Sequence[str]], str]:
    return lambda parts: sign.join(map(_grouped, parts))


def _root(parts: Sequence[str]) -> str:
    return "√" + _grouped(_joined(parts))


_WRITERS: dict[str, Callable[[Sequence[str]], str]] = {
    **dict.fromkeys(("msup", "sSup", "mover", "limUpp"), _script("^")),
    **dict.fromkeys(("msub", "sSub", "munder", "limLow"), _script("_")),
    **dict.fromkeys(("msubsup", "sSubSup", "munderover"), _script("_^")),
    **dict.fromkeys(("mfrac", "f"), _between("/")),
    "msqrt": _root,
    "mroot": lambda parts: f"{_grouped(parts[0])}^(1/{one_line(' '.join(parts[1:]))})",
    "rad": lambda parts: f"{_grouped(parts[-1])}^(1/{one_line(parts[0])})" if len(parts) > 1 and parts[0].strip()
    else _root(parts[-1:]),
    "func": " ".join,
    "mtr": ", ".join,
    "mr": ", ".join,
    "mtd": _joined,
    "mtable": "; ".join,
    "m": "; ".join,
    "eqArr": "; ".join,
}  # fmt: skip
