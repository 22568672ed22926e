"""What routes take: the server's services, and who sent the request."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Query, Request

from api.schemas.study import Learner
from api.security import Caller, caller_of
from api.services import Services
from evals.study import Study
from rag.conversations import ConversationStore


def _services(request: Request) -> Services:
    return cast(Services, request.app.state.services)


def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


def _learner(
    request: Request,
    learner: Annotated[Learner | None, Query(description="the learner; by default the one whose key it is")] = None,
) -> str:
    return caller_of(request.scope).learner_for(learner)


def _owner(
    request: Request,
    learner: Annotated[
        Learner | None, Query(description="the learner; by default the one to whom the id belongs")
    ] = None,
) -> str | None:
    return caller_of(request.scope).owner_for(learner)


def _file_owner(
    request: Request,
    learner: Annotated[
        Learner | None, Query(description="the learner whose question files; by default one's own")
    ] = None,
) -> str | None:
    caller = caller_of(request.scope)
    return learner if caller.learner is None else caller.learner_for(learner)


def _study(request: Request) -> Study:
    return _services(request).study.seen_by(caller_of(request.scope).learner)


def _conversations(request: Request) -> ConversationStore:
    return _services(request).conversations(caller_of(request.scope).learner)


def check_assistant(request: Request) -> None:
    """A dependency of the calls that answer: raises Conflict while the caller's class takes an exam without them."""
    if caller_of(request.scope).learner is not None:
        _study(request).check_assistant()


ServicesDep = Annotated[Services, Depends(_services)]
CallerDep = Annotated[Caller, Depends(_caller)]
LearnerDep = Annotated[str, Depends(_learner)]
"""Whose exams, cards and progress the request is about; NotAllowed for another's than the key's."""
OwnerDep = Annotated[str | None, Depends(_owner)]
"""Whose the exam or card of an id must be, None for anybody's; NotAllowed for another's than the key's."""
FileOwnerDep = Annotated[str | None, Depends(_file_owner)]
"""The learner whose question files the request is about, None for those of open keys; NotAllowed for another's."""
StudyDep = Annotated[Study, Depends(_study)]
"""Studying as the caller may see it."""
ConversationsDep = Annotated[ConversationStore, Depends(_conversations)]
"""The conversations that the caller may see."""
