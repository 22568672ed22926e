"""Answers decoded together: the tokens of each alone, in one traceable step; rows come, wait, end and fail alone."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiny_models import DEVICE, build_adapter, build_model
from waiting import PATIENCE_S, wait_until

from indexes.errors import Cancelled
from rag.errors import GenerationFailed
from rag.generators.local.batch import Batch, bucket_of, decode
from rag.generators.local.cache import SlabCache
from rag.generators.local.decode import Decoding, Sampler, prefill, static_step, traced_step
from rag.generators.local.generator import LocalGenerator, load_local_generator
from rag.generators.local.recorder import GraphMemory, Recorder, Replay
from rag.generators.protocol import GenerationRequest, TextPiece
from rag.models.adapters import load_adapters
from rag.models.devices import RANDOM_NUMBERS
from rag.models.loading import load_model
from rag.settings import GeneratorSettings
from rag.types import Waiting

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

QUESTIONS = [f"What is number {n}?" + " Why is that?" * (5 * n % 7) for n in range(8)]


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> Any:
    return load_model(str(tiny_model), dtype="float32", device=DEVICE)


@pytest.fixture(scope="module")
def generator(
    tiny_model: Path, tiny_adapter: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalGenerator]:
    other = build_adapter(tmp_path_factory.mktemp("adapters") / "other", tiny_model, rank=8, seed=7)
    made = load_local_generator(settings(tiny_model, adapters={"qa": str(tiny_adapter), "other": str(other)}))
    yield made
    made.close()


def settings(model: Path, **changes: Any) -> GeneratorSettings:
    base = GeneratorSettings(
        kind="local", model=str(model), quantization="none", dtype="float32", device=DEVICE, max_tokens=24
    )
    return replace(base, **changes)


def prompt_of(length: int) -> list[int]:
    return [3 + (7 * length + 13 * place * place) % 590 for place in range(length)]


def ask(question: str, **changes: Any) -> GenerationRequest:
    return replace(GenerationRequest(question, "base"), **changes)


def text_of(generator: LocalGenerator, request: GenerationRequest) -> str:
    return "".join(piece.text for piece in generator.stream(request) if isinstance(piece, TextPiece))


def test_rows_that_come_and_go_write_what_each_writes_alone(loaded: Any) -> None:
    """Of all lengths, across the edges of buckets, each row begun while others are at work and ended before them."""
    lengths = [30, 250, 5, 380, 120]
    alone = [
        list(decode(loaded.model, prompt_of(length), SlabCache(3, length + 40), max_new_tokens=24 - 4 * number))
        for number, length in enumerate(lengths)
    ]
    batch = Batch(loaded.model)
    rows: dict[int, Decoding] = {}
    written: dict[int, list[int]] = {}
    for turn in range(60):
        if turn % 3 == 0 and turn // 3 < len(lengths):
            number, length = turn // 3, lengths[turn // 3]
            cache = SlabCache(3, length + 40)
            logits = prefill(loaded.model, prompt_of(length), cache)
            rows[number] = Decoding(prompt_of(length), cache, Sampler())
            written[number] = rows[number].take(logits)
            rows[number].wrote(written[number])
        for (number, row), logits in zip(list(rows.items()), batch.step(list(rows.values())), strict=True):
            tokens = row.take(logits)
            row.wrote(tokens)
            written[number] += tokens
            if len(written[number]) == len(alone[number]):
                batch.remove(row.cache)
                del rows[number]
        if not rows:
            break
    assert [written[number] for number in range(len(lengths))] == alone
    assert len(batch) == 0


def test_a_row_with_a_longer_prompt_joins_after_others_have_left(loaded: Any) -> None:
    """The batch then has memory for more rows than it holds, and needs longer ones."""
    batch = Batch(loaded.model)
    rows: list[Decoding] = []
    written: dict[int, list[int]] = {}

    def begin(length: int) -> None:
        cache = SlabCache(3, length + 40)
        logits = prefill(loaded.model, prompt_of(length), cache)
        rows.append(Decoding(prompt_of(length), cache, Sampler()))
        written[length] = rows[-1].take(logits)
        rows[-1].wrote(written[length])

    def go_on() -> None:
        for row, length, logits in zip(rows, list(written), batch.step(rows), strict=True):
            tokens = row.take(logits)
            row.wrote(tokens)
            written[length] += tokens

    for length in (30, 20, 5):
        begin(length)
    go_on()
    for _ in range(2):
        batch.remove(rows.pop().cache)
        written.popitem()
    begin(380)
    for _ in range(6):
        go_on()
    for length, tokens in written.items():
        alone = decode(loaded.model, prompt_of(length), SlabCache(3, length + 40), max_new_tokens=len(tokens))
        assert tokens == list(alone)


def test_a_step_is_one_graph_with_quantized_weights_and_an_adapter(
    tiny_model: Path, tiny_adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of static shape, which can be captured; what it writes are the tokens of an untraced step."""
    import torch

    loaded = load_model(str(tiny_model), quantization="nf4", dtype="float32", device=DEVICE)
    load_adapters(loaded, {"qa": str(tiny_adapter)}).activate("qa")
    graphs = 0

    def counted(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def write() -> list[list[int]]:
        batch, rows = Batch(loaded.model), []
        for length in (20, 33):
            cache = SlabCache(3, 64)
            logits = prefill(loaded.model, prompt_of(length), cache)
            rows.append(Decoding(prompt_of(length), cache, Sampler()))
            rows[-1].wrote(rows[-1].take(logits))
        written: list[list[int]] = [[], []]
        for _ in range(12):
            for tokens, row, logits in zip(written, rows, batch.step(rows), strict=True):
                taken = row.take(logits)
                row.wrote(taken)
                tokens += taken
        return written

    expected = write()
    torch.compiler.reset()
    traced = torch.compile(static_step, fullgraph=True, backend=counted)
    monkeypatch.setattr("rag.generators.local.batch.static_step", traced)
    assert write() == expected
    assert graphs == 1


@pytest.mark.skipif(DEVICE != "cpu", reason="steps are traced on a processor")
def test_a_traced_step_writes_what_the_plain_one_writes(
    generator: LocalGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the base and each adapter, alone and together; and then Python is left out of the step."""
    requests = [ask(question, arm="tuned", adapter="qa") for question in QUESTIONS[:3]]
    requests += [ask(question) for question in QUESTIONS[3:6]]
    traced = [text_of(generator, request) for request in requests]
    assert all(generator._batches._traced[group] is not None for group in ("", "adapter qa"))
    with monkeypatch.context() as patch:
        patch.setattr(generator._batches, "traces", False)
        assert [text_of(generator, request) for request in requests] == traced
    with monkeypatch.context() as patch, ThreadPoolExecutor(6) as pool:
        patch.setattr("rag.generators.local.batch.static_step", None)
        assert list(pool.map(lambda request: text_of(generator, request), requests)) == traced


@pytest.mark.parametrize(
    ("family", "shape"), [("mixtral", {"num_local_experts": 8}), ("qwen3_moe", {"num_experts": 8}), ("gemma", {})]
)
def test_a_trace_holds_for_other_rows_and_lengths(tmp_path: Path, family: str, shape: dict[str, Any]) -> None:
    """Of mixtures too, whose tokens take different ways."""
    import torch

    loaded = load_model(str(build_model(tmp_path / family, family=family, **shape)), dtype="float32", device="cpu")
    heads, width = loaded.capabilities.kv_heads, loaded.capabilities.key_dim
    draw = torch.Generator().manual_seed(1)
    for rows, new, bucket in ((1, 1, 384), (5, 1, 256), (2, 3, 1024)):
        keys, values = ([torch.zeros(rows, heads, bucket, width) for _ in range(3)] for _ in "kv")
        traced = traced_step(loaded.model, keys, values)
        assert traced is not None
        for _ in range(4):
            ids = torch.randint(600, (rows, new), generator=draw)
            lengths = torch.randint(bucket - new, (rows,), generator=draw)
            with torch.inference_mode():
                torch.testing.assert_close(
                    traced(ids, lengths, keys, values), static_step(loaded.model, ids, lengths, keys, values)
                )


def test_a_model_that_goes_its_way_by_the_data_is_not_traced(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    loaded = load_model(str(tiny_model), dtype="float32", device="cpu")
    forward = loaded.model.forward

    def odd(input_ids: Any, **others: Any) -> Any:
        output = forward(input_ids=input_ids, **others)
        if int(input_ids.sum()) % 2:
            output.logits += 1
        return output

    monkeypatch.setattr(loaded.model, "forward", odd)
    keys, values = ([torch.zeros(1, 2, 256, 16) for _ in range(3)] for _ in "kv")
    assert traced_step(loaded.model, keys, values) is None


class Recorded(Recorder):
    """Records nothing; counts, and computes in place of a GPU."""

    made: ClassVar[list[tuple[int, ...]]] = []

    def _record(self, ids: Any, lengths: Any, keys: Any, values: Any) -> Replay:
        import torch

        self.made.append((*ids.shape, keys[0].shape[2]))

        def replay(new_ids: Any, new_lengths: Any) -> Any:
            ids.copy_(new_ids)
            lengths.copy_(new_lengths)
            with torch.inference_mode():
                return static_step(self._model, ids, lengths, keys, values)

        return replay


def test_steps_are_recorded_once_for_each_shape_and_again_where_keys_have_moved(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorded, "made", [])
    lengths = [30, 250, 120]
    alone = [
        list(decode(loaded.model, prompt_of(each), SlabCache(3, each + 60), max_new_tokens=31)) for each in lengths
    ]
    batch = Batch(loaded.model, recorder=Recorded(loaded.model, GraphMemory()))
    rows, written = [], []
    for length in lengths:
        cache = SlabCache(3, length + 60)
        logits = prefill(loaded.model, prompt_of(length), cache)
        rows.append(Decoding(prompt_of(length), cache, Sampler()))
        written.append(rows[-1].take(logits))
        rows[-1].wrote(written[-1])
    for turn in range(30):
        if turn == 20:
            batch.remove(rows.pop(0).cache)
        for row, tokens, logits in zip(rows, written[-len(rows) :], batch.step(rows), strict=True):
            new = row.take(logits)
            row.wrote(new)
            tokens += new
    assert written == [alone[0][:21], *alone[1:]]
    assert Recorded.made == [(3, 1, 310), (2, 1, 310)]
    batch.remove(rows[0].cache)
    batch.step(rows[1:])
    batch.remove(rows[1].cache)
    assert len(batch) == 0


def test_what_cannot_be_recorded_is_computed_step_by_step(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Recorder):
        tried = 0

        def _record(self, ids: Any, lengths: Any, keys: Any, values: Any) -> Replay:
            self.tried += 1
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    def write(recorder: Recorder) -> list[int]:
        cache = SlabCache(3, 60)
        row = Decoding(prompt_of(30), cache, Sampler())
        logits = prefill(loaded.model, prompt_of(30), cache)
        batch = Batch(loaded.model, recorder=recorder)
        tokens: list[int] = []
        for _ in range(8):
            new = row.take(logits)
            row.wrote(new)
            tokens += new
            (logits,) = batch.step([row])
        return tokens

    class Full(Recorded):
        tried = 0

        def _record(self, ids: Any, lengths: Any, keys: Any, values: Any) -> Replay:
            self.tried += 1
            if self.tried == 1:
                raise RuntimeError("CUDA out of memory")
            return super()._record(ids, lengths, keys, values)

    expected = list(decode(loaded.model, prompt_of(30), SlabCache(3, 60), max_new_tokens=8))
    full = Full(loaded.model, GraphMemory())
    assert write(full) == expected
    assert full.tried == 2
    assert not caplog.text
    failing = Failing(loaded.model, GraphMemory())
    assert write(failing) == expected
    assert failing.tried == 1
    assert "slower: operation not permitted when stream is capturing" in caplog.text
    counting = Failing(loaded.model, GraphMemory())
    with RANDOM_NUMBERS:
        assert write(counting) == expected
    assert counting.tried == 0


def test_buckets_are_few_and_hold_what_they_should() -> None:
    sizes = {bucket_of(tokens, 10_000) for tokens in range(1, 8193)}
    assert sizes == {256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192}
    assert all(bucket_of(tokens, 10_000) >= tokens for tokens in range(1, 8193))
    assert bucket_of(300, 310) == 310


def test_answers_of_several_adapters_at_once_are_those_of_one_at_a_time(generator: LocalGenerator) -> None:
    requests = [
        ask(question) if number % 3 == 0 else ask(question, arm="tuned", adapter=("qa", "other")[number % 2])
        for number, question in enumerate(QUESTIONS)
    ]
    requests[5] = replace(requests[5], temperature=0.8, seed=3)
    expected = [text_of(generator, request) for request in requests]
    generator._prefixes.clear()
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda request: text_of(generator, request), requests))
    assert got == expected
    assert generator._batches.held_bytes == 0


def test_a_row_ends_alone(generator: LocalGenerator) -> None:
    """By a stop string, a hang-up or a cancellation; the others go on, and its memory is free."""
    expected = [text_of(generator, ask(question, max_tokens=60)) for question in QUESTIONS[:4]]
    stop = expected[0][len(expected[0]) // 2 :][:3]
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
        stopped = pool.submit(text_of, generator, ask(QUESTIONS[0], max_tokens=60, stop=(stop,)))
        left = pool.submit(hang_up)
        withdrawn = pool.submit(cancelled)
        whole = pool.submit(text_of, generator, ask(QUESTIONS[3], max_tokens=60))
        assert stopped.result(PATIENCE_S) == expected[0][: expected[0].find(stop)]
        assert whole.result(PATIENCE_S) == expected[3]
        left.result(PATIENCE_S)
        with pytest.raises(Cancelled):
            withdrawn.result(PATIENCE_S)
    wait_until(lambda: generator._batches.held_bytes == 0, "all rows are free")
    assert text_of(generator, ask(QUESTIONS[1], max_tokens=60)) == expected[1]


def test_a_row_that_fails_fails_alone(generator: LocalGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a step of several."""
    expected = [text_of(generator, ask(question)) for question in QUESTIONS[:3]]
    doomed: list[Any] = []
    take, step = Decoding.take, Batch.step

    def failing(batch: Batch, rows: list[Decoding], guess_tokens: int = 0) -> list[Any]:
        if any(row in doomed for row in rows):
            raise RuntimeError("planted")
        return step(batch, rows, guess_tokens)

    def mark(row: Decoding, logits: Any) -> list[int]:
        if row._tokens == generator._chat.tokens(ask(QUESTIONS[1])):
            doomed.append(row)
        return take(row, logits)

    monkeypatch.setattr(Batch, "step", failing)
    monkeypatch.setattr(Decoding, "take", mark)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(text_of, generator, ask(question)) for question in QUESTIONS[:3]]
        assert [answers[number].result(PATIENCE_S) for number in (0, 2)] == [expected[0], expected[2]]
        with pytest.raises(GenerationFailed, match="planted"):
            answers[1].result(PATIENCE_S)
    assert generator._batches.held_bytes == 0


def test_rows_begin_as_memory_allows_and_the_others_hear_their_place(tiny_model: Path) -> None:
    """768 bytes a token: two answers of about 100 tokens fit."""
    small = load_local_generator(settings(tiny_model, kv_budget_bytes=200_000, max_tokens=40))
    questions = [f"Question {number}?" for number in range(6)]
    held: list[int] = []
    places: dict[str, list[int]] = {question: [] for question in questions}

    def listen(question: str) -> str:
        text = ""
        for piece in small.stream(ask(question)):
            held.append(small._batches.held_bytes)
            if isinstance(piece, Waiting):
                places[question].append(piece.before)
            elif isinstance(piece, TextPiece):
                text += piece.text
        return text

    try:
        expected = [text_of(small, ask(question)) for question in questions]
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(listen, questions)) == expected
        assert 100_000 < max(held) <= 200_000
        assert max(max(told, default=0) for told in places.values()) >= 2
        for told in places.values():
            assert told == sorted(told, reverse=True)
    finally:
        small.close()


@pytest.mark.slow
def test_a_busy_thread_slows_decoding_less_than_with_pythons_own_turns(generator: LocalGenerator) -> None:
    from rag.generators.local.thread import SWITCH_INTERVAL_S

    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(number * number for number in range(1000))

    def seconds(interval_s: float) -> float:
        sys.setswitchinterval(interval_s)
        started = time.perf_counter()
        text_of(generator, ask(QUESTIONS[0], max_tokens=60))
        return time.perf_counter() - started

    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    threading.Thread(target=compute, daemon=True).start()
    try:
        pairs = [(seconds(0.005), seconds(SWITCH_INTERVAL_S)) for _ in range(9)]
    finally:
        ended.set()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    assert statistics.median(long / short for long, short in pairs) > 1.3
