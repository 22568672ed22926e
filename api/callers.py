"""Who calls: somebody with everyone's key, or a learner with a key of their own.

A learner's key sees and changes that learner's exams, cards, progress, conversations and feedback, and nobody else's;
it reads the library, the question bank and the reports, which are common to all, and does not change them. Any other
key, and this machine's own user where no key is asked for, may do everything in any learner's name.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from api.errors import NotAllowed
from api.server_settings import ServerSettings
from evals.learners import DEFAULT_LEARNER

_IN_SCOPE = "coalesce_caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request; `learner` is the one their key is bound to, None for a key that is not bound."""

    learner: str | None = None

    def learner_for(self, asked: str | None) -> str:
        """The learner whose things a request is about.

        Args:
            asked: the learner that the request names, None when it names none.

        Raises:
            NotAllowed: the key is another learner's.
        """
        if self.learner is None:
            return asked or DEFAULT_LEARNER
        if asked is None or asked.strip() == self.learner:
            return self.learner
        raise NotAllowed(
            f"this key is learner {self.learner!r}'s, and learner {asked!r:.60} was asked for",
            hint="leave out `learner`, or use a key of COALESCE_API_KEYS",
        )

    def owner_for(self, asked: str | None) -> str | None:
        """The learner whose exam or card an id must be; None lets it be anybody's. Raises NotAllowed."""
        return None if self.learner is None and asked is None else self.learner_for(asked)

    def need_open_key(self, what: str) -> None:
        """Refuses a learner's key where something is about everyone. Raises NotAllowed, with `what` in words."""
        if self.learner is not None:
            raise NotAllowed(
                f"a learner's key cannot {what}", hint="use a key of COALESCE_API_KEYS, or ask whoever runs the server"
            )


def put_caller(scope: MutableMapping[str, Any], caller: Caller) -> None:
    """Notes on a request who sent it."""
    scope[_IN_SCOPE] = caller


def caller_of(scope: MutableMapping[str, Any]) -> Caller:
    """Who sent a request. One that the guard has not seen is a mistake of the program: KeyError, never everyone's."""
    caller: Caller = scope[_IN_SCOPE]
    return caller


def cookie_value(key: str) -> str:
    """What the cookie holds for a key: a digest, so that the key itself is not kept by the browser."""
    return hmac.new(key.encode(), b"coalesce page", hashlib.sha256).hexdigest()


class KeyRing:
    """The accepted keys and whose they are. Every comparison takes the same time whichever key is right."""

    def __init__(self, settings: ServerSettings) -> None:
        bound = [(key, Caller(learner)) for learner, key in settings.learner_keys]
        known = [*((key, Caller()) for key in settings.api_keys), *bound]
        self._keys = [(key.encode(), caller) for key, caller in known]
        self._cookies = [(cookie_value(key).encode(), caller) for key, caller in known]

    @property
    def empty(self) -> bool:
        """True when no key is asked for."""
        return not self._keys

    def by_key(self, given: bytes) -> Caller | None:
        """Whose key `given` is, in UTF-8; None when it is nobody's."""
        return _owner(self._keys, given)

    def by_cookie(self, given: bytes) -> Caller | None:
        """Whose key `given` is the digest of; None when it is nobody's."""
        return _owner(self._cookies, given)


def _owner(known: list[tuple[bytes, Caller]], given: bytes) -> Caller | None:
    found: Caller | None = None
    for item, caller in known:
        if hmac.compare_digest(item, given):
            found = caller
    return found
