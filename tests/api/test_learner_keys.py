"""A learner's key: its own exams, cards, progress, conversations and feedback, and nobody else's."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, Live, running

from api.errors import NotAllowed, UnsafeBind
from api.security import COOKIE, Caller, KeyRing, caller_of, check_bind
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


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(load_settings({"home": tmp_path_factory.mktemp("home"), **KEYS})) as server:
        yield server


def as_(server: Live, key: str) -> httpx.Client:
    return httpx.Client(
        base_url=server.address, timeout=PATIENCE_S, headers={b"authorization": f"Bearer {key}".encode()}
    )


@pytest.fixture
def alice(school: Live) -> Iterator[httpx.Client]:
    with as_(school, "alices-key") as client:
        yield client


@pytest.fixture
def bob(school: Live) -> Iterator[httpx.Client]:
    """Who is called 张三."""
    with as_(school, "key=with=signs=") as client:
        yield client


@pytest.fixture
def teacher(school: Live) -> Iterator[httpx.Client]:
    with as_(school, "teacher-key") as client:
        yield client


def exam_of(client: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = client.post("/v1/exams", json={"count": 2, **body})
    assert reply.status_code == 201, reply.text
    exam: dict[str, Any] = reply.json()
    return exam


def refused(reply: httpx.Response) -> bool:
    return (reply.status_code, reply.json()["error"]["type"]) == (403, "not_allowed") and bool(
        reply.json()["error"]["hint"]
    )


def test_a_learners_key_needs_no_name_and_takes_no_other(alice: httpx.Client) -> None:
    assert exam_of(alice)["learner"] == "alice"
    assert exam_of(alice, learner=" alice ")["learner"] == "alice"
    assert refused(alice.post("/v1/exams", json={"count": 2, "learner": "张三"}))
    assert refused(alice.post("/v1/exams", json={"count": 2, "learner": "default"}))
    for path in ("/v1/cards/due", "/v1/progress", "/v1/cards/export.apkg", "/v1/cards/export.csv"):
        assert alice.get(path).status_code == 200
        assert refused(alice.get(path, params={"learner": "张三"}))


def test_anothers_exam_and_cards_do_not_exist(alice: httpx.Client, bob: httpx.Client) -> None:
    exam = exam_of(bob)
    address = f"/v1/exams/{exam['id']}"
    assert alice.get(address).status_code == 404
    assert alice.get(f"{address}/draft").status_code == 404
    assert alice.post(f"{address}/answers", json={"answers": {}}).status_code == 404
    assert refused(alice.get(address, params={"learner": "张三"}))
    assert refused(alice.post(f"{address}/answers", json={"answers": {}, "learner": "张三"}))
    assert bob.post(f"{address}/answers", json={"answers": {}}).status_code == 200
    card = bob.get("/v1/cards/due").json()["cards"][0]
    review = f"/v1/cards/{card['id']}/review"
    assert alice.post(review, json={"rating": 3}).status_code == 404
    assert refused(alice.post(review, json={"rating": 3, "learner": "张三"}))
    seen = {chapter["seen"] for chapter in alice.get("/v1/progress").json()["chapters"]}
    assert seen == {0}
    assert sum(chapter["seen"] for chapter in bob.get("/v1/progress").json()["chapters"]) == 2
    assert card["question"] not in alice.get("/v1/cards/export.csv").text
    assert bob.post(review, json={"rating": 3}).status_code == 200


def test_a_class_takes_its_exam_by_link_and_sees_no_answer_before_it_is_handed_in(teacher, alice, bob):
    body = {"count": 2, "types": ["choice"], "learners": ["alice", "张三"], "time_limit_s": 600}
    given = teacher.post("/v1/class-exams", json=body)
    assert given.status_code == 201
    mine, other = given.json()["exams"]
    address = f"/v1/exams/{mine['id']}"
    listed = next(exam for exam in alice.get("/v1/exams").json()["exams"] if exam["id"] == mine["id"])
    assert (listed["questions"], listed["deadline"]) == ([], None), "its time has not begun"
    assert teacher.get(address).json()["deadline"] is None, "who looks in does not begin it"
    assert bob.get(address).status_code == 404
    exam = alice.get(address).json()
    assert exam["deadline"] is not None
    asked = {question["id"] for question in exam["questions"]}

    def answers(client: httpx.Client) -> set[str]:
        listed = client.get("/v1/questions", params={"with_answers": True, "limit": 5000}).json()["questions"]
        return {question["id"] for question in listed if question["answer"] is not None}

    assert not asked & answers(alice)
    assert asked <= answers(teacher)
    alice.post(f"{address}/answers", json={"answers": {}})
    assert asked <= answers(alice)
    path = f"/v1/class-exams/{given.json()['id']}"
    assert [exam["score"] for exam in teacher.get(path).json()["exams"]] == [0.0, None]
    assert teacher.get(f"{path}/marks.csv").text.splitlines()[1].startswith("alice,")
    assert teacher.get("/v1/class-exams").json()["classes"][0]["id"] == given.json()["id"]
    assert other["link"].startswith(f"/study/exam/{other['id']}?learner=")
    for call in (path, f"{path}/marks.csv", "/v1/class-exams"):
        assert refused(alice.get(call))
    assert refused(alice.post("/v1/class-exams", json=body))
    assert teacher.get("/v1/class-exams/none").status_code == 404


QUESTIONS = [
    {"id": "q1", "question": "What is asked first?", "answer": "secret-1", "key_facts": ["secret-1"]},
    {"id": "q2", "question": "What is asked second?", "answer": "secret-2", "key_facts": ["secret-2"]},
    {"id": "q3", "type": "choice", "question": "What is asked last?", "answer": "secret-3",
     "choices": ["this", "a", "b", "c"], "answer_index": 0},
]  # fmt: skip
FREE = {"id": "free", "question": "What is asked of nobody?", "answer": "known", "key_facts": ["known"]}
REPORT = "/v1/reports/one"


def write_report(folder: Path) -> None:
    """A report whose example names the right option of the last question."""
    question = parse_question(QUESTIONS[2], where="test")
    picked = {"base": 1, "rag": 0}
    records = [Record("q3", arm, 0, "choice", picked=at, scores=(0.4, 0.3, 0.2, 0.1)) for arm, at in picked.items()]
    rows = score_records(records, {"q3": question})
    spec = RunSpec((question,), parse_arms(["base", "rag"]))
    facts = RunFacts("2026-01-02T03:04:05+00:00", "encoder", "m", "e", 1, {}, {})
    report.write_report(folder, report.report_data(spec, facts, compare(rows), rows, None))


@pytest.fixture
def classroom(tmp_path: Path) -> Iterator[Live]:
    """A class in which one learner has practised with the questions of the open exam, and has more practice open."""
    settings = load_settings({"home": tmp_path, **KEYS})
    with running(settings) as server, as_(server, "teacher-key") as teacher, as_(server, "alices-key") as alice:
        copied = [{**each, "id": f"copy-{each['id']}"} for each in QUESTIONS] + [FREE]
        for name, questions in (("class.jsonl", QUESTIONS), ("copy.jsonl", copied)):
            lines = "\n".join(map(json.dumps, questions)).encode()
            assert teacher.post("/v1/questions/files", files={"file": (name, lines)}).status_code == 201
            practised = exam_of(alice, count=len(questions), question_file=name)
            alice.post(f"/v1/exams/{practised['id']}/answers", json={"answers": {}})
        exam_of(alice, count=3, question_file="class.jsonl")
        body = {"count": 3, "question_file": "class.jsonl", "learners": ["alice", "张三"]}
        assert teacher.post("/v1/class-exams", json=body).status_code == 201
        write_report(settings.reports_folder / "one")
        yield server


def test_no_door_answers_a_learner_what_the_open_exam_of_a_class_asks(classroom: Live) -> None:
    with as_(classroom, "alices-key") as alice, as_(classroom, "teacher-key") as teacher:
        of_class = teacher.get("/v1/class-exams").json()["classes"][0]["exams"][0]["id"]
        exams = {exam["id"]: exam for exam in teacher.get("/v1/exams", params={"learner": "alice"}).json()["exams"]}
        practised = [exam for exam in exams.values() if exam["result"]]
        [drawn] = [exam_id for exam_id, exam in exams.items() if not exam["result"] and exam_id != of_class]
        cards = teacher.get("/v1/cards/due", params={"learner": "alice"}).json()["cards"]
        cards = [card for card in cards if card["answer"] != "known"]
        files = [{"with_answers": True, "question_file": name} for name in ("class.jsonl", "copy.jsonl")]
        refusals = [
            alice.post("/v1/exams", json={"count": 1, "question_file": "class.jsonl"}),
            alice.post("/v1/exams", json={"count": 2, "question_file": "copy.jsonl"}),
        ]
        for card in cards:
            address = f"/v1/cards/{card['id']}"
            refusals.append(alice.post(f"{address}/review", json={"rating": 3}))
            refusals.append(alice.post(f"{address}/undo"))
            refusals.append(alice.patch(address, json={"question": "What else?"}))
        for exam in practised:
            for mark in exam["result"]["marks"]:
                if mark["reference_answer"] != "known":
                    verdict = {"question_id": mark["question_id"], "share": 1}
                    refusals.append(alice.post(f"/v1/exams/{exam['id']}/marks", json=verdict))
        assert len(refusals) > 12
        assert {reply.status_code for reply in refusals} == {400, 409}
        practice = exam_of(alice, count=1, question_file="copy.jsonl")
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
        assert sum(chapter["seen"] for chapter in alice.get("/v1/progress").json()["chapters"]) == 4

        assert all("secret" in teacher.get("/v1/questions", params=params).text for params in files)
        assert QUESTIONS[2]["question"] in teacher.get(f"{REPORT}/page").text
        assert "secret" in alice.post(f"/v1/exams/{of_class}/answers", json={"answers": {}}).text
        alice.post(f"/v1/exams/{practice['id']}/answers", json={"answers": {}})
        assert "secret" in alice.get("/v1/cards/export.csv").text


def test_no_verdict_changes_the_marks_of_a_class_exam(classroom: Live) -> None:
    with as_(classroom, "alices-key") as alice, as_(classroom, "teacher-key") as teacher:
        given = teacher.get("/v1/class-exams").json()["classes"][0]
        address = f"/v1/exams/{given['exams'][0]['id']}"
        alice.post(f"{address}/answers", json={"answers": {"q3": 1}})
        marks = teacher.get(f"/v1/class-exams/{given['id']}/marks.csv").text
        for question_id in ("q1", "q2", "q3"):
            verdict = alice.post(f"{address}/marks", json={"question_id": question_id, "share": 1})
            assert (verdict.status_code, verdict.json()["error"]["type"]) == (409, "conflict")
        assert teacher.get(f"/v1/class-exams/{given['id']}/marks.csv").text == marks
        assert alice.get(address).json()["result"]["score"] == 0


def test_signing_in_goes_on_to_what_was_opened_and_never_to_another_server(school: Live) -> None:
    page = {"accept": "text/html"}
    with httpx.Client(base_url=school.address) as browser:
        sent = browser.get("/study/exam/e?learner=a", headers=page).headers["location"]
        assert sent == "/login?next=%2Fstudy%2Fexam%2Fe%3Flearner%3Da"
        key = {"key": "alices-key"}
        assert browser.post(sent, data=key).headers["location"] == "/study/exam/e?learner=a"
        for stranger in ("//evil.test", "https://evil.test", "/\\evil.test", "/%09/evil.test"):
            assert browser.post("/login", params={"next": stranger}, data=key).headers["location"] in (
                "/",
                "/%09/evil.test",
            )


def test_an_open_key_sees_every_learner(teacher: httpx.Client, bob: httpx.Client) -> None:
    exam = exam_of(bob)
    assert teacher.get(f"/v1/exams/{exam['id']}", params={"learner": "张三"}).json()["learner"] == "张三"
    assert teacher.get("/v1/progress", params={"learner": "张三"}).json()["learner"] == "张三"
    assert teacher.get("/v1/progress").json()["learner"] == "default"


def test_conversations_and_feedback_are_the_learners_own(alice, bob, teacher):
    answer = bob.post("/v1/ask", json={"question": "How many threads are in a warp?"}).json()
    conversation = answer["conversation_id"]
    address = f"/v1/conversations/{conversation}"
    assert alice.get("/v1/conversations").json()["conversations"] == []
    for reply in (
        alice.get(address),
        alice.patch(address, json={"title": "mine now"}),
        alice.delete(address),
        alice.post("/v1/ask", json={"question": "And then?", "conversation_id": conversation}),
        alice.post("/v1/ask", json={"question": "And then?", "conversation_id": conversation, "stream": True}),
        alice.post("/v1/feedback", json={"answer_id": answer["id"], "rating": "up"}),
    ):
        assert reply.status_code == 404
    assert bob.post("/v1/feedback", json={"answer_id": answer["id"], "rating": "up"}).status_code == 201
    assert alice.post("/v1/feedback", json={"answer_id": answer["id"], "rating": "down"}).status_code == 404
    assert alice.get("/v1/feedback/cases.jsonl").text == ""
    for allowed in (bob, teacher):
        assert allowed.get(address).json()["answers"][0]["id"] == answer["id"]
        assert answer["id"] in allowed.get("/v1/feedback/cases.jsonl").text
    teachers = teacher.post("/v1/conversations", json={"title": "staff only"}).json()["id"]
    assert bob.get(f"/v1/conversations/{teachers}").status_code == 404


def test_streamed_and_compared_answers_are_the_learners_own_too(alice: httpx.Client, bob: httpx.Client) -> None:
    question = {"question": "How many threads are in a warp?"}
    before = len(bob.get("/v1/conversations").json()["conversations"])
    assert "event: done" in bob.post("/v1/ask", json=question | {"stream": True}).text
    compared = bob.post("/v1/compare", json=question | {"arms": ["rag"]}).json()["answers"][0]["conversation_id"]
    assert len(bob.get("/v1/conversations").json()["conversations"]) == before + 2
    assert alice.get(f"/v1/conversations/{compared}").status_code == 404


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_leaves_nothing_that_another_could_find(stream, alice, bob, teacher):
    before = teacher.get("/v1/conversations").json()
    body = {
        "model": "coalesce-rag",
        "messages": [{"role": "user", "content": "How many threads are in a warp?"}],
        "stream": stream,
    }
    reply = bob.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200
    assert "32 threads" in reply.text
    assert teacher.get("/v1/conversations").json() == before
    if not stream:
        answer_id = reply.json()["id"].removeprefix("chatcmpl-")
        assert alice.post("/v1/feedback", json={"answer_id": answer_id, "rating": "up"}).status_code == 404


def test_what_is_everyones_is_read_and_not_changed(alice: httpx.Client, school: Live) -> None:
    assert alice.get("/v1/documents").status_code == 200
    assert alice.get("/v1/questions").status_code == 200
    assert alice.get("/v1/reports").status_code == 200
    assert refused(alice.post("/v1/documents", files={"file": ("a.txt", b"text")}))
    assert refused(alice.delete(f"/v1/documents/{SAMPLE_ID}"))
    assert refused(alice.delete("/v1/jobs/none"))
    assert refused(alice.get("/v1/compare/votes.jsonl"))
    assert school.shelf.documents()


def test_a_browser_signs_in_as_its_learner_and_out_again(school: Live) -> None:
    with httpx.Client(base_url=school.address) as browser:
        assert browser.post("/login", data={"key": " alices-key "}).status_code == 303
        assert browser.get("/v1/progress").json()["learner"] == "alice"
        assert refused(browser.get("/v1/progress", params={"learner": "张三"}))
        assert browser.post("/logout").headers["location"] == "/login"
        assert COOKIE not in browser.cookies
        assert browser.get("/v1/progress").status_code == 401


def test_the_login_page_speaks_the_readers_language(school: Live) -> None:
    assert "API 密钥" in school.client.get("/login", headers={"accept-language": "zh-CN"}).text
    assert "密钥" in school.client.post("/login", data={"key": "x"}, headers={"accept-language": "zh"}).text


def test_learner_keys_alone_lock_the_server(tmp_path: Any) -> None:
    settings = load_settings({"home": tmp_path, "host": "0.0.0.0", "learner_keys": "alice=k"})
    check_bind(settings)
    assert KeyRing(settings).by_key(b"k") == Caller("alice")
    assert KeyRing(settings).by_key(b"") is None
    assert "k'" not in repr(settings)
    with pytest.raises(UnsafeBind):
        check_bind(load_settings({"home": tmp_path, "host": "0.0.0.0", "learner_keys": " , "}))


@pytest.mark.parametrize(
    "keys",
    [
        {"learner_keys": "alice"},
        {"learner_keys": "=k"},
        {"learner_keys": "alice="},
        {"learner_keys": "alice=secret-1,alice=secret-2"},
        {"learner_keys": "alice=secret-1,bob=secret-1"},
        {"learner_keys": "alice=secret-1", "api_keys": "secret-1"},
        {"learner_keys": "a\tb=secret-1"},
        {"learner_keys": f"{'a' * 101}=secret-1"},
        {"learner_keys": {"alice": ""}},
    ],
)
def test_keys_that_leave_open_whose_they_are_are_refused_without_being_shown(keys: Any, tmp_path: Any) -> None:
    with pytest.raises(InvalidInput) as error:
        load_settings({"home": tmp_path, **keys})
    assert "secret" not in error.value.message + error.value.hint
    assert error.value.hint


def test_learner_keys_are_read_from_the_file_of_the_home(tmp_path: Any) -> None:
    (tmp_path / "coalesce.toml").write_text('[learner_keys]\nalice = "k=1"\n', encoding="utf-8")
    assert load_settings({"home": tmp_path}).learner_keys["alice"].get_secret_value() == "k=1"


def test_without_keys_every_learner_may_be_named(shared: Live) -> None:
    assert shared.client.get("/v1/progress", params={"learner": "anyone"}).json()["learner"] == "anyone"


def test_a_request_that_nobody_vouched_for_is_nobodys() -> None:
    with pytest.raises(KeyError):
        caller_of({})
    with pytest.raises(NotAllowed):
        Caller("alice").learner_for("")
