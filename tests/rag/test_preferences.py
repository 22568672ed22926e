"""Tuning on preferences: where pairs come from, and that the preferred answer becomes the likelier one."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import make_answer, make_passage
from tiny_models import build_model
from waiting import PATIENCE_S

from indexes.errors import Cancelled, Conflict
from rag.conversations import ConversationStore
from rag.errors import MalformedTrainingData
from rag.generators.protocol import GenerationRequest, TextPiece
from rag.models.adapters import load_adapters
from rag.models.loading import load_model
from rag.tuning.data import TrainingRow
from rag.tuning.examples import collate, encode_rows, log_probabilities
from rag.tuning.preferences import (
    BETA,
    SAMPLES,
    Preference,
    kept_preferences,
    preference_loss,
    sampled_preferences,
    tune_preferences,
)
from rag.tuning.settings import TuneProgress, TuneSettings
from rag.types import Answer

QUESTION, BETTER, WORSE = "What is a warp?", "A warp is 32 threads.", "Use barriers."


def answer(text: str, arm: Any = "base", answer_id: str = "a") -> Answer:
    passages = (make_passage("Warps.", title="Book"),) if "rag" in arm else ()
    return make_answer(text, *passages, id=answer_id, arm=arm)


def test_votes_and_thumbs_are_pairs_behind_the_preferred_answers_prompt(tmp_path: Path) -> None:
    with closing(ConversationStore(tmp_path / "conversations.sqlite3")) as store:
        store.vote([answer(WORSE), answer(BETTER, "rag")], "rag", blind=True)
        store.vote([answer(WORSE), answer(BETTER, "rag")], "", blind=True)  # neither was better
        for place, (text, rating) in enumerate([("Up.", "up"), ("Down.", "down"), ("Unrated.", "")]):
            kept = replace(answer(text, answer_id=str(place)), conversation_id=store.create().id)
            store.append(kept)
            if rating:
                store.give_feedback(kept.id, rating)
        pairs = [(each.row.answer, each.rejected, len(each.row.passages)) for each in kept_preferences(store)]
    assert pairs == [(BETTER, WORSE, 1), ("Up.", "Down.", 0)]


class ByTheSeed:
    """Writes a text for every seed."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece]:
        assert request.temperature > 0
        yield TextPiece(self.texts[request.seed or 0])


def test_the_best_and_the_worst_sampled_answer_are_a_pair() -> None:
    rows = [(TrainingRow(QUESTION, "reference"), lambda text: float(len(text)))]
    writer: Any = ByTheSeed("two", "", "three", "four")
    assert list(sampled_preferences(writer, rows)) == [Preference(TrainingRow(QUESTION, "three"), "two")]
    alike: Any = ByTheSeed("one", "two", "six", "ten")
    assert list(sampled_preferences(alike, rows)) == []


def test_answers_to_four_questions_are_sampled_at_once_and_pairs_keep_their_order() -> None:
    together = threading.Barrier(4 * SAMPLES)

    class Together(ByTheSeed):
        def stream(self, request: GenerationRequest) -> Iterator[TextPiece]:
            together.wait(PATIENCE_S)
            return super().stream(request)

    rows = [(TrainingRow(f"{number}?", "reference"), lambda text: float(len(text))) for number in range(8)]
    writer: Any = Together("a", "bb", "cc", "ddd")
    pairs = list(sampled_preferences(writer, rows))
    assert [(each.row.question, each.row.answer, each.rejected) for each in pairs] == [
        (f"{number}?", "ddd", "a") for number in range(8)
    ]


@pytest.mark.integration
@pytest.mark.usefixtures("one_thread")
def test_the_preferred_answer_becomes_likelier_against_the_other_also_after_an_interruption(tmp_path: Path) -> None:
    import torch

    base = build_model(tmp_path / "base", num_hidden_layers=1)
    pairs = [Preference(TrainingRow(QUESTION, BETTER), WORSE)]
    settings = TuneSettings(
        quantization="none", dtype="float32", device="cpu", rank=8, learning_rate=3e-3, epochs=8, batch_size=1,
        accumulation=1, checkpoint_steps=2,
    )  # fmt: skip
    steps: list[TuneProgress] = []

    def run(out: str, pairs: Any = pairs, **options: Any) -> Any:
        report = tune_preferences(str(base), pairs, tmp_path / out, settings, source="kept", **options)
        return report, (tmp_path / out / "adapter_model.safetensors").read_bytes()

    with pytest.raises(Cancelled, match="stopped at step 3"):
        run("out", progress=steps.append, cancelled=lambda: bool(steps) and steps[-1].step == 3)
    report, weights = run("out", (each for each in [object()]), resume=True)  # the pairs are the kept ones
    assert weights == run("whole")[1]
    record = json.loads((tmp_path / "out" / "coalesce_adapter.json").read_text("utf-8"))
    assert (report.steps, record["settings"]["preferences"], record["num_rows"]) == (8, "kept", 1)
    assert record["metrics"]["train_loss"] < 0.693  # what an adapter that has learnt nothing has

    loaded = load_model(str(base), dtype="float32", device="cpu")
    rows = encode_rows(loaded.tokenizer, [pairs[0].row, pairs[0].rejected_row], 256).rows
    batch = collate(rows, 0)
    adapters = load_adapters(loaded, {"qa": str(tmp_path / "out")})
    with torch.inference_mode():
        before = log_probabilities(loaded.model, batch)
        adapters.activate("qa")
        after = log_probabilities(loaded.model, batch)
        logits = loaded.model(input_ids=torch.tensor([rows[0].input_ids])).logits[0].log_softmax(-1)
    learnt = [place for place, label in enumerate(rows[0].labels) if label >= 0]
    slowly = sum(float(logits[place - 1, rows[0].labels[place]]) for place in learnt)
    assert float(after[0]) == pytest.approx(slowly, abs=1e-3)
    assert (after - before)[0] - (after - before)[1] > 1


@pytest.mark.integration
def test_the_loss_of_preferences_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """log P of two pairs' answers: the adapter moves the first pair by 3 nats and the second by −1."""
    import torch

    found = iter([torch.tensor([-5.0, -5.0, -7.0, -4.0]), torch.tensor([-4.0, -7.0, -8.0, -4.0])])
    monkeypatch.setattr("rag.tuning.preferences.log_probabilities", lambda *_: next(found))
    model: Any = SimpleNamespace(disable_adapter=nullcontext)
    expected = sum(math.log(1 + math.exp(-BETA * margin)) for margin in (3.0, -1.0)) / 2
    assert float(preference_loss(model, {})) == pytest.approx(expected)


@pytest.mark.integration
def test_a_folder_that_is_taken_is_refused_before_pairs_are_sampled(tmp_path: Path) -> None:
    def sample() -> Iterator[Preference]:
        raise AssertionError("it takes minutes")
        yield

    for name in ("run.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("{}", "utf-8")
        with pytest.raises(Conflict, match="already holds a training run"):
            tune_preferences("m", sample(), tmp_path, TuneSettings(device="cpu"), source="sampled")
        (tmp_path / name).unlink()


def test_without_pairs_there_is_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(MalformedTrainingData, match="There are 0 preferences") as error:
        tune_preferences("m", [], tmp_path, TuneSettings(device="cpu"), source="kept")
    assert "Vote between answers" in error.value.hint
