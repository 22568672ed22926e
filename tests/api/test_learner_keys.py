"""A learner's key: its own exams, cards, progress, conversations and feedback, and nobody else's."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, Live, running

from api.errors import UnsafeBind
from api.security import COOKIE, check_bind
from api.settings import load_settings
from evals import report
from evals.arms import parse_arms
from evals.comparison import compare
from evals.questions import parse_question
from evals.records import Record
from evals.report import RunFacts
from evals.run import RunSpec
from evals.scoring import score_records
from indexes.errors import InvalidInput

KEYS = {"api_keys": "teacher-key", "learner_keys": "alice=alices-key, 张三=key=with=signs="}
ASKED = {"question": "How many threads are in a warp?"}
NOT_ALLOWED = (403, "not_allowed")


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(load_settings({"home": tmp_path_factory.mktemp("home"), **KEYS})) as server:
        yield server


def as_(server: Live, key: str) -> Live:
    """The server as the holder of a key sees it."""
    headers = {b"authorization": f"Bearer {key}".encode()}
    return replace(server, client=httpx.Client(base_url=server.address, timeout=PATIENCE_S, headers=headers))


def holder(key: str) -> Any:
    @pytest.fixture
    def fixture(school: Live) -> Iterator[Live]:
        live = as_(school, key)
        with live.client:
            yield live

    return fixture


alice, teacher = holder("alices-key"), holder("teacher-key")
bob = holder("key=with=signs=")  # who is called 张三


def exam_of(live: Live, **body: Any) -> dict[str, Any]:
    exam: dict[str, Any] = live.post("/v1/exams", **{"count": 2, **body})
    return exam


def seen(live: Live) -> int:
    return sum(chapter["seen"] for chapter in live.get("/v1/progress")["chapters"])


def test_a_learners_key_needs_no_name_and_takes_no_other(alice: Live) -> None:
    assert exam_of(alice)["learner"] == exam_of(alice, learner=" alice ")["learner"] == "alice"
    for other in ("张三", "default"):
        assert alice.refusal("POST", "/v1/exams", {"count": 2, "learner": other}) == NOT_ALLOWED
    for path in ("/v1/cards/due", "/v1/progress", "/v1/cards/export.apkg", "/v1/cards/export.csv"):
        assert alice.status("GET", path) == 200
        assert alice.refusal("GET", path, learner="张三") == NOT_ALLOWED


def test_only_an_open_key_is_told_the_learners_names_and_where_the_home_is(alice: Live, teacher: Live) -> None:
    told = [(live.get("/v1/session")["learners"], live.get("/v1/session")["home"]) for live in (alice, teacher)]
    assert told == [([], None), (["alice", "张三"], str(teacher.services.settings.home))]


def test_anothers_exam_and_cards_do_not_exist(alice: Live, bob: Live, teacher: Live) -> None:
    exam = exam_of(bob)
    address = f"/v1/exams/{exam['id']}"
    for method, path in (("GET", address), ("GET", f"{address}/draft"), ("POST", f"{address}/answers")):
        assert alice.status(method, path, {"answers": {}}) == 404
        assert alice.refusal(method, path, {"answers": {}, "learner": "张三"}, learner="张三") == NOT_ALLOWED
    bob.post(f"{address}/answers", answers={})
    card = bob.get("/v1/cards/due")["cards"][0]
    review = f"/v1/cards/{card['id']}/review"
    assert alice.status("POST", review, {"rating": 3}) == 404
    assert alice.refusal("POST", review, {"rating": 3, "learner": "张三"}) == NOT_ALLOWED
    assert (seen(alice), seen(bob)) == (0, 2)
    assert card["question"] not in alice.client.get("/v1/cards/export.csv").text
    bob.post(review, rating=3)
    assert teacher.get(address, learner="张三")["learner"] == "张三"
    assert teacher.get("/v1/progress", learner="张三")["learner"] == "张三"
    assert teacher.get("/v1/progress")["learner"] == "default"


def test_a_class_takes_its_exam_by_link_and_sees_no_answer_before_it_is_handed_in(teacher, alice, bob):
    body = {"count": 2, "types": ["choice"], "learners": ["alice", "张三"], "time_limit_s": 600}
    for exam in alice.get("/v1/exams")["exams"]:  # what she has not handed in stays hidden, whichever exam asks it too
        alice.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
    given = teacher.post("/v1/class-exams", **body)
    mine, other = given["exams"]
    address, path = f"/v1/exams/{mine['id']}", f"/v1/class-exams/{given['id']}"
    listed = next(exam for exam in alice.get("/v1/exams")["exams"] if exam["id"] == mine["id"])
    assert alice.get(address) == listed, "who looks in does not begin it"
    told = (listed["waits"], listed["time_limit_s"], listed["count"], listed["questions"], listed["deadline"])
    assert told == (True, 600, 2, [], None)
    for method, call in (("GET", address), ("POST", f"{address}/begin")):
        assert bob.status(method, call) == 404
    begun = alice.client.post(f"{address}/begin").json()
    assert (begun["waits"], alice.client.post(f"{address}/begin").json()) == (False, begun) and begun["deadline"]
    assert [exam["waits"] for exam in teacher.get(path)["exams"]] == [False, True]
    asked = {question["id"] for question in begun["questions"]}

    def answers(live: Live) -> set[str]:
        listed = live.get("/v1/questions", with_answers=True, limit=5000)["questions"]
        return {question["id"] for question in listed if question["answer"] is not None}

    assert not asked & answers(alice)
    assert asked <= answers(teacher)
    alice.post(f"{address}/answers", answers={})
    assert asked <= answers(alice)
    assert [exam["score"] for exam in teacher.get(path)["exams"]] == [0.0, None]
    assert teacher.client.get(f"{path}/marks.csv").text.splitlines()[1].startswith("alice,")
    assert teacher.get("/v1/class-exams")["classes"][0]["id"] == given["id"]
    assert other["link"].startswith(f"/study/exam/{other['id']}?learner=")
    for call in (path, f"{path}/marks.csv", "/v1/class-exams"):
        assert alice.refusal("GET", call) == NOT_ALLOWED
    assert alice.refusal("POST", "/v1/class-exams", body) == NOT_ALLOWED
    assert teacher.status("GET", "/v1/class-exams/none") == 404


QUESTIONS = [
    {"id": "q1", "question": "What is asked first?", "answer": "secret-1", "key_facts": ["secret-1"]},
    {"id": "q2", "question": "What is asked second?", "answer": "secret-2", "key_facts": ["secret-2"]},
    {"id": "q3", "type": "choice", "question": "What is asked last?", "answer": "secret-3",
     "choices": ["this", "a", "b", "c"], "answer_index": 0},
]  # fmt: skip
FREE = {"id": "free", "question": "What is asked of nobody?", "answer": "known", "key_facts": ["known"]}
REPORT = "/v1/reports/one"
FILES = "/v1/questions/files"


def write_report(folder: Path) -> None:
    """A report whose example names the right option of the last question."""
    question = parse_question(QUESTIONS[2], where="test")
    scores = (0.4, 0.3, 0.2, 0.1)
    records = [Record("q3", arm, 0, "choice", picked=at, scores=scores) for arm, at in (("base", 1), ("rag", 0))]
    rows = score_records(records, {"q3": question})
    spec = RunSpec((question,), parse_arms(["base", "rag"]))
    facts = RunFacts("2026-01-02T03:04:05+00:00", "encoder", "m", "e", 1, {}, {})
    report.write_report(folder, report.report_data(spec, facts, compare(rows), rows, None))


@pytest.fixture
def classroom(tmp_path: Path) -> Iterator[tuple[Live, Live]]:
    """Teacher and learner, who has practised with the questions of the open exam, and has more practice open."""
    settings = load_settings({"home": tmp_path, **KEYS})
    with running(settings) as server:
        teacher, alice = as_(server, "teacher-key"), as_(server, "alices-key")
        copied = [{**each, "id": f"copy-{each['id']}"} for each in QUESTIONS] + [FREE]
        assert teacher.upload("\n".join(map(json.dumps, QUESTIONS)).encode(), "class.jsonl", FILES).status_code == 201
        for name, questions in (("class.jsonl", QUESTIONS), ("copy.jsonl", copied)):
            data = "\n".join(map(json.dumps, questions)).encode()
            assert alice.upload(data, name, FILES).status_code == 201  # as somebody told her
            practised = exam_of(alice, count=len(questions), question_file=name)
            alice.post(f"/v1/exams/{practised['id']}/answers", answers={})
        exam_of(alice, count=3, question_file="class.jsonl")
        teacher.post("/v1/class-exams", count=3, question_file="class.jsonl", learners=["alice", "张三"])
        write_report(settings.reports_folder / "one")
        with closing(teacher.client), closing(alice.client):
            yield teacher, alice


def test_no_door_answers_a_learner_what_the_open_exam_of_a_class_asks(classroom: tuple[Live, Live]) -> None:
    teacher, learner = classroom
    alice = learner.client
    of_class = teacher.get("/v1/class-exams")["classes"][0]["exams"][0]["id"]
    exams = {exam["id"]: exam for exam in teacher.get("/v1/exams", learner="alice")["exams"]}
    practised = [exam for exam in exams.values() if exam["result"]]
    [drawn] = [exam_id for exam_id, exam in exams.items() if not exam["result"] and exam_id != of_class]
    cards = [card for card in teacher.get("/v1/cards/due", learner="alice")["cards"] if card["answer"] != "known"]
    files = [{"with_answers": True, "question_file": name} for name in ("class.jsonl", "copy.jsonl")]
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/v1/exams", {"count": count, "question_file": name})
        for count, name in ((1, "class.jsonl"), (2, "copy.jsonl"))
    ]
    for address in (f"/v1/cards/{card['id']}" for card in cards):
        calls += [("POST", f"{address}/review", {"rating": 3}), ("POST", f"{address}/undo", None)]
        calls += [("PATCH", address, {"question": "What else?"})]
    calls += [
        ("POST", f"/v1/exams/{exam['id']}/marks", {"question_id": mark["question_id"], "share": 1})
        for exam in practised
        for mark in exam["result"]["marks"]
        if mark["reference_answer"] != "known"
    ]
    refusals = [alice.request(method, path, json=body) for method, path, body in calls]
    assert len(refusals) > 12
    assert {reply.status_code for reply in refusals} == {400, 409}
    practice = exam_of(learner, count=1, question_file="copy.jsonl")
    assert [question["id"] for question in practice["questions"]] == ["free"]
    shown = [
        *(alice.get("/v1/questions", params=params) for params in files),
        alice.post(f"/v1/exams/{drawn}/answers", json={"answers": {}}),
        *(alice.get(f"/v1/exams/{exam_id}") for exam_id in exams),
        *map(alice.get, ("/v1/exams", "/v1/cards/due", "/v1/cards/export.csv", REPORT, f"{REPORT}/page")),
    ]
    assert {reply.status_code for reply in shown} == {200}
    assert [reply.url for reply in (*refusals, *shown) if "secret" in reply.text] == []
    assert not any(QUESTIONS[2]["question"] in reply.text for reply in shown[-2:])
    deck = zipfile.ZipFile(io.BytesIO(alice.get("/v1/cards/export.apkg").content))
    assert b"secret" not in deck.read("collection.anki2")
    assert seen(learner) == 4

    assert "secret" in teacher.client.get("/v1/questions", params=files[0]).text
    assert QUESTIONS[2]["question"] in teacher.client.get(f"{REPORT}/page").text
    assert "secret" in alice.post(f"/v1/exams/{of_class}/answers", json={"answers": {}}).text
    learner.post(f"/v1/exams/{practice['id']}/answers", answers={})
    assert "secret" in alice.get("/v1/cards/export.csv").text


def test_a_verdict_on_a_class_exam_is_the_teachers_and_a_learners_stands_beside_it(classroom) -> None:
    teacher, alice = classroom
    given = teacher.get("/v1/class-exams")["classes"][0]
    address = f"/v1/exams/{given['exams'][0]['id']}"

    def row() -> dict[str, str]:
        text = teacher.client.get(f"/v1/class-exams/{given['id']}/marks.csv").text
        return next(csv.DictReader(io.StringIO(text)))

    alice.post(f"{address}/answers", answers={"q1": "else", "q3": 1})
    places = {mark["question_id"]: at for at, mark in enumerate(alice.get(address)["result"]["marks"], 1)}
    for question_id in ("q1", "q3"):
        asked = alice.post(f"{address}/marks", question_id=question_id, share=1)
        assert (asked["score"], asked["requested"], asked["by"] != "self") == (0, 1, True)
    assert alice.get(address)["result"]["score"] == 0
    first, last = places["q1"], places["q3"]
    assert (row()["score"], row()["requests"], row()[f"{first}. requested"]) == ("0.0", "2", "1.0")
    assert row()[f"{last}. marked by"] == "choice"
    decided = teacher.post(f"{address}/marks", question_id="q1", share=0.5)
    assert (decided["score"], decided["requested"], decided["by"]) == (0.5, None, "teacher")
    assert (row()["score"], row()["requests"], row()[f"{first}. marked by"]) == ("0.5", "1", "teacher")
    assert teacher.get("/v1/class-exams")["classes"][0]["exams"][0]["requests"] == 1


@pytest.mark.parametrize("allowed", [False, True])
def test_while_a_class_takes_its_exam_the_assistant_answers_where_the_teacher_lets_it(tmp_path, allowed) -> None:
    chat = {"model": "coalesce-rag", "messages": [{"role": "user", "content": ASKED["question"]}]}
    calls = {
        "/v1/ask": ASKED, "/v1/compare": ASKED, "/v1/search": {"query": ASKED["question"]},
        "/v1/chat/completions": chat,
        "/v1/explain": {**ASKED, "document_id": SAMPLE_ID, "page": 3},
        "/v1/choose": {**ASKED, "choices": ["32", "64"]},
    }  # fmt: skip
    with running(load_settings({"home": tmp_path, **KEYS})) as server:
        teacher, alice, bob = (as_(server, key) for key in ("teacher-key", "alices-key", "key=with=signs="))
        with closing(teacher.client), closing(alice.client), closing(bob.client):

            def answered(live: Live) -> set[int]:
                return {live.client.post(path, json=body).status_code for path, body in calls.items()}

            body = {"count": 1, "types": ["choice"], "learners": ["alice"], "time_limit_s": 600}
            given = teacher.post("/v1/class-exams", **body, **({"assistant": True} if allowed else {}))
            assert given["assistant"] is allowed
            address = f"/v1/exams/{given['exams'][0]['id']}"
            assert answered(alice) == {200}, "who has not begun knows no question"
            alice.client.post(f"{address}/begin")
            assert answered(alice) == ({200} if allowed else {409})
            assert answered(bob) == answered(teacher) == {200}
            alice.post(f"{address}/answers", answers={})
            assert answered(alice) == {200}


def test_the_guide_leaves_out_what_an_open_exam_of_the_class_asks(tmp_path: Path) -> None:
    book = "# Warps\n\n" + "\n\n".join(
        f"A {name} is a group of {number} threads that run together on one scheduler."
        for name, number in (("warp", 32), ("wavefront", 64), ("block", 128))
    )
    asked = {"id": "w", "question": "What is a wavefront?", "answer": "a group",
             "gold": [{"file": "b", "heading": "Warps", "evidence":
                       "A wavefront is a group of 64 threads that run together on one scheduler."}]}  # fmt: skip
    with running(load_settings({"home": tmp_path, **KEYS})) as server:
        teacher, alice = as_(server, "teacher-key"), as_(server, "alices-key")
        with closing(teacher.client), closing(alice.client):
            taken = teacher.upload(book.encode(), "warps.md").json()
            teacher.ended(taken["job_id"])
            teacher.upload(json.dumps(asked).encode(), "w.jsonl", FILES)
            guide = f"/v1/documents/{taken['document_id']}/guide"
            assert "64 threads" in alice.client.get(guide).text
            teacher.post("/v1/class-exams", count=1, question_file="w.jsonl", learners=["alice"])
            for path in (guide, f"{guide}.md"):
                assert "64 threads" not in alice.client.get(path).text
                assert "32 threads" in alice.client.get(path).text
                assert "64 threads" in teacher.client.get(path).text


def test_question_files_are_their_owners_have_a_bound_and_can_be_removed(school, alice, bob, teacher) -> None:
    line = json.dumps(FREE).encode()
    for live in (teacher, alice):
        assert live.upload(line, "own.jsonl", FILES).status_code == 201
    own = {"question_file": "own.jsonl", "with_answers": True}
    assert bob.get(FILES) == {"files": []}
    for method, path, body in (("GET", "/v1/questions", None), ("GET", "/v1/questions/chapters", None),
                               ("POST", "/v1/exams", {"count": 1, "question_file": "own.jsonl"}),
                               ("DELETE", f"{FILES}/own.jsonl", None)):  # fmt: skip
        assert bob.status(method, path, body, **(own if method == "GET" else {})) == 404, path
    assert bob.status("GET", FILES, learner="alice") == 403
    assert "known" in alice.client.get("/v1/questions", params=own).text
    assert alice.client.delete(f"{FILES}/own.jsonl").status_code == 204
    assert (alice.get(FILES)["files"], teacher.get(FILES)["files"]) == ([], ["own.jsonl"])
    kept = [bob.upload(line, f"{number}.jsonl", FILES).status_code for number in range(140)]
    assert kept == [201] * kept.count(201) + [409] * kept.count(409) and kept.count(409)
    assert teacher.client.delete(f"{FILES}/1.jsonl", params={"learner": "张三"}).status_code == 204
    assert bob.upload(line, "one-more.jsonl", FILES).status_code == 201


def test_a_teacher_sees_whose_a_conversation_is_and_deletes_her_own_by_default(alice, bob, teacher) -> None:
    for live, title in ((alice, "of alice"), (bob, "of bob"), (teacher, "of the teacher")):
        live.post("/v1/conversations", title=title)

    def titles(live: Live) -> dict[str, str | None]:
        return {one["title"]: one["owner"] for one in live.get("/v1/conversations")["conversations"]}

    assert titles(teacher).items() >= {"of alice": "alice", "of bob": "张三", "of the teacher": None}.items()
    assert alice.status("DELETE", "/v1/conversations", learner="张三") == 403
    assert teacher.client.delete("/v1/conversations").status_code == 204
    assert "of the teacher" not in titles(teacher) and {"of alice", "of bob"} <= titles(teacher).keys()
    teacher.client.delete("/v1/conversations", params={"learner": "alice"})
    assert titles(alice) == {} and "of bob" in titles(bob)


def test_conversations_answers_and_feedback_are_the_learners_own(alice: Live, bob: Live, teacher: Live) -> None:
    answer = bob.post("/v1/ask", **ASKED)
    streamed = json.loads(bob.client.post("/v1/ask", json=ASKED | {"stream": True}).text.rpartition("data: ")[2])
    compared = bob.post("/v1/compare", **ASKED, arms=["rag"])["answers"][0]
    up = {"answer_id": answer["id"], "rating": "up"}
    assert alice.get("/v1/conversations")["conversations"] == []
    for kept in (answer, streamed, compared):
        conversation = kept["conversation_id"]
        address = f"/v1/conversations/{conversation}"
        for method, path, body in (
            ("GET", address, None), ("PATCH", address, {"title": "mine now"}), ("DELETE", address, None),
            ("POST", "/v1/ask", ASKED | {"conversation_id": conversation}),
            ("POST", "/v1/ask", ASKED | {"conversation_id": conversation, "stream": True}),
            ("POST", "/v1/feedback", up | {"answer_id": kept["id"]}),
            ("GET", f"/v1/answers/{kept['id']}/events", None),
            ("POST", "/v1/votes", {"answer_ids": [kept["id"]] * 2}),
        ):  # fmt: skip
            assert alice.status(method, path, body) == 404, path
    bob.post("/v1/feedback", **up)
    assert alice.client.get("/v1/feedback/cases.jsonl").text == ""
    for allowed in (bob, teacher):
        assert allowed.get(f"/v1/conversations/{answer['conversation_id']}")["answers"][0]["id"] == answer["id"]
        assert allowed.status("GET", f"/v1/answers/{streamed['id']}/events") == 200
        assert answer["id"] in allowed.client.get("/v1/feedback/cases.jsonl").text
    teachers = teacher.post("/v1/conversations", title="staff only")["id"]
    assert bob.status("GET", f"/v1/conversations/{teachers}") == 404


def test_what_is_everyones_is_read_and_not_changed(alice: Live) -> None:
    for path in ("/v1/documents", "/v1/questions", "/v1/reports"):
        assert alice.status("GET", path) == 200
    for method, path, body in (
        ("POST", "/v1/documents", {"url": "http://example.org/a.txt"}), ("DELETE", f"/v1/documents/{SAMPLE_ID}", None),
        ("DELETE", "/v1/jobs/none", None), ("GET", "/v1/compare/votes.jsonl", None),
        ("GET", "/v1/questions/choice", None), ("DELETE", "/v1/questions/made-1", None),
        ("PATCH", "/v1/questions/made-1", {"answer": "x"}),
        ("PUT", "/v1/generator", {"generator": "extractive"}), ("POST", "/v1/adapters", {"name": "mine"}),
    ):  # fmt: skip
        assert alice.refusal(method, path, body) == NOT_ALLOWED, path


def test_a_browser_signs_in_as_one_learner_and_signs_out(school: Live) -> None:
    browser = replace(school, client=httpx.Client(base_url=school.address))
    with browser.client as client:
        sent = client.get("/docs?a=b", headers={"accept": "text/html"}).headers["location"]
        assert sent == "/login?next=%2Fdocs%3Fa%3Db"
        assert browser.post("/v1/session", key=" alices-key ")["learner"] == "alice"
        assert browser.get("/v1/progress")["learner"] == "alice"
        assert browser.refusal("GET", "/v1/progress", learner="张三") == NOT_ALLOWED
        assert browser.status("DELETE", "/v1/session") == 204
        assert COOKIE not in client.cookies
        assert browser.status("GET", "/v1/progress") == 401


def test_learner_keys_alone_lock_the_server(tmp_path: Path) -> None:
    def settings(keys: str) -> Any:
        return load_settings({"home": tmp_path, "host": "0.0.0.0", "learner_keys": keys})

    check_bind(settings("alice=k"))
    assert "k'" not in repr(settings("alice=k"))
    with pytest.raises(UnsafeBind):
        check_bind(settings(" , "))
    (tmp_path / "coalesce.toml").write_text('[learner_keys]\nalice = "k=1"\n', encoding="utf-8")
    assert load_settings({"home": tmp_path}).learner_keys["alice"].get_secret_value() == "k=1"


@pytest.mark.parametrize(
    "keys",
    [
        "alice", "=k", "alice=", "alice=secret-1,alice=secret-2", "alice=secret-1,bob=secret-1", "a\tb=secret-1",
        f"{'a' * 101}=secret-1", {"alice": ""}, "alice=own-secret",
    ],
)  # fmt: skip
def test_keys_that_leave_open_whose_they_are_are_refused_without_being_shown(keys: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        load_settings({"home": tmp_path, "learner_keys": keys, "api_keys": "own-secret"})
    assert "secret" not in error.value.message + error.value.hint
    assert error.value.hint


def test_without_keys_every_learner_may_be_named(shared: Live) -> None:
    assert shared.get("/v1/progress", learner="anyone")["learner"] == "anyone"
