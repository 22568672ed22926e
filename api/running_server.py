"""Finds the server that runs over a home, so that commands use the models that it has loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.settings import CoalesceSettings
from indexes.errors import CoalesceError

if TYPE_CHECKING:
    import httpx

ADDRESS_FILE = "server.json"
PROBE_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 600.0
"""Longest silence of an answer: a model on a slow machine thinks before its first word."""


def announce(home: Path, address: str, database: str | None = None) -> None:
    """Writes this process's address into the home; where it cannot be written, commands do not find the server."""
    found = {"address": address, "pid": os.getpid(), "database": database}
    with suppress(OSError):
        (home / ADDRESS_FILE).write_text(json.dumps(found), encoding="utf-8")


def withdraw(home: Path) -> None:
    """Removes what `announce` wrote, unless another server has written there since."""
    with suppress(OSError, ValueError, KeyError):
        if _read(home)["pid"] == os.getpid():
            (home / ADDRESS_FILE).unlink()


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server of the same home that answers."""

    address: str
    key: str | None

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """The events of a streamed reply, each with its data; raises the error that the server names."""
        with (
            _connected(),
            _client(READ_TIMEOUT_S) as client,
            client.stream("POST", self.address + path, json=body | {"stream": True}, headers=self._headers) as reply,
        ):
            if reply.status_code != 200:
                reply.read()
                _raise(reply.json())
            name = ""
            for line in reply.iter_lines():
                if line.startswith("event:"):
                    name = line[6:].strip()
                elif line.startswith("data:"):
                    data = json.loads(line[5:])
                    if name == "error":
                        _raise(data)
                    yield name, data

    def get(self, path: str) -> Any:
        """What the server keeps at a path; raises the error that it names."""
        return self._call("GET", path)

    def every(self, path: str, name: str) -> list[Any]:
        """All of a list that the server gives in pages; `name` is its field."""
        page = self.get(path)
        items = list(page[name])
        while page["next_cursor"] is not None:
            page = self.get(f"{path}?cursor={page['next_cursor']}")
            items += page[name]
        return items

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The reply to a call; raises the error that the server names."""
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        with _connected(), _client(READ_TIMEOUT_S) as client:
            reply = client.request(method, self.address + path, json=body, headers=self._headers)
        if reply.status_code != 200:
            _raise(reply.json())
        return reply.json()

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def find_server(settings: CoalesceSettings) -> RunningServer | None:
    """The server that runs over the home of the settings, if it answers and lets this command in.

    While it loads a language model it answers in the books' own sentences: loading another one here would take longer.
    """
    try:
        found = _read(settings.home)
        os.kill(int(found["pid"]), 0)
        address = str(found["address"])
        if found.get("database") != database_of(settings):
            return None  # it answers from another library
    except (OSError, ValueError, KeyError, TypeError):
        return None
    import httpx

    key = next((key.get_secret_value() for key in settings.api_keys), None)
    server = RunningServer(address, key)
    try:
        with _client(PROBE_TIMEOUT_S) as client:
            reply = client.get(f"{address}/readyz")
            answers = reply.status_code == 200 or reply.json().get("answering", False)
            return (
                server if answers and client.get(f"{address}/v1/session", headers=server._headers).is_success else None
            )
    except (httpx.HTTPError, ValueError, AttributeError):
        return None


def database_of(settings: CoalesceSettings) -> str | None:
    """The database of the settings, without its password; None where the home keeps everything."""
    if settings.index.database_url is None:
        return None
    from indexes.postgres import shown_url

    return shown_url(settings.index.database_url)


def _client(timeout_s: float) -> httpx.Client:
    import httpx

    # The address is plain http: making ready for TLS would only take time.
    return httpx.Client(trust_env=False, verify=False, timeout=timeout_s)


def _read(home: Path) -> dict[str, Any]:
    found = json.loads((home / ADDRESS_FILE).read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


@contextmanager
def _connected() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise CoalesceError(
            f"the server of this home went away: {type(error).__name__}", hint="Ask again when it is back."
        ) from error


def _raise(body: Any) -> None:
    error = body.get("error", {}) if isinstance(body, dict) else {}
    raise CoalesceError(str(error.get("message", "the server refused")), hint=str(error.get("hint", "")))
