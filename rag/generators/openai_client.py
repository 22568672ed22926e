"""Talks to an OpenAI-compatible engine over HTTP: retries what is worth retrying, streams, and can be stopped.

Knows nothing of questions and passages. A request is tried again only before its first byte arrived: when no
connection came about, and on 429, 500, 502, 503 and 504, after a pause that doubles or that the engine asks for.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from indexes.errors import Busy, Cancelled
from rag.errors import EngineUnreachable, GenerationFailed, PromptTooLong

_RETRIED = frozenset({429, 500, 502, 503, 504})
_CONNECT_TIMEOUT_S = 5.0
_LONGEST_PAUSE_S = 10.0
_POLL_S = 0.05
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TOO_LONG = (
    "context length", "context_length", "maximum context", "context size", "context window", "too long",
    "longer than the", "max_model_len", "exceeds the available context", "input length",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing in the queue of a stream's lines."""

    error: BaseException | None = None


class OpenAIClient:
    """One engine.

    Args:
        base_url: its address; `/v1` is added where no path is given.
        request_timeout_s: longest silence of the engine, also before its first token.
        retries: tries after the first; pause_s: before the first of them.
    """

    def __init__(
        self, base_url: str, api_key: str | None, request_timeout_s: float, *, retries: int = 3, pause_s: float = 0.5
    ) -> None:
        parts = urlsplit(base_url)
        self.base_url = base_url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
        self._retries = retries
        self._pause_s = pause_s
        self._timeout_s = request_timeout_s
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(request_timeout_s, connect=min(_CONNECT_TIMEOUT_S, request_timeout_s)),
            trust_env=parts.hostname not in _LOOPBACK,  # a proxy has no business between two processes of one machine
        )

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`; errors as for `post`."""
        return self._json("GET", path, None, lambda: False)

    def post(self, path: str, body: dict[str, Any], cancelled: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """The engine's JSON answer.

        Raises:
            EngineUnreachable: no connection, no answer in time, or an answer that is none.
            Busy: it stays overloaded.
            PromptTooLong: the prompt exceeds the engine's context.
            GenerationFailed: it refuses the request.
            Cancelled: `cancelled` became true between two tries.
        """
        return self._json("POST", path, body, cancelled)

    def stream(
        self, path: str, body: dict[str, Any], cancelled: Callable[[], bool]
    ) -> Generator[dict[str, Any], None, None]:
        """The events of a streamed answer, until `[DONE]` or the engine closes; closing this iterator hangs up.

        The connection is read on a thread of its own, so that a stopped answer need not wait for the engine's next
        word.
        """
        response = self._open("POST", path, body, cancelled)
        lines: queue.SimpleQueue[str | _End] = queue.SimpleQueue()
        reader = threading.Thread(target=_read_lines, args=(response, lines), name="coalesce-remote", daemon=True)
        reader.start()
        try:
            while True:
                try:
                    line = lines.get(timeout=_POLL_S)
                except queue.Empty:
                    if cancelled():
                        raise Cancelled("The answer was stopped.") from None
                    continue
                if isinstance(line, _End):
                    if line.error is not None:
                        raise self._broken(line.error)
                    return
                if not line.startswith("data:"):
                    continue  # empty lines, comments that keep the connection open, event names
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                yield self._event(data)
                if cancelled():
                    raise Cancelled("The answer was stopped.")
        finally:
            _hang_up(response)

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()

    def _json(
        self, method: str, path: str, body: dict[str, Any] | None, cancelled: Callable[[], bool]
    ) -> dict[str, Any]:
        response = self._open(method, path, body, cancelled)
        try:
            content = json.loads(response.read())
        except (httpx.HTTPError, ValueError) as error:
            raise self._broken(error) from error
        finally:
            response.close()
        if not isinstance(content, dict):
            raise self._broken(ValueError(f"expected an object, found {type(content).__name__}"))
        return content

    def _open(
        self, method: str, path: str, body: dict[str, Any] | None, cancelled: Callable[[], bool]
    ) -> httpx.Response:
        """A response with status 2xx whose body has not been read yet."""
        for attempt in range(self._retries + 1):
            pause = self._pause_s * 2**attempt
            try:
                request = self._client.build_request(method, f"{self.base_url}/{path}", json=body)
                response = self._client.send(request, stream=True)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if attempt == self._retries or not isinstance(error, httpx.ConnectError | httpx.RemoteProtocolError):
                    raise self._broken(error) from error
            else:
                if response.is_success:
                    return response
                refusal = self._refusal(response)
                if response.status_code not in _RETRIED or attempt == self._retries:
                    raise refusal
                pause = max(pause, _retry_after_s(response))
            _sleep(min(pause, _LONGEST_PAUSE_S), cancelled)
        raise ValueError("the last try either returns or raises")

    def _refusal(self, response: httpx.Response) -> Exception:
        """The engine's error as ours."""
        try:
            text = response.read().decode("utf-8", "replace")
        except httpx.HTTPError as error:
            return self._broken(error)
        finally:
            response.close()
        message, status = _error_text(text), response.status_code
        if status in (429, 503):
            return Busy(
                f"The engine at {self.base_url} is busy ({status}): {message}",
                hint="Try again later.",
                retry_after_s=max(_retry_after_s(response), 1.0),
            )
        if status in (401, 403):
            return EngineUnreachable(
                f"The engine at {self.base_url} refuses the key ({status}): {message}",
                hint="Set COALESCE_GENERATOR_API_KEY.",
            )
        if status in (400, 413, 422) and any(sign in message.lower() for sign in _TOO_LONG):
            return PromptTooLong(f"The prompt exceeds the engine's context: {message}", hint="Ask a shorter question.")
        if status == 404:
            return EngineUnreachable(
                f"The engine at {self.base_url} does not know it (404): {message}",
                hint=f"Check --base-url and --model; `curl {self.base_url}/models` lists what it serves.",
            )
        kind = EngineUnreachable if status >= 500 else GenerationFailed
        return kind(f"The engine at {self.base_url} answered {status}: {message}", hint="Its log says more.")

    def _broken(self, error: BaseException) -> EngineUnreachable:
        what = "did not answer in time" if isinstance(error, httpx.TimeoutException) else "does not answer"
        if isinstance(error, ValueError):
            what = "answers nonsense"
        return EngineUnreachable(
            f"The engine at {self.base_url} {what}: {type(error).__name__}: {str(error)[:300]}",
            hint="Start it, or correct --base-url (it ends in /v1).",
        )

    def _event(self, data: str) -> dict[str, Any]:
        try:
            event = json.loads(data)
        except ValueError as error:
            raise self._broken(error) from error
        if not isinstance(event, dict):
            raise self._broken(ValueError(f"expected an object, found {data[:80]}"))
        if "error" in event:
            raise GenerationFailed(
                f"The engine failed in the middle of the answer: {_error_text(data)}", hint="Its log says more."
            )
        return event


def _read_lines(response: httpx.Response, lines: queue.SimpleQueue[str | _End]) -> None:
    """Runs on a thread of its own; ends when the engine does or when the response is closed under it."""
    try:
        for line in response.iter_lines():
            lines.put(line)
    except BaseException as error:  # noqa: BLE001 - whatever ends the connection is told to its consumer
        lines.put(_End(error))
    else:
        lines.put(_End())


def _hang_up(response: httpx.Response) -> None:
    """Closes a response that another thread may be reading: shutting the socket down is what wakes that thread."""
    import socket

    stream = response.extensions.get("network_stream")
    with contextlib.suppress(OSError, AttributeError):
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    with contextlib.suppress(Exception):
        response.close()


def _sleep(seconds: float, cancelled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if cancelled():
            raise Cancelled("The answer was stopped.")
        time.sleep(min(left, _POLL_S))


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return max(float(response.headers.get("retry-after", "0")), 0.0)
    except ValueError:
        return 0.0  # a date: our own pause will do


def _error_text(text: str) -> str:
    """The message inside an engine's error, whatever shape it has."""
    try:
        content = json.loads(text)
    except ValueError:
        return text.strip()[:300] or "no message"
    if isinstance(content, dict):
        error = content.get("error", content)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or error
        return str(error)[:300]
    return str(content)[:300]
