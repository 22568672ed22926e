"""What routes may ask for, taken from the application's state."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Query, Request

from api.answering import Answering
from api.books import Books
from api.callers import Caller, caller_of
from api.jobs import JobQueue
from api.metrics import Metrics
from api.schemas.study import Learner
from api.services import Services
from api.studying import Studying
from rag.conversations import ConversationStore


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


def get_caller(request: Request) -> Caller:
    """Who sent the request."""
    return caller_of(request.scope)


def get_learner(
    request: Request,
    learner: Annotated[Learner | None, Query(description="whose; with a learner's own key it may be left out")] = None,
) -> str:
    """Whose exams, cards and progress the request is about; raises NotAllowed for another's than the key's."""
    return get_caller(request).learner_for(learner)


def get_owner(
    request: Request,
    learner: Annotated[Learner | None, Query(description="whose; an id finds its own when left out")] = None,
) -> str | None:
    """Whose the exam or card of an id must be, None for anybody's; raises NotAllowed for another's than the key's."""
    return get_caller(request).owner_for(learner)


def get_conversations(request: Request) -> ConversationStore:
    """The conversations that the caller may know of."""
    return get_services(request).engine.conversations.of(get_caller(request).learner)


CallerDep = Annotated[Caller, Depends(get_caller)]
LearnerDep = Annotated[str, Depends(get_learner)]
OwnerDep = Annotated[str | None, Depends(get_owner)]
ConversationsDep = Annotated[ConversationStore, Depends(get_conversations)]
ServicesDep = Annotated[Services, Depends(get_services)]
AnsweringDep = Annotated[Answering, Depends(get_answering)]
MetricsDep = Annotated[Metrics, Depends(get_metrics)]
JobsDep = Annotated[JobQueue, Depends(get_jobs)]
BooksDep = Annotated[Books, Depends(get_books)]
StudyingDep = Annotated[Studying, Depends(get_studying)]
