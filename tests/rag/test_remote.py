"""The remote generator against an engine that misbehaves in every way a script can make it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fakes import make_passage
from waiting import PATIENCE_S, wait_until

from indexes.errors import Busy, Cancelled, CoalesceError
from rag.errors import ArmUnavailable, EngineUnreachable, GenerationFailed, PromptTooLong
from rag.generators import openai_client
from rag.generators.protocol import ChoiceScorer, GenerationDone, GenerationRequest, Generator, TextPiece
from rag.generators.remote import RemoteGenerator
from rag.settings import GeneratorSettings
from rag.types import Thinking, Turn, Waiting

Answer = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Hands every request to the test's script and remembers what was asked."""

    server: Engine
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in ("/tokenize", "/apply-template"):
            self.reply(self.server.rendered.get(self.path, {}), 200 if self.path in self.server.rendered else 404)
            return
        self.server.asked.append(body)
        self.server.answer(self, body)

    def do_GET(self) -> None:
        if self.server.loading:
            self.reply({"error": {"message": "Loading model"}}, 503)
        elif self.path == "/lora-adapters":
            self.reply([{"id": number, "path": path, "scale": 1.0} for number, path in enumerate(self.server.loras)])
        else:
            self.reply({"data": self.server.models})

    def reply(self, content: Any, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def open_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, content: Any) -> None:
        data = content if isinstance(content, str) else json.dumps(content)
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class Engine(ThreadingHTTPServer):
    """An engine on a free port."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.models: list[dict[str, Any]] = [{"id": "base", "max_model_len": 1000}, {"id": "cuda-qa"}]
        self.loras: tuple[str, ...] = ()
        self.loading = False
        self.rendered: dict[str, dict[str, Any]] = {}
        self.answer: Answer = say("A warp ", "is 32 ", "threads [1].")

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are part of the tests."""


def delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text} if text else {}, "finish_reason": finish}]}


def say(*pieces: str, pause_s: float = 0.0, usage: bool = True) -> Answer:
    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.wfile.write(b": the connection is kept open\n\n")
        for piece in pieces:
            handler.event(delta(piece))
            time.sleep(pause_s)
        handler.event(delta(None, "stop"))
        if usage:
            counts = {"prompt_tokens": 50, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
            handler.event({"choices": [], "usage": counts})
        handler.event("[DONE]")

    return answer


def first_word_only(ended: threading.Event) -> Answer:
    """One word; the connection stays open until the test has ended."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.event(delta("one "))
        ended.wait(PATIENCE_S)

    return answer


def fail_first(times: int, status: int, then: Answer, **headers: str) -> Answer:
    left = [times]

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        if left[0] > 0:
            left[0] -= 1
            handler.reply({"error": {"message": "overloaded"}}, status, **headers)
        else:
            then(handler, body)

    return answer


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def generator(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteGenerator]:
    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE_S", 0.02)
    made = RemoteGenerator(
        GeneratorSettings(
            kind="remote",
            model="base",
            adapters={"qa": "cuda-qa"},
            base_url=f"http://127.0.0.1:{engine.server_port}",
            api_key="secret",
            request_timeout_s=PATIENCE_S,
        )
    )
    yield made
    made.close()


PASSAGES = tuple(make_passage(f"Passage {n}.") for n in range(3))
REQUEST = GenerationRequest("What is a warp?", "rag", PASSAGES)


def run(generator: RemoteGenerator, request: GenerationRequest = REQUEST) -> tuple[str, GenerationDone]:
    pieces = list(generator.stream(request))
    done = pieces[-1]
    assert isinstance(done, GenerationDone)
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)), done


def test_it_streams_and_reports_the_engines_counts(engine: Engine, generator: RemoteGenerator) -> None:
    assert isinstance(generator, Generator)
    assert isinstance(generator, ChoiceScorer)
    text, done = run(generator)
    assert text == "A warp is 32 threads [1]."
    assert (done.usage.prompt_tokens, done.usage.cached_prompt_tokens, done.usage.completion_tokens) == (50, 40, 7)
    assert done.passages_used == 3
    asked = engine.asked[0]
    assert (asked["model"], asked["temperature"], asked["stream"]) == ("base", 0.0, True)
    assert asked["messages"][0]["role"] == "system"


def test_adapters_are_models_of_the_engine(engine: Engine, generator: RemoteGenerator) -> None:
    run(generator, replace(REQUEST, arm="rag+tuned", adapter="qa"))
    assert engine.asked[0]["model"] == "cuda-qa"
    with pytest.raises(ArmUnavailable, match="adapter 'other' is not loaded"):
        generator.check(replace(REQUEST, arm="tuned", adapter="other"))
    plain = RemoteGenerator(GeneratorSettings(kind="remote", model="base", base_url="http://127.0.0.1:1"))
    assert plain.arms == ("base", "rag")
    with pytest.raises(ArmUnavailable, match="loaded: none"):
        plain.check(replace(REQUEST, arm="tuned"))


def test_what_the_engine_does_not_list_is_no_arm(engine: Engine, generator: RemoteGenerator) -> None:
    """Engines that take any name would answer with the base model."""
    tuned = replace(REQUEST, arm="rag+tuned", adapter="qa")
    del engine.models[1]
    for call in (generator.check, run_with(generator), choose_with(generator)):
        with pytest.raises(ArmUnavailable, match="does not list the adapter 'cuda-qa'; it lists 'base'"):
            call(tuned)
    generator.check(REQUEST)
    engine.models[:] = [{"id": "another"}]
    generator._listed = None
    with pytest.raises(ArmUnavailable, match="does not list the model 'base'; it lists 'another'"):
        generator.check(REQUEST)
    assert engine.asked == []
    engine.models[:] = [{"id": "base:latest"}, {"id": "cuda-qa"}]  # seen at once when it is there
    generator.check(REQUEST)
    generator.check(tuned)


def run_with(generator: RemoteGenerator) -> Callable[[GenerationRequest], object]:
    return lambda request: run(generator, request)


def choose_with(generator: RemoteGenerator) -> Callable[[GenerationRequest], object]:
    return lambda request: generator.score_choices(request, ("one", "two"))


def test_an_engine_that_is_down_or_lists_nothing_is_asked_all_the_same(
    engine: Engine, generator: RemoteGenerator
) -> None:
    nobody = RemoteGenerator(
        GeneratorSettings(kind="remote", model="base", adapters={"qa": "qa"}, base_url="http://127.0.0.1:9/v1")
    )
    assert nobody.arms == ("base", "tuned", "rag", "rag+tuned")
    nobody.check(replace(REQUEST, arm="tuned", adapter="qa"))
    nobody.close()
    engine.models.clear()
    assert run(generator)[0] == "A warp is 32 threads [1]."


def test_an_adapter_is_not_asked_of_an_engine_that_is_still_starting(
    engine: Engine, generator: RemoteGenerator
) -> None:
    """llama.cpp takes any name and lists nothing while it loads: the base model would answer for the adapter."""
    tuned = replace(REQUEST, arm="tuned", adapter="qa")
    engine.loading = True
    generator.check(tuned)
    assert run(generator)[0] == "A warp is 32 threads [1]."
    for call in (run_with(generator), choose_with(generator)):
        with pytest.raises(Busy, match="Loading model"):
            call(tuned)
    assert len(engine.asked) == 1
    engine.loading = False
    run(generator, tuned)
    assert engine.asked[-1]["model"] == "cuda-qa"


def test_adapters_of_llama_cpp_are_switched_by_its_own_field(engine: Engine, generator: RemoteGenerator) -> None:
    """It ignores the model's name, and adapters that a request does not name stay as they were started."""
    engine.models[:] = [{"id": "/models/base.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 900}}]
    engine.loras = ("other.gguf", "/adapters/cuda-qa.gguf")
    run(generator)
    assert engine.asked[-1]["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.0}]
    assert engine.asked[-1]["cache_prompt"] is False  # its cache does not tell adapters apart
    run(generator, replace(REQUEST, arm="tuned", adapter="qa"))
    assert engine.asked[-1]["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]
    engine.loras = ("other.gguf",)
    generator._listed = None
    with pytest.raises(ArmUnavailable, match=r"does not list the adapter 'cuda-qa'; it lists 'other\.gguf'"):
        generator.check(replace(REQUEST, arm="tuned", adapter="qa"))
    engine.models[0]["id"] = "/models/another.gguf"
    generator._listed = None
    with pytest.raises(ArmUnavailable, match="does not list the model 'base'"):
        generator.check(REQUEST)


def test_sampling_settings_are_handed_on(engine: Engine, generator: RemoteGenerator) -> None:
    run(generator, replace(REQUEST, temperature=0.5, sampling_top_p=0.9, seed=7, max_tokens=33, stop=("\n\n", "END")))
    asked = engine.asked[0]
    assert (asked["temperature"], asked["top_p"], asked["seed"], asked["max_tokens"]) == (0.5, 0.9, 7, 33)
    assert asked["stop"] == ["\n\n", "END"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_an_overloaded_engine_is_tried_again(engine: Engine, generator: RemoteGenerator, status: int) -> None:
    engine.answer = fail_first(2, status, say("Yes."))
    assert run(generator)[0] == "Yes."
    assert len(engine.asked) == 3


@pytest.mark.parametrize("asked", ["nan", "inf", "-5", "1e300", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_time_to_come_back_that_is_none_is_not_handed_on(
    engine: Engine, generator: RemoteGenerator, asked: str
) -> None:
    engine.answer = fail_first(99, 503, say(), Retry_After=asked)
    with pytest.raises(Busy) as error:
        run(generator)
    assert error.value.retry_after_s == 1


def test_an_engine_that_stays_overloaded_is_busy(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = fail_first(99, 429, say(), Retry_After="7")
    with pytest.raises(Busy, match="overloaded") as error:
        run(generator)
    assert error.value.retry_after_s == 7
    assert len(engine.asked) == 4


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (401, EngineUnreachable, "refuses the key"),
        (404, EngineUnreachable, "does not know this path or model"),
        (400, GenerationFailed, "answered 400"),
        (500, EngineUnreachable, "answered 500"),
    ],
)
def test_refusals_say_what_to_do(
    engine: Engine, generator: RemoteGenerator, status: int, error: type[Exception], said: str
) -> None:
    engine.answer = fail_first(99, status, say())
    with pytest.raises(error, match=said) as raised:
        run(generator)
    assert raised.value.hint  # type: ignore[attr-defined]
    assert len(engine.asked) == {500: 4, 400: 2}.get(status, 1)  # 400: once more without the template's options


@pytest.mark.parametrize(
    "wrong", [{"base_url": "http://[::1/v1"}, {"api_key": "schlüssel"}, {"base_url": "127.0.0.1/v1"}]
)
def test_an_address_or_key_that_none_can_be_is_an_error_of_ours(wrong: dict[str, str]) -> None:
    found = {"base_url": "http://127.0.0.1:9/v1"} | wrong
    with pytest.raises(CoalesceError) as error:
        run(RemoteGenerator(GeneratorSettings(kind="remote", model="base", **found)))
    assert error.value.hint


def test_an_address_that_does_not_answer_is_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE_S", 0.02)
    nobody = RemoteGenerator(GeneratorSettings(kind="remote", model="base", base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(EngineUnreachable, match="does not answer") as error:
        run(nobody)
    assert "--base-url" in error.value.hint


def test_a_silent_engine_times_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE_S", 0.02)
    ended = threading.Event()
    engine.answer = lambda handler, body: ended.wait(PATIENCE_S) and None
    address = f"http://127.0.0.1:{engine.server_port}/v1"
    hasty = RemoteGenerator(GeneratorSettings(kind="remote", model="base", base_url=address, request_timeout_s=0.5))
    with pytest.raises(EngineUnreachable, match=r"said nothing for 0\.5 s") as error:
        run(hasty)
    assert "COALESCE_REQUEST_TIMEOUT_S" in error.value.hint
    ended.set()
    hasty.close()


def queued(monkeypatch: pytest.MonkeyPatch, engine: Engine, **patience: float) -> tuple[str, float]:
    """The answer to a question that waits while the engine writes 3 s for another one; and the seconds it took."""
    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE_S", 0.02)
    writing, written = threading.Event(), threading.Event()

    def one_at_a_time(handler: Handler, body: dict[str, Any]) -> None:
        if "first" not in str(body["messages"]):
            written.wait(PATIENCE_S)
            say("Mine.")(handler, body)
            return
        writing.set()
        say(*(f"{number} " for number in range(30)), pause_s=0.1)(handler, body)
        written.set()

    engine.answer = one_at_a_time
    address = f"http://127.0.0.1:{engine.server_port}/v1"
    generator = RemoteGenerator(GeneratorSettings(kind="remote", model="base", base_url=address, **patience))
    other = threading.Thread(target=run, args=(generator, replace(REQUEST, question="The first?")))
    other.start()
    try:
        assert writing.wait(PATIENCE_S)
        started = time.monotonic()
        return run(generator)[0], time.monotonic() - started
    finally:
        other.join()
        generator.close()


def test_an_engine_that_answers_others_first_is_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    text, seconds = queued(monkeypatch, engine, request_timeout_s=2)
    assert text == "Mine." and seconds > 2


def test_a_wait_beyond_the_setting_is_busy_with_a_time_to_come_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Busy, match="waited 1 s") as error:
        queued(monkeypatch, engine, request_timeout_s=60, queue_timeout_s=1)
    assert error.value.retry_after_s


def test_those_that_wait_for_the_engine_are_told_their_place(
    engine: Engine, generator: RemoteGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine begins the three in turn, each once the one behind it has heard where it stands."""
    monkeypatch.setattr(openai_client, "_TELL_PLACE_S", 0.0)
    go_on = [threading.Event() for _ in range(3)]

    def in_turn(handler: Handler, body: dict[str, Any]) -> None:
        go_on[int(body["messages"][-1]["content"][7])].wait(PATIENCE_S)
        say("Yes.")(handler, body)

    engine.answer = in_turn
    heard: list[list[Any]] = [[], [], []]

    def read(number: int) -> None:
        for item in generator.stream(replace(REQUEST, arm="base", passages=(), question=f"Number {number}?")):
            heard[number].append(item)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for number, reader in enumerate(readers):
        reader.start()
        wait_until(lambda count=number: len(engine.asked) > count, "it is asked")  # type: ignore[misc]
    for number in range(3):
        wait_until(lambda before=2 - number: heard[2][-1:] == [Waiting(before)], "the last hears it")  # type: ignore[misc]
        go_on[number].set()
    for reader in readers:
        reader.join()
    places = [[item.before for item in items if isinstance(item, Waiting)] for items in heard]
    assert places == [[], [1, 0], [2, 1, 0]]
    assert generator._client._line == []


def test_passages_the_engine_finds_too_many_are_dropped(engine: Engine, generator: RemoteGenerator) -> None:
    def choosy(handler: Handler, body: dict[str, Any]) -> None:
        if "[2]" in str(body["messages"]) or len(body["messages"]) > 2:
            message = "This model's maximum context length is 1000 tokens"
            handler.reply({"error": {"message": message}}, 400)
        else:
            say("Yes.")(handler, body)

    engine.answer = choosy
    _, done = run(generator, replace(REQUEST, turns=(Turn("a?", "b."),)))
    assert done.passages_used == 0
    engine.answer = fail_first(99, 400, say())
    with pytest.raises(GenerationFailed):
        run(generator)


def test_a_question_longer_than_the_engines_context_is_refused(engine: Engine, generator: RemoteGenerator) -> None:
    with pytest.raises(PromptTooLong, match="reads 1,000"):
        generator.check(replace(REQUEST, question="warp " * 4000))
    generator.check(REQUEST)
    engine.answer = lambda handler, body: handler.reply({"error": "prompt is too long"}, 400)
    with pytest.raises(PromptTooLong):
        run(generator)


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b"{}", b'{"choices": []}', b'{"choices": [7]}'])
def test_nonsense_is_an_error_of_the_engine(engine: Engine, generator: RemoteGenerator, content: bytes) -> None:
    engine.answer = lambda handler, body: handler.reply(content)
    with pytest.raises((EngineUnreachable, GenerationFailed)):
        run(generator)
    with pytest.raises((EngineUnreachable, GenerationFailed)):
        generator.score_choices(REQUEST, ("a", "b"))


def test_an_answer_may_hold_any_line_separator(engine: Engine, generator: RemoteGenerator) -> None:
    """JSON may hold U+2028 and U+0085 as they are; an event ends at a line feed only."""
    text = "One\u2028two\u2029three\x85four."

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.event(json.dumps(delta(text, "stop"), ensure_ascii=False))

    engine.answer = answer
    assert run(generator)[0] == text


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"delta": "Yes."}]},
        {"choices": [{"delta": ["Yes."]}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": "Yes."}]}}]},
        {"choices": {"0": 7}},
        "x" * 2000,
    ],
)
def test_an_event_of_another_form_is_an_error_of_the_engine(
    engine: Engine, generator: RemoteGenerator, event: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_client, "_LONGEST_LINE_BYTES", 1000)

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.event(event)
        handler.event(delta(None, "stop"))

    engine.answer = answer
    with pytest.raises(EngineUnreachable, match="OpenAI format"):
        run(generator)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": "many", "completion_tokens": [1], "prompt_tokens_details": {"cached_tokens": "x"}},
        {"prompt_tokens": float("inf"), "completion_tokens": None, "completion_tokens_details": [7]},
        "none",
    ],
)
def test_counts_that_are_no_numbers_are_counted_here(engine: Engine, generator: RemoteGenerator, usage: Any) -> None:
    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.event(delta("Yes."))
        handler.event(delta(None, "stop") | {"usage": usage})

    engine.answer = answer
    text, done = run(generator)
    assert text == "Yes."
    assert (done.usage.prompt_tokens, done.usage.cached_prompt_tokens, done.usage.completion_tokens) == (0, 0, 1)


def test_a_connection_lost_in_the_middle_does_not_finish_the_answer(engine: Engine, generator: RemoteGenerator) -> None:
    def dies(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.event(delta("Half an"))

    engine.answer = dies
    stream = generator.stream(REQUEST)
    assert next(stream) == TextPiece("Half an")
    with pytest.raises(GenerationFailed, match="ended before the answer did"):
        list(stream)


def test_an_error_in_the_middle_is_reported(engine: Engine, generator: RemoteGenerator) -> None:
    def fails(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.event(delta("Half"))
        handler.event({"error": {"message": "out of blocks"}})

    engine.answer = fails
    with pytest.raises(GenerationFailed, match="out of blocks"):
        run(generator)


def test_closing_hangs_up_so_that_the_engine_stops(engine: Engine, generator: RemoteGenerator) -> None:
    hung_up = threading.Event()

    def endless(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        try:
            while True:
                handler.event(delta("word "))
                time.sleep(0.01)
        except OSError:
            hung_up.set()

    engine.answer = endless
    stream = generator.stream(REQUEST)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert hung_up.wait(PATIENCE_S)


def test_hanging_up_reaches_an_engine_that_is_thinking(engine: Engine, generator: RemoteGenerator) -> None:
    """A read that waits on another thread keeps a closed socket open; the engine must hear of it all the same."""
    hung_up = threading.Event()

    def thinks(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.event(delta("Hm "))
        handler.connection.settimeout(PATIENCE_S)
        try:
            if handler.connection.recv(1) == b"":
                hung_up.set()
        except TimeoutError:
            return
        except OSError:
            hung_up.set()

    engine.answer = thinks
    stream = generator.stream(REQUEST)
    next(stream)
    time.sleep(0.2)  # until the reading thread waits for the engine's next word
    stream.close()  # type: ignore[attr-defined]
    assert hung_up.wait(PATIENCE_S)


def test_cancelling_does_not_wait_for_the_engines_next_word(engine: Engine, generator: RemoteGenerator) -> None:
    ended = threading.Event()
    engine.answer = first_word_only(ended)
    stop = threading.Event()
    stream = generator.stream(replace(REQUEST, cancelled=stop.is_set))
    next(stream)
    stop.set()
    with pytest.raises(Cancelled):
        next(stream)
    ended.set()


@pytest.mark.parametrize("call", ["stream", "score"])
def test_cancelling_does_not_wait_for_the_engines_first_word(
    engine: Engine, generator: RemoteGenerator, call: str
) -> None:
    hung_up = threading.Event()

    def reads_a_long_prompt(handler: Handler, _: dict[str, Any]) -> None:
        handler.connection.settimeout(PATIENCE_S)
        if handler.connection.recv(1) == b"":
            hung_up.set()

    engine.answer = reads_a_long_prompt
    asked = len(engine.asked)
    request = replace(REQUEST, cancelled=lambda: len(engine.asked) > asked)
    with pytest.raises(Cancelled):
        next(generator.stream(request)) if call == "stream" else generator.score_choices(request, ("a", "b"))
    assert hung_up.wait(PATIENCE_S)


def test_closing_the_generator_ends_an_answer_that_waits(engine: Engine, generator: RemoteGenerator) -> None:
    ended = threading.Event()
    engine.answer = first_word_only(ended)
    stream = generator.stream(REQUEST)
    next(stream)
    generator.close()
    with pytest.raises(GenerationFailed, match="was closed"):
        next(stream)
    ended.set()


def test_the_answer_ends_before_a_stop_string_that_the_engine_ignores(
    engine: Engine, generator: RemoteGenerator
) -> None:
    engine.answer = say("A warp. EN", "D and more")
    assert run(generator, replace(REQUEST, stop=("END",)))[0] == "A warp. "


def think(*pieces: str, field: str = "reasoning_content", finish: str = "stop") -> Answer:
    """Reasons in a field of its own, as engines with a reasoning parser do, then says `pieces`."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        for word in ("Let ", "me ", "see."):
            handler.event({"choices": [{"delta": {field: word}, "finish_reason": None}]})
        for piece in pieces:
            handler.event(delta(piece))
        handler.event(delta(None, finish))

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        say("<thi", "nk>Hm.</think>\n", "The passages do not answer ", "this question.", usage=False),
        say("[THINK]", "Hm.", "[/THINK]", "The passages do not answer ", "this question.", usage=False),
        think("The passages do not answer ", "this question."),
        think("The passages do not answer ", "this question.", field="reasoning"),
    ],
)
def test_reasoning_is_left_out_and_denial_is_a_refusal(
    engine: Engine, generator: RemoteGenerator, answer: Answer
) -> None:
    engine.answer = answer
    pieces = list(generator.stream(REQUEST))
    assert pieces[0] == Thinking()
    assert pieces.count(Thinking()) == 1
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == (
        "The passages do not answer this question."
    )
    done = pieces[-1]
    assert isinstance(done, GenerationDone)
    assert done.refused
    assert 0 < done.usage.reasoning_tokens < done.usage.completion_tokens
    assert done.usage.finish == "stop"


@pytest.mark.parametrize("field", ["reasoning_content", "content"])
def test_long_reasoning_is_no_text_in_circles(engine: Engine, generator: RemoteGenerator, field: str) -> None:
    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        for number in range(300):
            opening = "<think>" if field == "content" and not number else ""
            handler.event({"choices": [{"delta": {field: f"{opening}Step {number}. "}, "finish_reason": None}]})
        handler.event(delta("</think>Yes." if field == "content" else "Yes.", "stop"))

    engine.answer = answer
    text, done = run(generator)
    assert text == "Yes."
    assert done.usage.finish == "stop"


def test_reasoning_that_goes_in_circles_is_cut_off(engine: Engine, generator: RemoteGenerator) -> None:
    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        for _number in range(400):
            handler.event({"choices": [{"delta": {"reasoning": "Wait. "}, "finish_reason": None}]})
        handler.event(delta("Yes.", "stop"))

    engine.answer = answer
    with pytest.raises(GenerationFailed, match="was still thinking after 200"):
        run(generator)


def test_a_stop_string_does_not_end_the_reasoning(engine: Engine, generator: RemoteGenerator) -> None:
    """An engine looks for it in what it thinks, too."""
    engine.answer = say("<think>First.", " END </think>", "Yes. EN", "D and more")
    for _ in range(2):
        assert run(generator, replace(REQUEST, stop=("END",)))[0] == "Yes. "
    assert ["stop" in asked for asked in engine.asked] == [True, False, False]


def test_reasoning_takes_nothing_from_the_answer(engine: Engine, generator: RemoteGenerator) -> None:
    """An engine counts both together: once it is seen to reason it is asked again, with room for both."""
    engine.answer = think("one ", "two ", "three ", "four")
    text, done = run(generator, replace(REQUEST, max_tokens=3))
    assert text == "one two three "
    assert done.usage.finish == "length"
    assert [asked["max_tokens"] for asked in engine.asked] == [3, 3 + 4096]
    run(generator, replace(REQUEST, max_tokens=3))
    assert engine.asked[-1]["max_tokens"] == 3 + 4096
    assert len(engine.asked) == 3


@pytest.mark.parametrize(("finish", "said"), [("length", "was still thinking after 3"), ("stop", "stopped thinking")])
def test_an_answer_that_only_thought_is_an_error_not_a_refusal(
    engine: Engine, generator: RemoteGenerator, finish: str, said: str
) -> None:
    engine.answer = think(finish=finish)
    with pytest.raises(GenerationFailed, match=said) as error:
        run(generator)
    assert "COALESCE_REASONING_TOKENS" in error.value.hint


def test_reasoning_whose_beginning_the_engine_keeps_is_left_out_from_then_on(
    engine: Engine, generator: RemoteGenerator
) -> None:
    """A template that opens `<think>` itself: the text begins in the middle of the reasoning."""
    engine.answer = say("Let me see.", "</think>", "\n\nA warp is 32 threads [1].")
    with pytest.raises(GenerationFailed, match="sent that as the answer"):
        run(generator)
    assert run(generator)[0] == "A warp is 32 threads [1]."


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
@pytest.mark.parametrize("answer", [say("Let me see.", "</think>", "\n\nYes."), think("Yes.")])
def test_reasoning_that_a_template_opens_is_never_shown(
    engine: Engine, generator: RemoteGenerator, path: str, answer: Answer
) -> None:
    """llama.cpp and vLLM show what they make of a chat; they may divide reasoning and answer themselves, or not."""
    engine.models[0]["owned_by"] = "llamacpp" if path == "/apply-template" else "vllm"
    engine.rendered[path] = {"token_strs": ["assistant", "Ċ", "<th", "ink", ">", "Ċ"], "prompt": "assistant\n<think>\n"}
    engine.answer = answer
    for _ in range(2):
        text, done = run(generator, replace(REQUEST, max_tokens=3))
        assert text == "Yes."
        assert done.usage.reasoning_tokens > 0
    assert [asked["max_tokens"] for asked in engine.asked] == [3 + 4096] * 2


def test_engines_are_asked_not_to_think_until_one_refuses_the_option(
    engine: Engine, generator: RemoteGenerator
) -> None:
    run(generator)
    assert engine.asked[-1]["chat_template_kwargs"] == {"enable_thinking": False}

    def strict(handler: Handler, body: dict[str, Any]) -> None:
        if "chat_template_kwargs" in body:
            handler.reply({"error": {"message": "unknown field"}}, 400)
        else:
            say("Yes.")(handler, body)

    engine.answer = strict
    assert run(generator)[0] == "Yes."
    assert run(generator)[0] == "Yes."
    assert len(engine.asked) == 4


def listed(**logprobs: float) -> dict[str, Any]:
    entries = [{"token": token, "logprob": value} for token, value in logprobs.items()]
    return {"choices": [{"message": {"content": "B"}, "logprobs": {"content": [{"top_logprobs": entries}]}}]}


def test_options_are_scored_by_their_letters(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = lambda handler, body: handler.reply(listed(B=-0.1, A=-3.0, x=-5.0))
    scores = generator.score_choices(REQUEST, ("one", "two", "three"))
    assert scores.scores == (-3.0, -0.1, -6.0)
    assert "B. two" in engine.asked[-1]["messages"][-1]["content"]
    assert engine.asked[-1]["logprobs"] is True


def test_options_are_scored_without_the_passages_that_do_not_fit(engine: Engine, generator: RemoteGenerator) -> None:
    def choosy(handler: Handler, body: dict[str, Any]) -> None:
        if "second" in str(body["messages"]):
            handler.reply({"error": {"message": "This model's maximum context length is 1000 tokens"}}, 400)
        else:
            handler.reply(listed(A=-0.1, B=-3.0))

    engine.answer = choosy
    request = replace(REQUEST, arm="rag", passages=(make_passage("first"), make_passage("second")))
    scores = generator.score_choices(request, ("one", "two"))
    assert scores.scores == (-0.1, -3.0)
    assert scores.passages_used == 1
    assert "first" in str(engine.asked[-1]["messages"])


@pytest.mark.parametrize(
    ("written", "scores"),
    [("B", (0.0, 1.0)), ("(b) because", (0.0, 1.0)), ("Answer: A.", (1.0, 0.0)), ("答案是 B", (0.0, 1.0))],
)
def test_without_log_probabilities_the_letter_counts(
    engine: Engine, generator: RemoteGenerator, written: str, scores: tuple[float, ...]
) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        if "logprobs" in body:
            handler.reply({"error": "logprobs are not supported"}, 400)
        else:
            handler.reply({"choices": [{"message": {"content": written}}]})

    engine.answer = answer
    assert generator.score_choices(REQUEST, ("one", "two")).scores == scores


def scores_prompts(handler: Handler, body: dict[str, Any]) -> None:
    """An engine that gives the probabilities of a prompt, as vLLM does: each word is a token."""
    words = " ".join(message["content"] for message in body["messages"]).split()
    if "prompt_logprobs" not in body:
        usage = {"prompt_tokens": len(words)}
        handler.reply({"choices": [{"message": {"content": "none"}}], "usage": usage})
        return
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    line = [None, *({word: {"logprob": -0.5 * len(word)}} for word in words[1:])]
    handler.reply({"choices": [{"message": {"content": ""}}], "prompt_logprobs": line})


def test_options_are_scored_by_likelihood_where_the_engine_gives_it(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = scores_prompts
    scores = generator.score_choices(REQUEST, ("abc de", "f"))
    assert scores.extra == {"sum_logprob": (-2.5, -0.5), "per_byte": (-2.5 / 6, -0.5)}
    assert scores.scores == scores.extra["per_byte"]
    asked = len(engine.asked)
    assert generator.score_choices(REQUEST, ("f", "abc de")).scores == scores.scores[::-1]
    assert not any("prompt_logprobs" in body for body in engine.asked[asked:])  # another order is not asked for again


def test_an_engine_that_gives_no_likelihoods_is_asked_for_them_once(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = lambda handler, body: handler.reply(listed(A=-0.1, B=-3.0))
    for _ in range(2):
        assert generator.score_choices(REQUEST, ("one", "two")).scores == (-0.1, -3.0)
    assert sum("prompt_logprobs" in body for body in engine.asked) == 1


def test_an_answer_that_goes_in_circles_is_cut_off(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = say("A warp is 32 threads. ", *["It ", "is ", "so. "] * 100)
    text, done = run(generator)
    assert text.count("It is so. ") == 66
    assert done.usage.finish == "length"


@pytest.mark.parametrize(
    "choice",
    [
        {"message": "B"},
        {"message": {"content": ["B"]}},
        {
            "message": {"content": "?"},
            "logprobs": {"content": [{"top_logprobs": ["A", {"token": "B", "logprob": None}]}]},
        },
    ],
)
@pytest.mark.parametrize("line", [None, [None, {"a": {"logprob": None}}], [None, {"a": "b"}], {"a": 1}])
def test_scores_of_another_form_leave_an_option_unscored(
    engine: Engine, generator: RemoteGenerator, choice: dict[str, Any], line: Any
) -> None:
    engine.answer = lambda handler, body: handler.reply({"choices": [choice], "prompt_logprobs": line})
    with pytest.raises(GenerationFailed, match="named no option"):
        generator.score_choices(REQUEST, ("one", "two"))


@pytest.mark.parametrize("written", ["", "I think so", "E", "Because of it", None])
def test_an_answer_that_names_no_option_is_unscored(
    engine: Engine, generator: RemoteGenerator, written: str | None
) -> None:
    engine.answer = lambda handler, body: handler.reply({"choices": [{"message": {"content": written}}]})
    with pytest.raises(GenerationFailed, match="named no option"):
        generator.score_choices(REQUEST, ("one", "two"))
