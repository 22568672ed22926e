"""An OpenAI-compatible engine of a few lines: it lists its models and writes one answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "small-writer"
WRITES = "A warp has 32 threads, says the engine [1]."


class FakeEngine(ThreadingHTTPServer):
    """Remembers the keys that it was sent."""

    daemon_threads = True

    def __init__(self, port: int = 0, handler: type[Handler] | None = None) -> None:
        super().__init__(("127.0.0.1", port), handler or Handler)
        self.keys: list[str | None] = []
        self.models = [MODEL]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    """Lists the models, and answers every chat."""

    server: FakeEngine

    def do_GET(self) -> None:
        self.server.keys.append(self.headers.get("Authorization"))
        self._send("application/json", json.dumps({"data": [{"id": model} for model in self.server.models]}))

    def writes(self, body: dict[str, Any]) -> str:
        """The answer to a chat."""
        del body
        return WRITES

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/chat/completions"):
            self.send_error(404)
            return
        events: list[dict[str, Any]] = [
            {"choices": [{"delta": {"content": self.writes(body)}, "finish_reason": None}]},
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        ]
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._send("text/event-stream", lines + "data: [DONE]\n\n")

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def fake_engine(handler: type[Handler] | None = None) -> Iterator[FakeEngine]:
    """An engine on a free port of this machine."""
    with FakeEngine(handler=handler) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        yield engine
        engine.shutdown()
