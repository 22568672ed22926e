"""The one place that picks concrete classes: settings and a library in, an engine out.

Building is light; models load when `AnswerEngine.load()` or the first question needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from indexes.errors import InvalidInput
from indexes.library import Library
from indexes.model_files import bundled_model_folder
from indexes.settings import EMBEDDED_MODEL
from indexes.types import Filters
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable
from rag.evidence import EvidenceJudge
from rag.generators.encoder import EncoderAdapter, EncoderAnswerer
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.protocol import ChoiceScorer, Generator
from rag.generators.vector_memory import Embed
from rag.passages import PassageBudget
from rag.retrieval.hybrid import HybridRetriever
from rag.retrieval.reranker import CrossEncoderReranker
from rag.settings import GENERATORS, GeneratorSettings, RagSettings


def build_engine(settings: RagSettings, library: Library) -> AnswerEngine:
    """The engine for `settings` over `library`.

    Raises:
        InvalidInput: a generator that does not exist, or one that lacks its model or address.
    """
    retrieval = settings.retrieval
    embedder = library.embedder_name
    reranker = CrossEncoderReranker(model=retrieval.reranker) if retrieval.reranker else None
    retriever = HybridRetriever(library, retrieval, reranker=reranker, multilingual=embedder != EMBEDDED_MODEL)
    generator = build_generator(settings.generator, library)
    chooser = generator if isinstance(generator, ChoiceScorer) else _encoder(settings.generator, library)

    def load() -> None:
        library.load()
        if reranker is not None:
            reranker.load()
        retriever.search("warp", Filters())

    return AnswerEngine(
        library,
        retriever,
        generator,
        ConversationStore(settings.conversations_path),
        chooser=chooser,
        judge=EvidenceJudge(embedder, retrieval.refusal_threshold),
        budget=PassageBudget.of_tokens(retrieval.passage_budget_tokens),
        load=load,
    )


def build_generator(settings: GeneratorSettings, library: Library) -> Generator:
    """The generator that `settings.kind` names; `encoder` writes as `extractive` does and scores choices itself.

    Raises:
        InvalidInput: an unknown kind, `local` without a model, `remote` without an address and a model.
    """
    if resolve_kind(settings) in ("local", "remote"):
        return build_language_model(settings)
    return ExtractiveGenerator(library.embed, library.embedder_name)


def build_language_model(settings: GeneratorSettings) -> Generator:
    """The generator that `settings.kind` names, where only a language model will do.

    Raises:
        ArmUnavailable: the kind has no language model.
        InvalidInput: an unknown kind, `local` without a model, `remote` without an address and a model.
    """
    kind = resolve_kind(settings)
    if kind == "local":
        if not settings.model:
            raise InvalidInput("generator `local` needs a model", hint="add `--model PATH_OR_NAME`")
        from rag.generators.local import load_local_generator

        return load_local_generator(settings)
    if kind == "remote":
        if not settings.base_url or not settings.model:
            raise InvalidInput(
                "generator `remote` needs the engine's address and a model",
                hint="add `--base-url http://HOST:PORT/v1 --model NAME`",
            )
        from rag.generators.remote import RemoteGenerator

        return RemoteGenerator(settings)
    raise ArmUnavailable(
        f"generator `{kind}` has no language model",
        hint="use `--generator local --model PATH_OR_NAME`, or `--generator remote --base-url URL --model NAME`",
    )


def _encoder(settings: GeneratorSettings, library: Library) -> EncoderAnswerer:
    """The encoder that scores choice questions, with the adapters of it that the settings name."""

    def opener(folder: Path) -> Callable[[], Embed]:
        def open_adapter() -> Embed:
            from rag.tuning.encoder import open_encoder_adapter

            return open_encoder_adapter(bundled_model_folder(), folder)

        return open_adapter

    adapters = settings.adapters if settings.kind == "encoder" else {}
    opened = {name: EncoderAdapter(opener(Path(folder))) for name, folder in adapters.items()}
    return EncoderAnswerer(library.embed, library.embedder_name, opened)


def resolve_kind(settings: GeneratorSettings) -> str:
    """The generator that `auto` stands for here: `local` with a CUDA GPU and a model, else `extractive`.

    Raises:
        InvalidInput: no such generator.
    """
    if settings.kind not in GENERATORS:
        raise InvalidInput(f"generator {settings.kind!r} is not known", hint=f"use one of {', '.join(GENERATORS)}")
    if settings.kind != "auto":
        return settings.kind
    if not settings.model:
        return "extractive"
    from rag.models.devices import choose_device

    return "local" if choose_device("auto") == "cuda" else "extractive"
