"""Picks the concrete classes: settings and a library in, an engine out.

A local language model is loaded while its engine is built; all other models when `AnswerEngine.load()` or the first
question needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from indexes.embedder import bundled_model_folder
from indexes.errors import InvalidInput, NotFound
from indexes.library import Library
from indexes.messages import msg
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable
from rag.evidence import EvidenceJudge
from rag.generators.answer_cache import with_answer_cache
from rag.generators.encoder import Embed, EncoderAnswerer, last_kept, open_encoder_adapter
from rag.generators.extractive import ExtractiveGenerator, refuse_without_model
from rag.generators.protocol import ChoiceScorer, GenerationRequest, Generator, TokenCounter
from rag.query import understand
from rag.question import check_filters, check_question, choose_adapter
from rag.retrieval import CrossEncoderReranker, HybridRetriever, PassageBudget
from rag.sentence_reader import CrossEncoder, LearnedReader, SentenceReader
from rag.settings import GENERATORS, LANGUAGE_MODELS, GeneratorSettings, RagSettings
from rag.types import RETRIEVING_ARMS, TUNED_ARMS, Question, SearchableLibrary


def build_engine(settings: RagSettings, library: Library) -> AnswerEngine:
    """The engine for `settings` over `library`.

    Raises:
        InvalidInput: a generator that does not exist, or one that lacks its model or address.
    """
    retrieval = settings.retrieval
    reranker = CrossEncoderReranker(retrieval.reranker) if retrieval.reranker else None
    retriever = HybridRetriever(library, retrieval, reranker=reranker)
    cross_encoder = CrossEncoder(device=library.device)
    reader = LearnedReader(cross_encoder.score)
    generator, chooser, budget = _writing(settings, library, reader)

    def load() -> None:
        library.load()
        if reranker is not None:
            reranker.load()
        cross_encoder.load()
        retriever.search(understand("warp", library))

    return AnswerEngine(
        library,
        retriever,
        generator,
        ConversationStore(settings.conversations_place),
        chooser=chooser,
        judge=EvidenceJudge(reader, retrieval.refusal_threshold),
        answers=settings.generator.answers,
        budget=budget,
        load=load,
    )


def switch_generator(engine: AnswerEngine, settings: RagSettings, library: Library) -> AnswerEngine:
    """A copy of `engine` with the generator of other settings, loaded and tried; `engine` itself goes on unchanged.

    Raises:
        CoalesceError: as `build_engine`, or the model cannot load, or an engine does not answer or lacks the model.
    """
    generator, chooser, budget = _writing(settings, library, engine.reader)
    wanted = settings.generator
    try:
        if wanted.base_url and generator.name == "remote":
            from rag.generators.openai_client import OpenAIClient

            client = OpenAIClient(wanted.base_url, wanted.api_key, wanted.request_timeout_s, wanted.queue_timeout_s)
            try:
                client.get("models")  # the generator itself takes an engine that is down for one that starts later
            finally:
                client.close()
        for arm in generator.arms:
            adapter = generator.adapters[0] if arm in TUNED_ARMS else None
            generator.check(GenerationRequest("What is a warp?", arm, adapter=adapter))
    except BaseException:
        generator.close()
        raise
    return engine.with_generator(generator, chooser, budget, wanted.answers)


def _writing(
    settings: RagSettings, library: Library, reader: SentenceReader
) -> tuple[Generator, ChoiceScorer, PassageBudget]:
    """What writes answers, what scores options, and how many passages fit: all that depends on the generator."""
    generator: Generator  # `encoder` writes as `extractive` does and scores choices itself
    if resolve_kind(settings.generator) in LANGUAGE_MODELS:
        generator = build_language_model(settings.generator, reader)
    else:
        generator = ExtractiveGenerator(reader, library.embedder_name)
    count_tokens = generator.count_tokens if isinstance(generator, TokenCounter) else None
    chooser = generator if isinstance(generator, ChoiceScorer) else _encoder(settings.generator, library)
    if resolve_kind(settings.generator) in LANGUAGE_MODELS:
        generator = with_answer_cache(generator, settings.generator.answer_cache)
    return generator, chooser, PassageBudget.of_tokens(settings.retrieval.passage_budget_tokens, count_tokens)


def check_before_loading(settings: RagSettings, library: SearchableLibrary, question: Question) -> None:
    """Refuses what can never be answered before any model is loaded.

    Raises:
        InvalidInput, TooLarge: the question cannot be used.
        NotFound: the library is empty, or its filters name a book or chapter that is not there.
        ArmUnavailable: no model or adapter for the arm.
    """
    question = check_question(question)
    generator = settings.generator
    if resolve_kind(generator) in LANGUAGE_MODELS:
        choose_adapter(question.arm, question.adapter, tuple(generator.adapters))
    else:
        refuse_without_model(question.arm)
    if question.arm in RETRIEVING_ARMS:
        if not library.documents():
            raise NotFound("the library is empty", hint="add a book first: coalesce add PATH")
        check_filters(question.filters, library)


def build_language_model(settings: GeneratorSettings, reader: SentenceReader | None = None) -> Generator:
    """The generator that `settings.kind` names, where only a language model will do.

    Args:
        reader: chooses the sentences that a model is shown where it does not read whole passages.

    Raises:
        ArmUnavailable: the kind has no language model.
        InvalidInput: an unknown kind, `local` or `vllm` without a model, `remote` without an address and one.
    """
    kind = resolve_kind(settings)
    if kind == "local":
        if not settings.model:
            raise InvalidInput("generator `local` needs a model", hint="add `--model PATH_OR_NAME`")
        from rag.generators.local.generator import load_local_generator
        from rag.generators.openvino import load_openvino_generator, runs_here

        load = load_openvino_generator if runs_here(settings) else load_local_generator
        return load(settings, reader)
    if kind == "remote":
        if not settings.base_url or not settings.model:
            raise InvalidInput(
                "generator `remote` needs the engine's address and a model",
                hint="add `--base-url http://HOST:PORT/v1 --model NAME`",
            )
        from rag.generators.remote import RemoteGenerator

        return RemoteGenerator(settings)
    if kind == "vllm":
        if not settings.model:
            raise InvalidInput("generator `vllm` needs a model", hint="add `--model PATH_OR_NAME`")
        from rag.generators.vllm import start_vllm

        return start_vllm(settings, reader)
    if kind == "llama_index":
        if not settings.model:
            raise InvalidInput(
                "generator `llama_index` needs an LLM", hint="add `--model llama_index:MODULE:NAME?ARGUMENT=VALUE`"
            )
        from rag.llama_index import load_llm

        return load_llm(settings.model)
    raise ArmUnavailable(
        f"generator `{kind}` has no language model",
        hint="use `--generator local --model PATH_OR_NAME`, or `--generator remote --base-url URL --model NAME`",
    )


def _encoder(settings: GeneratorSettings, library: Library) -> EncoderAnswerer:
    """The encoder that scores choice questions, with its adapters that the settings name, else the last one tuned."""

    def adapters() -> dict[str, Callable[[], Embed]]:
        folders = [(name, Path(folder)) for name, folder in settings.adapters.items()]
        if settings.kind != "encoder":
            kept = last_kept(settings.home) if settings.home is not None else None
            folders = [(kept.name, kept)] if kept is not None else []
        return {name: partial(open_encoder_adapter, bundled_model_folder(), folder) for name, folder in folders}

    return EncoderAnswerer(library.embed, library.embedder_name, adapters)


def resolve_kind(settings: GeneratorSettings) -> str:
    """The generator that `auto` means here: `local` where a model is named, else `extractive`.

    Raises:
        InvalidInput: no such generator.
    """
    if settings.kind not in GENERATORS:
        raise InvalidInput(
            f"generator {settings.kind!r} is not known", hint=msg("use one of {}", ", ".join(GENERATORS))
        )
    if settings.kind != "auto":
        return settings.kind
    return "local" if settings.model else "extractive"
