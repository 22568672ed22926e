"""A folder as one book: which files are its chapters, and in what order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_SKIPPED_FOLDERS = frozenset(
    {"licenses", "license", "licences", "licence", "node_modules", "__pycache__", "_build", "_site", "site-packages",
     "venv", "target", "dist"}
)  # fmt: skip
_LICENCE_FILE = re.compile(
    r"^(licen[sc]es?|notice|copying|copyright|code[-_]of[-_]conduct|contributing|codeowners|cla)([-_.].*)?$",
    re.IGNORECASE,
)
_BUILD_FILES = frozenset({"conf.py", "setup.py", "cmakelists.txt", "requirements.txt", "__init__.py", "robots.txt"})
_OPENERS = ("index", "readme", "_index", "preface", "foreword", "introduction", "intro", "overview", "home")
_CLOSERS = ("appendix", "glossary", "references", "bibliography", "afterword", "changelog")
_ORDER_FILES = ("_toc.yml", "_quarto.yml", "_bookdown.yml", "mkdocs.yml", "SUMMARY.md", "src/SUMMARY.md", "toc.yml")
_TOCTREE = re.compile(r"^(?:[ \t]*\.\. toctree::|[`:]{3,}\{(?:toctree|tableofcontents)\}).*$", re.MULTILINE)
_PATH_LIKE = re.compile(r"[\w./][\w./-]*")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Make a sort key that puts `2-b` before `10-a`."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name.casefold()) if part
    )


def files_below(root: Path, suffixes: Iterable[str]) -> list[Path]:
    """List files with these endings below a folder, without licences, hidden and build folders, links that lead out."""
    wanted = frozenset(suffixes)
    found: list[Path] = []
    for folder, names, files in os.walk(root):
        names[:] = sorted(
            name for name in names if not name.startswith(".") and name.casefold() not in _SKIPPED_FOLDERS
        )
        for name in files:
            path = Path(folder, name)
            if path.suffix.casefold() not in wanted or name.startswith("."):
                continue
            if _LICENCE_FILE.match(name) or name.casefold() in _BUILD_FILES:
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
                continue
            found.append(path)
    return found


def reading_order(root: Path, files: list[Path]) -> list[Path]:
    """Order chapters as a table of contents in the folder says, else by name, with openers first."""
    by_name = sorted(files, key=lambda path: _order_key(path.relative_to(root)))
    named = _declared_order(root, by_name)
    if not named:
        return by_name
    # A file that the table of contents does not name follows the last named file of its folder; an opener comes first.
    openers: dict[Path, list[Path]] = {}
    others: dict[Path, list[Path]] = {}
    known = set(named)
    for path in by_name:
        if path not in known:
            kind = openers if _place(path.stem) == 0 else others
            kind.setdefault(path.parent, []).append(path)
    last = {path.parent: path for path in named}
    placed: list[Path] = []
    for path in named:
        placed.extend(openers.pop(path.parent, []))
        placed.append(path)
        if last[path.parent] == path:
            placed.extend(others.pop(path.parent, []))
    done = set(placed)
    return [*placed, *(path for path in by_name if path not in done)]


def _order_key(relative: Path) -> tuple[tuple[int, tuple[tuple[int, int, str], ...]], ...]:
    keys: list[tuple[int, tuple[tuple[int, int, str], ...]]] = []
    for part in relative.parts[:-1]:
        keys.append((_place(part), natural_key(part)))
    stem = relative.stem.casefold()
    # Files of a folder come before its subfolders, its opener first of all.
    keys.append((_place(stem), natural_key(stem)) if _place(stem) else (0, natural_key(str(_OPENERS.index(stem)))))
    return tuple(keys)


def _place(name: str) -> int:
    stem = name.casefold()
    if stem in _OPENERS:
        return 0
    return 2 if stem in _CLOSERS else 1


def _declared_order(root: Path, files: list[Path]) -> list[Path]:
    """Files as the folder's own table of contents lists them; empty if it has none."""
    known = {path.resolve(): path for path in files}
    for name in _ORDER_FILES:
        order_file = root / name
        if order_file.is_file():
            order = _named_files(order_file.read_text(encoding="utf-8", errors="replace"), order_file.parent, known)
            if len(order) > 1:
                return order
    for stem in ("index.rst", "index.md"):
        if (root / stem).is_file():
            order = _follow_toctrees(root / stem, known, set())
            if len(order) > 1:
                return order
    return []


def _follow_toctrees(start: Path, known: dict[Path, Path], seen: set[Path]) -> list[Path]:
    resolved = start.resolve()
    if resolved in seen or resolved not in known:
        return []
    seen.add(resolved)
    order = [known[resolved]]
    text = start.read_text(encoding="utf-8", errors="replace")
    for match in _TOCTREE.finditer(text):
        body = re.split(r"\n(?=\S)", text[match.end() :], maxsplit=1)[0]
        if match[0].lstrip().startswith(("`", ":")):
            body = re.split(r"\n[`:]{3,}", text[match.end() :], maxsplit=1)[0]
        for line in body.split("\n"):
            entry = re.sub(r"^.*<([^<>]+)>\s*$", r"\1", line.strip())
            if entry and not entry.startswith(":"):
                for target in _candidates(start.parent, entry):
                    order.extend(_follow_toctrees(target, known, seen))
    return order


def _named_files(text: str, base: Path, known: dict[Path, Path]) -> list[Path]:
    order: list[Path] = []
    for name in _PATH_LIKE.findall(text):
        for target in _candidates(base, name.strip()):
            path = known.get(target.resolve())
            if path is not None:
                order.append(path)
    return list(dict.fromkeys(order))


def _candidates(base: Path, entry: str) -> list[Path]:
    if not entry or len(entry) > 300 or "\x00" in entry:
        return []
    target = base / entry.lstrip("/")
    names = [target, *(target.with_name(target.name + suffix) for suffix in (".rst", ".md", ".ipynb", ".qmd", ".txt"))]
    return [path for path in names if path.is_file()][:1] if target.name not in ("", ".", "..") else []
