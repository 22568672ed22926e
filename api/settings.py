"""The one settings object, made at the edge and passed down in its narrowest parts.

Sources, the first that names a value wins: command line > `COALESCE_*` environment > what was chosen on the page (which
model answers) > `coalesce.toml` in the home > defaults. A misspelt name, in the environment or in the file, is refused
with the nearest right one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

import platformdirs
from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from api.chosen_generator import CHOICE_FILE, GeneratorChoice, is_loopback, origins_of, read_choice
from evals.learners import LEARNER_NAME_HINT, is_learner_name
from indexes.errors import InvalidInput
from indexes.messages import msg
from indexes.settings import EMBEDDED_MODEL, LLAMA_INDEX, IndexSettings
from rag.models.home import shipped_adapters
from rag.settings import GeneratorName, GeneratorSettings, QuantizationName, RagSettings, RetrievalSettings

ENV_PREFIX = "COALESCE_"
OF_A_CHOICE = ("generator", "model", "base_url", "adapters", "quantization")
"""What a choice made on the page stands for; any of them on the command line or in the environment undoes it."""
TOML_NAME = "coalesce.toml"
MOST_DAYS = 36_500


def _split_commas(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _default_home() -> Path:
    return Path(platformdirs.user_data_dir("coalesce", appauthor=False))


def _vector_store(name: str) -> str:
    if name != "faiss" and not name.startswith(LLAMA_INDEX):
        raise InvalidInput(
            f"setting vector_store {name.partition('?')[0]!r:.80} cannot be used: "
            f"it is neither `faiss` nor a llama-index vector store (`{LLAMA_INDEX}MODULE:NAME?…`)",
            hint="Leave it out, or name a store as docs/llama-index.md shows: it is filled from the library, "
            "which holds all vectors.",
        )
    return name


def _uploads(url: str | None) -> str | None:
    parts = urlsplit(url or "file:///")
    if not parts.scheme or (parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/"))):
        raise ValueError("an address such as file:///srv/uploads or s3://BUCKET/uploads is expected")
    if any(urlsplit(each).password is not None for each in (url or "").split("::")):  # it would stand in messages
        raise ValueError(
            "it holds a password: give that in the environment, where the package of its file system reads it"
        )
    return url


def _learner_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """Reads `LEARNER=KEY` pairs. Errors do not show a pair: it may be a key."""
    found: dict[str, str] = {}
    for number, pair in enumerate(pairs, start=1):
        name, _, key = (part.strip() for part in pair.partition("="))
        if not name or not key or name in found:
            why = "names a learner twice" if name in found else "is not of the form LEARNER=KEY"
            raise InvalidInput(f"entry {number} of `learner_keys` {why}", hint="For example: alice=KEY1,bob=KEY2")
        found[name] = key
    return found


Commas = Annotated[tuple[str, ...], NoDecode]


class CoalesceSettings(BaseSettings):
    """Every setting by its one name: `COALESCE_<NAME>` in the environment, `<name>` in `coalesce.toml`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    home: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=_default_home,
        description="The folder that holds everything you make: books, exams, conversations, reports.",
    )
    database_url: SecretStr | None = Field(
        None,
        description="The address of a PostgreSQL database (`postgresql://…`, extra `postgres`) that keeps the library, "
        "conversations, exams, made questions and jobs in place of the home's databases; servers may share it.",
    )
    uploads_url: Annotated[str | None, AfterValidator(_uploads)] = Field(
        None,
        description="Where uploaded books are kept for all servers of a database: `file:///FOLDER`, or an address that "
        "fsspec knows, such as `s3://BUCKET/FOLDER`; by default the home's folder `uploads`.",
    )
    worker: bool = Field(
        True,
        description="Whether a server does the jobs of its database itself; without, it leaves them to "
        "`coalesce worker`.",
    )
    keep_conversations_days: int | None = Field(
        None,
        ge=1,
        le=MOST_DAYS,
        description="Days after its last answer that a server keeps a conversation; by default for ever.",
    )
    keep_jobs_days: int | None = Field(
        None,
        ge=1,
        le=MOST_DAYS,
        description="Days that a server keeps a finished job; by default until there are a thousand newer ones.",
    )

    embedder: str = Field(
        EMBEDDED_MODEL,
        description="The embedding model: the bundled one, a folder or hub name for sentence-transformers, or "
        "`llama_index:…`.",
    )
    embedder_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="The embedder's number format; `auto` is bfloat16 where the hardware has it, else float32.",
    )
    embed_batch_size: int | None = Field(
        None, ge=1, le=4096, description="Texts embedded together; by default 4 on a CPU and 128 on a GPU."
    )
    chunk_tokens: int | None = Field(
        None,
        ge=16,
        description="The most tokens of a node; by default 240, or what the embedder reads if that is less.",
    )
    chunk_overlap_tokens: int = Field(0, ge=0, description="Tokens that neighbouring nodes of one section share.")
    readers: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict,
        description="llama-index readers (`llama_index:…`) by file ending, such as `.docx`, in place of ours.",
    )
    ocr: bool = Field(False, description="Whether to recognise the text of scanned PDF pages; needs the extra `ocr`.")
    reading_processes: int = Field(
        2,
        ge=0,
        le=16,
        description="Books that are read at once, each in a process of its own; 0 reads them in the program's own, "
        "without the limits that follow.",
    )
    reading_memory_bytes: int = Field(
        2 * 1024**3, ge=128 * 1024**2, description="The most memory that reading a book may take."
    )
    reading_cpu_s: float = Field(
        600.0,
        gt=0,
        description="The most seconds of the processor that reading a book may take; ten times as many with `ocr`.",
    )
    reading_wall_s: float = Field(
        1800.0,
        gt=0,
        description="The most seconds by the clock that reading a book may take; ten times as many with `ocr`.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the embedder, FAISS and a local model run; `auto` takes a GPU if there is one."
    )
    vector_store: Annotated[str, AfterValidator(_vector_store)] = Field(
        "faiss",
        repr=False,
        description="Where vectors are searched: `faiss`, or a llama-index vector store (`llama_index:…`).",
    )

    candidates: int = Field(50, ge=1, le=10_000, description="Nodes taken from each of the two searches.")
    passage_budget_tokens: int = Field(
        2000,
        ge=64,
        description="The most tokens of passages in one prompt, as the model counts them, else estimated.",
    )
    reranker: str | None = Field(
        None, description="A cross-encoder that reorders what was found, by folder or hub name."
    )
    refusal_threshold: float | None = Field(
        None,
        description="The least evidence, from 0 to 1, to answer at all; by default the calibrated one.",
    )

    generator: GeneratorName = Field(
        "auto",
        description="What writes answers; `auto` is `local` where a model is named, else `extractive`.",
    )
    model: str | None = Field(
        None,
        description="The model: a folder, a `.gguf` file, or a name that `coalesce models` lists (`local`, "
        "`vllm`); the engine's name for it (`remote`).",
    )
    quantization: Literal["auto", QuantizationName] = Field(
        "auto",
        description="The format of a local model's weights: whole, 8 bits or 4 bits. `auto` is a GGUF file's own where "
        "OpenVINO runs it, else on a processor whole as long as they fit, on a GPU 4 bits and `none` below half a "
        "billion weights.",
    )
    answers: Literal["both", "free", "quotes"] = Field(
        "both",
        description="What a language model's answers are made of: the sentences that it writes and that a passage "
        "supports, above the books' own (`both`); what it writes alone, each sentence checked (`free`); the books' own "
        "sentences alone (`quotes`).",
    )
    adapters: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict,
        description="LoRA adapters by name: a folder (`local`, `vllm`) or a model name (`remote`). A fetched model "
        "has one.",
    )
    base_url: str | None = Field(
        None,
        description="The remote engine's `/v1` address, or those of several that serve the same model and adapters, "
        "with commas between them; one that is down is left out.",
    )
    vllm: str = Field(
        "vllm serve",
        min_length=1,
        description="The command that serves with vLLM, from an environment of its own (`/opt/vllm/bin/vllm serve`); "
        "further options of vLLM's may follow.",
    )
    generator_api_key: SecretStr | None = Field(None, description="The key that is sent to the remote engine.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="The number format in which a local model computes."
    )
    context_tokens: int | None = Field(
        None, ge=64, description="The longest context in tokens; by default the model's own."
    )
    max_tokens: int = Field(512, ge=1, description="The longest answer in tokens when a question does not say.")
    reasoning_tokens: int = Field(
        4096,
        ge=0,
        description="The most tokens that a model may think before it answers. A local model's reasoning is then "
        "closed; for an engine that thinks longer, the answer is an error.",
    )
    kv_budget_bytes: int | None = Field(
        None,
        ge=0,
        description="Memory for the KV cache of a local model; by default half of what the weights leave free, on a "
        "CPU 4 GiB at most.",
    )
    answer_cache: int = Field(
        256,
        ge=0,
        description="Answers of a language model that an LRU cache in memory gives again to the same question over the "
        "same passages; 0 keeps none. Comparisons keep none either.",
    )
    prefix_cache: bool = Field(
        True, description="Whether a local model keeps the KV cache of prompt prefixes for reuse."
    )
    max_queue: int | None = Field(
        None, ge=0, description="Questions that may wait for a local model; by default as many as come."
    )
    queue_timeout_s: float = Field(
        600.0,
        gt=0,
        description="The longest that a question may wait for a busy model, in seconds; longer waits are a 503.",
    )
    request_timeout_s: float = Field(
        120.0, gt=0, description="The longest silence of a remote engine to all that ask it, in seconds."
    )

    judge_url: str | None = Field(
        None, description="The `/v1` address of a model that grades the open answers of a comparison."
    )
    judge_model: str | None = Field(
        None, description="The name of that model; no answer is graded unless both are set."
    )
    judge_api_key: SecretStr | None = Field(None, description="The key that is sent to the judge.")

    host: str = Field("127.0.0.1", description="The address to listen on; any but loopback needs a key or `insecure`.")
    port: int = Field(8000, ge=0, le=65535, description="The port to listen on; 0 takes a free one.")
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="Keys whose holders may see and change everything."
    )
    learner_keys: Annotated[dict[str, SecretStr], NoDecode] = Field(
        default_factory=dict,
        description="Keys by learner: each sees and changes that learner's work, and reads the library.",
    )
    insecure: bool = Field(False, description="Whether to listen on any address without keys.")
    allowed_hosts: Commas = Field(
        (), description="Names of this server, besides its own, that requests without keys may carry."
    )
    allowed_origins: Commas = Field(
        (),
        description="Origins of other sites' pages and apps, such as `app://obsidian.md`, that may call where no key "
        "is asked for; a call with a valid key may come from any.",
    )
    trusted_proxies: Commas = Field(
        (),
        description="Addresses of reverse proxies whose X-Forwarded headers say who a client is; by default none.",
    )
    max_upload_bytes: int = Field(512 * 1024**2, ge=1, description="The largest upload of a book; 512 MiB by default.")
    max_body_bytes: int = Field(2 * 1024**2, ge=1024, description="The largest other request; 2 MiB by default.")
    private_urls: bool = Field(
        False, description="Whether books may be fetched by URL from this machine and its network too."
    )
    answer_threads: int = Field(64, ge=1, le=256, description="Questions that a language model answers at once.")
    max_waiting_asks: int = Field(64, ge=0, description="Questions that may wait to be answered; then 503.")
    rate_limit_per_minute: int = Field(
        0, ge=0, description="Questions per minute for each key, or for each address without keys; 0 is no limit."
    )

    _chosen: GeneratorChoice | None = PrivateAttr(default=None)
    _choice_unread: bool = PrivateAttr(default=False)

    @field_validator("api_keys", "allowed_hosts", "allowed_origins", "trusted_proxies", mode="before")
    @classmethod
    def _read_commas(cls, value: object) -> object:
        return _split_commas(value)

    @field_validator("adapters", "readers", mode="before")
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
                "`learner_keys` and `api_keys` hold the same key twice",
                hint="Give every learner a key of their own.",
            )
        wrong = [name for name in self.learner_keys if not is_learner_name(name) or name != name.strip()]
        if wrong:
            raise InvalidInput(f"learner {wrong[0]!r:.60} in `learner_keys` is not a name", hint=LEARNER_NAME_HINT)
        if not all(key.strip() for key in keys):
            raise InvalidInput("a learner of `learner_keys` has an empty key", hint="Give every learner a key.")
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
    def study_place(self) -> Path | str:
        """The database of exams, cards and progress."""
        return self._store("study.sqlite3")

    @property
    def made_questions_place(self) -> Path | str:
        """The database of questions made from books."""
        return self._store("questions.sqlite3")

    @property
    def jobs_place(self) -> Path | str:
        """The database of jobs."""
        return self._store("jobs.sqlite3")

    @property
    def choice_place(self) -> Path | str:
        """What keeps the generator that was chosen on the page."""
        return self._store(CHOICE_FILE)

    def _store(self, name: str) -> Path | str:
        """A file of the home, or the address of the database in its place."""
        return self.home / name if self.database_url is None else self.database_url.get_secret_value()

    @property
    def uploads_folder(self) -> Path:
        """The folder of uploaded books; where they are kept elsewhere, that of the copies that this home has."""
        is_folder = self.uploads_url is not None and self.uploads_url.startswith("file:")
        return Path(unquote(urlsplit(self.uploads_url).path)) if is_folder else self.home / "uploads"

    @property
    def questions_folder(self) -> Path:
        """The folder of the user's own question files."""
        return self.home / "questions"

    @property
    def reports_folder(self) -> Path:
        """The folder that comparisons write their reports to."""
        return self.home / "reports"

    @property
    def index(self) -> IndexSettings:
        """The settings of `indexes`."""
        return IndexSettings(**self._values_of(IndexSettings))

    @property
    def rag(self) -> RagSettings:
        """The settings of `rag`, with the generator that was chosen on the page where there is one."""
        return self.rag_with(self.chosen)

    @property
    def chosen(self) -> GeneratorChoice | None:
        """The generator that was chosen on the page; None where the settings themselves say what answers.

        Raises:
            InvalidInput: what is kept of the choice is damaged.
            DatabaseUnavailable: the database that keeps it does not answer.
        """
        if self._choice_unread:
            self._chosen, self._choice_unread = read_choice(self.choice_place), False
        return self._chosen

    def choosing(self, choice: GeneratorChoice | None) -> Self:
        """These settings with another choice."""
        other = self.model_copy()
        other._chosen, other._choice_unread = choice, False
        return other

    def rag_with(self, choice: GeneratorChoice | None) -> RagSettings:
        """The settings of `rag` with a choice, or as they stand. The key goes to the address of the settings only."""
        settings = self._configured_rag
        if choice is None:
            return settings
        adapters = shipped_adapters(choice.model) if choice.generator == "local" else {}
        if choice.adapter is not None and choice.adapter not in adapters:
            kept = choice.adapter if choice.generator == "remote" else str(self.home / "adapters" / choice.adapter)
            adapters = {choice.adapter: self.adapters.get(choice.adapter, kept)}
        same_address = origins_of(choice.base_url) <= origins_of(self.base_url)
        generator = replace(
            settings.generator,
            kind=choice.generator,
            model=choice.model,
            quantization=choice.quantization or self.quantization,
            adapters=adapters,
            base_url=choice.base_url,
            api_key=settings.generator.api_key if same_address else None,
        )
        return replace(settings, generator=generator)

    def measured(self, rag: RagSettings) -> RagSettings:
        """Settings of `rag` for a comparison: what a model writes as it comes, unless these say what answers are of."""
        if "answers" in self.model_fields_set:
            return rag
        return replace(rag, generator=replace(rag.generator, answers="unchecked"))

    @property
    def _configured_rag(self) -> RagSettings:
        key = self.generator_api_key
        shipped = shipped_adapters(self.model) if self.generator in ("auto", "local") else {}
        generator = {
            "kind": self.generator,
            "api_key": key.get_secret_value() if key else None,
            "adapters": dict(self.adapters) or shipped,
        }
        return RagSettings(
            home=self.home,
            database_url=self.index.database_url,
            retrieval=RetrievalSettings(**self._values_of(RetrievalSettings)),
            generator=GeneratorSettings(**self._values_of(GeneratorSettings) | generator),
        )

    def _values_of(self, narrower: type) -> dict[str, Any]:
        """What these settings say of a floor's own, which have the same names."""
        values = {field.name: getattr(self, field.name) for field in fields(narrower) if hasattr(self, field.name)}
        return {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in values.items()
        }

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
                "a judge needs its address and its model",
                hint="Add --judge-url URL --judge-model NAME.",
            )
        key = self.judge_api_key.get_secret_value() if self.judge_api_key else None
        return GeneratorSettings(kind="remote", base_url=self.judge_url, model=self.judge_model, api_key=key)

    @property
    def asks_for_keys(self) -> bool:
        """True when callers need a key."""
        return bool(self.api_keys or self.learner_keys)

    @property
    def loopback(self) -> bool:
        """True when only this machine can reach the server."""
        return is_loopback(self.host)


def read_toml(path: Path) -> dict[str, Any]:
    """The settings of a `coalesce.toml`; empty when there is no such file.

    Raises:
        InvalidInput: it cannot be read, or holds a name that is not a setting.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}", hint=f"Correct {path}.") from error
    except OSError as error:
        raise InvalidInput(msg("{} cannot be read: {}", path, error.strerror), hint=f"Make {path} readable.") from error
    names = set(CoalesceSettings.model_fields) - {"home"}
    for name in values:
        if name == "home":
            raise InvalidInput(
                f"{path} sets `home`, but it is inside the home already",
                hint="Name the home with --home or COALESCE_HOME.",
            )
        if name not in names:
            raise InvalidInput(f"{path} sets {name!r}, which is not a setting", hint=_nearest(name, names))
    return values


def parse_pair(pair: str) -> tuple[str, str]:
    """`NAME=VALUE` as a pair.

    Raises:
        InvalidInput: there is no `=`, or nothing on one side of it.
    """
    name, _, value = pair.partition("=")
    if not name.strip() or not value.strip():
        raise InvalidInput(f"{pair!r} is not of the form NAME=PATH", hint="For example: --adapter cuda=adapters/cuda")
    return name.strip(), value.strip()


def load_settings(overrides: Mapping[str, Any] | None = None, *, damaged_choice: bool = False) -> CoalesceSettings:
    """Makes the settings; `overrides` come from the command line, None where an option was not given.

    Args:
        damaged_choice: go on without the choice of what answers where its file is damaged.

    Raises:
        InvalidInput: a value or a name that cannot be used, with the nearest right name.
    """
    _check_environment(os.environ)
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    try:
        settings = CoalesceSettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        secret = "key" in name or name == "database_url" or (name == "uploads_url" and "@" in str(first["input"]))
        value = "" if secret else f" {first['input']!r:.80}"
        raise InvalidInput(
            f"setting {name}{value} cannot be used: {first['msg']}",
            hint=f"It comes from --{name.replace('_', '-')}, {ENV_PREFIX}{name.upper()} or {TOML_NAME}.",
        ) from error
    set_here = {name.upper() for name, value in os.environ.items() if value}
    if any(name in given or f"{ENV_PREFIX}{name.upper()}" in set_here for name in OF_A_CHOICE):
        return settings
    settings._choice_unread = True
    if settings.database_url is None:
        try:
            settings.chosen  # noqa: B018  what is damaged is said at once, and a database asked when it is needed
        except InvalidInput:
            if not damaged_choice:
                raise
            return settings.choosing(None)
    return settings


def _check_environment(environment: Iterable[str]) -> None:
    names = {f"{ENV_PREFIX}{name.upper()}" for name in CoalesceSettings.model_fields}
    for name in environment:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in names:
            raise InvalidInput(
                f"the environment sets {name}, which is not a setting", hint=_nearest(name.upper(), names)
            )


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else f"The settings are {', '.join(sorted(names))}."


def program_version() -> str:
    """The installed version."""
    try:
        return version("coalesce-rag")
    except PackageNotFoundError:
        return "0"
