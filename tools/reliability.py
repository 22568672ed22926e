"""Runs the battery of attacks and prints `docs/reliability.md`: `python -m tools.reliability > docs/reliability.md`.

It takes an hour on two cores. `--only WORD` runs the rows whose name holds a word.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of attack: its name, what holds, and the tests that try it."""

    name: str
    holds: str
    tests: tuple[str, ...]


ROWS = (
    Row(
        "a full disk at any write",
        "503; all that was said to be kept is there",
        ("tests/api/test_hard_times.py::test_a_disk_that_is_full_at_any_write_loses_nothing_that_was_said_to_be_kept",),
    ),
    Row(
        "two servers on one home",
        "neither loses what the other keeps",
        ("tests/api/test_hard_times.py::test_two_servers_on_one_home_lose_nothing_of_each_other",),
    ),
    Row(
        "a home that only reads",
        "questions are answered, writing is a 503",
        ("tests/api/test_hard_times.py::test_a_home_that_only_reads_is_asked_and_searched",),
    ),
    Row(
        "every call of `/openapi.json`, by schemathesis",
        "no 5xx, no reply that the document does not name",
        ("tests/api/test_openapi.py", "tests/api/test_bad_input.py"),
    ),
    Row(
        "random bytes in any file of the home",
        "found by `doctor`, mended by `doctor --repair`",
        ("tests/api/test_doctor.py", "tests/indexes/test_integrity.py", "tests/indexes/test_database.py"),
    ),
    Row(
        "backups, whole and damaged",
        "restored whole, or refused and nothing changed",
        ("tests/api/test_backup.py",),
    ),
    Row(
        "hostile and broken books",
        "read in a process of their own, within its memory and time",
        ("tests/indexes/test_reader_fuzz.py", "tests/indexes/test_reading_process.py"),
    ),
    Row(
        "addresses that point back here, packed and dripping pages",
        "never asked, never unpacked, left in time",
        ("tests/api/test_fetch.py",),
    ),
    Row(
        "learners among each other, and class exams",
        "nobody reads another's work or an open exam's answers",
        ("tests/api/test_learner_keys.py", "tests/evals/test_study.py"),
    ),
    Row(
        "strangers: no key, guessed keys, other sites' pages",
        "refused before any work",
        ("tests/api/test_security.py",),
    ),
    Row(
        "a million conversations",
        "a page of them takes as long as one of few, a search a second at most",
        (
            "tests/rag/test_conversations.py::test_a_page_of_a_million_conversations_takes_no_longer_than_one_of_few[file]",
        ),
    ),
    Row(
        "more than it can do, slow headers and bodies, deaf readers, a stop",
        "503 with `Retry-After` before the body is read; left in time; answers end or say so",
        ("tests/api/test_limits.py", "tests/api/test_paging.py"),
    ),
    Row(
        "`kill -9` of the server while it adds, asks, examines and backs up",
        "all that was said to be done is there, nothing is half, `doctor` agrees",
        ("tests/api/test_kills.py", "tests/indexes/test_crashes.py"),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests of a row gave: `tried` is what they counted themselves, each other test counts once."""

    tried: int
    failed: int
    skipped: int
    seconds: float


def outcome_of(report: Path) -> Outcome:
    """Reads pytest's JUnit file."""
    tried = failed = skipped = 0
    seconds = 0.0
    for case in ET.parse(report).iter("testcase"):
        seconds += float(case.get("time", 0))
        if case.find("skipped") is not None:
            skipped += 1
            continue
        counted = [item.get("value", "1") for item in case.iter("property") if item.get("name") == "tried"]
        tried += int(float(counted[0])) if counted else 1
        failed += case.find("failure") is not None or case.find("error") is not None
    return Outcome(tried, failed, skipped, seconds)


def run(row: Row) -> Outcome:
    """Runs the tests of a row, slow ones too."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        options = ["-q", f"--junitxml={report}", "-o", "junit_family=xunit1", "--timeout", "3600"]
        command = [sys.executable, "-m", "pytest", *options, *row.tests]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout)
        if done.returncode:
            sys.stderr.write(done.stdout)
        return outcome_of(report)


HEAD = """# Reliability

Printed by `python -m tools.reliability` at commit {}. *Times* counts kills, calls or writes where a
test counts them, else tests; a fault is a test that failed.

| tried | what holds | times | faults | s |
|---|---|---|---|---|
"""
LIMITS = """
**Not promised**

- A disk that lies about what it has written, and a file system without locks (some network shares).
- A key of `COALESCE_API_KEYS` may do everything. Without keys, so may whoever reaches the port.
- After SIGTERM, answers in work have five seconds to end; then their clients are told to ask again.
- Search and quotes share the processor's cores: with more at once each takes longer, up to the 503.
"""


def main(argv: list[str] | None = None) -> None:
    """Runs the battery and prints the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.reliability", description=__doc__)
    parser.add_argument("--only", default="", help="a word in the name of a row")
    wanted = parser.parse_args(argv).only
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # each row as it comes
    sys.stdout.write(HEAD.format(commit.stdout.strip() or "unknown"))
    failed = 0
    for row in ROWS:
        if wanted in row.name:
            found = run(row)
            failed += found.failed
            times = f"{found.tried:,}" + (f" ({found.skipped} skipped)" if found.skipped else "")
            sys.stdout.write(f"| {row.name} | {row.holds} | {times} | {found.failed} | {found.seconds:.0f} |\n")
    sys.stdout.write(LIMITS)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
