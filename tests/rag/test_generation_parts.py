"""The parts of generation that need no model: kept prefixes, admission, the line for the model, text pieces."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fakes import make_passage
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import PATIENCE_S, wait_until

from indexes.errors import Busy, Cancelled
from rag.errors import DoesNotFitInMemory, GenerationFailed, PromptTooLong
from rag.generators.admission import Admission
from rag.generators.local.cache import PrefixCache, SlabCache
from rag.generators.local.thread import ModelThread
from rag.generators.prompts import REFUSAL, REFUSAL_IN_CHINESE, says_unknown
from rag.generators.protocol import GenerationRequest
from rag.generators.stream_text import (
    REASONING_BLOCKS,
    ReasoningBlock,
    ReasoningFilter,
    RepetitionGuard,
    StopStrings,
    TextStream,
)
from rag.models.capabilities import Capabilities
from rag.types import Turn


class Spelling:
    """A tensor whose numbers are the tokens themselves: what was found can be spelt out. A token takes ten bytes."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.nbytes = 10 * len(tokens)

    def __getitem__(self, places: tuple[slice, ...]) -> Spelling:
        return Spelling(self.tokens[places[2]])

    def clone(self) -> Spelling:
        return Spelling(list(self.tokens))


def keep(cache: PrefixCache, tokens: list[int], adapter: str | None = None) -> None:
    held = SlabCache(1, len(tokens))
    held.keys = [Spelling(tokens)]
    held.values = [Spelling([])]
    cache.keep(adapter, tokens, held)


def spelt(cache: PrefixCache, tokens: list[int], adapter: str | None = None) -> list[int]:
    entry, count = cache.find(adapter, tokens)
    return entry.keys[0].tokens[:count] if entry is not None else []


token_lists = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(st.lists(st.tuples(token_lists, st.sampled_from([None, "qa"])), min_size=1, max_size=12), token_lists)
def test_the_longest_beginning_that_was_kept_with_the_adapter_is_found(
    kept: list[tuple[list[int], str | None]], wanted: list[int]
) -> None:
    cache = PrefixCache(1 << 30)
    for tokens, adapter in kept:
        keep(cache, tokens, adapter)
    for adapter in (None, "qa"):
        longest = max(
            (
                next((i for i, (a, b) in enumerate(zip(tokens, wanted, strict=False)) if a != b), len(wanted))
                if tokens[: len(wanted)] != wanted[: len(tokens)]
                else min(len(tokens), len(wanted))
                for tokens, of in kept
                if of == adapter
            ),
            default=0,
        )
        assert spelt(cache, wanted, adapter) == wanted[:longest]


@given(st.lists(token_lists, min_size=1, max_size=20), st.integers(0, 300), st.integers(1, 4))
def test_kept_prefixes_stay_within_their_bytes_and_number(kept: list[list[int]], capacity: int, most: int) -> None:
    cache = PrefixCache(capacity, most)
    for tokens in kept:
        keep(cache, tokens)
        assert cache.held_bytes <= capacity
        assert len(cache._entries) <= most
        found = spelt(cache, tokens)
        assert found == tokens[: len(found)]


def test_what_was_used_longest_ago_is_dropped_first_and_what_goes_on_takes_the_place_of_its_beginning() -> None:
    cache = PrefixCache(60)
    keep(cache, [1, 1, 1])
    keep(cache, [2, 2, 2])
    cache.find(None, [1, 1, 1])
    keep(cache, [3, 3, 3])
    assert spelt(cache, [2, 2, 2]) == []
    keep(cache, [3, 3])
    keep(cache, [1, 1, 1])
    assert cache.held_bytes == 60
    keep(cache, [3, 3, 3, 4])
    assert (cache.held_bytes, spelt(cache, [3, 3, 3, 4])) == (40, [3, 3, 3, 4])


def capabilities(context_tokens: int) -> Capabilities:
    return Capabilities("full", context_tokens, 2, 2, 0, 1, 4, 4, None, 100, 8, 16, 2)


def admission(context_tokens: int = 100, budget_bytes: int = 1 << 20) -> Admission:
    """One token per word; a token's keys and values take 2 layers × (4 + 4) × 2 bytes = 32 bytes."""

    def tokenize(request: GenerationRequest) -> list[int]:
        words = [request.question, *(p.text for p in request.passages), *(t.question for t in request.turns)]
        return [0] * sum(len(text.split()) for text in words)

    return Admission(capabilities(context_tokens), tokenize, "toy", budget_bytes, 2, 20)


def test_the_lowest_passages_go_first_then_the_oldest_turns() -> None:
    passages = tuple(make_passage(f"p{n} " * 30) for n in range(3))
    turns = tuple(Turn(f"t{n} " * 30, "") for n in range(3))
    fitted = admission().admit(GenerationRequest("q " * 10, "rag", passages))
    assert fitted.request.passages == passages[:2]
    fitted = admission().admit(GenerationRequest("q " * 10, "rag", passages, turns))
    assert fitted.request.passages == ()
    assert fitted.request.turns == turns[1:]


def test_what_just_fits_runs_and_an_answer_longer_than_the_context_is_shortened() -> None:
    question = GenerationRequest("q " * 40, "base")
    assert admission(budget_bytes=60 * 32).admit(question).kv_bytes == 60 * 32
    with pytest.raises(DoesNotFitInMemory, match="40 prompt tokens and 20 for the answer"):
        admission(budget_bytes=59 * 32).admit(question)
    assert admission().admit(replace(question, max_tokens=5000)).max_new_tokens == 60
    with pytest.raises(PromptTooLong, match="prompt of 90 tokens; toy reads 100, of which 20"):
        admission().check(GenerationRequest("q " * 90, "rag"))


def one(_: Callable[[], bool]) -> Iterator[int]:
    yield 1


@contextmanager
def busy(*arguments: Any, **options: Any) -> Iterator[ModelThread]:
    """A model's thread with work that lets no other begin until the end."""

    def work(stop: Callable[[], bool]) -> Iterator[int]:
        yield 0
        wait_until(stop, "the work is stopped")

    with closing(ModelThread(*arguments, **options)) as owner, closing(owner.iterate(work)) as running:
        next(running)
        yield owner


def wait_for(owner: ModelThread, waiting: int) -> None:
    wait_until(lambda: len(owner._waiting) == waiting, "the work waits")


def test_work_runs_in_the_order_it_came_on_one_thread() -> None:
    order: list[tuple[int, str]] = []
    begun, go = threading.Event(), threading.Event()

    def work(number: int) -> Iterator[int]:
        begun.set()
        go.wait(PATIENCE_S)
        order.append((number, threading.current_thread().name))
        yield number

    with closing(ModelThread(50, PATIENCE_S)) as owner, ThreadPoolExecutor(9) as pool:
        for number in range(9):
            pool.submit(lambda n=number: list(owner.iterate(lambda _: work(n))))
            begun.wait(PATIENCE_S)  # the first holds the thread
            wait_for(owner, number)
        go.set()
    assert [number for number, _ in order] == list(range(9))
    assert len({name for _, name in order}) == 1
    with pytest.raises(GenerationFailed, match="closed"):
        next(owner.iterate(one))


def test_work_that_ran_out_of_memory_is_tried_once_more() -> None:
    freed: list[bool] = []

    def runs_out(tries: int, before: int) -> Callable[[Callable[[], bool]], Iterator[int]]:
        """Runs out so many times, and gives so many items before."""
        left = [MemoryError] * tries

        def work(_: Callable[[], bool]) -> Iterator[int]:
            yield from range(before)
            if left:
                raise left.pop()
            yield 7

        return work

    with closing(ModelThread(5, PATIENCE_S, lambda: freed.append(True))) as owner:
        assert list(owner.iterate(runs_out(1, 0))) == [7]
        assert len(freed) == 1
        for tries, before in ((2, 0), (1, 1)):  # what a reader has seen is not said again
            with pytest.raises(GenerationFailed, match="out of memory"):
                list(owner.iterate(runs_out(tries, before)))
        assert len(freed) == 4


def test_waiting_work_can_be_withdrawn_and_a_full_line_and_a_long_wait_are_busy() -> None:
    with busy(1, 0.1) as owner:
        with pytest.raises(Cancelled):
            next(owner.iterate(one, cancelled=lambda: True))
        with pytest.raises(Busy, match="waited"):
            next(owner.iterate(one))
    with busy(0, PATIENCE_S) as owner:
        with pytest.raises(Busy) as full:
            next(owner.iterate(one))
        assert full.value.retry_after_s >= 1


def test_only_a_wait_beyond_the_setting_is_refused_with_the_time_until_it_is_not() -> None:
    """Answers take 100 s and run in pairs: behind four others one more waits 250 s, behind five 300 s."""
    gone = threading.Event()
    with busy(None, 250.0, together=2) as owner, ThreadPoolExecutor(5) as pool:
        owner._usual_s = 100.0
        for waiting in range(5):
            owner.check_room()
            pool.submit(lambda: list(owner.iterate(one, gone.is_set)))
            wait_for(owner, waiting + 1)
        with pytest.raises(Busy, match="one more would wait about 300 s") as refused:
            owner.check_room()
        assert refused.value.retry_after_s == pytest.approx(50.0, abs=1)
        gone.set()


class ByteTokenizer:
    """One token per UTF-8 byte: characters of several bytes need several tokens."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=40))
def test_pieces_joined_are_the_text_and_hold_whole_characters(text: str) -> None:
    stream = TextStream(ByteTokenizer())
    pieces = [stream.push(byte) for byte in text.encode()]
    pieces.append(stream.finish())
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.integers(1, 9), st.sampled_from(REASONING_BLOCKS), st.booleans())
def test_leading_reasoning_is_left_out_however_it_is_cut(step: int, block: ReasoningBlock, inside: bool) -> None:
    thoughts = "hidden <b> [1] thoughts"
    text = ("" if inside else block.opening) + thoughts + block.close + "The answer is <b>.</think>"
    chosen = ReasoningFilter(block if inside else None)
    shown = "".join(chosen.push(text[start : start + step]) for start in range(0, len(text), step)) + chosen.finish()
    assert shown == "The answer is <b>.</think>"
    assert not chosen.inside


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<|channel|>final<|message|>Yes.", "Yes."),
        ("<|channel|>commentary<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "Yes."),
        ("<think>One.</think>\n<think>Two.</think>\n\nYes.", "Yes."),
        ("<think>Still at it", ""),
        ("<|channel|>analysis<|message|>Still at it", ""),
        *((text, text) for text in ("Plain answer.", "<thin air", "< 32 threads", "")),
    ],
)
def test_only_the_answer_is_shown(text: str, answer: str) -> None:
    chosen = ReasoningFilter()
    assert "".join(chosen.push(character) for character in text) + chosen.finish() == answer


def test_marks_that_are_special_tokens_are_text() -> None:
    stream = TextStream(ByteTokenizer(), spoken={7: "[THINK]"})
    pieces = [stream.push(token) for token in (*b"a", 7, *"é".encode())]
    assert "".join(pieces) + stream.finish() == "a[THINK]é"


@given(st.lists(st.integers(0, 2), min_size=1, max_size=400), st.lists(st.integers(0, 3), max_size=20))
def test_text_in_circles_ends_before_it_repeats_however_long_the_round(run: list[int], before: list[int]) -> None:
    guard = RepetitionGuard()
    tokens = [*before, 9, *run * 300]
    shown, noticed = "", 0
    while not guard.circling:
        shown += guard.push(tokens[noticed], f"{tokens[noticed]}")
        noticed += 1
    repeated = {period: max(period, 200) for period in range(1, noticed)}
    tail = tokens[:noticed]
    assert any(tail[-length:] == tail[-length - p : -p] for p, length in repeated.items() if length + p <= noticed)
    assert noticed <= len(before) + 1 + len(run) + repeated[len(run)]
    assert guard.finish() == ""
    assert "".join(map(str, tokens)).startswith(shown) and len(shown) <= len(before) + 1 + len(run)


@given(st.lists(st.integers(0, 1), max_size=150))
def test_text_that_does_not_go_in_circles_is_shown_whole(tokens: list[int]) -> None:
    guard = RepetitionGuard()
    assert "".join(guard.push(token, f"{token} ") for token in tokens) + guard.finish() == "".join(
        f"{token} " for token in tokens
    )


@pytest.mark.parametrize(
    "text",
    [
        "| --- " * 12 + "|",
        "\n".join(f"c[{n}] = a[{n}] + b[{n}];" for n in range(64)),
        "float tile[32] = {" + "0.0f, " * 31 + "0.0f};",
        "__syncthreads();\n" * 8,
    ],
)
def test_alike_lines_of_listings_and_tables_are_not_circles(text: str) -> None:
    guard = RepetitionGuard()
    for token in re.findall(r"\w+|\W", text):
        guard.push(token)
    assert not guard.circling


def cut_at_the_first_complete(text: str, strings: list[str]) -> str:
    """`text` without the longest of the strings that are complete first, and without what comes after it."""
    for end in range(len(text) + 1):
        if complete := [string for string in strings if text[:end].endswith(string)]:
            return text[: end - max(map(len, complete))]
    return text


@given(st.lists(st.text("ab\n", max_size=4), max_size=8), st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3))
@example(["b", "a", "\n"], ["a", "ba\n"])
@example(["ba\n"], ["a", "ba\n"])
def test_an_answer_ends_at_the_first_complete_stop_string_however_it_is_cut(
    pieces: list[str], strings: list[str]
) -> None:
    whole = "".join(pieces)
    stop = StopStrings(strings)
    early = "".join(stop.push(piece) for piece in pieces)
    assert stop.hit == any(string in whole for string in strings)
    assert early + stop.finish() == cut_at_the_first_complete(whole, strings)


@pytest.mark.parametrize(
    ("answer", "unknown"),
    [
        (REFUSAL, True),
        ("the passages do not answer this question [1][2]", True),
        (f"{REFUSAL} [1]\n\nThey are about warps.", True),
        (f"“{REFUSAL_IN_CHINESE}”", True),
        ("The passages do not answer this question directly, but [2] says 32.", False),
        ("It is not given in the passages but the value is 48 KB.", False),
        ("The passages do not contain it.", False),
        ("A warp is 32 threads [1]. " + REFUSAL, False),
        ("A kernel cannot find a symbol that was not compiled for its architecture.", False),
        ("[1]", False),
        ("", False),
    ],
)
def test_a_refusal_is_the_sentence_that_the_model_was_told_to_write_and_no_more(answer: str, unknown: bool) -> None:
    assert says_unknown(answer) is unknown
