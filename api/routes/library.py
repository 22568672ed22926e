"""`/v1/documents` and `/v1/jobs`: the books, and the work that goes on after a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sse_starlette import ServerSentEvent

from api.deps import CallerDep, ServicesDep
from api.job_store import Job
from api.jobs import JobQueue
from api.page_images import page_source, render_page
from api.schemas.base import MAX_ID_CHARS, error_responses
from api.schemas.library import (
    ChaptersOut,
    ContentsOut,
    DocumentOut,
    DocumentsOut,
    JobOut,
    JobsOut,
    PartOut,
    PlaceOut,
    SuggestionsOut,
    UploadOut,
    UrlIn,
)
from api.streaming import event_stream, sse
from indexes.errors import NotFound
from rag.reading import find_part

router = APIRouter(prefix="/v1", tags=["library"])
page_router = APIRouter(tags=["library"])
MAX_QUOTE_CHARS = 1000
HAD_ALREADY: dict[int | str, dict[str, Any]] = {
    200: {"model": UploadOut, "description": "The library has this content already, or a job is adding it"}
}


async def _url_of(request: Request) -> UrlIn | None:
    """The body of a request in JSON; None for any other."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return None
    try:
        return UrlIn.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


@router.get("/documents", responses=error_responses(503))
def list_documents(services: ServicesDep) -> DocumentsOut:
    """Every book in the library."""
    return DocumentsOut.model_validate({"documents": services.library.documents()})


@router.post(
    "/documents",
    status_code=202,
    response_model=UploadOut,
    responses=error_responses(400, 403, 413, 415, 422, 503) | HAD_ALREADY,
)
def upload_document(
    named: Annotated[UrlIn | None, Depends(_url_of)],
    services: ServicesDep,
    caller: CallerDep,
    file: Annotated[
        list[UploadFile] | None, File(description="a book; or the text files of a folder, each named by its path in it")
    ] = None,
) -> Response:
    """Accepts a book as a file, a folder of text files as several, or a page of the web as JSON; a job adds it.

    `{"url": …}` names a page, or a sitemap whose pages become one book.

    The same content again is a 200 with the same id.
    """
    caller.need_open_key("add books")
    if named is not None:
        taken = services.fetch_book(named.url)
    elif file:
        named_files = [(one.filename or "", one.file) for one in file]
        several = len(named_files) > 1
        taken = services.books.upload_folder(named_files) if several else services.books.upload(*named_files[0][::-1])
    else:
        raise RequestValidationError([{"type": "missing", "loc": ("body", "file"), "msg": "file is missing"}])
    job_id = taken.job.id if taken.job is not None else None
    reply = UploadOut(job_id=job_id, document_id=taken.document_id)
    return JSONResponse(reply.model_dump(), 202 if taken.new else 200)


@router.get("/documents/{document_id}", responses=error_responses(404, 503))
def get_document(document_id: str, services: ServicesDep) -> DocumentOut:
    """One book."""
    return DocumentOut.model_validate(services.library.document(document_id))


@router.get("/documents/{document_id}/chapters", responses=error_responses(404, 503))
def list_chapters(document_id: str, services: ServicesDep) -> ChaptersOut:
    """The chapters of a book, in order."""
    services.library.document(document_id)
    return ChaptersOut.model_validate({"chapters": services.library.chapters(document_id)})


@router.get("/documents/{document_id}/contents", responses=error_responses(404, 503))
def list_contents(document_id: str, services: ServicesDep) -> ContentsOut:
    """The parts of a book (its chapters, long ones in pieces) and their sections."""
    return ContentsOut.model_validate({"parts": services.reading.parts(document_id)})


@router.get("/documents/{document_id}/parts/{number}", responses=error_responses(404, 422, 503))
def read_part(document_id: str, number: int, services: ServicesDep) -> PartOut:
    """A part of a book to read."""
    parts = services.reading.parts(document_id)
    return PartOut.model_validate(asdict(find_part(parts, number=number)) | {"parts": len(parts)})


@router.get("/documents/{document_id}/place", responses=error_responses(404, 422, 503))
def find_place(
    document_id: str,
    services: ServicesDep,
    node_id: Annotated[str, Query(max_length=MAX_ID_CHARS)],
    quote: Annotated[str, Query(max_length=MAX_QUOTE_CHARS)] = "",
) -> PlaceOut:
    """Where a citation's quote stands in its book, or a passage's node."""
    return PlaceOut.model_validate(services.reading.place(document_id, node_id, quote))


@router.get("/suggestions", responses=error_responses(404, 422, 503))
def suggest_questions(
    services: ServicesDep,
    caller: CallerDep,
    answer_id: Annotated[str | None, Query(max_length=MAX_ID_CHARS, description="questions after this answer")] = None,
) -> SuggestionsOut:
    """Questions that the books' sections answer: to begin with, or after an answer from the sections around it."""
    if answer_id is not None:
        found = services.reading.suggest_next(services.answer(answer_id, caller.learner))
    else:
        found = services.reading.suggest([document.document_id for document in services.library.documents()])
    return SuggestionsOut.model_validate({"suggestions": found})


@router.delete("/documents/{document_id}", status_code=204, responses=error_responses(403, 404, 503))
def remove_document(document_id: str, services: ServicesDep, caller: CallerDep) -> None:
    """Removes a book; nothing of it is found afterwards."""
    caller.need_open_key("remove books")
    services.books.remove(document_id)


POLL_S = 0.1
"""How often a watched job is read."""


@page_router.get(
    "/page-image/{document_id}/{page}.png", response_class=Response, responses=error_responses(404, 422, 503)
)
def page_image(
    document_id: str, page: int, services: ServicesDep, quote: Annotated[str, Query(max_length=MAX_QUOTE_CHARS)] = ""
) -> Response:
    """A page of a PDF as a picture, with a quote marked on it."""
    path = page_source(services.settings.home, services.library, document_id)
    if path is None:
        raise NotFound(f"the file of book {document_id!r} is not there", hint="Add the book again.")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(render_page(path, page, quote), media_type="image/png", headers=headers)


@router.get("/jobs")
def list_jobs(services: ServicesDep) -> JobsOut:
    """The jobs that are kept, the newest first."""
    return JobsOut.model_validate({"jobs": services.jobs.list()})


@router.get("/jobs/{job_id}", responses=error_responses(404))
def get_job(job_id: str, services: ServicesDep) -> JobOut:
    """One job as it is now."""
    return JobOut.model_validate(services.jobs.get(job_id))


@router.delete("/jobs/{job_id}", responses=error_responses(403, 404, 409))
def cancel_job(job_id: str, services: ServicesDep, caller: CallerDep) -> JobOut:
    """Cancels a queued or running job; a running one stops at its next safe point."""
    caller.need_open_key("cancel jobs")
    return JobOut.model_validate(services.jobs.cancel(job_id))


@router.get("/jobs/{job_id}/events", response_class=Response, responses=error_responses(404))
async def watch_job(job_id: str, services: ServicesDep) -> Response:
    """`progress` at every change and `done` at the end, each with the whole job."""
    first = await asyncio.to_thread(services.jobs.get, job_id)
    return event_stream(_watched(first, services.jobs))


async def _watched(job: Job, jobs: JobQueue) -> AsyncIterator[ServerSentEvent]:
    while not job.final:
        yield sse(JobOut.model_validate(job).model_dump(mode="json"), "progress")
        seen = job
        while job == seen:
            await asyncio.sleep(POLL_S)
            job = await asyncio.to_thread(jobs.get, job.id)
    yield sse(JobOut.model_validate(job).model_dump(mode="json"), "done")
