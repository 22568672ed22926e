"""The listings of the sample book: taken out of their fences, compiled with nvcc, and run where a GPU is.

`python tests/gpu/run_listings.py` compiles and runs every CUDA listing with a `main` and ends with status 1 when one
does not print PASS. Without nvcc or a GPU it says so and ends with status 0.

`python tests/gpu/run_listings.py compile` compiles every listing and writes the digests of all to `compiled.txt`, so
that the tests compile only what has changed since.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

BOOK = Path(__file__).resolve().parents[2] / "indexes" / "sample_book"
COMPILED = Path(__file__).with_name("compiled.txt")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_A_LIBRARY = re.compile(r"// needs: (mpi|nccl)\n")
ARCHITECTURE = "-arch=sm_80"
COMPILE_TIMEOUT_S = 120
RUN_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Listing:
    """A fenced code block.

    Attributes:
        name: chapter's file stem and running number in it, from 1.
        language: what the fence says, `cuda`, `cpp` or `python`.
    """

    name: str
    language: str
    code: str

    @property
    def is_program(self) -> bool:
        """Whether it can be run and judges its own result."""
        return self.language == "cuda" and "int main()" in self.code

    @property
    def compiles(self) -> bool:
        """Whether nvcc alone can compile it: some C++ listings need the headers of MPI or NCCL."""
        return self.language == "cuda" or (self.language == "cpp" and not NEEDS_A_LIBRARY.match(self.code))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.code.encode()).hexdigest()


def listings(book: Path = BOOK) -> Iterator[Listing]:
    """Every fenced block of the book in reading order."""
    for chapter in sorted(book.glob("*.md")):
        for number, (language, code) in enumerate(FENCE.findall(chapter.read_text(encoding="utf-8")), start=1):
            yield Listing(f"{chapter.stem}-{number}", language, code)


def compile_all(chosen: Sequence[Listing], folder: Path, *arguments: str, link: bool = False) -> dict[str, str]:
    """Compiles each listing by itself with warnings as errors; what the compiler said, for those that failed."""
    with ThreadPoolExecutor(max_workers=max(2, min(8, os.cpu_count() or 2))) as pool:
        said = pool.map(lambda listing: _compile(listing, folder, arguments, link), chosen)
        return {listing.name: text for listing, text in zip(chosen, said, strict=True) if text is not None}


def _compile(listing: Listing, folder: Path, arguments: Sequence[str], link: bool) -> str | None:
    source = folder / f"{listing.name}.cu"
    source.write_text(listing.code, encoding="utf-8")
    target = folder / (f"{listing.name}.run" if link else f"{listing.name}.o")
    command = ["nvcc", "-std=c++17", "-Werror", "all-warnings", *arguments, *([] if link else ["-c"])]
    done = subprocess.run(
        [*command, str(source), "-o", str(target)],
        capture_output=True,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
    )
    return None if done.returncode == 0 else f"{done.stdout}{done.stderr}"


def run_program(listing: Listing, folder: Path) -> str | None:
    """Runs a linked program; what is wrong with its outcome, None when it passes."""
    done = subprocess.run(
        [folder / f"{listing.name}.run"], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    if done.returncode == 0 and "PASS" in done.stdout.split():
        return None
    return f"status {done.returncode}, printed {done.stdout!r}"


def digests_compiled() -> frozenset[str]:
    """Digests of the listings that compiled when `compiled.txt` was written."""
    return frozenset(COMPILED.read_text(encoding="utf-8").split()[::2])


def why_not_compiled() -> str | None:
    """What is missing to compile; None when nothing is."""
    return None if shutil.which("nvcc") else "nvcc is not installed: the CUDA listings were not compiled"


def why_not_run() -> str | None:
    """What is missing to run programs; None when nothing is."""
    if missing := why_not_compiled():
        return missing
    probe = shutil.which("nvidia-smi")
    if probe is None or "GPU " not in subprocess.run([probe, "-L"], capture_output=True, text=True, check=False).stdout:
        return "no CUDA device is here: the programs were not run"
    return None


def compile_and_remember() -> int:
    """Compiles every listing; remembers the digests when all of them compile."""
    if missing := why_not_compiled():
        print(missing)
        return 1
    chosen = [listing for listing in listings() if listing.compiles]
    with tempfile.TemporaryDirectory() as name:
        broken = compile_all(chosen, Path(name), ARCHITECTURE)
    for said in broken.values():
        print(said)
    if not broken:
        COMPILED.write_text("".join(f"{each.digest}  {each.name}\n" for each in chosen), encoding="utf-8")
    print(f"{len(chosen) - len(broken)} of {len(chosen)} listings compile")
    return 1 if broken else 0


def run_programs() -> int:
    """Compiles and runs the programs; prints a line for each."""
    if missing := why_not_run():
        print(missing)
        return 0
    programs = [listing for listing in listings() if listing.is_program]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broken = compile_all(programs, folder, "-arch=native", link=True)
        for listing in programs:
            wrong = broken.get(listing.name) or run_program(listing, folder)
            failed += wrong is not None
            print(f"{listing.name}: {wrong or 'PASS'}")
    print(f"{len(programs) - failed} of {len(programs)} programs pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(compile_and_remember() if sys.argv[1:] == ["compile"] else run_programs())
