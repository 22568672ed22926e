"""Writes `docs/configuration.md` from the settings: `python -m tools.configuration_page > docs/configuration.md`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from api.settings import ENV_PREFIX, TOML_NAME, CoalesceSettings

AREAS = {
    "home": "Home",
    "embedder": "Library",
    "candidates": "Finding passages",
    "generator": "Answering",
    "judge_url": "Judge of a comparison",
    "host": "Server",
}
"""Each area by its first setting; the settings class is in the order of the page."""
INTRODUCTION = f"""# Configuration

A value on the command line wins over one in the environment (`{ENV_PREFIX}*`), that over one in the home's
`{TOML_NAME}`, and that over the default. A name that is not a setting is refused with the nearest right one. What was
chosen to answer on the settings page wins over the file.

`--help` of a command lists those that it takes as options. The file has the settings by their own names:

```toml
generator = "remote"
base_url = "http://127.0.0.1:8001/v1"
model = "qwen3"
allowed_hosts = ["books.example.org"]

[adapters]
qa = "qa"
```

In the environment, separate several values by commas: `COALESCE_ADAPTERS=qa=adapters/qa,exam=adapters/exam`. Name
the home on the command line or in the environment; the file is inside it.
"""
WORDS = {bool: "`true`, `false`", int: "whole number", float: "number", SecretStr: "secret", Path: "folder"}
HEAD = ("", "| setting | variable | values | default | meaning |", "|---|---|---|---|---|")


def configuration_page() -> str:
    """The page: a table of settings for each area."""
    lines = [INTRODUCTION.rstrip("\n")]
    for name, field in CoalesceSettings.model_fields.items():
        if name in AREAS:
            lines += ["", f"## {AREAS[name]}", *HEAD]
        cells = (f"`{name}`", f"`{ENV_PREFIX}{name.upper()}`", _values(field), _default(field), field.description or "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _values(field: FieldInfo) -> str:
    """What a setting takes, in words."""
    shape, arguments = get_origin(field.annotation), get_args(field.annotation)
    if shape is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if shape is dict:
        return "`NAME=VALUE`, several"
    if shape is tuple:
        return "text, several" if arguments[0] is str else "secret, several"
    kinds = [kind for kind in arguments if kind is not NoneType] or [field.annotation]
    return WORDS.get(kinds[0], "text") + _range(field)


def _range(field: FieldInfo) -> str:
    """The bounds of a number, in words; empty for anything else."""
    bounds = {
        name: getattr(mark, name) for mark in field.metadata for name in ("ge", "gt", "le") if hasattr(mark, name)
    }
    if "le" in bounds:
        return f", {bounds['ge']} to {bounds['le']}"
    if "ge" in bounds:
        return f", {bounds['ge']} or more"
    return f", above {bounds['gt']}" if "gt" in bounds else ""


def _default(field: FieldInfo) -> str:
    if field.annotation is Path:
        return "the platform's data folder"
    value = field.get_default(call_default_factory=True)
    if value is None or value == () or value == {}:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.configuration_page", description="Print the settings' page.")
    parser.parse_args(arguments)
    sys.stdout.write(configuration_page())


if __name__ == "__main__":
    main()
