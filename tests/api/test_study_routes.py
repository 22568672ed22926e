"""Questions, exams, cards and progress over HTTP: the contract's forms, and what clients get wrong."""

from __future__ import annotations

import io
import json
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from api_fakes import SAMPLE_ID, Live

from evals.study_guide import GuideChapter


def start(live: Live, **body: Any) -> dict[str, Any]:
    reply = live.client.post("/v1/exams", json={"count": 5, "seed": 3, **body})
    assert reply.status_code == 201, reply.text
    exam: dict[str, Any] = reply.json()
    return exam


def test_answers_stay_hidden_until_asked_for(shared: Live) -> None:
    plain = shared.client.get("/v1/questions", params={"limit": 5000}).json()["questions"]
    assert len(plain) >= 500
    assert all(q["answer"] is None and q["answer_index"] is None and q["gold"] is None for q in plain)
    told = shared.client.get("/v1/questions", params={"limit": 3, "with_answers": "true"}).json()["questions"]
    assert len(told) == 3
    assert all(q["answer"] and q["gold"] for q in told if q["answerable"])


def test_questions_are_filtered_by_book_chapter_and_type(shared: Live) -> None:
    def ask(**params: Any) -> list[dict[str, Any]]:
        questions: list[dict[str, Any]] = shared.client.get("/v1/questions", params=params).json()["questions"]
        return questions

    assert {(q["chapter"], q["type"]) for q in ask(chapter=5, type="choice")} == {(5, "choice")}
    assert len(ask(document_id=SAMPLE_ID, limit=7)) == 7
    assert shared.client.get("/v1/questions", params={"document_id": "none"}).status_code == 404
    assert shared.client.get("/v1/questions", params={"limit": 5001}).status_code == 422
    assert shared.client.get("/v1/questions", params={"question_file": "../x.jsonl"}).status_code == 400


def test_an_exam_holds_no_answer_and_choice_questions_have_four_options(live: Live) -> None:
    exam = start(live, count=40)
    assert len(exam["questions"]) == 40
    for question in exam["questions"]:
        assert not {"answer", "answer_index", "key_facts", "gold"} & question.keys()
        assert (question["choices"] is not None) == (question["type"] == "choice")
        assert question["choices"] is None or len(question["choices"]) == 4


def test_the_same_seed_gives_the_same_exam_under_a_new_id(live: Live) -> None:
    first, second = start(live), start(live)
    assert first["questions"] == second["questions"]
    assert first["id"] != second["id"]


def test_every_mark_says_how_it_was_made_and_the_learner_has_the_last_word(live: Live) -> None:
    exam = start(live, types=["short"], count=2)
    first, second = (question["id"] for question in exam["questions"])
    path = f"/v1/exams/{exam['id']}"
    own = {"question_id": first, "share": 1}
    assert live.client.post(f"{path}/marks", json=own).status_code == 409
    said = {first: exam["questions"][0]["question"]}
    marks = live.client.post(f"{path}/answers", json={"answers": said}).json()["marks"]
    assert [(mark["score"], mark["by"], mark["needs_check"]) for mark in marks] == [(0.0, "key_facts", False)] * 2
    reply = live.client.post(f"{path}/marks", json=own)
    assert (reply.status_code, reply.json()["by"], reply.json()["score"]) == (200, "self", 1.0)
    result = live.client.get(path).json()["result"]
    assert (result["score"], result["marks"][0]) == (1.0, reply.json())
    assert [card["question_id"] for card in live.client.get("/v1/cards/due").json()["cards"]] == [second]
    for wrong in ({"share": 1}, {**own, "share": 1.5}, {**own, "share": "NaN"}, {**own, "question_id": "99-999"}):
        assert live.client.post(f"{path}/marks", json=wrong).status_code in (400, 422)
    assert live.client.post("/v1/exams/none/marks", json=own).status_code == 404


def test_an_exam_is_marked_once_and_misses_are_due_at_once(live: Live) -> None:
    exam = start(live, types=["choice"], count=4)
    bank = {
        q["id"]: q
        for q in live.client.get("/v1/questions", params={"limit": 5000, "with_answers": True}).json()["questions"]
    }
    ids = [q["id"] for q in exam["questions"]]
    answers = {ids[0]: bank[ids[0]]["answer_index"], ids[1]: (bank[ids[1]]["answer_index"] + 1) % 4}
    reply = live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": answers})
    result = reply.json()
    assert (result["score"], result["max_score"]) == (1.0, 4.0)
    for mark in result["marks"]:
        assert mark["reference_answer"] == bank[mark["question_id"]]["answer"]
        evidence = bank[mark["question_id"]]["gold"][0]["evidence"]
        assert evidence in mark["passage"]["text"]
    assert live.client.get(f"/v1/exams/{exam['id']}").json()["result"] == result
    due = live.client.get("/v1/cards/due").json()["cards"]
    assert {card["question_id"] for card in due} == set(ids[1:])
    again = live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": answers})
    assert (again.status_code, again.json()["error"]["type"]) == (409, "exam_closed")


def test_late_answers_are_a_conflict(live: Live) -> None:
    exam = start(live, time_limit_s=0.001)
    assert exam["deadline"] is not None
    late = live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
    assert (late.status_code, late.json()["error"]["type"]) == (409, "exam_closed")


@pytest.mark.parametrize(
    "body",
    [
        {"count": 0},
        {"count": 501},
        {"count": 10_000},
        {"types": ["essay"]},
        {"chapters": ["one"]},
        {"chapters": [99]},
        {"weights": {"one": 1.0}},
        {"weights": {"²": 1.0}},
        {"weights": {"1" * 5000: 1.0}},
        {"weights": {"1": -1.0}},
        {"learner": ""},
        {"learner": "\x00"},
        {"time_limit_s": 0},
        {"surprise": 1},
    ],
)
def test_an_exam_that_makes_no_sense_is_a_clear_error(shared: Live, body: dict[str, Any]) -> None:
    reply = shared.client.post("/v1/exams", json=body)
    assert reply.status_code in (400, 422), reply.text
    assert reply.json()["error"]["message"]


def test_wrong_answers_forms_leave_the_exam_open(live: Live) -> None:
    exam = start(live, types=["choice"], count=2)
    path = f"/v1/exams/{exam['id']}/answers"
    question_id = exam["questions"][0]["id"]
    for answers in ({"99-999": 1}, {question_id: 9}, {question_id: [1]}, {question_id: "no such option"}):
        assert live.client.post(path, json={"answers": answers}).status_code in (400, 422)
    assert live.client.get(f"/v1/exams/{exam['id']}").json()["handed_in_at"] is None
    assert live.client.post(path, json={"answers": {question_id: 1}}).status_code == 200


def test_an_id_finds_its_learner_when_none_is_named(live: Live) -> None:
    exam = start(live, learner="ada", count=2)
    handed_in = live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
    assert handed_in.status_code == 200
    assert live.client.get(f"/v1/exams/{exam['id']}").json()["learner"] == "ada"
    card = live.client.get("/v1/cards/due", params={"learner": "ada"}).json()["cards"][0]
    assert live.client.post(f"/v1/cards/{card['id']}/review", json={"rating": 3}).status_code == 200
    assert live.client.get("/v1/cards/due").json()["cards"] == [], "lists stay the default learner's"


def test_cards_are_reviewed_and_belong_to_their_learner(live: Live) -> None:
    exam = start(live, learner="ada", count=2)
    assert live.client.get(f"/v1/exams/{exam['id']}", params={"learner": "bob"}).status_code == 404
    live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}, "learner": "ada"})
    card = live.client.get("/v1/cards/due", params={"learner": "ada"}).json()["cards"][0]
    path = f"/v1/cards/{card['id']}/review"
    assert live.client.post(path, json={"rating": 3, "learner": "bob"}).status_code == 404
    assert live.client.post(path, json={"rating": 0, "learner": "ada"}).status_code == 422
    reviewed = live.client.post(path, json={"rating": 3, "learner": "ada"}).json()
    assert reviewed["due"] > card["due"]
    past = live.client.post(path, json={"rating": 3, "learner": "ada", "reviewed_at": "2001-01-01T00:00:00Z"})
    assert past.status_code == 409
    assert live.client.get("/v1/cards/due").json()["cards"] == []


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        ("0001-01-01T00:00:00+23:59", 400),
        ("9999-12-31T23:59:59-23:59", 400),
        ("9999-12-31T23:59:59", 400),
        ("1970-01-01T00:00:00Z", 409),
        ("2001-01-01", 409),
        ("yesterday", 422),
        (1e18, 422),
    ],
)
def test_a_review_from_a_time_that_cannot_be_is_refused(live: Live, moment: Any, status: int) -> None:
    exam = start(live, count=1)
    live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
    card = live.client.get("/v1/cards/due").json()["cards"][0]
    reply = live.client.post(f"/v1/cards/{card['id']}/review", json={"rating": 3, "reviewed_at": moment})
    assert reply.status_code == status, reply.text
    assert live.client.get("/v1/cards/due").json()["cards"] == [card]


def test_progress_is_by_chapter_with_titles(live: Live) -> None:
    exam = start(live, chapters=[5], count=3)
    live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
    chapters = live.client.get("/v1/progress").json()["chapters"]
    fifth = next(chapter for chapter in chapters if chapter["chapter"] == 5)
    assert (fifth["seen"], fifth["right"], fifth["due"]) == (3, 0, 3)
    assert fifth["title"]
    assert len(fifth["forecast"]) == 7


def test_decks_leave_as_anki_and_csv(live: Live) -> None:
    exam = start(live, count=3)
    live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
    deck = live.client.get("/v1/cards/export.apkg")
    assert "collection.anki2" in zipfile.ZipFile(io.BytesIO(deck.content)).namelist()
    assert live.client.get("/v1/cards/export.csv").text.startswith("id,chapter,question")


def test_a_question_file_of_ones_own_is_examined_and_a_broken_one_is_named(live: Live) -> None:
    folder = live.services.settings.home / "questions"
    folder.mkdir()
    mine = {"id": "m1", "question": "How many threads?", "answer": "32 threads.", "key_facts": ["32 threads"]}
    (folder / "mine.jsonl").write_text(json.dumps(mine), encoding="utf-8")
    (folder / "bad.jsonl").write_text(json.dumps(mine) + "\n{", encoding="utf-8")
    exam = start(live, question_file="mine.jsonl", count=1)
    result = live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {"m1": "32 threads"}}).json()
    assert result["score"] == 1.0
    bad = live.client.post("/v1/exams", json={"question_file": "bad.jsonl", "count": 1})
    assert bad.status_code == 422
    assert "bad.jsonl:2" in bad.json()["error"]["message"]


def test_a_question_file_is_handed_in_listed_and_examined_from(live: Live) -> None:
    lines = [
        {"id": "m1", "question": "<b>How</b> many?", "answer": "32 threads.", "key_facts": ["32 threads"]},
        {"id": "m2", "chapter": 2, "question": "Which?", "answer": "b", "answer_index": 1, "choices": list("abcd")}
        | {"type": "choice"},
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()

    def hand_in(name: str, data: bytes) -> Any:
        return live.client.post("/v1/questions/files", files={"file": (name, data)})

    reply = hand_in("../../mine.jsonl", content)
    assert (reply.status_code, reply.json()) == (201, {"name": "mine.jsonl", "questions": 2})
    assert hand_in("mine.jsonl", content).status_code == 201
    other = hand_in("mine.jsonl", content[: content.index(b"\n")])
    assert (other.status_code, other.json()["error"]["type"]) == (409, "conflict")
    assert live.client.get("/v1/questions/files").json() == {"files": ["mine.jsonl"]}
    exam = start(live, question_file="mine.jsonl", count=2)
    assert {question["id"] for question in exam["questions"]} == {"m1", "m2"}
    assert sorted(path.name for path in (live.services.settings.home / "questions").iterdir()) == ["mine.jsonl"]


def test_a_table_of_questions_goes_in_and_comes_out_with_its_answers(live: Live) -> None:
    table = "question,option_a,option_b,option_c,option_d,right,answer\nWhich?,one,two,three,four,B,Two of them."
    files = {"file": ("mine.csv", table.encode())}
    reply = live.client.post("/v1/questions/files", files=files)
    assert (reply.status_code, reply.json()) == (201, {"name": "mine.csv", "questions": 1})
    exam = start(live, question_file="mine.csv", count=1)
    answers = {"answers": {exam["questions"][0]["id"]: "two"}}
    assert live.client.post(f"/v1/exams/{exam['id']}/answers", json=answers).json()["score"] == 1.0
    for form in ("csv", "jsonl"):
        out = live.client.get(f"/v1/questions/export.{form}", params={"question_file": "mine.csv"})
        again = live.client.post("/v1/questions/files", files={"file": (f"again.{form}", out.content)})
        assert (again.status_code, again.json()["questions"]) == (201, 1), again.text
    assert live.client.get("/v1/questions/export.csv", params={"document_id": "none"}).status_code == 404
    assert live.client.get("/v1/questions/export.txt").status_code == 422


@pytest.mark.parametrize(
    ("name", "content", "status", "said"),
    [
        ("mine.jsonl", b'{"question": "a", "answer": "b"}\n{', 422, "mine.jsonl:2"),
        ("mine.jsonl", b'["question"]', 422, "mine.jsonl:1"),
        ("mine.jsonl", b'{"question": 7, "answer": "b"}', 422, "question must be text"),
        ("mine.jsonl", b"", 422, "no question"),
        ("mine.jsonl", b"\xff\xfe{", 422, "UTF-8"),
        ("mine.jsonl", b"[" * 100_000, 422, "mine.jsonl:1"),
        ("mine.jsonl", b'{"question": "a\\ud800", "answer": "b"}', 422, "U+D800"),
        ("mine.jsonl", b'{"question": "a", "answer": "b", "id": "\\u0000"}', 422, "U+0000"),
        ("mine.jsonl", b'{"question": "a", "answer": "b", "key_facts": ["\\u0007"]}', 422, "U+0007"),
        ("mine.jsonl", b'{"question": "a", "answer": "b", "chapter": 1%s}' % (b"0" * 5000), 422, "mine.jsonl:1"),
        ("mine.jsonl", b'{"question": "a", "answer": "b", "chapter": 99999999999999999999}', 422, "chapter"),
        ("mine.txt", b'{"question": "a", "answer": "b"}', 400, "mine.txt"),
        ("<script>.jsonl", b'{"question": "a", "answer": "b"}', 400, "jsonl"),
    ],
)
def test_a_question_file_that_cannot_be_read_is_not_kept(shared, name, content, status, said):
    reply = shared.client.post("/v1/questions/files", files={"file": (name, content)})
    assert reply.status_code == status, reply.text
    assert said in reply.json()["error"]["message"] + reply.json()["error"]["hint"]
    assert shared.client.get("/v1/questions/files").json() == {"files": []}


def test_the_example_on_the_page_is_a_question_file(live: Live) -> None:
    from api.pages.study_page import FILE_EXAMPLE, TABLE_EXAMPLE

    for name, example in (("example.jsonl", FILE_EXAMPLE), ("example.csv", TABLE_EXAMPLE)):
        reply = live.client.post("/v1/questions/files", files={"file": (name, example.encode())})
        assert (reply.status_code, reply.json()["questions"]) == (201, 2)


def test_a_question_file_that_is_too_large_is_refused(shared: Live) -> None:
    reply = shared.client.post("/v1/questions/files", files={"file": ("big.jsonl", b"x" * 3 * 2**20)})
    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "too_large")


@pytest.mark.slow
def test_a_thousand_questions_are_listed_in_200_ms_of_processor_time(shared: Live) -> None:
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        shared.client.get("/v1/questions", params={"limit": 1000})
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 0.2


def test_reports_are_listed_and_an_unknown_one_is_not_found(live: Live) -> None:
    assert live.client.get("/v1/reports").json() == {"reports": []}
    for report_id in ("none", "..%2F..%2Fetc", "%00"):
        assert live.client.get(f"/v1/reports/{report_id}").status_code == 404


def test_drafts_count_when_the_time_runs_out_and_the_list_shows_the_marks(live: Live, monkeypatch: pytest.MonkeyPatch):
    exam = start(live, time_limit_s=600, types=["choice"], count=2)
    first = exam["questions"][0]["id"]
    bank = live.client.get("/v1/questions", params={"with_answers": True, "limit": 5000}).json()["questions"]
    right = next(question["answer_index"] for question in bank if question["id"] == first)
    draft = f"/v1/exams/{exam['id']}/draft"
    assert live.client.get(draft).json() == {"answers": {}}
    assert live.client.put(draft, json={"answers": {first: right}}).status_code == 204
    assert live.client.get(draft).json() == {"answers": {first: right}}
    assert live.client.get(draft, params={"learner": "another"}).status_code == 404
    assert live.client.put(draft, json={"answers": {first: 9}}).status_code == 400
    assert live.client.put("/v1/exams/nope/draft", json={"answers": {}}).status_code == 404
    assert live.client.get("/v1/exams").json()["exams"][0]["result"] is None
    monkeypatch.setattr(live.services.study, "_clock", lambda: datetime.now(UTC) + timedelta(hours=1))
    assert live.client.get("/v1/exams").json()["exams"][0]["result"] is not None
    closed = live.client.get(f"/v1/exams/{exam['id']}").json()
    assert (closed["result"]["score"], closed["handed_in_at"]) == (1.0, closed["deadline"])
    assert live.client.put(draft, json={"answers": {}}).status_code == 409
    assert live.client.get(draft).json() == {"answers": {}}


BOOK = (
    "A warp is a group of neighbouring threads that a scheduler issues together. "
    "Every line of the second-level cache on the chip holds 128 bytes in four sectors. "
    "`cudaMemcpyAsync` queues a transfer and gives control back to the host at once."
)


def test_questions_are_made_from_a_book_and_go_with_it(live: Live) -> None:
    live.shelf.put("own", BOOK, source="own.md")
    early = live.client.post("/v1/exams", json={"document_ids": ["own"]})
    assert (early.status_code, early.json()["error"]["type"]) == (409, "conflict")
    reply = live.client.post("/v1/documents/own/questions", json={})
    assert reply.status_code == 202
    job = live.ended(reply.json()["job_id"])
    assert (job["state"], job["kind"]) == ("done", "questions")
    hidden = live.client.get("/v1/questions", params={"document_id": "own"}).json()["questions"]
    shown = live.client.get("/v1/questions", params={"document_id": "own", "with_answers": True}).json()["questions"]
    assert [q["id"] for q in hidden] == [q["id"] for q in shown] != []
    assert all(q["answer"] is None and q["gold"] is None for q in hidden)
    assert all(q["gold"][0]["evidence"] in BOOK and q["chapter"] == 1 for q in shown)
    exam = start(live, document_ids=["own"], count=None)
    assert {q["id"] for q in exam["questions"]} == {q["id"] for q in shown}
    right = {q["id"]: q["answer"] if q["type"] == "short" else q["answer_index"] for q in shown}
    result = live.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": right}).json()
    assert result["score"] == result["max_score"]
    assert all(mark["passage"]["document_id"] == "own" for mark in result["marks"])
    assert live.client.delete("/v1/documents/own").status_code == 204
    assert live.client.get("/v1/questions", params={"document_id": "own"}).status_code == 404
    live.shelf.put("own", BOOK, source="own.md")
    assert live.client.get("/v1/questions", params={"document_id": "own"}).json()["questions"] == []


def test_a_guide_is_read_by_chapter_and_exported(live: Live) -> None:
    document = live.shelf.put("own", BOOK, source="own.md")
    guide = live.client.get("/v1/documents/own/guide").json()
    (chapter,) = guide["chapters"]
    assert [entry["term"] for entry in chapter["definitions"]] == ["warp"]
    assert all(entry["quote"] in BOOK and entry["node_id"] for entry in chapter["names"] + chapter["numbers"])
    assert live.client.get("/v1/documents/own/guide", params={"chapter": 9}).json()["chapters"] == []
    text = live.client.get("/v1/documents/own/guide.md", headers={"accept-language": "zh"}).text
    assert document.title in text and "定义" in text and f"{live.address}/book/own?node=" in text
    assert live.client.get("/v1/documents/none/guide").status_code == 404
    assert live.client.get("/v1/documents/none/guide.md").status_code == 404


def test_a_book_too_thin_for_questions_says_so_in_its_job(live: Live) -> None:
    live.shelf.put("thin", "See above.", source="thin.md")
    job = live.ended(live.client.post("/v1/documents/thin/questions").json()["job_id"])
    assert (job["state"], "no sentence" in job["message"]) == ("done", True)


@pytest.mark.parametrize(
    ("book", "body", "status"),
    [("none", {}, 404), (SAMPLE_ID, {}, 409), (SAMPLE_ID, {"count": 0}, 422), (SAMPLE_ID, {"types": ["why"]}, 422)],
)
def test_questions_that_cannot_be_made_are_refused_in_words(shared, book, body, status):
    reply = shared.client.post(f"/v1/documents/{book}/questions", json=body)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


def test_an_exam_names_a_book_or_a_file_not_both(shared: Live) -> None:
    reply = shared.client.post("/v1/exams", json={"document_ids": [SAMPLE_ID], "question_file": "x.jsonl"})
    assert reply.status_code == 400
    assert shared.client.post("/v1/exams", json={"document_ids": ["none"]}).status_code == 404
    assert shared.client.post("/v1/exams", json={"document_ids": [SAMPLE_ID]}).status_code == 201


def test_a_card_is_saved_reworded_undone_suspended_and_deleted(live: Live) -> None:
    body = {"question": "What is a warp?", "answer": "32 threads.", "quote": "A warp is …", "title": "My Book"}
    card = live.client.post("/v1/cards", json=body).json()
    assert (card["quotes"], card["answer"]) == (["A warp is …"], "32 threads.")
    path = f"/v1/cards/{card['id']}"
    assert live.client.post(f"{path}/undo").status_code == 409
    live.client.post(f"{path}/review", json={"rating": 4})
    assert live.client.get("/v1/cards/due").json()["cards"] == []
    assert live.client.post(f"{path}/undo").status_code == 200
    assert live.client.patch(path, json={"answer": "Thirty-two."}).json()["answer"] == "Thirty-two."
    assert [due["id"] for due in live.client.get("/v1/cards/due").json()["cards"]] == [card["id"]]
    assert live.client.patch(path, json={"suspended": True}).json()["state"] == "suspended"
    assert live.client.get("/v1/cards/due").json()["cards"] == []
    assert live.client.delete(path).status_code == 204
    assert live.client.delete(path).status_code == 404
    assert live.client.post("/v1/cards", json={"question": " ", "answer": "x"}).status_code == 400


def test_a_guide_that_is_being_read_is_not_read_twice(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.shelf.put("twice", BOOK, source="twice.md")
    begun: list[str] = []

    def slowly(*_: Any) -> tuple[GuideChapter, ...]:
        begun.append("begun")
        time.sleep(0.3)
        return ()

    monkeypatch.setattr("api.questions.study_guide", slowly)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(live.services.questions.guide, ["twice", "twice"])) == [(), ()]
    assert begun == ["begun"]
