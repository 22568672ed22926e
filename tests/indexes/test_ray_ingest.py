"""Adding on a Ray cluster of two nodes of this machine: what plain adding gives, and nothing lost with a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.errors import Conflict, InvalidInput, UnreadableBook
from indexes.library import Library, open_library
from indexes.ray_ingest import add_by_ray, check_ray
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from indexes.types import AddResult

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # Ray's, of itself


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install .[ray]")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def books(tmp_path: Path) -> list[Path]:
    chapters = sorted(SAMPLE_PATH.glob("*.md"))[:5]
    for chapter in chapters:
        (tmp_path / chapter.name).write_text(chapter.read_text(encoding="utf-8"), encoding="utf-8")
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7 nothing")
    return [*(tmp_path / chapter.name for chapter in chapters), broken]


def nodes_of(library: Library) -> dict[str, list[tuple[str, str]]]:
    found = {each.document_id: library.nodes_of(each.document_id) for each in library.documents()}
    return {name: [(node.node_id, node.text) for node in nodes] for name, nodes in found.items()}


@pytest.mark.slow
@pytest.mark.integration
def test_a_cluster_that_loses_a_node_adds_what_one_machine_adds(
    cluster: Any, books: list[Path], tmp_path: Path, database_url: str
) -> None:
    second = cluster.add_node(num_cpus=1)
    shared = IndexSettings(tmp_path / "there", database_url=database_url)
    results = {}
    for book, result in add_by_ray(shared, books, address=cluster.address):
        if not results:
            cluster.remove_node(second, allow_graceful=False)
        results[book] = result
    *good, broken = books
    assert isinstance(results.pop(broken), UnreadableBook)
    assert {book: result.status for book, result in results.items() if isinstance(result, AddResult)} == dict.fromkeys(
        good, "added"
    )

    there, here = open_library(shared), open_library(IndexSettings(tmp_path / "here"))
    for book in good:
        here.add(book)
    there.load()
    assert nodes_of(there) == nodes_of(here)
    for document in here.documents():
        vectors = (library.vectors_of(document.document_id) for library in (there, here))
        assert np.einsum("ij,ij->i", *vectors).min() > 0.999

    again = add_by_ray(shared, good, address=cluster.address)
    assert [result.status for _, result in again if isinstance(result, AddResult)] == ["unchanged"] * len(good)
    for library in (there, here):
        library.close()


def test_what_ray_lacks_is_said_before_anything_is_added(
    books: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = IndexSettings(tmp_path)
    with pytest.raises(InvalidInput, match="database") as error:
        check_ray(alone)
    assert "COALESCE_DATABASE_URL" in error.value.hint
    monkeypatch.setattr("indexes.ray_ingest.find_spec", lambda _: None)
    with pytest.raises(InvalidInput) as error:
        check_ray(IndexSettings(tmp_path, database_url="postgresql://host/x"))
    assert "pip install" in error.value.hint


@pytest.mark.slow
def test_an_address_without_a_cluster_is_an_error(books: list[Path], tmp_path: Path, database_url: str) -> None:
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install .[ray]")
    with pytest.raises(Conflict, match=r"127\.0\.0\.1:9"):
        list(add_by_ray(IndexSettings(tmp_path, database_url=database_url), books, address="127.0.0.1:9"))
