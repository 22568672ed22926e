"""The local generator: one text alone and together, with kept prefixes and adapters; limits; small failures."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import answer_of, make_passage
from tiny_models import DEVICE, SENTENCES, build_adapter, build_model
from waiting import PATIENCE_S, wait_until

from indexes.errors import Cancelled, CoalesceError
from rag.errors import AdapterMismatch, ArmUnavailable, DoesNotFitInMemory, GenerationFailed, PromptTooLong
from rag.generators.local.batch import Batch, Batches, Row
from rag.generators.local.cache import PrefixCache, SlabCache
from rag.generators.local.decode import prefill
from rag.generators.local.generator import LocalGenerator, load_local_generator
from rag.generators.local.thread import SWITCH_INTERVAL_S
from rag.generators.prompts import render_choices
from rag.generators.protocol import ChoiceScorer, GenerationDone, GenerationRequest, Generator, TextPiece
from rag.models import devices
from rag.settings import GeneratorSettings
from rag.types import Thinking, Turn, Waiting

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

PASSAGES = tuple(make_passage(f"Passage {n}: shared memory has banks; a warp is 32 threads. " * 3) for n in range(3))
QUESTIONS = [f"What is number {n}?" + " Why is that?" * (5 * n % 7) for n in range(6)]
Make = Callable[..., LocalGenerator]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_adapter: Path) -> dict[str, str]:
    other = build_adapter(tmp_path_factory.mktemp("adapters") / "other", tiny_model, rank=8, seed=7)
    return {"qa": str(tiny_adapter), "other": str(other)}


def load(model: Path, **changes: Any) -> LocalGenerator:
    base = GeneratorSettings("local", str(model), quantization="none", dtype="float32", device=DEVICE, max_tokens=24)
    return load_local_generator(replace(base, **changes))


@pytest.fixture(scope="module")
def generator(tiny_model: Path, adapters: dict[str, str]) -> Iterator[LocalGenerator]:
    with closing(load(tiny_model, adapters=adapters)) as made:
        yield made


@pytest.fixture
def make(tiny_model: Path) -> Iterator[Make]:
    """Makes generators with other settings, and closes them."""
    made: list[LocalGenerator] = []

    def loads(model: Path = tiny_model, **changes: Any) -> LocalGenerator:
        made.append(load(model, **changes))
        return made[-1]

    yield loads
    for each in made:
        each.close()


def ask(question: str = "What is a warp?", **changes: Any) -> GenerationRequest:
    return replace(GenerationRequest(question, "base"), **changes)


def text_of(generator: LocalGenerator, request: GenerationRequest) -> str:
    return answer_of(generator, request)[0]


def cached(generator: LocalGenerator, request: GenerationRequest) -> int:
    return answer_of(generator, request)[1].usage.cached_prompt_tokens


def test_texts_are_the_same_alone_and_together_whatever_else_is_loaded(
    generator: LocalGenerator, make: Make, adapters: dict[str, str]
) -> None:
    sampled = [ask(QUESTIONS[0], temperature=0.9, sampling_top_p=0.95, seed=seed) for seed in (1, 2)]
    requests = {None: [*(ask(question) for question in QUESTIONS[:3]), *sampled]}
    requests |= {name: [ask(question, arm="tuned", adapter=name) for question in QUESTIONS[:3]] for name in adapters}
    expected: list[str] = []
    for name, asked in requests.items():
        single = make(adapters={name: adapters[name]} if name else {}, prefix_cache=False)
        expected += [text_of(single, request) for request in asked]
    assert len(set(expected)) > 8  # of 11; two may end at once
    mixed = [request for asked in requests.values() for request in asked]
    assert [text_of(generator, request) for request in mixed] == expected
    generator._prefixes.clear()
    with ThreadPoolExecutor(len(mixed)) as pool:
        assert list(pool.map(lambda request: text_of(generator, request), mixed)) == expected
    assert generator._batches.held_bytes == 0
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)


def test_what_was_read_before_is_not_read_again_and_changes_no_answer(generator: LocalGenerator, make: Make) -> None:
    fresh = make(prefix_cache=False)
    first = ask(arm="rag", passages=PASSAGES)
    generator._prefixes.clear()
    text, done = answer_of(generator, first)
    turn_two = replace(first, question="And why?", turns=(Turn(first.question, text),))
    reused = [cached(generator, each) for each in (replace(first, question="What is occupancy?"), turn_two, first)]
    assert done.usage.cached_prompt_tokens == 0
    assert 0.8 * done.usage.prompt_tokens < reused[0] < reused[1]
    assert reused[2] == done.usage.prompt_tokens - 1
    for request in (first, turn_two, replace(first, question="Again?"), first):
        assert text_of(generator, request) == text_of(fresh, request)
    assert cached(fresh, first) == 0
    assert cached(generator, replace(first, arm="rag+tuned", adapter="qa")) == 0


def test_kept_keys_are_those_of_a_fresh_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after stop tokens and a cancelled answer."""
    import torch

    kept: list[tuple[Any, list[int]]] = []
    keep = PrefixCache.keep

    def noted(cache: PrefixCache, adapter: str | None, tokens: list[int], held: Any) -> None:
        kept.append((adapter, tokens))
        keep(cache, adapter, tokens, held)

    monkeypatch.setattr(PrefixCache, "keep", noted)
    plain = make()
    plain._stop_tokens = frozenset(range(3, 640, 9))
    request = ask(arm="rag", passages=PASSAGES, max_tokens=9)
    for question in QUESTIONS[:3]:
        for seed in range(3):
            answer_of(plain, replace(request, question=question, temperature=1.5 * seed, seed=seed))
    with closing(plain.stream(replace(request, question="Stopped?"))) as stopped:
        next(stopped)
    wait_until(lambda: plain._batches.held_bytes == 0 and len(kept) == 10, "the stopped answer has ended")
    for adapter, tokens in kept:
        fresh = SlabCache(3, len(tokens))
        prefill(plain._model, tokens, fresh)
        found, alike = plain._prefixes.find(adapter, tokens)
        assert found is not None and alike == len(tokens)
        for held, expected in zip(found.keys, fresh.keys, strict=True):
            torch.testing.assert_close(held[:, :, :alike], expected, atol=1e-4, rtol=1e-3)


def test_a_prompt_beyond_the_first_window_of_longrope_is_read_in_one_pass(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There its keys are turned otherwise, so neither pieces nor a kept shorter prefix may stand before the rest."""
    monkeypatch.setattr("rag.generators.local.decode.prefill_chunk_tokens", lambda _: 16)
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 200}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    shape = {"num_key_value_heads": 8, "hidden_size": 128, "rope_parameters": rope}
    folder = build_model(tmp_path / "longrope", family="phi3", original_max_position_embeddings=200, **shape)
    reusing, plain = make(folder), make(folder, prefix_cache=False)
    forward, passes = reusing._model.forward, list[int]()

    def counted(*args: Any, **kwargs: Any) -> Any:
        passes.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(reusing._model, "forward", counted)
    assert answer_of(reusing, ask())[1].usage.prompt_tokens < 200
    assert max(passes) <= 16
    assert cached(reusing, ask()) > 0
    long = ask(arm="rag", passages=PASSAGES)
    for _ in range(2):
        passes.clear()
        text, done = answer_of(reusing, long)
        assert max(passes) == done.usage.prompt_tokens > 200
        assert done.usage.cached_prompt_tokens == 0
    monkeypatch.setattr("rag.generators.local.decode.prefill_chunk_tokens", lambda _: 512)
    assert text_of(plain, long) == text


def test_an_adapter_may_have_any_name(make: Make, adapters: dict[str, str]) -> None:
    """peft keeps adapters as attributes of modules; a user's name must not meet one that is there."""
    names = ("train", "base", "keys", "v1.2", "组", "__base__", "default")
    named = make(adapters=dict.fromkeys(names, adapters["qa"]))
    assert named.adapters == names
    texts = {text_of(named, ask(arm="tuned", adapter=name)) for name in names}
    assert len(texts) == 1
    assert text_of(named, ask()) not in texts


def test_the_wrong_arm_or_adapter_is_refused_with_what_to_do(make: Make, generator: LocalGenerator) -> None:
    assert isinstance(generator, Generator)
    assert isinstance(generator, ChoiceScorer)
    assert (generator.arms, generator.adapters) == (("base", "tuned", "rag", "rag+tuned"), ("qa", "other"))
    with pytest.raises(ArmUnavailable, match="loaded: none") as error:
        make().check(ask(arm="tuned"))
    assert "--adapter" in error.value.hint
    with pytest.raises(ArmUnavailable, match="adapter 'nobody' is not loaded; loaded: qa, other"):
        generator.check(ask(arm="tuned", adapter="nobody"))


@pytest.mark.parametrize(
    ("shape", "targets", "said"),
    [
        ({"hidden_size": 160}, "all-linear", r"down_proj to be 256 → 128; in .* it is 256 → 160"),
        ({"num_hidden_layers": 5}, "all-linear", "trained on another base"),
        ({"num_hidden_layers": 2}, "all-linear", "does not have"),
        ({"num_hidden_layers": 5}, r".*\.q_proj", r"adapts 3 layers; .* has 5"),
        ({}, r".*layers\.[01]\..*(q|v)_proj", ""),
    ],
)
def test_an_adapter_of_another_base_is_refused(
    tmp_path: Path, tiny_model: Path, make: Make, shape: dict[str, int], targets: str, said: str
) -> None:
    adapter = build_adapter(tmp_path / "adapter", tiny_model, targets=targets)
    base = build_model(tmp_path / "base", **shape)
    if said:
        with pytest.raises(AdapterMismatch, match=said):
            make(base, adapters={"qa": str(adapter)})
    else:
        assert make(base, adapters={"qa": str(adapter)}).adapters == ("qa",)


@pytest.mark.parametrize(
    ("changes", "long", "refusal", "said"),
    [
        ({"context_tokens": 800}, 3000, PromptTooLong, r"prompt of [\d,]+ tokens; .* reads 800"),
        # 3 layers × 2 heads × (16 + 16) numbers × 4 bytes = 768 bytes a token
        ({"kv_budget_bytes": 600_000}, 700, DoesNotFitInMemory, r"0\.7 MiB for 1,000 tokens\); the budget is 0\.6 MiB"),
    ],
)
def test_passages_are_dropped_until_the_prompt_fits_and_a_question_that_never_fits_is_refused(
    make: Make, changes: dict[str, int], long: int, refusal: type[CoalesceError], said: str
) -> None:
    small = make(**changes)
    with pytest.raises(refusal, match=said):
        small.check(ask("warp " * long))
    passages = tuple(make_passage(f"Passage {n}. " + "a warp is 32 threads. " * 20) for n in range(8))
    _, done = answer_of(small, ask(arm="rag", passages=passages))
    assert 0 < (done.passages_used or 0) < 8
    assert done.usage.prompt_tokens + 24 <= 800


def test_rows_begin_as_memory_allows_and_the_others_hear_their_place(make: Make) -> None:
    """768 bytes a token: two answers of about 100 tokens fit."""
    small = make(kv_budget_bytes=200_000, max_tokens=40)
    expected = [text_of(small, ask(question)) for question in QUESTIONS]
    held: list[int] = []

    def listen(question: str) -> tuple[str, list[int]]:
        text, places = "", []
        for piece in small.stream(ask(question)):
            held.append(small._batches.held_bytes)
            if isinstance(piece, Waiting):
                places.append(piece.before)
            elif isinstance(piece, TextPiece):
                text += piece.text
        return text, places

    with ThreadPoolExecutor(6) as pool:
        texts, places = zip(*pool.map(listen, QUESTIONS), strict=True)
    assert list(texts) == expected
    assert 100_000 < max(held) <= 200_000
    assert max(max(told, default=0) for told in places) >= 2
    assert all(told == sorted(told, reverse=True) for told in places)
    wait_until(lambda: small._batches.held_bytes == 0, "all rows are free")
    assert 0 < small._prefixes.held_bytes <= 200_000


def script(generator: LocalGenerator, request: GenerationRequest, thoughts: int, answer: str) -> None:
    """Makes the model think for `thoughts` tokens, and write `answer` once its reasoning is closed, by whomever."""
    forward, tokenizer, tokens = generator._model.forward, generator._loaded.tokenizer, generator._chat.text_tokens
    thinking = [*tokens("<think>"), *tokens("x") * thoughts, *tokens("</think>")]
    said = [*tokens(answer), *generator._stop_tokens]
    prompt_tokens = len(generator._chat.tokens(request))
    fed: list[int] = []

    def next_token() -> int:
        ends = (end for end in range(1, len(fed) + 1) if "</think>" in tokenizer.decode(fed[:end]))
        if (closed := next(ends, None)) is None:
            return thinking[len(fed)]
        return said[sum(1 for token in fed[closed:] if tokenizer.decode([token]).strip())]

    def scripted(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        ids = kwargs["input_ids"][0].tolist()
        places = kwargs.get("position_ids")  # given in steps that several answers may share
        end = kwargs["past_key_values"].get_seq_length() if places is None else int(places[0, -1]) + 1
        held = end - prompt_tokens
        if held >= 0:
            before = max(held - len(ids), 0)
            fed[before:] = ids[len(ids) - (held - before) :]
            output.logits[:] = -100.0
            output.logits[..., next_token()] = 100.0
        return output

    generator._model.forward = scripted


@pytest.mark.parametrize(("thoughts", "written"), [(5, SENTENCES[0]), (1500, SENTENCES[0]), (5, "")])
def test_reasoning_has_a_budget_of_its_own_is_then_closed_and_alone_is_an_error(
    make: Make, thoughts: int, written: str
) -> None:
    thinker = make(reasoning_tokens=60, prefix_cache=False)
    request = ask(arm="rag", passages=PASSAGES, max_tokens=40)
    thinker._loaded.tokenizer.chat_template += "{# a model of <think> #}"
    script(thinker, request, thoughts, written)
    if not written:
        with pytest.raises(GenerationFailed, match="stopped thinking after") as error:
            answer_of(thinker, request)
        assert "REASONING_TOKENS" in error.value.hint
        return
    first, *pieces, done = thinker.stream(request)
    assert first == Thinking() and isinstance(done, GenerationDone)
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    assert (text, done.usage.finish, done.refused) == (written, "stop", False)
    assert 5 < done.usage.reasoning_tokens <= 60 + 16
    short = answer_of(thinker, replace(request, max_tokens=4))[1].usage
    assert (short.completion_tokens - short.reasoning_tokens, short.finish) == (4, "length")


def test_reasoning_that_nobody_expected_is_closed_at_once(make: Make) -> None:
    """It has no room: of most models none comes."""
    surprising = make(reasoning_tokens=60, prefix_cache=False)
    request = ask(max_tokens=40)
    script(surprising, request, 1500, SENTENCES[0])
    text, done = answer_of(surprising, request)
    assert (text, done.usage.finish) == (SENTENCES[0], "stop")
    assert done.usage.reasoning_tokens < 20


class Gate:
    """Before each decoding step the model waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken, self._permits, step = 0, threading.Semaphore(0), Batches.step

        def gated(*args: Any) -> Any:
            self._permits.acquire()
            self.taken += 1
            return step(*args)

        monkeypatch.setattr(Batches, "step", gated)

    def let(self, steps: int = 10_000) -> None:
        self._permits.release(steps)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, make: Make) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.let()


@pytest.mark.parametrize("how", ["closing", "cancelling"])
def test_a_stopped_answer_stops_within_two_tokens_and_frees_the_model(make: Make, gate: Gate, how: str) -> None:
    generator = make()
    stop = threading.Event()
    stream = generator.stream(ask(max_tokens=500, cancelled=stop.is_set))
    next(stream)
    gate.let(3)
    wait_until(lambda: gate.taken == 3, "some steps are taken")
    if how == "closing":
        stream.close()  # type: ignore[attr-defined]
    stop.set()
    gate.let()
    if how == "cancelling":
        with pytest.raises(Cancelled):
            list(stream)
    wait_until(lambda: generator._batches.held_bytes == 0, "the row is free")
    assert gate.taken <= 3 + 2
    assert answer_of(generator, ask(max_tokens=4))[1].usage.completion_tokens == 4


def test_a_row_ends_alone(generator: LocalGenerator) -> None:
    """By a stop string, a hang-up or a cancellation; the others go on, and its memory is free."""
    expected = [answer_of(generator, ask(question, max_tokens=60)) for question in QUESTIONS[:4]]
    (text, whole), *_ = expected
    stop = text[len(text) // 2 :][:3]
    cancel = threading.Event()

    def hang_up() -> None:
        stream = generator.stream(ask(QUESTIONS[1], max_tokens=60))
        next(stream)
        stream.close()  # type: ignore[attr-defined]

    def cancelled() -> None:
        for piece in generator.stream(ask(QUESTIONS[2], max_tokens=60, cancelled=cancel.is_set)):
            if isinstance(piece, TextPiece):
                cancel.set()

    with ThreadPoolExecutor(4) as pool:
        stopped = pool.submit(answer_of, generator, ask(QUESTIONS[0], max_tokens=60, stop=(stop,)))
        left, withdrawn = pool.submit(hang_up), pool.submit(cancelled)
        other = pool.submit(text_of, generator, ask(QUESTIONS[3], max_tokens=60))
        shorter, done = stopped.result(PATIENCE_S)
        assert shorter == text[: text.find(stop)]
        assert done.usage.completion_tokens < whole.usage.completion_tokens
        assert other.result(PATIENCE_S) == expected[3][0]
        left.result(PATIENCE_S)
        with pytest.raises(Cancelled):
            withdrawn.result(PATIENCE_S)
    wait_until(lambda: generator._batches.held_bytes == 0, "all rows are free")
    for question, (before, _) in zip(QUESTIONS, expected, strict=False):  # also from what was kept of those that ended
        assert text_of(generator, ask(question, max_tokens=60)) == before


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("planted"), "planted"),
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA out of memory"), "out of memory"),
    ],
)
def test_a_row_that_fails_fails_alone(
    generator: LocalGenerator, monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str
) -> None:
    """Also in a step of several."""
    requests = [ask(question) for question in QUESTIONS[:3]]
    expected = [text_of(generator, request) for request in requests]
    prompt, opened, step = generator.prompt_of(requests[1]), LocalGenerator._open, Batch.step
    doomed: list[Any] = []

    def noted(self: LocalGenerator, admitted: Any, adapter: str | None) -> Any:
        cache, reused = opened(self, admitted, adapter)
        if admitted.prompt == prompt:
            doomed.append(cache)
        return cache, reused

    def failing(batch: Batch, rows: list[Row]) -> list[Any]:
        if any(row.cache is each for row in rows for each in doomed):
            raise raised
        return step(batch, rows)

    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(LocalGenerator, "_open", noted)
        patch.setattr(Batch, "step", failing)
        answers = [pool.submit(text_of, generator, request) for request in requests]
        assert [answers[number].result(PATIENCE_S) for number in (0, 2)] == [expected[0], expected[2]]
        with pytest.raises(GenerationFailed, match=said):
            answers[1].result(PATIENCE_S)
    assert generator._batches.held_bytes == 0
    assert text_of(generator, requests[1]) == expected[1]


def test_scores_of_options_are_those_of_their_letters_and_the_likelihood_per_byte_decides_for_a_small_model(
    generator: LocalGenerator,
) -> None:
    import torch

    request, choices = ask(), ("32 threads", "a bank", "memory accesses")

    def log_probabilities(asked: GenerationRequest, behind: list[int]) -> Any:
        """After each of the tokens."""
        prompt = generator.prompt_of(asked)
        generator.on_model_thread(lambda: generator._adapters.activate(None))
        with torch.inference_mode():
            ids = torch.tensor([prompt + behind], device=DEVICE)
            return generator._model(input_ids=ids).logits[0].log_softmax(-1)[len(prompt) - 1 :]

    likelihood = []
    for choice in choices:
        option = generator._chat.text_tokens(choice)
        rows = log_probabilities(request, option)
        total = sum(float(rows[place, token]) for place, token in enumerate(option))
        likelihood.append(pytest.approx(total / len(choice.encode()), abs=1e-3))
    first = log_probabilities(replace(request, question=render_choices(request.question, choices), max_tokens=1), [])[0]
    spelled = [[generator._chat.text_tokens(text)[-1] for text in (letter, f" {letter}")] for letter in "ABC"]
    letters = [pytest.approx(max(float(first[token]) for token in tokens), abs=1e-3) for tokens in spelled]
    scores = generator.score_choices(request, choices)
    assert (list(scores.scores), list(scores.extra["likelihood"])) == (letters, likelihood)
    assert scores.by_likelihood


def test_an_engine_that_nobody_closed_stops_when_the_program_ends() -> None:
    program = """
import time
from rag.generators.local.thread import ModelThread

def work(stop):
    while not stop():
        time.sleep(0.01)
        yield 1
    print("stopped", flush=True)

items = ModelThread(1, 1.0).iterate(work)
next(items)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stopped\n", "")


def test_the_default_budget_leaves_memory_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for free_gib, budget_gib in ((6, 3), (100, 4)):
        monkeypatch.setattr(devices, "free_memory_bytes", lambda _, free=free_gib: free << 30)
        assert devices.default_kv_budget_bytes("cpu") == budget_gib << 30
