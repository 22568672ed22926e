"""The remote generator against an engine that misbehaves in every way a script can make it."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fakes import ScriptedReader, answer_of, make_engine, make_passage, section
from waiting import PATIENCE_S, wait_until

from indexes.errors import Busy, Cancelled, CoalesceError
from indexes.library import Library
from rag.errors import ArmUnavailable, EngineUnreachable, GenerationFailed, PromptTooLong
from rag.generators import openai_client, remote
from rag.generators.prompts import REFUSAL
from rag.generators.protocol import ChoiceScorer, GenerationDone, GenerationRequest, Generator
from rag.generators.remote import RemoteGenerator
from rag.settings import GeneratorSettings
from rag.types import Question, Thinking, Turn, Waiting

Answer = Callable[["Handler", dict[str, Any]], None]
COUNTS = {"prompt_tokens": 50, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
TOO_LONG = {"error": {"message": "This model's maximum context length is 1000 tokens"}}


class Handler(BaseHTTPRequestHandler):
    """Hands every request to the test's script and remembers what was asked."""

    server: Engine
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize" and "content" in body and self.server.counts:
            self.server.counted.append(body["content"])
            self.reply({"tokens": body["content"].split()})
            return
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
        data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
        self.wfile.write(b"data: " + data + b"\n\n")
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
        self.counts = False
        self.counted: list[str] = []
        self.answer: Answer = say("A warp ", "is 32 ", "threads [1].")

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are part of the tests."""


def delta(text: str | None = None, finish: str | None = None, field: str = "content") -> dict[str, Any]:
    return {"choices": [{"delta": {field: text} if text else {}, "finish_reason": finish}]}


def thought(text: str, field: str = "reasoning_content") -> dict[str, Any]:
    """Reasoning in a field of its own, as engines with a reasoning parser send it."""
    return delta(text, field=field)


def say(*events: Any, finish: str | None = "stop", usage: Any = COUNTS, pause_s: float = 0.0) -> Answer:
    """Streams texts, whole events and raw bytes; without `finish` the connection ends before the answer does."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.open_stream()
        handler.wfile.write(b": the connection is kept open\n\n")
        for event in events:
            handler.event(delta(event) if isinstance(event, str) else event)
            time.sleep(pause_s)
        if finish is not None:
            handler.event(delta(None, finish) | ({"usage": usage} if usage else {}))
            handler.event(b"[DONE]")

    return answer


def torn(text: str) -> Answer:
    """Breaks the connection off in a body that has no length."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        data = f"data: {json.dumps(delta(text))}\n\n".encode()
        handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        handler.close_connection = True

    return answer


def think(*events: Any, finish: str = "stop", field: str = "reasoning_content") -> Answer:
    thoughts = [thought(word, field) for word in ("Let ", "me ", "see.")]
    return say(*thoughts, *events, finish=finish, usage=None)


def reply(content: Any, status: int = 200, **headers: str) -> Answer:
    return lambda handler, _: handler.reply(content, status, **headers)


def fail_first(times: int, status: int, then: Answer) -> Answer:
    left = [times]

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        left[0] -= 1
        (then if left[0] < 0 else reply({"error": {"message": "overloaded"}}, status))(handler, body)

    return answer


def unless(refuses: Callable[[dict[str, Any]], bool], then: Answer, error: Any) -> Answer:
    """Answers what it does not refuse with 400."""
    return lambda handler, body: (reply(error, 400) if refuses(body) else then)(handler, body)


@contextmanager
def engine_running() -> Iterator[Engine]:
    server = Engine()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_running() as server:
        yield server


@pytest.fixture
def other() -> Iterator[Engine]:
    """A second engine with the same models."""
    with engine_running() as server:
        yield server


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE_S", 0.02)


def generator_of(address: str | int, **changes: Any) -> RemoteGenerator:
    """A generator; an int is a port of this machine."""
    url = f"http://127.0.0.1:{address}/v1" if isinstance(address, int) else address
    return RemoteGenerator(GeneratorSettings(**({"kind": "remote", "model": "base", "base_url": url} | changes)))


@pytest.fixture
def generator(engine: Engine) -> Iterator[RemoteGenerator]:
    address = f"http://127.0.0.1:{engine.server_port}"
    made = generator_of(address, adapters={"qa": "cuda-qa"}, api_key="secret", request_timeout_s=PATIENCE_S)
    yield made
    made.close()


PASSAGES = tuple(make_passage(f"Passage {n}.") for n in range(3))
REQUEST = GenerationRequest("What is a warp?", "rag", PASSAGES)
TUNED = replace(REQUEST, arm="rag+tuned", adapter="qa")


def run(generator: RemoteGenerator, request: GenerationRequest = REQUEST) -> tuple[str, GenerationDone]:
    return answer_of(generator, request)


def choose(generator: RemoteGenerator, request: GenerationRequest = REQUEST) -> Any:
    return generator.score_choices(request, ("one", "two"))


def test_it_streams_and_reports_the_engines_counts(engine: Engine, generator: RemoteGenerator) -> None:
    assert isinstance(generator, Generator)
    assert isinstance(generator, ChoiceScorer)
    text, done = run(generator)
    assert text == "A warp is 32 threads [1]."
    assert (done.usage.prompt_tokens, done.usage.cached_prompt_tokens, done.usage.completion_tokens) == (50, 40, 7)
    assert (done.passages_used, done.refused) == (3, False)
    asked = engine.asked[0]
    assert (asked["model"], asked["temperature"], asked["stream"]) == ("base", 0.0, True)
    assert asked["messages"][0]["role"] == "system"


def test_sampling_settings_are_handed_on(engine: Engine, generator: RemoteGenerator) -> None:
    run(generator, replace(REQUEST, temperature=0.5, sampling_top_p=0.9, seed=7, max_tokens=33, stop=("\n\n", "END")))
    asked = engine.asked[0]
    assert (asked["temperature"], asked["top_p"], asked["seed"], asked["max_tokens"]) == (0.5, 0.9, 7, 33)
    assert asked["stop"] == ["\n\n", "END"]


# --- which model answers


def test_adapters_are_models_of_the_engine(engine: Engine, generator: RemoteGenerator) -> None:
    run(generator, TUNED)
    assert engine.asked[0]["model"] == "cuda-qa"
    with pytest.raises(ArmUnavailable, match="adapter 'other' is not loaded"):
        generator.check(replace(REQUEST, arm="tuned", adapter="other"))
    plain = generator_of(1)
    assert plain.arms == ("base", "rag")
    with pytest.raises(ArmUnavailable, match="loaded: none"):
        plain.check(replace(REQUEST, arm="tuned"))


def test_what_the_engine_does_not_list_is_no_arm(engine: Engine, generator: RemoteGenerator) -> None:
    """Engines that take any name would answer with the base model."""
    del engine.models[1]
    for call in (generator.check, lambda request: run(generator, request), lambda request: choose(generator, request)):
        with pytest.raises(ArmUnavailable, match="does not list the adapter 'cuda-qa'; it lists 'base'"):
            call(TUNED)
    generator.check(REQUEST)
    engine.models[:] = [{"id": "another"}]
    generator._listed = None
    with pytest.raises(ArmUnavailable, match="does not list the model 'base'; it lists 'another'"):
        generator.check(REQUEST)
    assert engine.asked == []
    engine.models[:] = [{"id": "base:latest"}, {"id": "cuda-qa"}]  # seen at once when it is there
    generator.check(REQUEST)
    generator.check(TUNED)


def test_an_engine_that_is_down_or_lists_nothing_is_asked_all_the_same(
    engine: Engine, generator: RemoteGenerator
) -> None:
    nobody = generator_of(9, adapters={"qa": "qa"})
    assert nobody.arms == ("base", "tuned", "rag", "rag+tuned")
    nobody.check(TUNED)
    with pytest.raises(EngineUnreachable, match="does not answer") as error:
        run(nobody)
    assert "--base-url" in error.value.hint
    nobody.close()
    engine.models.clear()
    assert run(generator)[0] == "A warp is 32 threads [1]."


def test_an_adapter_is_not_asked_of_an_engine_that_is_still_starting(
    engine: Engine, generator: RemoteGenerator
) -> None:
    """llama.cpp takes any name and lists nothing while it loads: the base model would answer for the adapter."""
    engine.loading = True
    generator.check(TUNED)
    assert run(generator)[0] == "A warp is 32 threads [1]."
    for call in (run, choose):
        with pytest.raises(Busy, match="Loading model"):
            call(generator, TUNED)
    assert len(engine.asked) == 1
    engine.loading = False
    run(generator, TUNED)
    assert engine.asked[-1]["model"] == "cuda-qa"


def test_adapters_of_llama_cpp_are_switched_by_its_own_field(engine: Engine, generator: RemoteGenerator) -> None:
    """It ignores the model's name, and adapters that a request does not name stay as they were started."""
    engine.models[:] = [{"id": "/models/base.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 900}}]
    engine.loras = ("other.gguf", "/adapters/cuda-qa.gguf")
    for request, scales in ((REQUEST, [0.0, 0.0]), (TUNED, [0.0, 1.0])):
        run(generator, request)
        assert [one["scale"] for one in engine.asked[-1]["lora"]] == scales
        assert engine.asked[-1]["cache_prompt"] is False  # its cache does not tell adapters apart
    engine.loras = ("other.gguf",)
    generator._listed = None
    with pytest.raises(ArmUnavailable, match=r"does not list the adapter 'cuda-qa'; it lists 'other\.gguf'"):
        generator.check(TUNED)
    engine.models[0]["id"] = "/models/another.gguf"
    generator._listed = None
    with pytest.raises(ArmUnavailable, match="does not list the model 'base'"):
        generator.check(REQUEST)


# --- an engine that refuses, is busy, silent or broken


FORMAT = EngineUnreachable, "OpenAI format"
FAILURES: dict[str, tuple[Answer, type[CoalesceError], str, int]] = {
    "another key": (reply({"error": {"message": "no"}}, 401), EngineUnreachable, "refuses the key", 1),
    "no such path": (
        reply({"error": {"message": "no"}}, 404),
        EngineUnreachable,
        "does not know this path or model",
        1,
    ),
    "a request it does not take": (reply({"error": {"message": "no"}}, 400), GenerationFailed, "answered 400", 2),
    "its own failure": (reply({"error": {"message": "no"}}, 500), EngineUnreachable, "answered 500", 4),
    "a page": (reply(b"<html>"), GenerationFailed, "ended before the answer did", 1),
    "a delta of text": (say({"choices": [{"delta": "Yes."}]}), *FORMAT, 1),
    "content in parts": (say({"choices": [{"delta": {"content": [{"type": "text"}]}}]}), *FORMAT, 1),
    "choices by name": (say({"choices": {"0": 7}}), *FORMAT, 1),
    "no JSON": (say(b"x"), *FORMAT, 1),
    "no end of a line": (say("x" * 200_000), EngineUnreachable, "a line of more than", 1),
    "no end of the answer": (say("Half an", finish=None), GenerationFailed, "ended before the answer did", 1),
    "an engine that is killed": (torn("Half an"), GenerationFailed, "went away in the middle", 1),
    "a failure within": (say("Half", {"error": {"message": "out of blocks"}}), GenerationFailed, "out of blocks", 1),
    "thoughts cut off": (think(finish="length"), GenerationFailed, "was still thinking after 3", 2),
    "thoughts alone": (think(finish="stop"), GenerationFailed, "stopped thinking", 2),
    "endless thoughts": (say(*[thought("Wait. ")] * 400, usage=None), GenerationFailed, "thinking after 201", 2),
}


@pytest.mark.parametrize(("answer", "error", "said", "asked"), FAILURES.values(), ids=FAILURES)
def test_what_an_engine_does_wrong_is_an_error_never_an_answer(
    engine: Engine, generator: RemoteGenerator, monkeypatch: pytest.MonkeyPatch,
    answer: Answer, error: type[CoalesceError], said: str, asked: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(openai_client, "_LONGEST_LINE_BYTES", 1000)
    engine.answer = answer
    with pytest.raises(error, match=said) as raised:
        run(generator)
    assert raised.value.hint and len(engine.asked) == asked


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b"{}", b'{"choices": []}', b'{"choices": [7]}'])
def test_nonsense_names_no_option(engine: Engine, generator: RemoteGenerator, content: bytes) -> None:
    engine.answer = reply(content)
    with pytest.raises((EngineUnreachable, GenerationFailed)):
        choose(generator)


STEPS = [f"Step {n}. " for n in range(300)]
ANSWERS: dict[str, tuple[Answer, dict[str, Any], str, str]] = {
    # JSON may hold U+2028 and U+0085 as they are; an event ends at a line feed only
    "any line separator": (say("One\u2028two\u2029three\x85four."), {}, "One\u2028two\u2029three\x85four.", "stop"),
    "a stop string that the engine ignores": (say("A warp. EN", "D and more"), {"stop": ("END",)}, "A warp. ", "stop"),
    "none in the reasoning": (
        say("<think>First.", " END </think>", "Yes. EN", "D"), {"stop": ("END",)}, "Yes. ", "stop"
    ),
    "long reasoning": (say(*map(thought, STEPS), "Yes."), {}, "Yes.", "stop"),
    "long reasoning in the text": (say("<think>", *STEPS, "</think>Yes."), {}, "Yes.", "stop"),
    "its longest length": (think("one ", "two ", "three ", "four"), {"max_tokens": 3}, "one two three ", "length"),
    "circles": (say(*["It ", "is ", "so. "] * 100), {}, "It is so. ", "length"),
    "what was thought": (say("<think>", *STEPS, "</think>", *STEPS), {}, "".join(STEPS), "stop"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "changes", "text", "finish"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_ends_where_it_should(
    engine: Engine, generator: RemoteGenerator, answer: Answer, changes: dict[str, Any], text: str, finish: str
) -> None:
    engine.answer = answer
    for _ in range(2):
        shown, done = run(generator, replace(REQUEST, **changes))
        assert (shown, done.usage.finish) == (text, finish)


LOOP = [f"A warp runs {n} unknown kernels at night. " for n in range(9)] * 20
BAD: dict[str, Answer] = {
    "it only thinks": say("<think>", *STEPS, finish="length"),
    "it loops": say(*LOOP, finish="length"),
    "another language": say("Un warp est un groupe de trente-deux fils. 线程束有 32 个线程。"),
    "no whole sentence": say("A warp is a group of 32 threads that run in", finish="length"),
    "nothing": say(),
    "it dies before the first word": say(finish=None),
    "it dies in a sentence": say("A warp is a group of 32 threads that run in ", finish=None),
    "it is torn off": torn("A warp is a group of 32 threads"),
    "it is overloaded": reply({"error": {"message": "overloaded"}}, 503),
    "it sends no answer": reply(b"<html>"),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
def test_whatever_an_engine_does_the_quotes_stand_with_a_word_beside_them(
    engine: Engine, generator: RemoteGenerator, answer: Answer, tmp_path: Path, library_of: Callable[..., Library]
) -> None:
    library = library_of(section("A warp is a group of 32 threads that run in lockstep.", "Warps"))
    asked = make_engine(tmp_path, library, generator, reader=ScriptedReader({"A warp": 0.99}), answers="both")
    engine.answer = answer
    found = asked.ask(Question("What is a warp of threads?"))
    assert found.answer == found.quotes == "A warp is a group of 32 threads that run in lockstep. [1]"
    assert (found.written, found.refused, bool(found.note)) == (False, False, True)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_engine_is_tried_again(engine: Engine, generator: RemoteGenerator, status: int) -> None:
    engine.answer = fail_first(2, status, say("Yes."))
    assert (run(generator)[0], len(engine.asked)) == ("Yes.", 3)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [("7", 7), ("nan", 1), ("inf", 1), ("-5", 1), ("1e300", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 1)],
)
def test_an_engine_that_stays_overloaded_is_busy_with_a_time_to_come_back(
    engine: Engine, generator: RemoteGenerator, asked: str, seconds: float
) -> None:
    engine.answer = reply({"error": {"message": "overloaded"}}, 503, Retry_After=asked)
    with pytest.raises(Busy, match="overloaded") as error:
        run(generator)
    assert error.value.retry_after_s == seconds
    assert len(engine.asked) == 4


def address_of(engine: Engine) -> str:
    return f"http://user:hidden@127.0.0.1:{engine.server_port}"


@pytest.mark.parametrize("first", ["nobody", "overloaded", "torn"])
def test_the_next_engine_answers_for_one_that_is_down(
    engine: Engine, other: Engine, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_client, "_FIRST_REST_S", PATIENCE_S)
    engine.answer = (
        reply({}, 503) if first == "overloaded" else lambda handler, _: setattr(handler, "close_connection", True)
    )
    down = "http://127.0.0.1:9" if first == "nobody" else address_of(engine)
    made = generator_of(f"{down}, {address_of(other)}/v1")
    assert [run(made)[0], run(made)[0]] == ["A warp is 32 threads [1]."] * 2
    assert (len(engine.asked), len(other.asked)) == (0 if first == "nobody" else 1, 2)
    made.close()


def test_an_engine_that_broke_off_or_said_nothing_is_left_out_and_asked_again_later(
    engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = generator_of(f"{address_of(engine)},{address_of(other)}", request_timeout_s=0.5)
    ended = threading.Event()
    for fault, error in ((torn("A"), GenerationFailed), (lambda *_: ended.wait(PATIENCE_S), EngineUnreachable)):
        monkeypatch.setattr(openai_client, "_FIRST_REST_S", PATIENCE_S)
        engine.answer = fault
        with pytest.raises(error):
            run(made)
        engine.answer = say("I am back.")
        assert run(made)[0] == "A warp is 32 threads [1]."
        for each in made._client._engines:
            each.rests_until = 0.0
        assert run(made)[0] == "I am back."
    ended.set()
    made.close()


def test_several_engines_share_the_answers_that_run_at_once(engine: Engine, other: Engine) -> None:
    together = threading.Barrier(2)
    for each in (engine, other):
        each.answer = lambda handler, body: (together.wait(PATIENCE_S), say("Yes.")(handler, body))
    made = generator_of(f"{address_of(engine)},{address_of(other)}")
    with ThreadPoolExecutor(2) as pool:
        assert [text for text, _ in pool.map(lambda _: run(made), range(2))] == ["Yes.", "Yes."]
    assert (len(engine.asked), len(other.asked)) == (1, 1)
    made.close()


@pytest.mark.parametrize(
    ("listed", "loras", "error"),
    [(["base", "cuda-qa"], ((), ()), ""), (["base"], ((), ()), "'cuda-qa'"), (["x"], ((), ()), "different"),
     (["base"], (("a", "b"), ("b", "a")), "different")],
)  # fmt: skip
def test_only_what_all_engines_list_is_asked(
    engine: Engine, other: Engine, listed: list[str], loras: tuple[tuple[str, ...], ...], error: str
) -> None:
    owner = {"owned_by": "llamacpp"} if any(loras) else {}
    engine.models = [model | owner for model in engine.models]
    other.models = [{"id": name, "max_model_len": 500} | owner for name in listed]
    engine.loras, other.loras = loras
    made = generator_of(f"{address_of(engine)},{address_of(other)}", adapters={"qa": "cuda-qa"})
    with pytest.raises(ArmUnavailable, match=error) if error else nullcontext():
        run(made, TUNED)
    made.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "http://user:hidden@127.0.0.1:9/v1,127.0.0.1:8/v1"},
        {"base_url": "http://user:hidden@[::1/v1"},
        {"base_url": "user:hidden@127.0.0.1/v1"},
        {"base_url": "http://user:hidden@127.0.0.1:9/v1"},
        {"api_key": "schlüssel"},
    ],
)
def test_an_address_or_key_that_none_can_be_is_an_error_without_the_password(wrong: dict[str, str]) -> None:
    with pytest.raises(CoalesceError) as error:
        run(generator_of(9, **wrong))
    assert error.value.hint
    assert "hidden" not in f"{error.value} {error.value.hint}"


def test_a_password_in_the_address_is_sent_and_never_shown(engine: Engine) -> None:
    made = generator_of(f"http://user:hidden@127.0.0.1:{engine.server_port}/v1")
    assert run(made)[0] == "A warp is 32 threads [1]."
    for content, status in (({}, 401), ({}, 404), ({}, 429), ({}, 500), (b"<html>", 200)):
        engine.answer = reply(content, status)
        with pytest.raises(CoalesceError) as error:
            run(made)
        assert "hidden" not in f"{error.value} {error.value.hint}"
    engine.models[:] = [{"id": "another"}]
    made._listed = None
    with pytest.raises(ArmUnavailable) as unlisted:
        made.check(REQUEST)
    assert "hidden" not in str(unlisted.value)
    made.close()


def test_a_silent_engine_times_out(engine: Engine) -> None:
    ended = threading.Event()
    engine.answer = lambda handler, body: ended.wait(PATIENCE_S) and None
    hasty = generator_of(engine.server_port, request_timeout_s=0.5)
    with pytest.raises(EngineUnreachable, match=r"said nothing for 0\.5 s") as error:
        run(hasty)
    assert "COALESCE_REQUEST_TIMEOUT_S" in error.value.hint
    ended.set()
    hasty.close()


@pytest.mark.parametrize("patience_s", [60.0, 0.2])
def test_an_engine_that_answers_others_first_is_waited_for_as_long_as_the_setting_says(
    engine: Engine, patience_s: float
) -> None:
    """It writes for another one longer than an engine may be silent."""
    writing, written = threading.Event(), threading.Event()

    def one_at_a_time(handler: Handler, body: dict[str, Any]) -> None:
        if "first" not in str(body["messages"]):
            written.wait(PATIENCE_S)
            say("Mine.")(handler, body)
            return
        writing.set()
        say(*(f"{number} " for number in range(8)), pause_s=0.1)(handler, body)
        written.set()

    engine.answer = one_at_a_time
    generator = generator_of(engine.server_port, request_timeout_s=0.5, queue_timeout_s=patience_s)
    other = threading.Thread(target=run, args=(generator, replace(REQUEST, question="The first?")))
    other.start()
    assert writing.wait(PATIENCE_S)
    if patience_s > 1:
        assert run(generator)[0] == "Mine."
    else:
        with pytest.raises(Busy, match=r"waited 0\.2 s") as error:
            run(generator)
        assert error.value.retry_after_s
    other.join()
    generator.close()


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
    def too_many(body: dict[str, Any]) -> bool:
        return "[2]" in str(body["messages"]) or len(body["messages"]) > 2

    engine.answer = unless(too_many, say("Yes."), TOO_LONG)
    assert run(generator, replace(REQUEST, turns=(Turn("a?", "b."),)))[1].passages_used == 0


def test_a_question_longer_than_the_engines_context_is_refused(engine: Engine, generator: RemoteGenerator) -> None:
    with pytest.raises(PromptTooLong, match="reads 1,000"):
        generator.check(replace(REQUEST, question="warp " * 4000))
    generator.check(REQUEST)
    engine.answer = reply({"error": "prompt is too long"}, 400)
    with pytest.raises(PromptTooLong):
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
    engine.answer = say("Yes.", usage=usage)
    text, done = run(generator)
    assert text == "Yes."
    assert (done.usage.prompt_tokens, done.usage.cached_prompt_tokens, done.usage.completion_tokens) == (0, 0, 1)


# --- stopping


def until_hung_up(words: int, hung_up: threading.Event) -> Answer:
    """Some words, then silence until the client hangs up."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        if words:
            handler.open_stream()
        for _ in range(words):
            handler.event(delta("word "))
        handler.connection.settimeout(PATIENCE_S)
        with suppress(ConnectionError):
            assert handler.connection.recv(1) == b""
        hung_up.set()

    return answer


@pytest.mark.parametrize(
    ("words", "how"), [(9, "close"), (1, "close"), (1, "cancel"), (0, "cancel"), (0, "cancel a choice")]
)
def test_closing_or_cancelling_hangs_up_and_waits_for_no_word_of_the_engine(
    engine: Engine, generator: RemoteGenerator, words: int, how: str
) -> None:
    """Also on one that is silent: a read that waits on another thread would keep a closed socket open."""
    hung_up, stop = threading.Event(), threading.Event()
    engine.answer = until_hung_up(words, hung_up)
    request = replace(REQUEST, cancelled=lambda: stop.is_set() or (words == 0 and bool(engine.asked)))
    stream = generator.stream(request)
    if words:
        next(stream)
    if how == "close":
        time.sleep(0.2)  # until the reading thread waits for the engine's next word
        stream.close()  # type: ignore[attr-defined]
    else:
        if words:
            stop.set()
        with pytest.raises(Cancelled):
            choose(generator, request) if how == "cancel a choice" else list(stream)
    assert hung_up.wait(PATIENCE_S)


def test_closing_the_generator_ends_what_is_being_written(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = until_hung_up(1, threading.Event())
    stream = generator.stream(REQUEST)
    next(stream)
    generator.close()
    with pytest.raises(GenerationFailed, match="was closed"):
        next(stream)


# --- reasoning, stop strings, circles


@pytest.mark.parametrize(
    "answer",
    [
        say("<thi", "nk>Hm.</think>\n", REFUSAL[:20], REFUSAL[20:], usage=None),
        say("[THINK]", "Hm.", "[/THINK]", REFUSAL[:20], REFUSAL[20:], usage=None),
        think(REFUSAL[:20], REFUSAL[20:]),
        think(REFUSAL[:20], REFUSAL[20:], field="reasoning"),
    ],
)
def test_reasoning_is_left_out_and_what_is_left_may_be_a_refusal(
    engine: Engine, generator: RemoteGenerator, answer: Answer
) -> None:
    engine.answer = answer
    items = list(generator.stream(REQUEST))
    assert items[0] == Thinking()
    assert items.count(Thinking()) == 1
    text, done = run(generator)
    assert text == REFUSAL and done.refused
    assert 0 < done.usage.reasoning_tokens < done.usage.completion_tokens
    assert done.usage.finish == "stop"


def test_an_engine_that_reasons_is_asked_again_with_room_for_both_and_without_stop_strings(
    engine: Engine, generator: RemoteGenerator
) -> None:
    """An engine counts both together, and looks for a stop string in what it thinks, too."""
    engine.answer = think("Yes.")
    for _ in range(2):
        run(generator, replace(REQUEST, max_tokens=3, stop=("END",)))
    assert [asked["max_tokens"] for asked in engine.asked] == [3, 3 + 4096, 3 + 4096]
    assert ["stop" in asked for asked in engine.asked] == [True, False, False]


def test_reasoning_whose_beginning_the_engine_keeps_is_left_out_from_then_on(
    engine: Engine, generator: RemoteGenerator
) -> None:
    """A template that opens `<think>` itself: the text begins in the middle of the reasoning."""
    engine.answer = say("Let me see.", "</think>", "\n\nA warp is 32 threads [1].")
    with pytest.raises(GenerationFailed, match="sent that as the answer"):
        run(generator)
    assert run(generator)[0] == "A warp is 32 threads [1]."


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
@pytest.mark.parametrize("answer", [say("Let me see.", "</think>", "\n\nYes.", usage=None), think("Yes.")])
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
    engine.answer = unless(lambda body: "chat_template_kwargs" in body, say("Yes."), {"error": "unknown field"})
    for _ in range(2):
        assert run(generator)[0] == "Yes."
    assert len(engine.asked) == 4


# --- counting


@pytest.mark.parametrize("at_once_s", [PATIENCE_S, 0.0])
def test_texts_are_counted_by_the_engine_once_each_where_it_is_quick_about_it(
    engine: Engine, generator: RemoteGenerator, monkeypatch: pytest.MonkeyPatch, at_once_s: float
) -> None:
    monkeypatch.setattr(remote, "_AT_ONCE_S", at_once_s)
    engine.counts = True
    counts = [generator.count_tokens(text) for text in ["w " * 1000] * 2 + ["什么是线程束"]]
    tried = engine.counted[:4]
    if at_once_s:
        assert counts == [1000, 1000, 1] and engine.counted == [*tried, "w " * 1000, "什么是线程束"]
    else:
        share = len(tried[0].split()) / len(tried[0].encode())
        assert counts == [math.ceil(2000 * share)] * 2 + [math.ceil(18 * share)] and engine.counted == tried


def test_an_engine_that_stops_counting_is_not_asked_about_the_next_text(
    engine: Engine, generator: RemoteGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_AT_ONCE_S", PATIENCE_S)
    engine.counts = True
    assert generator.count_tokens("w " * 1000) == 1000
    share = len(engine.counted[0].split()) / len(engine.counted[0].encode())
    engine.counts = False
    asked: list[str] = []
    get = generator._client.get
    monkeypatch.setattr(generator._client, "get", lambda path, *rest: asked.append(path) or get(path, *rest))
    assert [generator.count_tokens(text) for text in ("w" * 100, "线" * 100)] == [
        math.ceil(100 * share),
        math.ceil(300 * share),
    ]
    assert asked == ["/tokenize"]


def test_an_engine_that_does_not_count_is_asked_once_and_its_prompts_are_measured_by_bytes(
    engine: Engine, generator: RemoteGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        generator, "_ask_count", lambda text: asked.append(text) or RemoteGenerator._ask_count(generator, text)
    )
    assert [generator.count_tokens(text) for text in ("w" * 100, "线" * 100, "")] == [30, 90, 0]
    assert len(asked) == 1


# --- options


def listed(**logprobs: float) -> dict[str, Any]:
    entries = [{"token": token, "logprob": value} for token, value in logprobs.items()]
    return {"choices": [{"message": {"content": "B"}, "logprobs": {"content": [{"top_logprobs": entries}]}}]}


def test_options_are_scored_by_their_letters(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = reply(listed(B=-0.1, A=-3.0, x=-5.0))
    scores = generator.score_choices(REQUEST, ("one", "two", "three"))
    assert scores.scores == scores.extra["letters"] == (-3.0, -0.1, -6.0)
    assert "B. two" in engine.asked[-1]["messages"][-1]["content"]
    assert engine.asked[-1]["logprobs"] is True


def test_options_are_scored_without_the_passages_that_do_not_fit(engine: Engine, generator: RemoteGenerator) -> None:
    engine.answer = unless(lambda body: "second" in str(body["messages"]), reply(listed(A=-0.1, B=-3.0)), TOO_LONG)
    scores = choose(generator, replace(REQUEST, passages=(make_passage("first"), make_passage("second"))))
    assert (scores.scores, scores.passages_used) == ((-0.1, -3.0), 1)
    assert "first" in str(engine.asked[-1]["messages"])


LOGPROBS = {"content": [{"top_logprobs": ["A", {"token": "B", "logprob": None}]}]}


@pytest.mark.parametrize(
    ("choice", "scores"),
    [
        *(({"message": {"content": written}}, (0.0, 1.0)) for written in ("B", "(b) because", "答案是 B")),
        ({"message": {"content": "Answer: A."}}, (1.0, 0.0)),
        *(
            ({"message": {"content": written}}, None)
            for written in ("", "I think so", "E", "Because of it", None, ["B"])
        ),
        ({"message": "B"}, None),
        ({"message": {"content": "?"}, "logprobs": LOGPROBS}, None),
    ],
)
def test_without_log_probabilities_the_letter_counts_and_without_a_letter_nothing(
    engine: Engine, generator: RemoteGenerator, choice: dict[str, Any], scores: tuple[float, ...] | None
) -> None:
    engine.answer = plain = reply({"choices": [choice]})
    if scores is None:
        with pytest.raises(GenerationFailed, match="named no option"):
            choose(generator)
    else:
        engine.answer = unless(lambda body: "logprobs" in body, plain, {"error": "logprobs are not supported"})
        assert choose(generator).scores == choose(generator).extra["written"] == scores
