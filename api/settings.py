"""The one settings object, made at the edge and passed down in its narrowest parts.

Sources, the first that names a value wins: command line > `COALESCE_*` environment > `coalesce.toml` in the home >
defaults. A misspelt name, in the environment or in the file, is refused with the nearest right one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
from pydantic import AfterValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from api.server_settings import ServerSettings
from evals.learners import LEARNER_NAME_HINT, is_learner_name
from indexes.errors import InvalidInput
from indexes.settings import EMBEDDED_MODEL, IndexSettings
from rag.settings import GeneratorSettings, RagSettings, RetrievalSettings

ENV_PREFIX = "COALESCE_"
TOML_NAME = "coalesce.toml"


def _split_commas(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _default_home() -> Path:
    return Path(platformdirs.user_data_dir("coalesce", appauthor=False))


def _learner_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """`LEARNER=KEY` each. What is wrong is told without the pair itself: it may be a key."""
    found: dict[str, str] = {}
    for number, pair in enumerate(pairs, start=1):
        name, _, key = (part.strip() for part in pair.partition("="))
        if not name or not key or name in found:
            why = "names a learner twice" if name in found else "is not of the form LEARNER=KEY"
            raise InvalidInput(f"entry {number} of `learner_keys` {why}", hint="for example alice=KEY1,bob=KEY2")
        found[name] = key
    return found


Commas = Annotated[tuple[str, ...], NoDecode]


class CoalesceSettings(BaseSettings):
    """Every setting by its one name: `COALESCE_<NAME>` in the environment, `<name>` in `coalesce.toml`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    home: Annotated[Path, AfterValidator(_absolute)] = Field(default_factory=_default_home)

    embedder: str = EMBEDDED_MODEL
    embedder_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    embed_batch_size: int | None = Field(default=None, ge=1, le=4096)
    chunk_tokens: int | None = Field(default=None, ge=16)
    chunk_overlap_tokens: int = Field(default=0, ge=0)
    ocr: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    vector_store: str = Field(default="faiss", pattern=r"^(faiss|milvus(:.+)?)$")
    vector_store_token: SecretStr | None = None

    candidates: int = Field(default=50, ge=1, le=10_000)
    passage_budget_tokens: int = Field(default=2000, ge=64)
    reranker: str | None = None
    refusal_threshold: float | None = None

    generator: Literal["auto", "extractive", "local", "remote", "encoder"] = "auto"
    model: str | None = None
    quantization: Literal["none", "int8", "nf4"] = "nf4"
    adapters: Annotated[dict[str, str], NoDecode] = Field(default_factory=dict)
    base_url: str | None = None
    generator_api_key: SecretStr | None = None
    judge_url: str | None = None
    judge_model: str | None = None
    judge_api_key: SecretStr | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    context_tokens: int | None = Field(default=None, ge=64)
    max_tokens: int = Field(default=512, ge=1)
    kv_budget_bytes: int | None = Field(default=None, ge=0)
    prefix_cache: bool = True
    prompt_lookup_tokens: int = Field(default=8, ge=0)
    max_queue: int = Field(default=16, ge=0)
    queue_timeout_s: float = Field(default=60.0, gt=0)
    request_timeout_s: float = Field(default=120.0, gt=0)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    learner_keys: Annotated[dict[str, SecretStr], NoDecode] = Field(default_factory=dict)
    insecure: bool = False
    allowed_hosts: Commas = ()
    max_upload_bytes: int = Field(default=512 * 1024**2, ge=1)
    max_body_bytes: int = Field(default=2 * 1024**2, ge=1024)
    answer_threads: int = Field(default=16, ge=1, le=256)
    max_waiting_asks: int = Field(default=64, ge=0)
    rate_limit_per_minute: int = Field(default=0, ge=0)

    @field_validator("api_keys", "allowed_hosts", mode="before")
    @classmethod
    def _read_commas(cls, value: object) -> object:
        return _split_commas(value)

    @field_validator("adapters", mode="before")
    @classmethod
    def _read_pairs(cls, value: object) -> object:
        pairs = _split_commas(value)
        return dict(parse_pair(pair) for pair in pairs) if isinstance(pairs, tuple) else pairs

    @field_validator("learner_keys", mode="before")
    @classmethod
    def _read_learners(cls, value: object) -> object:
        pairs = _split_commas(value)
        return _learner_pairs(pairs) if isinstance(pairs, tuple) else pairs

    @model_validator(mode="after")
    def _check_learner_keys(self) -> Self:
        keys = [key.get_secret_value() for key in self.learner_keys.values()]
        everyones = {key.get_secret_value() for key in self.api_keys}
        if len(set(keys)) < len(keys) or everyones.intersection(keys):
            raise InvalidInput(
                "one key stands twice in `learner_keys` and `api_keys`: whose would it be?",
                hint="give every learner a key of their own",
            )
        wrong = [name for name in self.learner_keys if not is_learner_name(name) or name != name.strip()]
        if wrong:
            raise InvalidInput(f"learner {wrong[0]!r:.60} in `learner_keys` is not a name", hint=LEARNER_NAME_HINT)
        if not all(key.strip() for key in keys):
            raise InvalidInput("a learner of `learner_keys` has an empty key", hint="give every learner a key")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  part of the base class's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  part of the base class's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, environment, then the `coalesce.toml` of the home that those two (or the default) name."""
        home = init_settings().get("home") or env_settings().get("home") or _default_home()
        file_settings = InitSettingsSource(settings_cls, read_toml(Path(home).expanduser() / TOML_NAME))
        return init_settings, env_settings, file_settings

    @property
    def index(self) -> IndexSettings:
        """What `indexes` may be told."""
        values = {field.name: getattr(self, field.name) for field in fields(IndexSettings)}
        token = self.vector_store_token
        return IndexSettings(**values | {"vector_store_token": token.get_secret_value() if token else None})

    @property
    def rag(self) -> RagSettings:
        """What `rag` may be told."""
        retrieval = RetrievalSettings(
            candidates=self.candidates,
            passage_budget_tokens=self.passage_budget_tokens,
            reranker=self.reranker,
            refusal_threshold=self.refusal_threshold,
        )
        generator = GeneratorSettings(
            kind=self.generator,
            model=self.model,
            quantization=self.quantization,
            adapters=dict(self.adapters),
            base_url=self.base_url,
            api_key=self.generator_api_key.get_secret_value() if self.generator_api_key else None,
            device=self.device,
            dtype=self.dtype,
            context_tokens=self.context_tokens,
            max_tokens=self.max_tokens,
            kv_budget_bytes=self.kv_budget_bytes,
            prefix_cache=self.prefix_cache,
            prompt_lookup_tokens=self.prompt_lookup_tokens,
            max_queue=self.max_queue,
            queue_timeout_s=self.queue_timeout_s,
            request_timeout_s=self.request_timeout_s,
        )
        return RagSettings(home=self.home, retrieval=retrieval, generator=generator)

    @property
    def judge(self) -> GeneratorSettings | None:
        """The remote model that grades a comparison's open answers; None when none is named.

        Raises:
            InvalidInput: it has an address and no model, or a model and no address.
        """
        if self.judge_url is None and self.judge_model is None:
            return None
        if self.judge_url is None or self.judge_model is None:
            raise InvalidInput(
                "a judge needs its address and its model", hint="add --judge-url http://HOST:PORT/v1 --judge-model NAME"
            )
        key = self.judge_api_key.get_secret_value() if self.judge_api_key else None
        return GeneratorSettings(kind="remote", base_url=self.judge_url, model=self.judge_model, api_key=key)

    @property
    def server(self) -> ServerSettings:
        """What the server may be told."""
        return ServerSettings(
            home=self.home,
            host=self.host,
            port=self.port,
            api_keys=tuple(key.get_secret_value() for key in self.api_keys),
            learner_keys=tuple((name, key.get_secret_value()) for name, key in self.learner_keys.items()),
            insecure=self.insecure,
            allowed_hosts=self.allowed_hosts,
            max_upload_bytes=self.max_upload_bytes,
            max_body_bytes=self.max_body_bytes,
            answer_threads=self.answer_threads,
            max_waiting_asks=self.max_waiting_asks,
            rate_limit_per_minute=self.rate_limit_per_minute,
        )


def read_toml(path: Path) -> dict[str, Any]:
    """The settings of a `coalesce.toml`; empty when there is no such file.

    Raises:
        InvalidInput: it cannot be read, or holds a name that is no setting.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}", hint=f"correct {path}") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", hint=f"make {path} readable") from error
    names = set(CoalesceSettings.model_fields) - {"home"}
    for name in values:
        if name == "home":
            raise InvalidInput(
                f"`home` stands in {path}, which is already inside the home",
                hint="name the home with --home or COALESCE_HOME",
            )
        if name not in names:
            raise InvalidInput(f"{path} sets {name!r}, which is no setting", hint=_nearest(name, names))
    return values


def parse_pair(pair: str) -> tuple[str, str]:
    """`NAME=VALUE` as a pair.

    Raises:
        InvalidInput: there is no `=`, or nothing on one side of it.
    """
    name, _, value = pair.partition("=")
    if not name.strip() or not value.strip():
        raise InvalidInput(f"{pair!r} is not of the form NAME=PATH", hint="for example --adapter cuda=adapters/cuda")
    return name.strip(), value.strip()


def load_settings(overrides: Mapping[str, Any] | None = None) -> CoalesceSettings:
    """Makes the settings; `overrides` are the command line's, of which None means 'not given'.

    Raises:
        InvalidInput: a value or a name that cannot be used, with the nearest right name.
    """
    _check_environment(os.environ)
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    try:
        return CoalesceSettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        value = "" if "key" in name else f" {first['input']!r:.80}"
        raise InvalidInput(
            f"setting {name}{value} cannot be used: {first['msg']}",
            hint=f"it comes from --{name.replace('_', '-')}, {ENV_PREFIX}{name.upper()} or {TOML_NAME}",
        ) from error


def _check_environment(environment: Iterable[str]) -> None:
    names = {f"{ENV_PREFIX}{name.upper()}" for name in CoalesceSettings.model_fields}
    for name in environment:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in names:
            raise InvalidInput(f"the environment sets {name}, which is no setting", hint=_nearest(name.upper(), names))


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known settings: {', '.join(sorted(names))}"
