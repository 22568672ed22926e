"""What the server itself needs to know: where to listen, whom to let in, how much to take."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server itself needs to know.

    Attributes:
        api_keys: accepted bearer keys that may do everything; without any key at all none is asked for.
        learner_keys: `(learner, key)`: keys that see and change one learner's own things only.
        insecure: serve other machines without a key.
        allowed_hosts: names other than this machine's that a `Host` header may carry.
        max_upload_bytes, max_body_bytes: largest book, and largest body of any other call.
        answer_threads: answers worked on at once; max_waiting_asks: how many more may wait before a 503.
        rate_limit_per_minute: questions a client may send in a minute, 0 for no limit.
    """

    home: Path
    host: str
    port: int
    api_keys: tuple[str, ...] = field(repr=False)
    learner_keys: tuple[tuple[str, str], ...] = field(repr=False)
    insecure: bool
    allowed_hosts: tuple[str, ...]
    max_upload_bytes: int
    max_body_bytes: int
    answer_threads: int
    max_waiting_asks: int
    rate_limit_per_minute: int

    @property
    def asks_for_keys(self) -> bool:
        """True when callers need a key."""
        return bool(self.api_keys or self.learner_keys)

    @property
    def loopback(self) -> bool:
        """True when only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
