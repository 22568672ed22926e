"""`POST /v1/search`: the passages that an answer would be given, without the answer."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.answering import client_of
from api.deps import AnsweringDep, ServicesDep
from api.schemas.answers import PassagesOut, SearchIn, filters_of
from api.schemas.base import error_responses
from api.text_input import refuse_controls

router = APIRouter(prefix="/v1", tags=["answers"])


@router.post("/search", responses=error_responses(400, 404, 413, 422, 429, 503))
async def search(body: SearchIn, request: Request, services: ServicesDep, answering: AnsweringDep) -> PassagesOut:
    """Finds passages for a query, best first."""
    query = refuse_controls(body.query, "query")
    engine = services.engine
    filters = filters_of(body.filters)
    passages = await answering.run(lambda: engine.search(query, body.top_k, filters), client_of(request))
    return PassagesOut.of(passages)
