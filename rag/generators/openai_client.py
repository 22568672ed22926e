"""A client of OpenAI-compatible engines: retries what is worth retrying, streams, and can be cancelled while it waits.

A request is retried only before its first byte arrives: when connecting fails, and on 429, 500, 502, 503 and 504,
after a pause that doubles or that the engine asks for; where there are several engines, the next one is asked first.
Why not the `openai` package: docs/decisions.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from indexes.errors import Busy, CoalesceError, InvalidInput
from indexes.messages import msg
from rag.errors import EngineRefuses, EngineUnreachable, GenerationFailed, PromptTooLong
from rag.generators.stream_text import Relay
from rag.settings import addresses_of, shown_address
from rag.types import Waiting

logger = logging.getLogger(__name__)

_RETRIES = 3
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_RETRIED = frozenset({429, 500, 502, 503, 504})
_CONNECT_TIMEOUT_S = 5.0
_FIRST_REST_S = 5.0  # how long an engine that is down is not asked while another is up; doubles each time
_LONGEST_REST_S = 300.0
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
Found = TypeVar("Found")


class _Engine:
    """One engine as this client knows it.

    Attributes:
        address: without a password.
        running: our requests that it has not answered to the end.
        heard_at: when it last said something, on the monotonic clock.
        rests_until: before then others are asked first.
    """

    def __init__(self, base_url: str, api_key: str | None, request_timeout_s: float) -> None:
        try:
            parts = urlsplit(base_url)
            if "," in parts.path:
                raise ValueError("another address without its scheme")
        except ValueError as error:
            raise InvalidInput(
                msg("{} is not the address of an engine", f"{shown_address(base_url)!r:.200}"),
                hint="for example: http://127.0.0.1:11434/v1",
            ) from error
        self.base_url = base_url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
        self.address = shown_address(self.base_url)
        self.running = 0
        self.heard_at = self.rests_until = 0.0
        self._rest_s = 0.0
        self.client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=min(_CONNECT_TIMEOUT_S, request_timeout_s)),  # `_run` counts silence
            trust_env=parts.hostname not in _LOOPBACK,  # no proxy between two processes of one machine
        )

    def url_of(self, path: str) -> httpx.URL:
        """The address of a path under `/v1`, or of an absolute one."""
        return httpx.URL(self.base_url).join(path) if path.startswith("/") else httpx.URL(f"{self.base_url}/{path}")

    async def send(self, path: str, body: Json | None) -> httpx.Response:
        """A response whose body has not been read yet; one with status 2xx counts as running."""
        self.running += 1
        answers = False
        try:
            request = self.client.build_request("GET" if body is None else "POST", self.url_of(path), json=body)
            response = await self.client.send(request, stream=True)
            answers = response.is_success
        finally:
            self.running -= not answers
        self.heard()
        if answers:
            self.came_back()
        return response

    def heard(self, later_s: float = 0.0) -> None:
        """Notes that it is alive, or that nothing is expected of it before `later_s` have passed."""
        self.heard_at = max(self.heard_at, time.monotonic() + later_s)

    def rest(self, pause_s: float) -> None:
        """Notes that it is busy: others are asked first for so long."""
        self.rests_until = max(self.rests_until, time.monotonic() + pause_s)

    def went_down(self) -> None:
        """Notes that it does not answer: others are asked first, for longer each time."""
        if time.monotonic() >= self.rests_until:
            self._rest_s = min(max(2 * self._rest_s, _FIRST_REST_S), _LONGEST_REST_S)
            self.rests_until = time.monotonic() + self._rest_s
            logger.warning("the engine at %s does not answer", self.address)

    def came_back(self) -> None:
        """Notes that it answers."""
        if self._rest_s:
            logger.warning("the engine at %s answers again", self.address)
        self._rest_s = self.rests_until = 0.0


class _Asked:
    """Which engines a request may go to, and which it was last sent to."""

    def __init__(self, engines: Sequence[_Engine]) -> None:
        self.engines = engines
        self.last = engines[0]


class OpenAIClient:
    """One engine, or several that serve the same. Requests run on an event loop in a thread of their own, so that a
    caller never waits for the network.

    Of several the one that has the fewest of our requests is asked, the first named where they have equally many; one
    that does not answer is left alone for a while, and its request goes to the next.

    Args:
        base_url: the address, or several with commas between them; `/v1` is added where no path is given.
        request_timeout_s: longest silence of the engine. One that answers others is not silent: it lets us wait.
        queue_timeout_s: the longest that one request waits for a busy engine.

    Attributes:
        address: of the engine or engines, without a password.

    Raises:
        InvalidInput: no engine can have this address, or no request this key.
    """

    def __init__(self, base_url: str, api_key: str | None, request_timeout_s: float, queue_timeout_s: float) -> None:
        if api_key and not api_key.isascii():
            raise InvalidInput(
                "the engine's key holds characters that a header cannot", hint="correct COALESCE_GENERATOR_API_KEY"
            )
        self._engines = [_Engine(each, api_key, request_timeout_s) for each in addresses_of(base_url)]
        self.address = ", ".join(engine.address for engine in self._engines)
        self._request_timeout_s = request_timeout_s
        self._queue_timeout_s = queue_timeout_s
        self._line: list[Relay[Any]] = []  # streams that have not begun, in the order in which they were asked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def get(self, path: str, body: Json | None = None, within_s: float = math.inf) -> Any:
        """The JSON at `path`, or at an absolute path of an engine (`/…`); asked once, with POST where there is a body.

        Raises: as `ask`; Cancelled after `within_s`.
        """
        return self._get(self._engines, path, body, within_s)

    def of_each(self, ask: Callable[[Callable[[str], Any]], Found]) -> list[Found]:
        """What `ask` finds out of each engine that answers, with a `get` that asks that one only; raises as `get`."""
        found: list[Found] = []
        failure: CoalesceError | None = None
        for engine in _by_preference(self._engines):
            if found and engine.rests_until > time.monotonic():
                continue
            try:
                found.append(ask(partial(self._get, [engine])))
            except CoalesceError as error:
                failure = error
        if not found and failure is not None:
            raise failure
        return found

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
        asked = _Asked(self._engines)
        return self._run(self._items(asked, path, body, _RETRIES), asked, cancelled, in_line=bool(body.get("stream")))

    def close(self) -> None:
        """Ends running requests and closes all connections."""

        async def end() -> None:
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for engine in self._engines:
                await engine.client.aclose()

        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def _get(self, engines: Sequence[_Engine], path: str, body: Json | None = None, within_s: float = math.inf) -> Any:
        deadline, asked = time.monotonic() + within_s, _Asked(engines)
        return next(self._run(self._items(asked, path, body, retries=0), asked, lambda: time.monotonic() > deadline))

    def _run(
        self, items: AsyncIterator[Any], asked: _Asked, cancelled: Callable[[], bool], *, in_line: bool = False
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
            if now - max(began, asked.last.heard_at) > self._request_timeout_s:
                asked.last.went_down()
                raise EngineUnreachable(
                    msg("The engine at {} said nothing for {} s.", asked.last.address, f"{self._request_timeout_s:g}"),
                    hint="Its log says more; COALESCE_REQUEST_TIMEOUT_S sets the longest silence.",
                )
            if now - waiting_since > self._queue_timeout_s:
                raise Busy(
                    msg(
                        "This question waited {} s for the busy engine at {}.",
                        f"{self._queue_timeout_s:g}",
                        asked.last.address,
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
                if begun and isinstance(error, httpx.HTTPError):
                    asked.last.went_down()
                relay.end(error if isinstance(error, CoalesceError) else _broken(asked.last, error, begun=begun))
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

    async def _items(self, asked: _Asked, path: str, body: Json | None, retries: int) -> AsyncIterator[Any]:
        response = await self._open(asked, path, body, retries)
        engine = asked.last
        try:
            if body is None or not body.get("stream"):
                yield json.loads(await response.aread())
                return
            async for line in _lines(response):
                engine.heard()
                if line.startswith(b"data:"):  # not an empty line, a comment or an event's name
                    data = line[5:].strip().decode("utf-8", "replace")
                    if data == "[DONE]":
                        return
                    yield _event(data)
        finally:
            engine.running -= 1
            await response.aclose()

    async def _open(self, asked: _Asked, path: str, body: Json | None, retries: int) -> httpx.Response:
        """A response with status 2xx whose body has not been read yet; its engine counts it as running."""
        for attempt in range(retries + 1):
            left = list(asked.engines)
            pauses: list[float] = []
            while left:  # each engine once before any of them again
                asked.last = engine = _by_preference(left)[0]
                left.remove(engine)
                pauses.append(_FIRST_PAUSE_S * 2**attempt)
                try:
                    response = await engine.send(path, body)
                except (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError) as error:
                    engine.went_down()
                    if not left and (attempt == retries or isinstance(error, httpx.ConnectTimeout)):
                        raise
                    continue
                if response.is_success:
                    return response
                refusal = await _refusal(engine, response)
                if response.status_code not in _RETRIED or (not left and attempt == retries):
                    raise refusal
                pauses[-1] = min(max(pauses[-1], _retry_after_s(response)), _LONGEST_PAUSE_S)
                engine.rest(pauses[-1])
            pause_s = min(*pauses, _LONGEST_PAUSE_S)
            asked.last.heard(later_s=pause_s)
            await asyncio.sleep(pause_s)
        raise ValueError("the last try either returns or raises")


def _by_preference(engines: Sequence[_Engine]) -> list[_Engine]:
    """Those that do not rest first, and of these the one with the fewest of our requests."""
    now = time.monotonic()
    return sorted(engines, key=lambda engine: (max(engine.rests_until - now, 0.0), engine.running))


async def _refusal(engine: _Engine, response: httpx.Response) -> Exception:
    """The engine's error as ours."""
    try:
        text = (await response.aread()).decode("utf-8", "replace")
    except httpx.HTTPError as error:
        return _broken(engine, error)
    finally:
        await response.aclose()
    message, status = _error_text(text), response.status_code
    if status in (429, 503):
        return Busy(
            msg("The engine at {} is busy ({}): {}", engine.address, status, message),
            hint="Try again later.",
            retry_after_s=max(_retry_after_s(response), 1.0),
        )
    if status in (400, 413, 422) and any(sign in message.lower() for sign in _TOO_LONG):
        return PromptTooLong(
            msg("The prompt exceeds the engine's context: {}", message), hint="Ask a shorter question."
        )
    told = msg("The engine at {} answered {}: {}", engine.address, status, message)
    hint: str = "Its log says more."
    if status in (401, 403):
        told = msg("The engine at {} refuses the key ({}): {}", engine.address, status, message)
        hint = "Set COALESCE_GENERATOR_API_KEY."
    elif status == 404:
        told = msg("The engine at {} does not know this path or model (404): {}", engine.address, message)
        hint = msg("Check --base-url and --model; `curl {}` lists what it serves.", f"{engine.address}/models")
    kind = EngineUnreachable if status >= 500 or status in (401, 403, 404) else EngineRefuses
    return kind(told, hint=hint)


def _broken(engine: _Engine, error: BaseException, *, begun: bool = False) -> CoalesceError:
    if begun and isinstance(error, httpx.HTTPError):
        return GenerationFailed(
            msg("The engine at {} went away in the middle of the answer.", engine.address),
            hint="See that it runs, and ask again. Its log says more.",
        )
    told = "The engine at {} does not answer: {}"
    if isinstance(error, ValueError):
        told = "The engine at {} does not answer in the OpenAI format: {}"
    return EngineUnreachable(
        msg(told, engine.address, str(error)[:300] or type(error).__name__),
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
