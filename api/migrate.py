"""`coalesce migrate`: everything of a home moved into a shared database or back, and tables brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from api.backup import BESIDE_A_DATABASE
from api.chosen_generator import CHOICE_FILE, keep_choice, read_choice
from api.health_checks import STATE_FILES
from api.repair import alone
from api.server_state import SERVERS
from api.services import SAMPLE_MARKER, check_home
from api.settings import CoalesceSettings
from api.shared_runs import LEASE_S, servers_of
from indexes.catalog import CATALOG, Catalog, derive_indexes
from indexes.database import Schema
from indexes.errors import Conflict, IndexMissing, InvalidInput
from indexes.messages import msg
from indexes.moving import count_rows, move_store, not_empty
from indexes.postgres import PostgresDatabase, shown_url, store_at

LIBRARY_FILE = "library.sqlite3"
STORES: dict[str, Schema] = {**STATE_FILES, LIBRARY_FILE: CATALOG}
"""The library comes last: without it a server that starts too early makes no other rows."""
Tell = Callable[[str, int, int], None]


def upgrade(settings: CoalesceSettings) -> dict[str, str]:
    """Brings the tables of the home or the database up to date; gives their versions. Raises as `Store.open`."""
    url = settings.index.database_url
    schemas = STORES if url is None else STORES | {"servers": SERVERS}
    for name, schema in schemas.items():
        if url is not None:
            PostgresDatabase(url, schema).upgrade()
        elif (settings.home / name).exists():
            with closing(store_at(settings.home / name, schema)) as store:
                store.open()
    return {name.removesuffix(".sqlite3"): schema.version for name, schema in schemas.items()}


def move(source: str, target: str, tell: Tell) -> dict[str, Any]:
    """Moves every store of a home or database into an empty one; the source stays as it is. Says what was moved.

    Each store is one transaction, compared row by row: a move that broke off goes on with the next one.

    Args:
        source, target: a folder, or the address of a database.

    Raises:
        InvalidInput: both are the same.
        IndexMissing: the source has no library.
        Conflict: the target is not empty, a server uses one of both, or something did not arrive.
        CoalesceError: as `Store.open`.
    """
    old, new = _place(source), _place(target)
    if old == new:
        raise InvalidInput("--from and --to name the same", hint="Name a home and a database.")
    if isinstance(old, Path) and not (old / LIBRARY_FILE).exists():
        raise IndexMissing(f"There is no library in '{old}'.", hint="Name a home with --from.")
    if isinstance(new, Path):
        check_home(new)
    with ExitStack() as used:
        for place in (old, new):
            used.enter_context(alone(place) if isinstance(place, Path) else _unused(place))
        stores = used.enter_context(_opened(old, new))
        for name, (before, after) in stores.items():
            there = count_rows(after, STORES[name])
            if any(there.values()) and there != count_rows(before, STORES[name]):
                raise not_empty(there)
        moved = {
            name.removesuffix(".sqlite3"): move_store(
                before, after, STORES[name], derive_indexes if name == LIBRARY_FILE else lambda _: None, tell
            )
            for name, (before, after) in stores.items()
        }
        library = Catalog(stores[LIBRARY_FILE][1])
        keep_choice(_at(new, CHOICE_FILE), read_choice(_at(old, CHOICE_FILE)))
        if isinstance(new, Path) and library.generation():
            (new / SAMPLE_MARKER).touch()
        files = [one.source for one in library.documents() if not one.sample and not Path(one.source).is_absolute()]
    beside = [name for name in BESIDE_A_DATABASE if isinstance(old, Path) and (old / name).exists()]
    return {"from": _shown(old), "to": _shown(new), "moved": moved, "uploads": files, "beside": beside}


def _place(given: str) -> Path | str:
    """A home, or the address of a database. Raises InvalidInput for that of anything else."""
    if "://" not in given:
        return Path(given).expanduser().absolute()
    shown_url(given)
    return given


def _at(place: Path | str, name: str) -> Path | str:
    return place if isinstance(place, str) else place / name


def _shown(place: Path | str) -> str:
    return shown_url(place) if isinstance(place, str) else str(place)


@contextmanager
def _unused(url: str) -> Iterator[None]:
    """While no server or worker uses a database; raises Conflict, also for one that has begun to by the end."""
    _need_none(url)
    yield
    _need_none(url)


def _need_none(url: str) -> None:
    if running := servers_of(url):
        raise Conflict(
            msg("servers or workers use {}: {}", shown_url(url), ", ".join(running)),
            hint=msg("Stop them first; one that was killed counts for {} s.", round(LEASE_S)),
        )


@contextmanager
def _opened(old: Path | str, new: Path | str) -> Iterator[dict[str, tuple[Any, Any]]]:
    """The stores that the old place has, each with its new one."""
    with ExitStack() as stack:
        found = {}
        for name, schema in STORES.items():
            places = _at(old, name), _at(new, name)
            if not isinstance(places[0], Path) or places[0].exists():
                before, after = (stack.enter_context(closing(store_at(place, schema))) for place in places)
                before.open()
                after.open()
                found[name] = (before, after)
        yield found
