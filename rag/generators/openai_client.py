"""A client of OpenAI-compatible engines: retries what is worth retrying, streams, and can be cancelled while it waits.

A request is retried only before its first byte arrives: when connecting fails, and on 429, 500, 502, 503 and 504,
after a pause that doubles or that the engine asks for. Why not the `openai` package: docs/decisions.md.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from indexes.errors import Busy, CoalesceError, InvalidInput
from indexes.messages import msg
from rag.errors import EngineRefuses, EngineUnreachable, GenerationFailed, PromptTooLong
from rag.generators.stream_text import Relay
from rag.settings import shown_address
from rag.types import Waiting

_RETRIES = 3
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_RETRIED = frozenset({429, 500, 502, 503, 504})
_CONNECT_TIMEOUT_S = 5.0
_BUSY_RETRY_S = 60.0
_TELL_PLACE_S = 1.0  # an engine that takes all at once begins sooner
_LONGEST_RETRY_S = 86_400.0
_LONGEST_LINE_BYTES = 1 << 24
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TOO_LONG = (
    "context length", "context_length", "maximum context", "context size", "context window", "too long",
    "longer than the", "max_model_len", "exceeds the available context", "input length",
)  # fmt: skip

Json = dict[str, Any]


class OpenAIClient:
    """One engine. Requests run on an event loop in a thread of their own, so that a caller never waits for the network.

    Args:
        base_url: its address; `/v1` is added where no path is given.
        request_timeout_s: longest silence of the engine. One that answers others is not silent: it lets us wait.
        queue_timeout_s: the longest that one request waits for a busy engine.

    Attributes:
        address: of the engine, without a password.

    Raises:
        InvalidInput: no engine can have this address, or no request this key.
    """

    def __init__(self, base_url: str, api_key: str | None, request_timeout_s: float, queue_timeout_s: float) -> None:
        try:
            parts = urlsplit(base_url)
        except ValueError as error:
            raise InvalidInput(
                msg("{} is not the address of an engine", f"{shown_address(base_url)!r:.200}"),
                hint="for example: http://127.0.0.1:11434/v1",
            ) from error
        if api_key and not api_key.isascii():
            raise InvalidInput(
                "the engine's key holds characters that a header cannot", hint="correct COALESCE_GENERATOR_API_KEY"
            )
        self._base_url = base_url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
        self.address = shown_address(self._base_url)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=min(_CONNECT_TIMEOUT_S, request_timeout_s)),  # `_run` counts silence
            trust_env=parts.hostname not in _LOOPBACK,  # no proxy between two processes of one machine
        )
        self._request_timeout_s = request_timeout_s
        self._queue_timeout_s = queue_timeout_s
        self._heard_at = 0.0
        self._line: list[Relay[Any]] = []  # streams that have not begun, in the order in which they were asked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def get(self, path: str, body: Json | None = None, within_s: float = math.inf) -> Any:
        """The JSON at `path`, or at an absolute path of the engine (`/…`); asked once, with POST where there is a body.

        Raises: as `ask`; Cancelled after `within_s`.
        """
        deadline = time.monotonic() + within_s
        return next(self._run(self._items(path, body, retries=0), lambda: time.monotonic() > deadline))

    def ask(self, path: str, body: Json, cancelled: Callable[[], bool]) -> Generator[Any, None, None]:
        """The events of a streamed answer, until `[DONE]` or the engine closes; without `stream`, the one answer.

        Closing this iterator hangs up. An engine does not tell a request's place in its line, so `Waiting` counts our
        own streams that have not begun.

        Raises:
            EngineUnreachable: no connection, no answer in time, or not an answer in the OpenAI format.
            Busy: the engine stays overloaded, or answers others for too long.
            PromptTooLong: the prompt exceeds the engine's context.
            EngineRefuses: the engine does not take the request as it stands.
            GenerationFailed: it failed in the middle of the answer, or this client was closed.
            Cancelled: `cancelled` became true.
        """
        return self._run(self._items(path, body, _RETRIES), cancelled, in_line=bool(body.get("stream")))

    def close(self) -> None:
        """Ends running requests and closes all connections."""

        async def end() -> None:
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._client.aclose()

        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def _run(
        self, items: AsyncIterator[Any], cancelled: Callable[[], bool], *, in_line: bool = False
    ) -> Generator[Any, None, None]:
        """The items of `items`, which runs on the loop; leaving cancels it, which closes its connection."""
        relay: Relay[Any] = Relay()
        began = waiting_since = time.monotonic()
        told = 0
        if in_line:
            self._line.append(relay)

        def leave_line() -> None:
            with suppress(ValueError):
                self._line.remove(relay)

        def while_waiting() -> None:
            nonlocal told
            now = time.monotonic()
            before = next((place for place, each in enumerate(self._line) if each is relay), told)
            if before != told and now - began > _TELL_PLACE_S:
                told = before
                relay.put(Waiting(before))
            if now - max(began, self._heard_at) > self._request_timeout_s:
                raise EngineUnreachable(
                    msg("The engine at {} said nothing for {} s.", self.address, f"{self._request_timeout_s:g}"),
                    hint="Its log says more; COALESCE_REQUEST_TIMEOUT_S sets the longest silence.",
                )
            if now - waiting_since > self._queue_timeout_s:
                raise Busy(
                    msg(
                        "This question waited {} s for the busy engine at {}.",
                        f"{self._queue_timeout_s:g}",
                        self.address,
                    ),
                    hint="Try again later, or raise COALESCE_QUEUE_TIMEOUT_S.",
                    retry_after_s=_BUSY_RETRY_S,
                )

        async def run() -> None:
            begun = False
            try:
                async for item in items:
                    begun = True
                    leave_line()
                    relay.put(item)
            except asyncio.CancelledError:
                relay.end(GenerationFailed("The generator was closed."))
                raise
            except Exception as error:  # noqa: BLE001 - the consumer raises it
                relay.end(error if isinstance(error, CoalesceError) else self._broken(error, begun=begun))
            else:
                relay.end()

        task = asyncio.run_coroutine_threadsafe(run(), self._running_loop())
        try:
            for item in relay.items(cancelled, while_waiting):
                if not isinstance(item, Waiting):
                    waiting_since = time.monotonic()
                yield item
        finally:
            task.cancel()
            leave_line()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        def run(loop: asyncio.AbstractEventLoop) -> None:
            loop.run_forever()
            loop.close()

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=run, args=(self._loop,), name="coalesce-remote", daemon=True).start()
            return self._loop

    async def _items(self, path: str, body: Json | None, retries: int) -> AsyncIterator[Any]:
        response = await self._open(path, body, retries)
        try:
            if body is None or not body.get("stream"):
                yield json.loads(await response.aread())
                return
            async for line in _lines(response):
                self._heard()
                if line.startswith(b"data:"):  # not an empty line, a comment or an event's name
                    data = line[5:].strip().decode("utf-8", "replace")
                    if data == "[DONE]":
                        return
                    yield _event(data)
        finally:
            await response.aclose()

    async def _open(self, path: str, body: Json | None, retries: int) -> httpx.Response:
        """A response with status 2xx whose body has not been read yet."""
        url = httpx.URL(self._base_url).join(path) if path.startswith("/") else f"{self._base_url}/{path}"
        for attempt in range(retries + 1):
            pause = _FIRST_PAUSE_S * 2**attempt
            try:
                request = self._client.build_request("GET" if body is None else "POST", url, json=body)
                response = await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.RemoteProtocolError):
                if attempt == retries:
                    raise
            else:
                self._heard()
                if response.is_success:
                    return response
                refusal = await self._refusal(response)
                if response.status_code not in _RETRIED or attempt == retries:
                    raise refusal
                pause = max(pause, _retry_after_s(response))
            pause = min(pause, _LONGEST_PAUSE_S)
            self._heard(later_s=pause)
            await asyncio.sleep(pause)
        raise ValueError("the last try either returns or raises")

    def _heard(self, later_s: float = 0.0) -> None:
        """Notes that the engine is alive, or that nothing is expected of it before `later_s` have passed."""
        self._heard_at = max(self._heard_at, time.monotonic() + later_s)

    async def _refusal(self, response: httpx.Response) -> Exception:
        """The engine's error as ours."""
        try:
            text = (await response.aread()).decode("utf-8", "replace")
        except httpx.HTTPError as error:
            return self._broken(error)
        finally:
            await response.aclose()
        message, status = _error_text(text), response.status_code
        if status in (429, 503):
            return Busy(
                msg("The engine at {} is busy ({}): {}", self.address, status, message),
                hint="Try again later.",
                retry_after_s=max(_retry_after_s(response), 1.0),
            )
        if status in (400, 413, 422) and any(sign in message.lower() for sign in _TOO_LONG):
            return PromptTooLong(
                msg("The prompt exceeds the engine's context: {}", message), hint="Ask a shorter question."
            )
        told = msg("The engine at {} answered {}: {}", self.address, status, message)
        hint: str = "Its log says more."
        if status in (401, 403):
            told = msg("The engine at {} refuses the key ({}): {}", self.address, status, message)
            hint = "Set COALESCE_GENERATOR_API_KEY."
        elif status == 404:
            told = msg("The engine at {} does not know this path or model (404): {}", self.address, message)
            hint = msg("Check --base-url and --model; `curl {}` lists what it serves.", f"{self.address}/models")
        kind = EngineUnreachable if status >= 500 or status in (401, 403, 404) else EngineRefuses
        return kind(told, hint=hint)

    def _broken(self, error: BaseException, *, begun: bool = False) -> CoalesceError:
        if begun and isinstance(error, httpx.HTTPError):
            return GenerationFailed(
                msg("The engine at {} went away in the middle of the answer.", self.address),
                hint="See that it runs, and ask again. Its log says more.",
            )
        told = "The engine at {} does not answer: {}"
        if isinstance(error, ValueError):
            told = "The engine at {} does not answer in the OpenAI format: {}"
        return EngineUnreachable(
            msg(told, self.address, str(error)[:300] or type(error).__name__),
            hint="Start it, correct --base-url (it ends in /v1), or choose another model in Settings.",
        )


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a body. httpx's own also end at U+2028 and U+0085, which JSON may hold as they are."""
    held = b""
    async for chunk in response.aiter_bytes():
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(held) > _LONGEST_LINE_BYTES:
            raise ValueError(f"a line of more than {_LONGEST_LINE_BYTES:,} bytes")
    yield held


def _event(data: str) -> Json:
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError(f"expected an object, found {data[:80]}")
    if "error" in event:
        raise GenerationFailed(
            msg("The engine failed in the middle of the answer: {}", _error_text(data)), hint="Its log says more."
        )
    return event


def _retry_after_s(response: httpx.Response) -> float:
    """The seconds that the engine asks for; 0.0 for a date or nonsense: our own pause will do."""
    try:
        seconds = float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return seconds if 0 < seconds <= _LONGEST_RETRY_S else 0.0


def _error_text(text: str) -> str:
    """The message inside an engine's error, whatever shape it has."""
    try:
        error = json.loads(text)
    except ValueError:
        return text.strip()[:300] or "no message"
    if isinstance(error, dict):
        error = error.get("error", error)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:300]
