"""What routes may ask for, taken from the application's state."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from api.answering import Answering
from api.books import Books
from api.jobs import JobQueue
from api.metrics import Metrics
from api.services import Services
from api.studying import Studying


def get_services(request: Request) -> Services:
    """The server's services, ready or not."""
    return cast(Services, request.app.state.services)


def get_answering(request: Request) -> Answering:
    """The door to the engine."""
    return cast(Answering, request.app.state.answering)


def get_metrics(request: Request) -> Metrics:
    """The server's metrics."""
    return cast(Metrics, request.app.state.metrics)


def get_books(request: Request) -> Books:
    """What adds and removes books."""
    return cast(Books, request.app.state.books)


def get_jobs(request: Request) -> JobQueue:
    """The job queue."""
    return get_services(request).jobs


def get_studying(request: Request) -> Studying:
    """Questions, exams and cards."""
    return cast(Studying, request.app.state.studying)


ServicesDep = Annotated[Services, Depends(get_services)]
AnsweringDep = Annotated[Answering, Depends(get_answering)]
MetricsDep = Annotated[Metrics, Depends(get_metrics)]
JobsDep = Annotated[JobQueue, Depends(get_jobs)]
BooksDep = Annotated[Books, Depends(get_books)]
StudyingDep = Annotated[Studying, Depends(get_studying)]
