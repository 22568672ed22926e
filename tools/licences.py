"""Checks that every pinned package that is installed has a licence that this project may stand on.

`python -m tools.licences` prints what it cannot place, and ends with status 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
ALLOWED = re.compile(
    r"\b(MIT|BSD|[0-4]-Clause|Apache|ISCL?|PSF|Python|MPL|Mozilla Public|HPND|Unlicense|Zlib|CC0|BSL-1\.0|LGPL)\b",
    re.IGNORECASE,
)
READ = {"axe-playwright-python": "MIT"}
"""Licences read in the package itself, where it does not say."""


def licence_of(package: Distribution) -> str:
    """What a package says of its licence."""
    told = package.metadata
    classifiers = [line.rpartition("::")[2].strip() for line in told.get_all("Classifier", []) if "License ::" in line]
    said = [line[:200] for name in ("License-Expression", "License") for line in told.get_all(name, [])[:1]]
    return "; ".join((*said, *classifiers))


def main(argv: list[str] | None = None) -> int:
    """Prints the packages whose licence is not among those allowed."""
    argparse.ArgumentParser(prog="python -m tools.licences", description=__doc__).parse_args(argv)
    unknown = 0
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        name = line.partition("==")[0].strip()
        if not name or name.startswith("#"):
            continue
        try:
            licence = READ.get(name) or licence_of(distribution(name))
        except PackageNotFoundError:
            continue  # of another platform, or of an extra
        if not ALLOWED.search(licence):
            unknown += 1
            sys.stdout.write(f"{name}: {licence or 'says no licence'}\n")
    return int(unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
