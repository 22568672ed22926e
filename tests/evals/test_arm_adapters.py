"""Which adapter a tuned arm uses: the user's by name, the encoder's by how it was tuned."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals import arm_adapters
from evals.arm_adapters import configured_adapters, trained_encoder_adapters
from evals.arms import DEFAULT_ARMS, parse_arms
from evals.comparison import declared_pairs
from evals.questions import load_bank
from evals.run import RunOptions, plan_jobs
from indexes.errors import InvalidInput
from indexes.settings import IndexSettings
from rag.errors import ArmUnavailable
from rag.settings import GeneratorSettings
from rag.tuning.encoder import EncoderTuning


def settings_of(*names: str) -> GeneratorSettings:
    return GeneratorSettings(kind="remote", adapters={name: name for name in names})


def test_an_arm_with_an_adapter_of_its_own() -> None:
    (arm,) = parse_arms(["rag+tuned@raft"])
    assert (arm.name, arm.engine_arm, arm.evidence, arm.adapter) == ("rag+tuned@raft", "rag+tuned", "retrieved", "raft")


@pytest.mark.parametrize("name", ["rag@raft", "oracle@raft", "tuned@", "nonsense@raft", "@raft", ""])
def test_an_arm_that_cannot_have_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        parse_arms([name])


def test_adapters_that_no_arm_names_are_seeds_of_the_others() -> None:
    arms = parse_arms(["base", "tuned", "rag+tuned", "rag+tuned@raft"])
    assert configured_adapters(settings_of("s0", "raft", "s1"), arms) == {
        "tuned": ("s0", "s1"),
        "rag+tuned": ("s0", "s1"),
        "rag+tuned@raft": ("raft",),
    }


def test_an_adapter_that_is_not_there_is_named() -> None:
    with pytest.raises(ArmUnavailable, match="'raft'") as caught:
        configured_adapters(settings_of("qa"), parse_arms(["tuned@raft"]))
    assert "--adapter raft=FOLDER" in caught.value.hint


def test_a_tuned_arm_is_not_left_without_an_adapter() -> None:
    with pytest.raises(ArmUnavailable, match="rag\\+tuned"):
        configured_adapters(settings_of("raft"), parse_arms(["rag+tuned", "rag+tuned@raft"]))


def test_jobs_have_a_repetition_for_each_adapter_of_their_arm() -> None:
    arms = parse_arms(["rag", "rag+tuned", "rag+tuned@raft"])
    options = RunOptions(adapters={"rag+tuned": ("s0", "s1"), "rag+tuned@raft": ("raft",)})
    question = next(question for question in load_bank(split="dev") if question.type == "choice")
    jobs = plan_jobs([question], arms, options, frozenset())
    assert [(job.arm.name, job.repetition) for job in jobs] == [
        ("rag", 0),
        ("rag+tuned", 0),
        ("rag+tuned", 1),
        ("rag+tuned@raft", 0),
    ]


def test_an_adapter_of_its_own_is_compared_to_its_arm_and_to_retrieving() -> None:
    own = set(declared_pairs(["rag", "rag+tuned", "rag+tuned@raft"])) - set(declared_pairs(["rag", "rag+tuned"]))
    assert own == {("rag+tuned", "rag+tuned@raft"), ("rag", "rag+tuned@raft")}


def test_the_encoder_is_tuned_once_for_each_recipe_and_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained: list[tuple[bool, int]] = []

    def train(examples, _base, folder, settings, _progress):  # type: ignore[no-untyped-def]
        with_passages = any(example.evidence for example in examples)
        trained.extend((with_passages, one.seed) for one in settings)
        return {f"encoder-seed-{one.seed}": folder / f"{with_passages}-{one.seed}" for one in settings}

    monkeypatch.setattr(arm_adapters, "train_adapters", train)
    monkeypatch.setattr(arm_adapters, "tuning_seconds", lambda paths: float(len(paths)))
    monkeypatch.setattr(arm_adapters, "bundled_model_folder", lambda: tmp_path)
    found = trained_encoder_adapters(
        parse_arms([*DEFAULT_ARMS, "rag+tuned@passages"]),
        IndexSettings(tmp_path),
        GeneratorSettings(),
        load_bank(split="tune"),
        [EncoderTuning(seed=3), EncoderTuning(seed=4)],
        tmp_path,
        lambda *_: None,
    )
    assert sorted(trained) == [(False, 3), (False, 4), (True, 3), (True, 4)]
    assert found.by_arm["tuned"] == found.by_arm["rag+tuned"] == ("encoder-seed-3", "encoder-seed-4")
    assert found.by_arm["rag+tuned@passages"] == ("encoder-seed-3-passages", "encoder-seed-4-passages")
    assert set(found.generator.adapters) == {name for names in found.by_arm.values() for name in names}
    assert found.seconds == 4.0


def test_the_encoder_knows_no_other_recipe(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'raft'"):
        trained_encoder_adapters(
            parse_arms(["tuned@raft"]), IndexSettings(tmp_path), GeneratorSettings(), [], [], tmp_path, lambda *_: None
        )
