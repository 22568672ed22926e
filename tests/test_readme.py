"""The README's file tree is made from the modules' own first lines, so it cannot go stale.

`python tests/test_readme.py` writes it anew.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("indexes", "rag", "evals", "api")
_TREE = re.compile(r"(?<=<!-- tree:start -->\n).*?(?=<!-- tree:end -->)", re.DOTALL)


def file_tree() -> str:
    """Every module of the floors with the first sentence of its docstring."""
    lines = ["```"]
    for floor in FLOORS:
        folders = sorted({path.parent for path in (ROOT / floor).rglob("*.py") if "sample_book" not in path.parts})
        for folder in folders:
            name = folder.relative_to(ROOT).as_posix()
            lines.append(f"{name + '/':<34}{_purpose(folder / '__init__.py')}".rstrip())
            modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            lines += [f"  {path.name:<32}{_purpose(path)}" for path in modules]
    return "\n".join([*lines, "```", ""])


def _purpose(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else None
    first = " ".join((doc or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.])\s", first)[0].rstrip(".")
    return sentence if len(sentence) <= 96 else f"{sentence[:95].rsplit(' ', 1)[0]} …"


def test_the_readme_names_every_file() -> None:
    found = _TREE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    assert found.group(0) == file_tree(), "run: python tests/test_readme.py"


def test_every_module_says_what_it_is() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
        if "sample_book" not in path.parts and not _purpose(path)
    ]
    assert silent == []


if __name__ == "__main__":
    readme = ROOT / "README.md"
    tree = file_tree()
    readme.write_text(_TREE.sub(lambda _: tree, readme.read_text(encoding="utf-8")), encoding="utf-8")
