"""How open answers are graded: levels without a model, and the figures that the marking is held to."""

from __future__ import annotations

import pytest
from fakes import hash_embed

from evals.answer_terms import same_number, terms
from evals.marking import Grade, Reading, _compared, grade_answers
from evals.question_checks import bundled_encoder
from evals.questions import BankQuestion, load_bank, parse_question
from tools.marks import FLOORS, grade_all, load_answers, measure


def ask(question: str, answer: str, *facts: str) -> BankQuestion:
    record = {"type": "short", "question": question, "answer": answer, "key_facts": list(facts)}
    return parse_question(record, where="test:1")


REGISTERS = ask("How many registers may a thread use?", "At most 32 registers.", "32 registers")
RATE = ask("How fast is the memory?", "It reads 3.35 TB/s.", "3.35 TB/s")
PAIR = ask(
    "What are CPU and GPU built for?",
    "The CPU is built for low latency, the GPU for high throughput.",
    "low latency",
    "high throughput",
)
SCAN = ask("Why do the sums differ?", "Float addition is not associative.", "not associative|non-associative")
SHARE = ask("Can two blocks share memory?", "No, shared memory belongs to one block.", "one block")
COST = ask("What is slow about the test?", "It needs an integer division, which takes long.", "integer division")


def grade(question: BankQuestion, answer: str) -> Grade:
    return grade_answers([(question, answer)], hash_embed)[0]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (REGISTERS, "32"),
        (REGISTERS, "thirty-two"),
        (REGISTERS, "2^5 per thread"),
        (REGISTERS, "32 regsters each"),
        (REGISTERS, "最多32个寄存器"),
        (REGISTERS, "32?"),
        (REGISTERS, "32 registers, I think"),
        (RATE, "3350 GB/s"),
        (RATE, "3.35e12 bytes per second"),
        (PAIR, "GPU: high throughput. CPU: low latency"),
        (SCAN, "it's non-associative"),
        (COST, "integer divisions"),
    ],
)
def test_a_right_answer_in_another_dress_has_full_marks(question: BankQuestion, answer: str) -> None:
    assert grade(question, answer) == Grade(1.0, "key_facts", False, (True,) * len(question.key_facts))


@pytest.mark.parametrize(
    ("question_id", "answer"),
    [("04-031", "52 %"), ("04-036", "about 52%"), ("12-043", "18 MiB"), ("13-043", "7.9 us"), ("14-041", "7.5 MiB")],
)
def test_what_a_question_of_the_bank_does_not_ask_is_not_missed(question_id: str, answer: str) -> None:
    (question,) = (question for question in load_bank() if question.id == question_id)
    assert grade(question, answer).share == 1.0


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (REGISTERS, "64"),
        (REGISTERS, "not 32 registers"),
        (RATE, "3.35 GB/s"),
        (PAIR, "The GPU is built for low latency, the CPU for high throughput."),
        (PAIR, "GPU低延迟，CPU高吞吐量"),
        (SCAN, "float addition is associative"),
        (SHARE, "Yes, in one block"),
        (COST, "it needs no integer division"),
    ],
)
def test_a_wrong_number_a_denial_and_exchanged_facts_do_not_state_a_fact(question: BankQuestion, answer: str) -> None:
    assert grade(question, answer).by != "key_facts"


INTERACT = ask(
    "How do processes interact compared with threads?",
    "Processes interact by exchanging messages, whereas threads interact through shared memory.",
    "exchanging messages",
    "shared memory",
)
STEPS = ask(
    "In which order are memory and work handled?",
    "Allocate memory, copy the inputs, launch the kernel, free the memory.",
    "allocate, copy, launch, free",
)


@pytest.mark.parametrize(
    ("question", "answer", "full"),
    [
        (INTERACT, "processes by exchanging messages and threads by shared memory", True),
        (INTERACT, "threads: shared memory; processes: exchanging messages", True),
        (INTERACT, "threads exchange messages, processes go through shared memory", False),
        (STEPS, "allocate, copy, launch, free", True),
        (STEPS, "copy, allocate, launch, free", False),
    ],
)
def test_what_two_clauses_say_counts_only_where_it_is_said_of_the_right_thing(
    question: BankQuestion, answer: str, full: bool
) -> None:
    assert (grade(question, answer).share == 1.0 and grade(question, answer).by == "key_facts") is full


FRAMES = ask("How fast are both?", "The GPU is faster than the CPU in most frames.", "faster than the CPU")
NO_ATOMICS = ask("Does such a kernel need atomics?", "No, such a kernel does not need atomics.", "not need atomics")
LATER = ask("What does the call do?", "The copy starts but does not wait for the kernel.", "does not wait")
LANES = ask("Why is there no conflict?", "The lanes of a row lie in different banks.", "different banks")


@pytest.mark.parametrize(
    ("question", "answer", "contradicts"),
    [
        (FRAMES, "the CPU is faster than the GPU", True),
        (FRAMES, "in most frames the GPU is faster", False),
        (SCAN, "float addition is associative", True),
        (SCAN, "because it is not associative", False),
        (LANES, "the lanes lie in the same bank", True),
        (LANES, "no two lanes lie in the same bank", False),
        (LANES, "the lanes of a row do not lie in banks", True),
        (LANES, "No, the lanes of a row lie in different banks.", True),
        (LANES, "It is just not true that the lanes of a row lie in different banks.", True),
        (NO_ATOMICS, "such a kernel does not need atomics", False),
        (LANES, "The lanes of a row lie in different banks, not in the same one.", False),
        (LANES, "The lanes of a row lie in different banks, so no two of them wait.", False),
        (LANES, "No conflict arises, because the lanes of a row lie in different banks.", False),
        (LATER, "No, the copy starts but does not wait for the kernel.", False),
    ],
)
def test_what_contradicts_the_reference_has_no_points_however_alike_it_is(
    question: BankQuestion, answer: str, contradicts: bool
) -> None:
    assert Reading(question, answer).contradicted is contradicts
    if contradicts:
        alike = Reading(question, answer)
        assert _compared(alike, 0.99) == Grade(0.0, "similarity", True, alike.met)


def test_what_is_like_a_name_is_for_the_learner_to_judge() -> None:
    stands_for = ask(
        "What does SIMT stand for?", "Single Instruction Multiple Threads", "Single Instruction Multiple Threads"
    )
    for answer in ("Single Instruction Multiple Tasks", "Multiple Threads"):
        alike = Reading(stands_for, answer)
        assert _compared(alike, 0.99) == Grade(0.0, "similarity", True, alike.met)
    explained = Reading(FRAMES, "the GPU wins in most frames")
    assert _compared(explained, 0.99).share > 0


def test_a_word_denied_in_one_of_both_is_turned() -> None:
    assert Reading(COST, "an integer division does not take long").turned > 0
    assert Reading(COST, "an integer division takes long").turned == 0


def test_the_question_repeated_earns_nothing() -> None:
    assert grade(PAIR, "What are CPU and GPU built for") == Grade(0.0, "key_facts", False, (False, False))


def test_a_judge_grades_what_key_facts_do_not_settle() -> None:
    asked = []

    def judge(question: BankQuestion, answer: str) -> str | None:
        asked.append(answer)
        return {"partly": "partial", "wholly": "correct"}.get(answer)

    grades = grade_answers(
        [(PAIR, "wholly"), (PAIR, "partly"), (REGISTERS, "32"), (PAIR, "nonsense")], hash_embed, judge
    )
    assert [(given.share, given.by) for given in grades[:3]] == [(1.0, "judge"), (0.5, "judge"), (1.0, "key_facts")]
    assert grades[3].by == "similarity"
    assert asked == ["wholly", "partly", "nonsense"]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(3.64, 3.6, True), (2 / 3, 0.67, True), (20_896, 20_900, True), (1024, 1000, False), (32, 33, False)],
)
def test_numbers_are_equal_when_one_is_rounded_but_small_whole_ones_are_exact(
    first: float, second: float, same: bool
) -> None:
    assert same_number(first, second) is same


def test_units_powers_and_written_numbers_are_read_as_values() -> None:
    for text, value in {"1.41 x 10^9": 1.41e9, "约64亿": 6.4e9, "two thirds": 2 / 3}.items():
        (term,) = terms(text)
        assert term.values[0] == pytest.approx(value), text


@pytest.mark.slow
@pytest.mark.integration
def test_marks_stay_as_fair_as_they_were_on_answers_that_nothing_was_fitted_on() -> None:
    answers = load_answers("report")
    figures = measure(answers, grade_all(answers, bundled_encoder()))
    for name, (least, most) in FLOORS.items():
        assert least <= getattr(figures, name).value <= most, (name, figures)
