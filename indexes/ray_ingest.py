"""Adds books on a Ray cluster: a task reads, cuts, embeds and stores one book, as a process of one machine does.

A book is one transaction of the shared database. A task that is lost with its node is run again elsewhere: a book that
it had stored is found there by the digest of its content, any other is added. The nodes have this program installed,
and the books under the same paths.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from indexes.errors import Busy, Conflict, InvalidInput, first_line
from indexes.library import Library, open_library
from indexes.messages import msg
from indexes.settings import IndexSettings
from indexes.types import AddResult, Document

MOST_TASKS = 10_000
"""Of more books several share a task: Ray keeps a record of each."""
CONNECT_S = 5.0


def check_ray(settings: IndexSettings) -> None:
    """Raises InvalidInput where books cannot be added by Ray: no shared database, or not installed."""
    if settings.database_url is None:
        raise InvalidInput(
            "--ray writes to a shared database, and none is set.",
            hint="export COALESCE_DATABASE_URL=postgresql://USER:PASSWORD@HOST/DATABASE",
        )
    if find_spec("ray") is None:
        raise InvalidInput(
            "--ray needs the package ray, which is not installed.", hint="pip install 'coalesce-rag[ray,postgres]'"
        )


def add_by_ray(
    settings: IndexSettings, books: Sequence[Path], *, address: str = "", title: str | None = None
) -> Iterator[tuple[Path, AddResult | Exception]]:
    """Add books as `Library.add` does; each comes with its result or its error as soon as it is done.

    Args:
        books: whole paths, the same on every node.
        address: of the cluster; empty for the one that this machine belongs to, or else a new one of this machine.

    Raises:
        Conflict: no cluster answers there, or it failed.
    """
    if not books:
        return
    library = open_library(settings)
    before = {document.document_id: document for document in library.documents()}
    library.close()
    ray = _connected(address)
    try:
        rows = ray.data.from_items([str(book) for book in books], override_num_blocks=min(len(books), MOST_TASKS))
        given = {"settings": pickle.dumps(settings), "title": title}
        done = rows.map(_add, fn_kwargs=given, num_cpus=1)
        for batch in done.iter_batches(batch_size=None, prefetch_batches=0, batch_format="pandas"):
            for pickled in batch["pickled"]:
                book, result = pickle.loads(pickled)
                yield book, _known(result, before) if isinstance(result, AddResult) else result
    except ray.exceptions.RayError as error:
        raise Conflict(
            msg("Ray failed: {}", first_line(error)),
            hint="see that every node runs and has this program; then add again, what is stored stays",
        ) from error
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # by default Ray reports to its makers
    import ray
    import ray.data

    try:
        if address:  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address or None, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise Conflict(
            msg("No Ray cluster answers at '{}': {}", address, first_line(error)),
            hint="start one with `ray start --head` and give its HOST:PORT, or leave the address out",
        ) from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = -1
    return ray


def _add(row: dict[str, Any], settings: bytes, title: str | None) -> dict[str, bytes]:
    """Runs on a node."""
    book = Path(row["item"])
    library = _library(settings)
    while True:
        try:
            result: AddResult | Exception = library.add(book, title=title)
        except Busy:
            continue  # others wrote for a minute: a cluster of writers takes turns
        except Exception as error:  # noqa: BLE001  told where the books were named
            result = error
        try:
            return {"pickled": pickle.dumps((book, result))}
        except Exception:  # noqa: BLE001  an error that holds what cannot be sent
            return {"pickled": pickle.dumps((book, RuntimeError(repr(result))))}


@cache
def _library(settings: bytes) -> Library:
    return open_library(pickle.loads(settings))


def _known(result: AddResult, before: dict[str, Document]) -> AddResult:
    """What became of a book since the command began, whichever try of its task stored it."""
    old = before.get(result.document.document_id)
    if result.status != "unchanged" or result.document == old:
        return result
    return replace(result, status="added" if old is None else "updated", embedded_nodes=result.document.nodes)
