"""Wire forms of `/v1/generator`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.base import Id, WireIn, WireOut

Name = Annotated[str, Field(min_length=1, max_length=1000)]


class GeneratorIn(WireIn):
    """What should answer; `auto` without a model goes back to what the settings say."""

    generator: Literal["auto", "extractive", "local", "remote"]
    model: Name | None = None
    base_url: Name | None = None
    adapter: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    quantization: Literal["none", "int8", "nf4"] | None = None


class AdapterIn(WireIn):
    """Body of `POST /v1/adapters`: on the questions about some books, or on `questions`."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    document_ids: list[Id] | None = Field(default=None, max_length=100)
    questions: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="`bank:tune` if left out, or the name of a question file of the home"
    )
    epochs: Annotated[float, Field(ge=0.1, le=100)] = 3.0


class FoundModelOut(WireOut):
    """A model on this machine; `name` is what `model` takes."""

    name: str
    kind: str
    path: str
    weights_bytes: int
    architecture: str
    quantization: str


class FoundAdapterOut(WireOut):
    """An adapter of the home, and the found models that it fits."""

    name: str
    path: str
    base_model: str
    rank: int
    fits: list[str]


class FoundEngineOut(WireOut):
    """An engine that answers on this machine."""

    engine: str
    base_url: str
    models: list[str]


class AvailableOut(WireOut):
    """A model that can be fetched by its name."""

    name: str
    about: str
    licence: str
    download_bytes: int
    here: bool


class GeneratorOut(WireOut):
    """What answers now, and what was found that could."""

    generator: str
    model: str
    base_url: str | None
    adapter: str | None
    quantization: str | None
    chosen: bool
    problem: str | None
    engines: list[FoundEngineOut]
    models: list[FoundModelOut]
    adapters: list[FoundAdapterOut]
    available: list[AvailableOut]
