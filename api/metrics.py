"""Prometheus metrics of one server, in a registry of their own."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import REFUSED
from rag.types import Answer

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """What the server counts. Names carry their units; `/metrics` prints them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "coalesce_http_requests",
            "Calls by route, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "coalesce_http_request_seconds",
            "Seconds from the first byte in to the last byte out, by route.",
            ("route",),
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.refused = Counter(
            "coalesce_http_refused",
            "Calls refused for now (429, 503), by the type of the error, such as busy or rate_limited.",
            ("reason",),
            registry=self.registry,
        )
        self._answers = Counter(
            "coalesce_answers", "Finished answers.", ("arm", "generator", "refused"), registry=self.registry
        )
        self._failed = Counter(
            "coalesce_answers_failed", "Answers that ended in an error.", ("type",), registry=self.registry
        )
        self._answer_seconds = Histogram(
            "coalesce_answer_seconds",
            "Seconds of a finished answer by stage: retrieve, ttft, total.",
            ("stage",),
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self._tokens = Counter(
            "coalesce_tokens",
            "Tokens of finished answers: prompt, cached_prompt, completion.",
            ("kind",),
            registry=self.registry,
        )

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Adds a gauge whose value is read when somebody looks."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def count_answer(self, answer: Answer) -> None:
        """Counts a finished answer with its times and tokens."""
        self._answers.labels(answer.arm, answer.generator, str(answer.refused).lower()).inc()
        self._answer_seconds.labels("retrieve").observe(answer.timings.retrieve_s)
        self._answer_seconds.labels("ttft").observe(answer.timings.ttft_s)
        self._answer_seconds.labels("total").observe(answer.timings.total_s)
        self._tokens.labels("prompt").inc(answer.usage.prompt_tokens)
        self._tokens.labels("cached_prompt").inc(answer.usage.cached_prompt_tokens)
        self._tokens.labels("completion").inc(answer.usage.completion_tokens)

    def count_failure(self, kind: str) -> None:
        """Counts an answer that ended in an error of this wire type."""
        self._failed.labels(kind).inc()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class RequestMeter:
    """ASGI middleware that counts and times calls. Routes are labelled by their pattern, so ids make no new series."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands on, and counts when the answer has gone out."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        started = time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            # Only routes of the API carry a pattern; pages, their assets and unknown paths share one label.
            route = getattr(scope.get("route"), "path_format", None) or "other"
            self._metrics.requests.labels(route, scope["method"], str(status)).inc()
            self._metrics.request_seconds.labels(route).observe(time.perf_counter() - started)
            if reason := scope.get(REFUSED):
                self._metrics.refused.labels(reason).inc()
