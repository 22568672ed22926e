"""The local generator: right text from kept prefixes and adapters, limits before work, failures that stay small."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes import make_passage
from tiny_models import DEVICE, build_adapter, build_model
from waiting import PATIENCE_S, wait_until

from indexes.errors import Busy, Cancelled
from rag.errors import AdapterMismatch, ArmUnavailable, DoesNotFitInMemory, GenerationFailed, PromptTooLong
from rag.generators.local import generator as local
from rag.generators.local.batch import Batches
from rag.generators.local.cache import SlabCache
from rag.generators.local.decode import prefill
from rag.generators.local.generator import LocalGenerator, load_local_generator
from rag.generators.protocol import ChoiceScorer, GenerationDone, GenerationRequest, Generator, TextPiece
from rag.settings import GeneratorSettings
from rag.types import Thinking, Turn

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

PASSAGES = tuple(make_passage(f"Passage {n}: shared memory has banks; a warp is 32 threads. " * 3) for n in range(3))


def settings(model: Path, **changes: Any) -> GeneratorSettings:
    base = GeneratorSettings(
        kind="local", model=str(model), quantization="none", dtype="float32", device=DEVICE, max_tokens=24
    )
    return replace(base, **changes)


@pytest.fixture(scope="module")
def second_adapter(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return build_adapter(tmp_path_factory.mktemp("adapters") / "other", tiny_model, rank=8, seed=7)


@pytest.fixture
def generator(tiny_model: Path, tiny_adapter: Path, second_adapter: Path) -> Iterator[LocalGenerator]:
    made = load_local_generator(settings(tiny_model, adapters={"qa": str(tiny_adapter), "other": str(second_adapter)}))
    yield made
    made.close()


@pytest.fixture
def plain(tiny_model: Path) -> Iterator[LocalGenerator]:
    made = load_local_generator(settings(tiny_model))
    yield made
    made.close()


def answer(generator: LocalGenerator, request: GenerationRequest) -> tuple[str, GenerationDone]:
    pieces = list(generator.stream(request))
    done = pieces[-1]
    assert isinstance(done, GenerationDone)
    return "".join(piece.text for piece in pieces[:-1] if isinstance(piece, TextPiece)), done


def ask(question: str = "What is a warp?", **changes: Any) -> GenerationRequest:
    return replace(GenerationRequest(question, "base"), **changes)


def test_it_is_a_generator_and_scores_choices(generator: LocalGenerator) -> None:
    assert isinstance(generator, Generator)
    assert isinstance(generator, ChoiceScorer)
    assert generator.arms == ("base", "tuned", "rag", "rag+tuned")
    assert generator.adapters == ("qa", "other")


def test_turn_two_and_repeated_passages_are_read_from_the_cache(plain: LocalGenerator) -> None:
    first = ask(arm="rag", passages=PASSAGES)
    text, done = answer(plain, first)
    assert done.usage.cached_prompt_tokens == 0
    _, other_question = answer(plain, replace(first, question="What is occupancy?"))
    assert other_question.usage.cached_prompt_tokens > 0.8 * done.usage.prompt_tokens
    _, turn_two = answer(plain, replace(first, question="And why?", turns=(Turn(first.question, text),)))
    assert turn_two.usage.cached_prompt_tokens > other_question.usage.cached_prompt_tokens
    again, repeated = answer(plain, first)
    assert again == text
    assert repeated.usage.cached_prompt_tokens == done.usage.prompt_tokens - 1


def test_kept_prefixes_change_no_answer(tiny_model: Path, plain: LocalGenerator) -> None:
    fresh = load_local_generator(settings(tiny_model, prefix_cache=False, prompt_lookup_tokens=0))
    try:
        for question in ("What is a warp?", "What is occupancy?", "What is a warp?"):
            request = ask(question, arm="rag", passages=PASSAGES)
            text, done = answer(fresh, request)
            assert done.usage.cached_prompt_tokens == 0
            assert answer(plain, request)[0] == text
    finally:
        fresh.close()


def test_a_prompt_beyond_the_first_window_of_longrope_is_read_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There its keys are turned otherwise, so neither pieces nor a kept shorter prefix may stand before the rest."""
    monkeypatch.setattr("rag.generators.local.decode.prefill_chunk_tokens", lambda _: 16)
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 200, **factors}
    shape = {"num_key_value_heads": 8, "hidden_size": 128, "rope_parameters": rope}
    folder = build_model(tmp_path / "longrope", family="phi3", original_max_position_embeddings=200, **shape)
    reusing = load_local_generator(settings(folder))
    plain = load_local_generator(settings(folder, prefix_cache=False))
    passes: list[int] = []
    forward = reusing.loaded.model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        passes.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(reusing.loaded.model, "forward", counted)
    try:
        _, short = answer(reusing, ask())
        assert short.usage.prompt_tokens < 200 and max(passes) <= 16
        _, again = answer(reusing, ask())
        assert again.usage.cached_prompt_tokens > 0
        for _ in range(2):
            passes.clear()
            text, done = answer(reusing, ask(arm="rag", passages=PASSAGES))
            assert done.usage.prompt_tokens > 200
            assert done.usage.cached_prompt_tokens == 0
            assert max(passes) == done.usage.prompt_tokens
        monkeypatch.setattr("rag.generators.local.decode.prefill_chunk_tokens", lambda _: 512)
        assert answer(plain, ask(arm="rag", passages=PASSAGES))[0] == text
    finally:
        reusing.close()
        plain.close()


def test_adapters_answer_as_if_each_were_alone(
    generator: LocalGenerator, tiny_model: Path, tiny_adapter: Path, second_adapter: Path
) -> None:
    alone = {}
    for name, path in (("qa", tiny_adapter), ("other", second_adapter)):
        single = load_local_generator(settings(tiny_model, adapters={name: str(path)}))
        alone[name] = answer(single, ask(arm="tuned", adapter=name))[0]
        alone["base"] = answer(single, ask())[0]
        single.close()
    assert len(set(alone.values())) == 3
    for name in ("qa", "base", "other", "qa", "other", "base", "qa"):
        request = ask() if name == "base" else ask(arm="tuned", adapter=name)
        text, done = answer(generator, request)
        assert text == alone[name]
        assert done.usage.prompt_tokens > 0


def test_an_adapter_may_have_any_name(tiny_model: Path, tiny_adapter: Path, generator: LocalGenerator) -> None:
    """peft keeps adapters as attributes of modules; a user's name must not meet one that is there."""
    names = ("train", "cuda", "base", "keys", "v1.2", "组", "__base__", "default")
    expected = answer(generator, ask(arm="tuned", adapter="qa"))[0]
    named = load_local_generator(settings(tiny_model, adapters={name: str(tiny_adapter) for name in names}))
    try:
        assert named.adapters == names
        for name in names:
            assert answer(named, ask(arm="tuned", adapter=name))[0] == expected, name
        assert answer(named, ask())[0] != expected
    finally:
        named.close()


def test_an_adapter_never_reads_another_adapters_keys(generator: LocalGenerator) -> None:
    answer(generator, ask())
    _, tuned = answer(generator, ask(arm="tuned", adapter="qa"))
    assert tuned.usage.cached_prompt_tokens == 0
    _, other = answer(generator, ask(arm="tuned", adapter="other"))
    assert other.usage.cached_prompt_tokens == 0


def test_concurrent_answers_are_those_of_one_at_a_time(generator: LocalGenerator) -> None:
    requests = [ask(f"What is number {n}?", arm="tuned", adapter=("qa", "other")[n % 2]) for n in range(6)]
    expected = [answer(generator, request)[0] for request in requests]
    got: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n, r=r: got.__setitem__(n, answer(generator, r)[0]))
        for n, r in enumerate(requests)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[n] for n in range(6)] == expected


def test_one_seed_gives_one_text(plain: LocalGenerator) -> None:
    def text(seed: int) -> str:
        return answer(plain, ask(temperature=0.9, sampling_top_p=0.95, seed=seed))[0]

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_stop_string_ends_the_answer_and_the_work(plain: LocalGenerator) -> None:
    text, done = answer(plain, ask(max_tokens=24))
    place = len(text) // 2
    stop = text[place : place + 3]
    shorter, stopped = answer(plain, ask(max_tokens=24, stop=(stop,)))
    assert shorter == text[: text.find(stop)]
    assert stopped.usage.completion_tokens < done.usage.completion_tokens
    assert answer(plain, ask(max_tokens=24))[0] == text  # what was kept of the stopped answer is right


def test_the_wrong_arm_or_adapter_is_refused_with_what_to_do(plain: LocalGenerator, generator: LocalGenerator) -> None:
    with pytest.raises(ArmUnavailable, match="loaded: none") as error:
        plain.check(ask(arm="tuned"))
    assert "--adapter" in error.value.hint
    with pytest.raises(ArmUnavailable, match="adapter 'nobody' is not loaded; loaded: qa, other"):
        generator.check(ask(arm="tuned", adapter="nobody"))


def test_lowest_passages_are_dropped_until_the_prompt_fits(tiny_model: Path) -> None:
    small = load_local_generator(settings(tiny_model, context_tokens=800))
    try:
        passages = tuple(make_passage(f"Passage {n}. " + "a warp is 32 threads. " * 20) for n in range(8))
        _, done = answer(small, ask(arm="rag", passages=passages))
        assert done.passages_used is not None
        assert 0 < done.passages_used < 8
        assert done.usage.prompt_tokens + 24 <= 800
    finally:
        small.close()


def test_a_question_longer_than_the_context_is_refused_before_retrieval(plain: LocalGenerator) -> None:
    with pytest.raises(PromptTooLong, match=r"prompt of [\d,]+ tokens; .* reads 2,048"):
        plain.check(ask("warp " * 3000))
    answer(plain, ask())


def test_too_few_bytes_are_refused_with_the_arithmetic(tiny_model: Path) -> None:
    poor = load_local_generator(settings(tiny_model, kv_budget_bytes=120_000))
    try:
        # 3 layers × 2 heads × (16 + 16) numbers × 4 bytes = 768 bytes per token
        with pytest.raises(DoesNotFitInMemory, match=r"0\.7 MiB for 1,000 tokens\); the budget is 0\.1 MiB"):
            poor.check(ask("warp " * 200))
        passages = (make_passage("warp " * 100),)
        _, done = answer(poor, replace(ask("hi", arm="rag", passages=passages), max_tokens=4))
        assert done.passages_used == 0
    finally:
        poor.close()


def test_kept_prefixes_stay_within_their_bytes(tiny_model: Path) -> None:
    budget = 400_000
    small = load_local_generator(settings(tiny_model, kv_budget_bytes=budget))
    try:
        for number in range(8):
            answer(small, ask(f"Question number {number} about warps?"))
            assert small._prefixes.held_bytes <= budget
        assert small._prefixes.held_bytes > 0
    finally:
        small.close()


class AlwaysWrong:
    """Guesses that are never right, so that every cache ends with tokens that were taken back."""

    def __init__(self, prompt: list[int], most_tokens: int) -> None:
        self.most_tokens = most_tokens

    def extend(self, tokens: list[int]) -> None:
        """Learns nothing."""

    def accepted(self, accepted_tokens: int, guessed_tokens: int) -> None:
        """Learns nothing."""

    def guess(self, room_tokens: int) -> list[int]:
        return [9, 8, 7, 6][:room_tokens]


def test_kept_keys_are_those_of_a_fresh_read(plain: LocalGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after guesses, stop tokens, splits of the tree and a cancelled answer."""
    import torch

    monkeypatch.setattr("rag.generators.local.decode.PromptLookup", AlwaysWrong)
    plain._stop_tokens = frozenset(range(3, 640, 2))  # answers end while a guess is out
    request = ask(arm="rag", passages=PASSAGES)
    for question in ("What is a warp?", "What is occupancy?", "Why?"):
        answer(plain, replace(request, question=question, max_tokens=7))
        for seed in range(4):
            answer(plain, replace(request, question=question, max_tokens=9, temperature=1.5, seed=seed))
    stopped = plain.stream(replace(request, question="Stopped?", max_tokens=20))
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    plain._thread.call(lambda: None)  # the stopped answer has left the model's thread
    (root,) = plain._prefixes._roots.values()
    waiting = [(root, [], [])]
    compared = 0
    while waiting:
        node, tokens, segments = waiting.pop()
        if node.segment is not None:
            tokens, segments = tokens + node.tokens, [*segments, node.segment]
        if not node.children:
            fresh = SlabCache(3, len(tokens))
            prefill(plain._model, tokens, fresh)
            expected = fresh.copy_out(0, len(tokens))
            for layer in range(3):
                kept = torch.cat([segment.keys[layer] for segment in segments], dim=2)
                torch.testing.assert_close(kept, expected.keys[layer], atol=1e-4, rtol=1e-3)
            compared += 1
        waiting += [(child, tokens, segments) for child in node.children.values()]
    assert compared >= 4


LONG_ANSWER = "A warp is 32 threads that execute in lockstep on a streaming multiprocessor."


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
        written = [token for token in fed[closed:] if tokenizer.decode([token]).strip()]
        return said[len(written)]

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
    generator._batches.traces = False  # a trace would not call it


@pytest.mark.parametrize("thoughts", [5, 1500])
def test_reasoning_has_a_budget_of_its_own_and_is_then_closed(tiny_model: Path, thoughts: int) -> None:
    changes = {"reasoning_tokens": 60, "prompt_lookup_tokens": 0, "prefix_cache": False}
    thinker = load_local_generator(settings(tiny_model, **changes))
    request = ask(arm="rag", passages=PASSAGES, max_tokens=40)
    script(thinker, request, thoughts, LONG_ANSWER)
    try:
        pieces = list(thinker.stream(request))
        assert pieces[0] == Thinking()
        assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == LONG_ANSWER
        done = pieces[-1]
        assert isinstance(done, GenerationDone)
        assert (done.usage.finish, done.refused) == ("stop", False)
        assert 5 < done.usage.reasoning_tokens <= 60 + 16
        _, short = answer(thinker, replace(request, max_tokens=8))
        assert short.usage.completion_tokens - short.usage.reasoning_tokens == 8
        assert short.usage.finish == "length"
    finally:
        thinker.close()


def test_an_answer_that_only_thought_is_an_error_not_a_refusal(tiny_model: Path) -> None:
    thinker = load_local_generator(settings(tiny_model, reasoning_tokens=60, prompt_lookup_tokens=0))
    request = ask(arm="rag", passages=PASSAGES)
    script(thinker, request, 5, "")
    try:
        with pytest.raises(GenerationFailed, match="stopped thinking after") as error:
            answer(thinker, request)
        assert "REASONING_TOKENS" in error.value.hint
    finally:
        thinker.close()


def before_each_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Calls `act` with the number of the decoding step, from 1, before each step, traced or not."""
    step, numbers = Batches.step, count(1)

    def acted(*args: Any) -> Any:
        act(next(numbers))
        return step(*args)

    monkeypatch.setattr(Batches, "step", acted)


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Makes every decoding step take 20 ms more; each adds its time to the list."""
    steps: list[float] = []

    def wait(_: int) -> None:
        time.sleep(0.02)
        steps.append(time.monotonic())

    before_each_step(monkeypatch, wait)
    return steps


def test_closing_the_stream_stops_the_model(tiny_model: Path, slow_steps: list[float]) -> None:
    generator = load_local_generator(settings(tiny_model, prompt_lookup_tokens=0))
    stream = generator.stream(ask(max_tokens=500))
    next(stream)
    wait_until(lambda: len(slow_steps) > 2, "some steps are taken")
    stream.close()  # type: ignore[attr-defined]
    taken = len(slow_steps)
    time.sleep(0.3)
    assert len(slow_steps) <= taken + 2
    generator.close()


def test_cancelling_stops_within_two_tokens_and_frees_the_model(tiny_model: Path, slow_steps: list[float]) -> None:
    generator = load_local_generator(settings(tiny_model, prompt_lookup_tokens=0))
    stop = threading.Event()
    stream = generator.stream(ask(max_tokens=500, cancelled=stop.is_set))
    next(stream)
    wait_until(lambda: len(slow_steps) > 2, "some steps are taken")
    stop.set()
    taken = len(slow_steps)
    with pytest.raises(Cancelled):
        list(stream)
    time.sleep(0.2)
    assert len(slow_steps) <= taken + 2
    assert answer(generator, ask(max_tokens=4))[1].usage.completion_tokens == 4
    generator.close()


@pytest.mark.usefixtures("slow_steps")
def test_a_full_line_is_busy_with_a_time_to_come_back(tiny_model: Path) -> None:
    generator = load_local_generator(settings(tiny_model, max_queue=1, prompt_lookup_tokens=0))
    running = generator.stream(ask(max_tokens=1500))
    next(running)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(answer, generator, ask("Second?", max_tokens=3))
        wait_until(lambda: len(generator._thread._waiting) == 1, "the second question waits")
        with pytest.raises(Busy, match="wait for the model") as full:
            generator.check(ask("Third?"))
        assert full.value.retry_after_s >= 1
        running.close()  # type: ignore[attr-defined]
        assert second.result(PATIENCE_S)[1].usage.completion_tokens == 3
    generator.close()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("planted"), "planted"),
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA out of memory"), "out of memory"),
    ],
)
def test_a_failing_answer_harms_no_other(
    plain: LocalGenerator, monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str
) -> None:
    expected, _ = answer(plain, ask())
    failing = threading.Event()
    failing.set()

    def fail(number: int) -> None:
        if number >= 3 and failing.is_set():
            raise raised

    before_each_step(monkeypatch, fail)
    with pytest.raises(GenerationFailed, match=said):
        list(plain.stream(ask("Another question?")))
    failing.clear()
    assert answer(plain, ask())[0] == expected


def test_scores_of_options_are_their_log_likelihoods(plain: LocalGenerator) -> None:
    import torch

    choices = ("32 threads", "a bank", "memory accesses")
    request = ask()
    scores = plain.score_choices(request, choices)
    prompt = plain._chat.tokens(request)
    for index, choice in enumerate(choices):
        option = plain._loaded.tokenizer.encode(choice, add_special_tokens=False)
        with torch.inference_mode():
            rows = plain._model(input_ids=torch.tensor([prompt + option], device=DEVICE)).logits[0].log_softmax(-1)
        expected = sum(float(rows[len(prompt) - 1 + place, token]) for place, token in enumerate(option))
        assert scores.extra["sum_logprob"][index] == pytest.approx(expected, abs=1e-3)
        assert scores.scores[index] == pytest.approx(expected / len(choice.encode()), abs=1e-3)
    assert len(scores.extra["letters"]) == 3


def test_an_adapter_of_another_base_is_refused(tmp_path: Path, tiny_model: Path, tiny_adapter: Path) -> None:
    other_width = build_model(tmp_path / "wide", hidden_size=160)
    with pytest.raises(AdapterMismatch, match=r"down_proj to be 256 → 128; in .* it is 256 → 160"):
        load_local_generator(settings(other_width, adapters={"qa": str(tiny_adapter)}))
    deeper = build_model(tmp_path / "deep", num_hidden_layers=5)
    with pytest.raises(AdapterMismatch, match="trained on another base"):
        load_local_generator(settings(deeper, adapters={"qa": str(tiny_adapter)}))
    shallower = build_model(tmp_path / "shallow", num_hidden_layers=2)
    with pytest.raises(AdapterMismatch, match="does not have"):
        load_local_generator(settings(shallower, adapters={"qa": str(tiny_adapter)}))


def test_an_adapter_whose_layers_a_pattern_names_fits_its_base(tmp_path: Path, tiny_model: Path) -> None:
    chosen = build_adapter(tmp_path / "chosen", tiny_model, targets=r".*layers\.[01]\..*(q|v)_proj")
    loaded = load_local_generator(settings(tiny_model, adapters={"qa": str(chosen)}))
    assert loaded.adapters == ("qa",)
    loaded.close()
    all_queries = build_adapter(tmp_path / "queries", tiny_model, targets=r".*\.q_proj")
    deeper = build_model(tmp_path / "deep", num_hidden_layers=5)
    with pytest.raises(AdapterMismatch, match=r"adapts 3 layers; .* has 5"):
        load_local_generator(settings(deeper, adapters={"qa": str(all_queries)}))


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
        monkeypatch.setattr(local, "free_memory_bytes", lambda _, free=free_gib: free << 30)
        assert local.default_kv_budget_bytes("cpu") == budget_gib << 30
