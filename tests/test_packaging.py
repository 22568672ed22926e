"""The built packages hold everything that the code reads, and a plain install answers."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("indexes", "rag", "evals", "api")

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel of the files that git knows, built outside the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    for name in _tracked_files():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def _tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("the files to build from are those that git knows, and this is not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_wheel_holds_every_file_of_the_floors(built: Path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {name for name in _tracked_files() if name.startswith(tuple(f"{floor}/" for floor in FLOORS))}
    assert wanted - packed == set()
    assert not any(name.startswith("tools/") for name in packed)


def test_the_sdist_holds_docs_and_tests(built: Path):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {name for name in _tracked_files() if name.startswith(("docs/", "tests/", "tools/"))}
    assert wanted - packed == set()


def test_every_pinned_package_installs_on_the_first_python_that_is_promised():
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    installed = {canonicalize_name(found.metadata["Name"]): found for found in distributions()}
    refused = {
        name: needed
        for name, version in pinned.items()
        if (found := installed.get(canonicalize_name(name))) is not None
        and version.split(";")[0].strip().split("+")[0] == found.version.split("+")[0]
        and not SpecifierSet(needed := found.metadata["Requires-Python"] or "").contains(f"{promised}.0")
    }
    assert refused == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_plain_install_of_the_wheel_adds_a_book_and_answers(built: Path, tmp_path: Path):
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    install = [str(binaries / "pip"), "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    assert subprocess.run(install, check=False).returncode == 0
    book = tmp_path / "zebra.md"
    book.write_text("# Zebra kernels\n\n## Striping\n\nA zebra kernel writes every seventh element of its buffer.\n")
    coalesce = [str(binaries / "coalesce"), "--home", str(tmp_path / "home")]
    assert subprocess.run([*coalesce, "add", str(book)], cwd=tmp_path, check=False).returncode == 0
    question = [*coalesce, "ask", "Which elements does a zebra kernel write?"]
    asked = subprocess.run(question, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "every seventh element" in asked.stdout, asked.stderr
