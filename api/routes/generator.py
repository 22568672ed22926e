"""`/v1/generator`: what answers, what could, and a switch without a restart."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from api.chosen_generator import GeneratorChoice
from api.deps import CallerDep, ServicesDep
from api.schemas.base import JobStartedOut, error_responses
from api.schemas.generator import GeneratorIn, GeneratorOut

router = APIRouter(prefix="/v1", tags=["generator"])


@router.get("/generator", responses=error_responses(503))
def get_generator(services: ServicesDep) -> GeneratorOut:
    """What answers now, and the engines, models and adapters found on this machine."""
    now = asdict(services.generators.now())
    return GeneratorOut.model_validate(now | asdict(services.generators.look_around()))


@router.put("/generator", status_code=202, responses=error_responses(400, 403, 404, 409, 422, 503))
def put_generator(body: GeneratorIn, services: ServicesDep, caller: CallerDep) -> JobStartedOut:
    """Loads another generator while the old one answers; a failure keeps the old one, and the job says why."""
    caller.need_open_key("change what answers")
    named = body.model_dump()
    if body.generator == "auto":
        named["generator"] = "local"
    as_set = body.generator == "auto" and body.model is None
    return JobStartedOut(job_id=services.generators.switch(None if as_set else GeneratorChoice(**named)).id)
