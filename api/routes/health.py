"""`GET /healthz`: alive. `GET /readyz`: ready and with what, or what it waits for. `GET /metrics`: Prometheus text."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from api.deps import MetricsDep, ServicesDep
from api.errors import NotReady, describe
from api.running import what_runs
from api.schemas.base import error_responses

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses=error_responses(503))
def readyz(services: ServicesDep) -> Response:
    """200 with what runs, or 503 with what is waited for."""
    try:
        return JSONResponse(what_runs(services))
    except NotReady as error:
        reply = describe(error)
        preparation = services.preparation
        waiting = {
            "status": "failed" if preparation.error else "starting",
            "waiting_for": preparation.step,
            "done": preparation.done,
            "total": preparation.total,
        }
        return JSONResponse(reply.body | waiting, reply.status, headers=reply.headers)


@router.get("/metrics", response_class=PlainTextResponse)
def read_metrics(metrics: MetricsDep) -> Response:
    """Counters, histograms and gauges of this server."""
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
