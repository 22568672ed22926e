"""`/v1/documents`: the books of the library, to add, to remove and to read; and pictures of their pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from api.deps import CallerDep, ServicesDep
from api.paging import USUAL_LIMIT, Cursor, Limit, page_of
from api.schemas.base import MAX_ID_CHARS, error_responses
from api.schemas.books import (
    ChaptersOut,
    ContentsOut,
    DocumentOut,
    DocumentsOut,
    FormatsOut,
    PartOut,
    UploadOut,
    UrlIn,
)
from api.services import Services
from api.uploads import page_source
from indexes.errors import NotFound
from indexes.types import Document
from rag.reading import Place, find_part

router = APIRouter(prefix="/v1", tags=["books"])
page_router = APIRouter(tags=["books"])
MAX_QUOTE_CHARS = 1000
_OFFICE = "pip install 'coalesce-rag[office]'"
EXTRAS = {".docx": ("docx", _OFFICE), ".pptx": ("pptx", _OFFICE)}
"""Endings that need a package of an extra: the package, and the command that installs it."""
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


@router.get("/documents", responses=error_responses(400, 422, 503))
def list_documents(services: ServicesDep, limit: Limit = USUAL_LIMIT, cursor: Cursor = None) -> DocumentsOut:
    """The books in the library."""
    shown, more = page_of(services.library.documents(), lambda one: one.document_id, limit, cursor)
    return DocumentsOut(documents=_shown(services, shown), next_cursor=more)


def _shown(services: Services, documents: Sequence[Document]) -> list[DocumentOut]:
    made = services.questions.counts(documents)
    return [DocumentOut.model_validate(asdict(one) | {"questions": made.get(one.document_id, 0)}) for one in documents]


@router.get("/formats", responses=error_responses(503))
def list_formats(services: ServicesDep) -> FormatsOut:
    """The files that can be added."""
    from indexes.readers import TEXT_FORMATS

    missing = {ending: command for ending, (package, command) in EXTRAS.items() if find_spec(package) is None}
    readable = [ending for ending in services.library.readable_endings().split() if ending not in missing]
    chapters = sorted(TEXT_FORMATS)
    return FormatsOut(chapters=chapters, books=[one for one in readable if one not in TEXT_FORMATS], missing=missing)


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
    return _shown(services, [services.library.document(document_id)])[0]


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
) -> Place:
    """Where a citation's quote stands in its book, or a passage's node."""
    return services.reading.place(document_id, node_id, quote)


@router.delete("/documents/{document_id}", status_code=204, responses=error_responses(403, 404, 409, 503))
def remove_document(document_id: str, services: ServicesDep, caller: CallerDep) -> None:
    """Removes a book; nothing of it is found afterwards. The job that adds it, if it is not done, is cancelled."""
    caller.need_open_key("remove books")
    services.books.remove(document_id)


@page_router.get(
    "/page-image/{document_id}/{page}.png", response_class=Response, responses=error_responses(404, 413, 422, 503)
)
def page_image(
    document_id: str, page: int, services: ServicesDep, quote: Annotated[str, Query(max_length=MAX_QUOTE_CHARS)] = ""
) -> Response:
    """A page of a PDF as a picture, with a quote marked on it."""
    path = page_source(services.books.folder, services.library, document_id)
    if path is None:
        raise NotFound(f"the file of book {document_id!r} is not there", hint="Add the book again.")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(services.library.draw_page(path, page, quote), media_type="image/png", headers=headers)
