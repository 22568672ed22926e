"""Questions go before books, and one goes at a time."""

import threading
import time

import pytest

from indexes.turns import Turns


def test_a_question_waits_for_one_batch_of_a_book_at_most() -> None:
    turns = Turns()
    order: list[str] = []
    started = threading.Event()

    def book() -> None:
        for _ in range(20):
            with turns.taken(first=False):
                started.set()
                time.sleep(0.01)
                order.append("book")

    thread = threading.Thread(target=book)
    thread.start()
    started.wait()
    with turns.taken(first=True):
        order.append("question")
    thread.join()
    assert order.index("question") <= 2
    assert order.count("book") == 20


def test_one_goes_at_a_time() -> None:
    turns = Turns()
    inside: list[int] = []
    most: list[int] = []

    def work(first: bool) -> None:
        for _ in range(50):
            with turns.taken(first=first):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 300
    assert max(most) == 1


def test_an_error_gives_the_turn_back() -> None:
    turns = Turns()
    for _ in range(2):
        with pytest.raises(ValueError, match="odd"), turns.taken(first=False):
            raise ValueError("odd")
