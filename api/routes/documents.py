"""`/v1/documents`: list, upload, one, its chapters, remove."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Response, UploadFile
from fastapi.responses import JSONResponse

from api.deps import BooksDep, CallerDep, ServicesDep
from api.schemas.base import error_responses
from api.schemas.documents import ChapterOut, ChaptersOut, DocumentOut, DocumentsOut, UploadOut

router = APIRouter(prefix="/v1/documents", tags=["documents"])
HAD_ALREADY: dict[int | str, dict[str, Any]] = {
    200: {"model": UploadOut, "description": "The library has this content already, or it is on its way"}
}


@router.get("", responses=error_responses(503))
def list_documents(services: ServicesDep) -> DocumentsOut:
    """Every book in the library."""
    return DocumentsOut(documents=[DocumentOut.of(document) for document in services.library.documents()])


@router.post(
    "",
    status_code=202,
    response_model=UploadOut,
    responses=error_responses(400, 403, 413, 415, 422, 503) | HAD_ALREADY,
)
def upload_document(file: Annotated[UploadFile, File()], books: BooksDep, caller: CallerDep) -> Response:
    """Takes a book in; a job adds it. The same content again is a 200 with the same id."""
    caller.need_open_key("add books")
    taken = books.upload(file.file, file.filename or "")
    job_id = taken.job.id if taken.job is not None else None
    reply = UploadOut(job_id=job_id, document_id=taken.document_id)
    return JSONResponse(reply.model_dump(), 202 if taken.new else 200)


@router.get("/{document_id}", responses=error_responses(404, 503))
def get_document(document_id: str, services: ServicesDep) -> DocumentOut:
    """One book."""
    return DocumentOut.of(services.library.document(document_id))


@router.get("/{document_id}/chapters", responses=error_responses(404, 503))
def list_chapters(document_id: str, services: ServicesDep) -> ChaptersOut:
    """The chapters of a book, in order."""
    services.library.document(document_id)
    chapters = services.library.chapters(document_id)
    return ChaptersOut(
        chapters=[ChapterOut(ordinal=item.ordinal, title=item.title, nodes=item.nodes) for item in chapters]
    )


@router.delete("/{document_id}", status_code=204, responses=error_responses(403, 404, 503))
def remove_document(document_id: str, books: BooksDep, caller: CallerDep) -> None:
    """Removes a book; nothing of it is found afterwards."""
    caller.need_open_key("remove books")
    books.remove(document_id)
