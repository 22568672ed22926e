"""Laws of keeping conversations, feedback and votes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakes import make_answer, make_passage
from sqlalchemy import insert

from indexes.errors import InvalidInput, NotFound
from rag import conversations
from rag.conversations import (
    CONVERSATIONS,
    TITLE_CHARACTERS,
    ConversationStore,
    Wins,
    Won,
    answer_from_json,
    answer_to_json,
    clean_title,
)
from rag.types import Answer, PassagePart, Timings, Usage

PAGES = {"page_start": 5, "page_end": 5, "page_label": "iii", "page_marks": ((0, 5),), "page_labels": ("iii",)}
PARTS = (PassagePart(0, 24, "book-0", ("Chapter", "Section")),)
PASSAGE = make_passage("A warp holds 32 threads.", parts=PARTS, **PAGES)


def kept_answer(conversation_id: str, answer_id: str = "a1") -> Answer:
    measured = {"timings": Timings(0.1, 0.2, 0.3), "usage": Usage(1, 2, 3), "tokens_per_s": 9.5}
    text = "A warp holds 32 threads. [1] 线程束"
    return make_answer(text, PASSAGE, id=answer_id, conversation_id=conversation_id, peak_memory_bytes=77, **measured)


@pytest.fixture
def store(store_place: Path | str) -> ConversationStore:
    return ConversationStore(store_place)


def test_an_answer_reloads_as_it_was(store: ConversationStore, store_place: Path | str) -> None:
    answer = kept_answer(store.create().id)
    assert answer.citations[0].page_label == "iii"
    store.append(answer)
    reopened = ConversationStore(store_place)
    assert reopened.answers(answer.conversation_id) == (answer,)
    assert reopened.answer("a1") == answer == answer_from_json(answer_to_json(answer))


def test_an_answer_kept_before_evidence_was_known_loads_and_what_is_no_answer_is_refused() -> None:
    answer = kept_answer("c")
    kept = json.loads(answer_to_json(replace(answer, evidence="weak", note="Check it.")))
    assert (kept.pop("evidence"), kept.pop("note")) == ("weak", "Check it.")
    assert answer_from_json(json.dumps(kept)) == answer
    with pytest.raises(ValueError, match="not a stored answer"):
        answer_from_json("{}")


def test_answers_keep_their_order_and_the_conversation_used_last_comes_first(store: ConversationStore) -> None:
    first, second = store.create(), store.create("two")
    for number in range(5):
        store.append(kept_answer(first.id, f"a{number}"))
    assert [answer.id for answer in store.answers(first.id)] == [f"a{number}" for number in range(5)]
    assert (store.get(first.id).title, store.get(first.id).num_answers) == ("What is a warp?", 5)
    assert [conversation.id for conversation in store.list()] == [first.id, second.id]
    store.append(kept_answer(first.id, "a5"), replaces="a0")
    assert [answer.id for answer in store.answers(first.id)] == [f"a{number}" for number in range(1, 6)]


def test_a_deleted_conversation_takes_its_answers_and_feedback_along(store: ConversationStore) -> None:
    conversation = store.create()
    store.append(kept_answer(conversation.id))
    store.give_feedback("a1", "up")
    store.delete(conversation.id)
    for missing in (
        lambda: store.get(conversation.id),
        lambda: store.answer("a1"),
        lambda: store.delete("x"),
        lambda: store.append(kept_answer(conversation.id, "late")),
    ):
        with pytest.raises(NotFound):
            missing()
    assert store.feedback() == ()


def test_a_title_is_one_line_cut_at_a_word(store: ConversationStore) -> None:
    conversation = store.create()
    assert store.rename(conversation.id, "  Warps\n and\x00 more ").title == "Warps and more"
    for conversation_id, title, error in ((conversation.id, " \n", InvalidInput), ("x", "title", NotFound)):
        with pytest.raises(error):
            store.rename(conversation_id, title)
    assert len(clean_title("word " * 60)) <= TITLE_CHARACTERS and clean_title("word " * 60).endswith("word…")
    assert clean_title("字" * 300) == "字" * (TITLE_CHARACTERS - 1) + "…"


def test_a_second_rating_replaces_the_first(store: ConversationStore) -> None:
    store.append(kept_answer(store.create().id))
    store.give_feedback("a1", "up", "good")
    store.give_feedback("a1", "down", "no")
    ((feedback, answer),) = store.feedback()
    assert (feedback.rating, feedback.comment, answer.id) == ("down", "no", "a1")
    for answer_id, rating, error in (("a1", "sideways", InvalidInput), ("nobody", "up", NotFound)):
        with pytest.raises(error):
            store.give_feedback(answer_id, rating)


def test_a_store_narrowed_to_an_owner_knows_no_others(store: ConversationStore) -> None:
    ada, bob = store.of("ada"), store.of("bob")
    conversation = ada.create("private")
    ada.append(kept_answer(conversation.id))
    ada.give_feedback("a1", "up")
    store.create("nobody's")
    assert [item.title for item in ada.list()] == ["private"]
    assert bob.list() == () and bob.feedback() == () and bob.ratings(conversation.id) == {}
    for peek in (
        lambda: bob.get(conversation.id),
        lambda: bob.answers(conversation.id),
        lambda: bob.rename(conversation.id, "mine"),
        lambda: bob.delete(conversation.id),
        lambda: bob.answer("a1"),
        lambda: bob.give_feedback("a1", "down"),
    ):
        with pytest.raises(NotFound):
            peek()
    assert len(store.list()) == 2 and len(store.feedback()) == 1
    assert store.of(None) is store


def test_all_conversations_of_an_owner_are_removed_however_many_go_together(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "DELETED_TOGETHER", 2)
    for owner in ("a", "b"):
        for _ in range(5):
            store.of(owner).create()
    assert store.of("a").delete_all() == 5
    assert (len(store.of("a").list()), len(store.of("b").list())) == (0, 5)
    assert store.delete_before(datetime.now(UTC)) == 5


# --- votes


def test_a_vote_is_kept_with_its_answers_and_counted(store: ConversationStore, store_place: Path | str) -> None:
    rag, base = (replace(kept_answer("", arm), arm=arm) for arm in ("rag", "base"))  # type: ignore[arg-type]
    store.vote([rag, base], "rag", blind=True)
    store.vote([rag, base], "", blind=False)
    for answers, winner in (([rag], "rag"), ([rag, base], "tuned")):
        with pytest.raises(InvalidInput):
            store.vote(answers, winner, blind=True)
    kept = ConversationStore(store_place).votes()
    assert [(vote.winner, vote.blind) for vote in kept] == [("rag", True), ("", False)]
    assert kept[0].answers == (rag, base)
    assert store.wins() == Wins(2, 1, (Won("rag", 1, 2), Won("base", 0, 2)))


@pytest.mark.slow
def test_a_page_of_a_million_conversations_takes_no_longer_than_one_of_few(store: ConversationStore) -> None:
    store.create("first")
    with store._database.writing() as connection:
        for start in range(0, 1_000_000, 50_000):
            rows = [
                {"id": f"{n:032}", "title": "t", "created_at": f"2025-01-01T{n:09}", "updated_at": f"2025-01-01T{n:09}",
                 "owner": f"o{n % 3}", "begun_in": "call"}
                for n in range(start, start + 50_000)
            ]  # fmt: skip
            connection.execute(insert(CONVERSATIONS.tables.tables["conversations"]), rows)
    for seen in (store, store.of("o1")):
        began = time.process_time()
        page = seen.list(limit=100)
        after = seen.list(limit=100, after=(page[-1].updated_at, page[-1].id))
        seen.delete(page[0].id)
        assert time.process_time() - began < 0.05
        assert len(page) == len(after) == 100 and page[-1].updated_at > after[0].updated_at
        began = time.process_time()
        assert len(seen.list("T", limit=100)) == 100
        assert seen.list("not there", limit=100) == seen.of("o2").list("o", limit=100, of_the_page=True) == ()
        assert time.process_time() - began < 1
