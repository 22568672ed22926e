"""The generator that a person chose while the server ran, kept in home or database for the next start."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from indexes.disk import disk_errors, replaced_file
from indexes.errors import InvalidInput
from rag.settings import QuantizationName, addresses_of

CHOICE_FILE = "generator.json"
DEFAULT_PORTS = {"http": 80, "https": 443}


class GeneratorChoice(BaseModel):
    """What should answer.

    Attributes:
        model: a folder, a `.gguf` file or a name (local), the engine's name for it (remote).
        adapter: the name of one adapter; None runs the bare model alone.
        quantization: of a local model; None takes the setting.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    generator: Literal["extractive", "local", "remote"]
    model: str | None = None
    base_url: str | None = None
    adapter: str | None = None
    quantization: QuantizationName | None = None


def read_choice(place: Path | str) -> GeneratorChoice | None:
    """The choice that a file or a database keeps, if there is one.

    Raises:
        InvalidInput: it is damaged.
        DatabaseUnavailable: the database does not answer.
    """
    try:
        if isinstance(place, str):
            from api.server_state import get_state

            kept = get_state(place, CHOICE_FILE)
            return None if kept is None else GeneratorChoice.model_validate_json(kept)
        return GeneratorChoice.model_validate_json(place.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        where = place if isinstance(place, Path) else "the chosen generator in the database"
        raise InvalidInput(f"{where} cannot be read", hint="Remove it, and choose again what answers.") from error


def keep_choice(path: Path | str, choice: GeneratorChoice | None) -> None:
    """Keeps a choice in a file or a database; None forgets the one there.

    Raises:
        StorageFull, HomeNotWritable, DatabaseUnavailable: it could not be written.
    """
    if isinstance(path, str):
        from api.server_state import set_state

        set_state(path, CHOICE_FILE, None if choice is None else choice.model_dump_json(exclude_none=True))
        return
    with disk_errors(path):
        if choice is None:
            path.unlink(missing_ok=True)
            return
        with replaced_file(path) as part:
            part.write_text(choice.model_dump_json(exclude_none=True) + "\n", encoding="utf-8")


def origin_of(address: str | None) -> tuple[str, str, int] | None:
    """Scheme, host and port of an address; None for anything but an http or https address."""
    if not address:
        return None
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme]


def origins_of(addresses: str | None) -> frozenset[tuple[str, str, int] | None]:
    """The origin of each of one or several addresses; empty without one."""
    return frozenset(map(origin_of, addresses_of(addresses))) if addresses else frozenset()


def is_loopback(host: str) -> bool:
    """True for this machine's own addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
