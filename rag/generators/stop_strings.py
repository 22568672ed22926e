"""Ends an answer before the first of some strings, also where one comes in several pieces."""

from __future__ import annotations

from collections.abc import Generator as Yields
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rag.generators.protocol import GenerationDone, TextPiece


class StopStrings:
    """Gives text out as soon as it can be no part of a stop string.

    Args:
        strings: none of them empty; no strings let everything through.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """What of `text`, and of what was held back, belongs to the answer for certain."""
        if self.hit or not self._strings:
            return "" if self.hit else text
        self._held += text
        found = [place for string in self._strings if (place := self._held.find(string)) >= 0]
        if found:
            self.hit = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max(_overlap(self._held, string) for string in self._strings)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back because a stop string might have begun in it."""
        shown, self._held = self._held, ""
        return shown


def end_before(
    pieces: Iterator[TextPiece | GenerationDone], strings: Sequence[str]
) -> Yields[TextPiece | GenerationDone, None, None]:
    """The pieces up to the first stop string; what a generator still writes behind it is read and not shown."""
    stop = StopStrings(strings)
    try:
        for piece in pieces:
            if isinstance(piece, TextPiece):
                if text := stop.push(piece.text):
                    yield replace(piece, text=text)
                continue
            if text := stop.finish():
                yield TextPiece(text)
            yield piece
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:  # a plain iterator has nothing to stop
            close()


def _overlap(text: str, string: str) -> int:
    """Longest beginning of `string`, short of all of it, that `text` ends with."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)
