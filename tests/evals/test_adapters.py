"""Which adapter a tuned arm uses: the user's by name, the encoder's by how it was tuned."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.arms import (
    DEFAULT_ARMS,
    TrainedAdapters,
    check_encoder_arms,
    configured_adapters,
    parse_arms,
    trained_encoder_adapters,
)
from evals.comparison import declared_pairs
from evals.encoder_tuning import EncoderTuning
from evals.questions import load_bank
from evals.run import RunSpec, plan_jobs
from indexes.errors import InvalidInput
from indexes.settings import IndexSettings
from rag.errors import ArmUnavailable
from rag.settings import GeneratorSettings


def settings_of(*names: str) -> GeneratorSettings:
    return GeneratorSettings(kind="remote", adapters={name: name for name in names})


def test_an_arm_with_an_adapter_of_its_own() -> None:
    (arm,) = parse_arms(["rag+tuned@raft"])
    assert (arm.name, arm.engine_arm, arm.evidence, arm.adapter) == ("rag+tuned@raft", "rag+tuned", "retrieved", "raft")


@pytest.mark.parametrize("name", ["rag@raft", "oracle@raft", "tuned@", "nonsense@raft", "@raft", ""])
def test_an_arm_that_cannot_have_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        parse_arms([name])


def test_adapters_that_no_arm_names_are_seeds_of_the_others_and_none_may_be_missing() -> None:
    arms = parse_arms(["base", "tuned", "rag+tuned", "rag+tuned@raft"])
    seeds = ("s0", "s1")
    found = configured_adapters(settings_of("s0", "raft", "s1"), arms)
    assert found == {"tuned": seeds, "rag+tuned": seeds, "rag+tuned@raft": ("raft",)}
    with pytest.raises(ArmUnavailable, match="'raft'") as caught:
        configured_adapters(settings_of("qa"), parse_arms(["tuned@raft"]))
    assert "--adapter raft=FOLDER" in caught.value.hint
    with pytest.raises(ArmUnavailable, match="rag\\+tuned"):
        configured_adapters(settings_of("raft"), parse_arms(["rag+tuned", "rag+tuned@raft"]))


def test_jobs_have_a_repetition_for_each_adapter_of_their_arm() -> None:
    arms = parse_arms(["rag", "rag+tuned", "rag+tuned@raft"])
    adapters = {"rag+tuned": ("s0", "s1"), "rag+tuned@raft": ("raft",)}
    question = next(question for question in load_bank(split="dev") if question.type == "choice")
    jobs = plan_jobs(RunSpec((question,), arms), adapters, frozenset())
    asked = [(job.arm.name, job.repetition) for job in jobs]
    assert asked == [("rag", 0), ("rag+tuned", 0), ("rag+tuned", 1), ("rag+tuned@raft", 0)]


def test_an_adapter_of_its_own_is_compared_to_its_arm_and_to_retrieving() -> None:
    own = set(declared_pairs(["rag", "rag+tuned", "rag+tuned@raft"])) - set(declared_pairs(["rag", "rag+tuned"]))
    assert own == {("rag+tuned", "rag+tuned@raft"), ("rag", "rag+tuned@raft")}


def test_the_encoder_is_tuned_once_for_each_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained: list[int] = []

    def tune(_examples, _base, folder, tuning, **_more):  # type: ignore[no-untyped-def]
        trained.append(tuning.seed)
        folder.mkdir()
        (folder / "encoder_adapter.json").write_text("{}")

    def adapters() -> TrainedAdapters:
        return trained_encoder_adapters(
            parse_arms(DEFAULT_ARMS),
            GeneratorSettings(),
            load_bank(split="tune"),
            [EncoderTuning(seed=3), EncoderTuning(seed=4)],
            tmp_path,
            lambda *_: None,
        )

    monkeypatch.setattr("evals.arms.tune_encoder", tune)
    monkeypatch.setattr("evals.arms.read_record", lambda _path: {"seconds": 1.0})
    found = adapters()
    assert trained == [3, 4]
    assert found.by_arm["tuned"] == found.by_arm["rag+tuned"] == ("encoder-seed-3", "encoder-seed-4")
    assert set(found.generator.adapters) == {name for names in found.by_arm.values() for name in names}
    assert found.seconds == 2.0
    assert adapters() == found
    assert len(trained) == 2, "adapters that are there are used again"


def test_the_encoder_has_no_named_adapter_and_another_embedder_cannot_be_tuned(tmp_path: Path) -> None:
    other = IndexSettings(tmp_path, embedder="other")
    for arm, settings, named in (("tuned@raft", IndexSettings(tmp_path), "'raft'"), ("tuned", other, "'other'")):
        with pytest.raises((InvalidInput, ArmUnavailable), match=named):
            check_encoder_arms(parse_arms([arm]), settings)
    check_encoder_arms(parse_arms(["rag"]), other)
