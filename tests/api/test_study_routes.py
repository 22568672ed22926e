"""Questions, exams, cards and progress over HTTP: the contract's forms, and what clients get wrong."""

from __future__ import annotations

import io
import json
import time
import zipfile
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from api_fakes import SAMPLE_ID, Live

BOOK = (
    "A warp is a group of neighbouring threads that a scheduler issues together. "
    "Every line of the second-level cache on the chip holds 128 bytes in four sectors. "
    "`cudaMemcpyAsync` queues a transfer and gives control back to the host at once."
)
FILES = "/v1/questions/files"
GIVEN = "question,option_a,option_b,option_c,option_d,right,answer\nWhich?,one,two,three,four,B,Two of them."


def start(live: Live, **body: Any) -> dict[str, Any]:
    exam: dict[str, Any] = live.post("/v1/exams", **{"count": 5, "seed": 3, **body})
    return exam


def hand_in(live: Live, exam: dict[str, Any], answers: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = live.post(f"/v1/exams/{exam['id']}/answers", answers=answers or {}, **more)
    return result


def bank_of(live: Live, **params: Any) -> dict[str, Any]:
    listed = live.get("/v1/questions", **{"limit": 5000, "with_answers": True, **params})["questions"]
    return {question["id"]: question for question in listed}


def due(live: Live, **params: Any) -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = live.get("/v1/cards/due", **params)["cards"]
    return cards


def test_questions_are_filtered_and_their_answers_hidden_until_asked_for(shared: Live) -> None:
    plain = bank_of(shared, with_answers=False).values()
    assert len(plain) >= 500
    assert all(q["answer"] is None and q["answer_index"] is None and q["gold"] is None for q in plain)
    assert all(q["answer"] and q["gold"] for q in bank_of(shared).values() if q["answerable"])
    of_chapter = bank_of(shared, chapter=5, type="choice").values()
    assert {(q["chapter"], q["type"]) for q in of_chapter} == {(5, "choice")}
    assert len(bank_of(shared, document_id=SAMPLE_ID, limit=7)) == 7
    for params, status in (({"document_id": "none"}, 404), ({"limit": 5001}, 422), ({"question_file": "../x"}, 400)):
        assert shared.status("GET", "/v1/questions", **params) == status


def test_a_choice_question_on_the_books_comes_with_its_answer(live: Live) -> None:
    drawn = live.get("/v1/questions/choice")
    assert drawn == bank_of(live)[drawn["id"]] and drawn["choices"]
    assert drawn["answer_index"] is not None
    live.client.delete(f"/v1/documents/{SAMPLE_ID}")
    assert live.status("GET", "/v1/questions/choice") == 404


def test_an_exam_holds_no_answer_and_its_seed_gives_it_again_under_a_new_id(live: Live) -> None:
    exam, again = start(live, count=40), start(live, count=40)
    assert (exam["questions"], exam["id"] != again["id"]) == (again["questions"], True)
    assert len(exam["questions"]) == 40
    for question in exam["questions"]:
        assert not {"answer", "answer_index", "key_facts", "gold"} & question.keys()
        assert len(question["choices"] or ()) == (4 if question["type"] == "choice" else 0)


def test_every_mark_says_how_it_was_made_and_the_learner_has_the_last_word(live: Live) -> None:
    exam = start(live, types=["short"], count=2)
    first, second = (question["id"] for question in exam["questions"])
    path, own = f"/v1/exams/{exam['id']}", {"question_id": first, "share": 1}
    assert live.status("POST", f"{path}/marks", own) == 409
    marks = hand_in(live, exam, {first: exam["questions"][0]["question"]})["marks"]
    assert [(mark["score"], mark["by"], mark["needs_check"]) for mark in marks] == [(0.0, "key_facts", False)] * 2
    mark = live.post(f"{path}/marks", **own)
    assert (mark["by"], mark["score"]) == ("self", 1.0)
    result = live.get(path)["result"]
    assert (result["score"], result["marks"][0]) == (1.0, mark)
    assert [card["question_id"] for card in due(live)] == [second]
    for wrong in ({"share": 1}, {**own, "share": 1.5}, {**own, "share": "NaN"}, {**own, "question_id": "99-999"}):
        assert live.status("POST", f"{path}/marks", wrong) in (400, 422)
    assert live.status("POST", "/v1/exams/none/marks", own) == 404


def test_an_exam_is_marked_once_and_misses_are_due_at_once(live: Live) -> None:
    exam, bank = start(live, types=["choice"], count=4), bank_of(live)
    ids = [question["id"] for question in exam["questions"]]
    result = hand_in(live, exam, {ids[0]: bank[ids[0]]["answer_index"], ids[1]: (bank[ids[1]]["answer_index"] + 1) % 4})
    assert (result["score"], result["max_score"]) == (1.0, 4.0)
    for mark in result["marks"]:
        asked = bank[mark["question_id"]]
        assert (mark["reference_answer"], mark["by"]) == (asked["answer"], "choice")
        assert asked["gold"][0]["evidence"] in mark["passage"]["text"]
    assert live.get(f"/v1/exams/{exam['id']}")["result"] == result
    assert {card["question_id"] for card in due(live)} == set(ids[1:])
    late = start(live, time_limit_s=0.001)
    for closed in (exam, late):
        path = f"/v1/exams/{closed['id']}/answers"
        assert live.refusal("POST", path, {"answers": {}}) == (409, "exam_closed")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *(({name: value}, 422) for name, value in [("count", 0), ("count", 501), ("types", ["essay"]), ("surprise", 1),
          ("time_limit_s", 0), ("chapters", ["one"]), ("weights", {"1": -1.0}), ("learner", "")]),
        *(({"weights": {key: 1.0}}, 400) for key in ("one", "²", "1" * 5000)),
        ({"chapters": [99]}, 400), ({"learner": "\x00"}, 400), ({"document_ids": ["none"]}, 404),
        ({"document_ids": [SAMPLE_ID], "question_file": "x.jsonl"}, 400), ({"document_ids": [SAMPLE_ID]}, 201),
    ],
)  # fmt: skip
def test_an_exam_that_makes_no_sense_is_a_clear_error(shared: Live, body: dict[str, Any], status: int) -> None:
    assert shared.status("POST", "/v1/exams", body) == status


def test_answers_of_a_wrong_form_leave_the_exam_open(live: Live) -> None:
    exam = start(live, types=["choice"], count=2)
    question_id = exam["questions"][0]["id"]
    for answers in ({"99-999": 1}, {question_id: 9}, {question_id: [1]}, {question_id: "no such option"}):
        assert live.status("POST", f"/v1/exams/{exam['id']}/answers", {"answers": answers}) in (400, 422)
    assert live.get(f"/v1/exams/{exam['id']}")["handed_in_at"] is None
    hand_in(live, exam, {question_id: 1})


def test_exams_and_cards_belong_to_their_learner_whom_an_id_finds(live: Live) -> None:
    exam = start(live, learner="ada", count=2, chapters=[5])
    assert live.status("GET", f"/v1/exams/{exam['id']}", learner="bob") == 404
    hand_in(live, exam)
    assert live.get(f"/v1/exams/{exam['id']}")["learner"] == "ada"
    card, other = due(live, learner="ada")
    path = f"/v1/cards/{card['id']}/review"
    for body, status in (
        ({"rating": 3, "learner": "bob"}, 404), ({"rating": 0}, 422), ({"rating": 5}, 422),
        *(({"rating": 3, "reviewed_at": moment}, status) for moment, status in [
            ("0001-01-01T00:00:00+23:59", 400), ("9999-12-31T23:59:59-23:59", 400), ("9999-12-31T23:59:59", 400),
            ("1970-01-01T00:00:00Z", 409), ("2001-01-01", 409), ("yesterday", 422), (1e18, 422),
        ]),
    ):  # fmt: skip
        assert live.status("POST", path, body) == status, body
    assert due(live, learner="ada") == [card, other]
    assert live.post(path, rating=3)["due"] > card["due"]
    assert [[one["id"] for one in due(live, **of)] for of in ({"learner": "ada"}, {})] == [[other["id"]], []]
    fifth = next(each for each in live.get("/v1/progress", learner="ada")["chapters"] if each["chapter"] == 5)
    assert (fifth["seen"], fifth["right"], fifth["due"], len(fifth["forecast"])) == (2, 1, 1, 7)
    assert fifth["title"]
    deck = live.client.get("/v1/cards/export.apkg", params={"learner": "ada"})
    assert "collection.anki2" in zipfile.ZipFile(io.BytesIO(deck.content)).namelist()
    table = live.client.get("/v1/cards/export.csv", params={"learner": "ada"}).text
    assert card["question"] in table and table.startswith("id,chapter,question")


def test_a_draft_counts_when_the_time_runs_out(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    exam = start(live, time_limit_s=600, types=["choice"], count=2)
    first = exam["questions"][0]["id"]
    draft, answers = f"/v1/exams/{exam['id']}/draft", {"answers": {first: bank_of(live)[first]["answer_index"]}}
    assert live.get(draft) == {"answers": {}}
    assert live.status("PUT", draft, answers) == 204
    assert live.get(draft) == answers
    assert live.status("GET", draft, learner="another") == 404
    assert live.status("PUT", draft, {"answers": {first: 9}}) == 400
    assert live.status("PUT", "/v1/exams/nope/draft", answers) == 404
    assert live.get("/v1/exams")["exams"][0]["result"] is None
    monkeypatch.setattr(live.services.study, "_clock", lambda: datetime.now(UTC) + timedelta(hours=1))
    (closed,) = live.get("/v1/exams")["exams"]
    assert (closed["result"]["score"], closed["handed_in_at"]) == (1.0, closed["deadline"])
    assert live.status("PUT", draft, {"answers": {}}) == 409


def test_a_question_file_is_handed_in_listed_and_examined_from(live: Live) -> None:
    lines = [
        {"id": "m1", "question": "<b>How</b> many?", "answer": "32 threads.", "key_facts": ["32 threads"]},
        {"id": "m2", "type": "choice", "question": "Which?", "answer": "b", "answer_index": 1, "choices": list("abcd")},
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    reply = live.upload(content, "../../mine.jsonl", FILES)
    assert (reply.status_code, reply.json()) == (201, {"name": "mine.jsonl", "questions": 2})
    assert live.upload(content, "mine.jsonl", FILES).status_code == 201
    other = live.upload(content.splitlines()[0], "mine.jsonl", FILES)
    assert (other.status_code, other.json()["error"]["type"]) == (409, "conflict")
    exam = start(live, question_file="mine.jsonl", count=2)
    assert hand_in(live, exam, {"m1": "32 threads", "m2": "b"})["score"] == 2.0
    folder = live.services.settings.home / "questions"
    assert [path.name for path in folder.iterdir()] == live.get(FILES)["files"] == ["mine.jsonl"]
    (folder / "bad.jsonl").write_bytes(content + b"\n{")
    assert live.status("POST", "/v1/exams", {"question_file": "bad.jsonl", "count": 1}) == 422


def test_a_table_of_questions_goes_in_and_comes_out_with_its_answers(live: Live) -> None:
    assert live.upload(GIVEN.encode(), "m.csv", FILES).json() == {"name": "m.csv", "questions": 1}
    exam = start(live, question_file="m.csv", count=1)
    assert hand_in(live, exam, {exam["questions"][0]["id"]: "two"})["score"] == 1.0
    for form in ("csv", "jsonl"):
        out = live.client.get(f"/v1/questions/export.{form}", params={"question_file": "m.csv"})
        assert live.upload(out.content, f"again.{form}", FILES).json()["questions"] == 1
    assert live.status("GET", "/v1/questions/export.csv", document_id="none") == 404
    assert live.status("GET", "/v1/questions/export.txt") == 422


@pytest.mark.parametrize(
    ("name", "content", "status", "said"),
    [
        ("mine.jsonl", b'{"question": "a", "answer": "b"}\n{', 422, "mine.jsonl:2"),
        ("mine.jsonl", b'{"question": "a\\ud800", "answer": "b"}', 422, "U+D800"),
        ("mine.jsonl", b"x" * 3 * 2**20, 413, ""),
        ("mine.txt", b'{"question": "a", "answer": "b"}', 400, "mine.txt"),
        ("<script>.jsonl", b'{"question": "a", "answer": "b"}', 400, "jsonl"),
    ],
)  # fmt: skip
def test_a_question_file_that_cannot_be_read_is_not_kept(shared, name, content, status, said):
    reply = shared.upload(content, name, FILES)
    assert reply.status_code == status, reply.text
    assert said in reply.json()["error"]["message"] + reply.json()["error"]["hint"]
    assert shared.get(FILES) == {"files": []}


@pytest.mark.slow
def test_a_thousand_questions_are_listed_in_200_ms_of_processor_time(shared: Live) -> None:
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        shared.get("/v1/questions", limit=1000)
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 0.2


def test_reports_are_listed_and_an_unknown_one_is_not_found(shared: Live) -> None:
    assert shared.get("/v1/reports") == {"reports": [], "next_cursor": None}
    for report_id in ("none", "..%2F..%2Fetc", "%00"):
        assert shared.status("GET", f"/v1/reports/{report_id}") == 404


def test_questions_are_made_from_a_book_and_go_with_it(live: Live) -> None:
    live.shelf.put("own", BOOK, source="own.md")
    live.shelf.put("thin", "See above.", source="thin.md")
    assert live.refusal("POST", "/v1/exams", {"document_ids": ["own"]}) == (409, "conflict")
    for book, made in (("own", True), ("thin", False)):
        job = live.ended(live.post(f"/v1/documents/{book}/questions")["job_id"])
        assert (job["state"], job["kind"]) == ("done", "questions")
        assert bool(bank_of(live, document_id=book)) is made
    shown = bank_of(live, document_id="own")
    assert list(bank_of(live, document_id="own", with_answers=False)) == list(shown)
    assert all(q["gold"][0]["evidence"] in BOOK and q["chapter"] == 1 for q in shown.values())
    exam = start(live, document_ids=["own"], count=None)
    assert {q["id"] for q in exam["questions"]} == set(shown)
    right = {q["id"]: q["answer"] if q["type"] == "short" else q["answer_index"] for q in shown.values()}
    result = hand_in(live, exam, right)
    assert result["score"] == result["max_score"]
    assert all(mark["passage"]["document_id"] == "own" for mark in result["marks"])
    assert live.status("DELETE", "/v1/documents/own") == 204
    assert live.status("GET", "/v1/questions", document_id="own") == 404
    live.shelf.put("own", BOOK, source="own.md")
    assert bank_of(live, document_id="own") == {}


def test_a_teacher_edits_drops_adds_and_sets_questions_and_what_was_accepted_outlives_the_books_content(
    live: Live,
) -> None:
    live.shelf.put("own", BOOK, source="own.md")
    live.ended(live.post("/v1/documents/own/questions")["job_id"])
    shown = bank_of(live, document_id="own")
    assert all(question["passage"] == BOOK and question["accepted"] is False for question in shown.values())
    first, second, *_ = shown
    edited = live.client.patch(f"/v1/questions/{first}", json={"question": "What is it?", "answer": "A warp."}).json()
    assert (edited["question"], edited["answer"], edited["key_facts"], edited["accepted"]) == (
        "What is it?", "A warp.", ["A warp."], True,
    )  # fmt: skip
    assert [live.status("DELETE", f"/v1/questions/{second}") for _ in range(2)] == [204, 404]
    table = "question,answer\nWho has read it?,=nobody\nWho will?,All."
    assert live.upload(table.encode(), "more.csv", "/v1/documents/own/questions/file").json()["questions"] == 2
    live.ended(live.post("/v1/documents/own/questions")["job_id"])
    again = bank_of(live, document_id="own")
    assert again[first]["question"] == "What is it?" and second not in again
    live.shelf.put("own", "Another text has taken the place of the first one.", source="own.md")
    kept = bank_of(live, document_id="own")
    assert {question["question"] for question in kept.values()} == {"What is it?", "Who has read it?", "Who will?"}
    exam = start(live, document_ids=["own"], question_ids=[*kept][:0:-1], count=None)
    assert [question["id"] for question in exam["questions"]] == [*kept][:0:-1]
    for form in ("csv", "jsonl"):
        out = live.client.get(f"/v1/questions/export.{form}", params={"document_id": "own"})
        assert ("'=nobody" in out.text) is (form == "csv")
        live.upload(out.content, f"back.{form}", "/v1/documents/own/questions/file")
        assert bank_of(live, document_id="own").keys() == kept.keys()


def test_a_choice_keeps_four_options_with_its_answer_among_them(live: Live) -> None:
    live.shelf.put("own", BOOK, source="own.md")
    live.upload(GIVEN.encode(), "own.csv", "/v1/documents/own/questions/file")
    (question_id,) = bank_of(live, document_id="own")
    path = f"/v1/questions/{question_id}"
    changed = live.client.patch(path, json={"answer": "five"}).json()
    assert (changed["choices"], changed["answer_index"]) == (["one", "five", "three", "four"], 1)
    assert live.client.patch(path, json={"answer": "four"}).json()["answer_index"] == 3
    assert live.client.patch(path, json={"answer_index": 0}).json()["answer"] == "one"
    for body in ({"choices": ["a", "a", "b", "c"]}, {"choices": ["a"]}, {"answer_index": 4}, {"question": " "}):
        assert live.status("PATCH", path, body) == 422, body
    cards = [live.post(f"{path}/card") for _ in range(2)]
    assert cards[0]["id"] == cards[1]["id"] and cards[0]["choices"] == ["one", "five", "three", "four"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PATCH", "/v1/questions/none", {"answer": "x"}, 404),
        ("DELETE", "/v1/questions/none", None, 404),
        ("POST", "/v1/questions/none/card", None, 404),
        ("PATCH", "/v1/questions/{bank}", {"answer": "x"}, 409),
        ("DELETE", "/v1/questions/{bank}", None, 409),
        ("POST", "/v1/exams", {"question_ids": ["none"]}, 400),
        ("POST", "/v1/exams", {"question_ids": ["{bank}", "{bank}"]}, 400),
    ],
)
def test_a_question_that_is_not_there_or_not_a_books_is_refused(shared, method, path, body, status):
    bank = next(iter(bank_of(shared, limit=1)))
    given = json.loads(json.dumps(body).replace("{bank}", bank))
    assert shared.status(method, path.format(bank=bank), given) == status


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("线程束是一组线程。它们一起执行。", "Chinese"),
        ("```\nint x;\n```", "no sentences"),
        ("See above.", "(1)"),
        (BOOK, "no more of"),
    ],
)
def test_a_book_that_gives_few_questions_says_why(live: Live, text: str, said: str) -> None:
    live.shelf.put("own", text, source="own.md")
    assert said in live.ended(live.post("/v1/documents/own/questions")["job_id"])["message"]


@pytest.mark.parametrize(
    ("book", "body", "status"),
    [("none", {}, 404), (SAMPLE_ID, {}, 409), (SAMPLE_ID, {"count": 0}, 422), (SAMPLE_ID, {"types": ["why"]}, 422)],
)
def test_questions_that_cannot_be_made_are_refused(shared, book, body, status):
    assert shared.status("POST", f"/v1/documents/{book}/questions", body) == status


def test_a_guide_is_read_by_chapter_and_exported(live: Live) -> None:
    document = live.shelf.put("own", BOOK, source="own.md")
    (chapter,) = live.get("/v1/documents/own/guide")["chapters"]
    assert [entry["term"] for entry in chapter["definitions"]] == ["warp"]
    assert all(entry["quote"] in BOOK and entry["node_id"] for entry in chapter["names"] + chapter["numbers"])
    assert live.get("/v1/documents/own/guide", chapter=9)["chapters"] == []
    text = live.client.get("/v1/documents/own/guide.md", params={"language": "zh"}).text
    assert document.title in text and "定义" in text and f"{live.address}/book/own?node=" in text
    assert [live.status("GET", f"/v1/documents/none/guide{end}") for end in ("", ".md")] == [404, 404]


def test_a_card_is_saved_reworded_undone_suspended_and_deleted(live: Live) -> None:
    body = {"question": "What is a warp?", "answer": "32 threads.", "quote": "A warp is …", "title": "My Book"}
    card = live.post("/v1/cards", **body)
    assert (card["quotes"], card["answer"]) == (["A warp is …"], "32 threads.")
    path = f"/v1/cards/{card['id']}"
    assert live.status("POST", f"{path}/undo") == 409
    live.post(f"{path}/review", rating=4)
    assert due(live) == []
    live.post(f"{path}/undo")
    assert live.client.patch(path, json={"answer": "Thirty-two."}).json()["answer"] == "Thirty-two."
    assert [one["id"] for one in due(live)] == [card["id"]]
    assert live.client.patch(path, json={"suspended": True}).json()["state"] == "suspended"
    assert [live.status("DELETE", path) for _ in range(2)] == [204, 404]
    assert live.status("POST", "/v1/cards", {"question": " ", "answer": "x"}) == 400


def test_what_an_exam_can_ask_is_counted_by_chapter(live: Live) -> None:
    found = live.get("/v1/questions/chapters")
    every = [question for question in bank_of(live).values() if question["answerable"]]
    assert sum(chapter["questions"] for chapter in found["chapters"]) == len(every)
    assert found["chapters"][0]["title"] and "choice" in found["types"]
    assert live.get("/v1/questions/chapters", document_id=SAMPLE_ID) == found
    live.client.post(FILES, files={"file": ("mine.csv", GIVEN.encode())})
    mine = live.get("/v1/questions/chapters", question_file="mine.csv")
    assert mine == {"chapters": [{"chapter": 0, "title": "", "questions": 1}], "types": ["choice"]}
    for params, status in (({"document_id": "none"}, 404), ({"question_file": "none.csv"}, 404)):
        assert live.status("GET", "/v1/questions/chapters", **params) == status


def test_one_answer_is_kept_beside_the_others_and_proof_has_its_place(live: Live) -> None:
    exam = start(live, types=["choice"], count=2)
    path, (first, second) = f"/v1/exams/{exam['id']}/draft", (question["id"] for question in exam["questions"])
    for given in ({first: 1}, {second: 2}, {first: None}, {first: 0}):
        kept = live.client.patch(path, json={"answers": given}).json()["answers"]
    assert kept == live.get(path)["answers"] == {first: 0, second: 2}
    assert live.status("PATCH", path, {"answers": {first: 3, "99-999": 1}}) == 400
    assert live.get(path)["answers"] == kept, "of answers that cannot all be kept, none is"
    hand_in(live, exam, kept)
    assert live.status("PATCH", path, {"answers": {first: 1}}) == 409
    bank = bank_of(live)
    for mark in live.get(f"/v1/exams/{exam['id']}")["result"]["marks"]:
        if mark["evidence"] is not None:
            start_at, end = mark["evidence"]
            quote = "".join(mark["passage"]["text"][start_at:end].split())
            assert quote in {"".join(gold["evidence"].split()) for gold in bank[mark["question_id"]]["gold"]}
    assert any(mark["evidence"] for mark in live.get(f"/v1/exams/{exam['id']}")["result"]["marks"])


def test_a_rating_that_is_sent_twice_counts_once(live: Live) -> None:
    card = live.post("/v1/cards", question="What is a warp?", answer="32 threads")
    review = f"/v1/cards/{card['id']}/review"
    assert [live.status("POST", review, {"rating": 3}) for _ in range(2)] == [200, 409]
    assert live.status("POST", f"/v1/cards/{card['id']}/undo") == 200
    assert live.status("POST", review, {"rating": 4}) == 200, "one that was taken back is rated again"


def test_a_card_says_when_each_rating_would_make_it_due_and_the_list_counts_all(live: Live) -> None:
    assert live.get("/v1/cards/due") == {"cards": [], "due": 0, "kept": 0, "next_due": None}
    hand_in(live, start(live, types=["choice"], count=3))
    listed = live.get("/v1/cards/due", limit=1)
    assert (len(listed["cards"]), listed["due"], listed["kept"]) == (1, 3, 3)
    detail = live.get(f"/v1/cards/{listed['cards'][0]['id']}")
    assert detail["card"] == listed["cards"][0] and detail["title"]
    times = [datetime.fromisoformat(detail["next_due"][str(rating)]) for rating in (1, 2, 3, 4)]
    assert times == sorted(times) and times[0] > datetime.now(UTC)
    assert live.status("GET", "/v1/cards/none") == 404
