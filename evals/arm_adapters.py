"""Which adapters the tuned arms of a comparison use: an adapter for each tuning seed.

Without a language model the encoder's adapters are trained on the spot, closed book, or on passages too for arms that
end in `@passages`. With one they are the user's own: `rag+tuned@raft` uses the adapter `raft`, and arms without `@`
take the adapters that no arm names, each as one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evals.arms import PASSAGES_ADAPTER, ArmSpec
from evals.encoder_adapters import train_adapters, tuning_examples, tuning_seconds
from evals.questions import BankQuestion
from indexes.errors import InvalidInput
from indexes.model_files import bundled_model_folder
from indexes.settings import EMBEDDED_MODEL, IndexSettings
from rag.errors import ArmUnavailable
from rag.settings import GeneratorSettings
from rag.tuning.encoder import EncoderTuning

ArmAdapters = Mapping[str, tuple[str, ...]]
"""Adapter names of each tuned arm, one a repetition."""


@dataclass(frozen=True, slots=True)
class TrainedAdapters:
    """The encoder's adapters: settings that name them, those of each arm, and the seconds their training took."""

    generator: GeneratorSettings
    by_arm: ArmAdapters
    seconds: float


def configured_adapters(generator: GeneratorSettings, arms: Sequence[ArmSpec]) -> ArmAdapters:
    """The user's adapters by arm.

    Raises:
        ArmUnavailable: a tuned arm has none, or names one that is not there.
    """
    named = {arm.adapter for arm in arms if arm.adapter}
    if missing := sorted(named - generator.adapters.keys()):
        raise ArmUnavailable(
            f"an arm names the adapter {missing[0]!r}, but there is none of that name"
            + (f" (there are: {', '.join(generator.adapters)})" if generator.adapters else ""),
            hint=f"add `--adapter {missing[0]}=FOLDER`",
        )
    others = tuple(name for name in generator.adapters if name not in named)
    by_arm = {arm.name: (arm.adapter,) if arm.adapter else others for arm in arms if arm.tuned}
    if without := [name for name, adapters in by_arm.items() if not adapters]:
        raise ArmUnavailable(
            f"the comparison has tuned arms ({', '.join(without)}), but no adapter was named for them",
            hint="train one with `coalesce tune`, then add `--adapter NAME=FOLDER`, or leave these arms out",
        )
    return by_arm


def trained_encoder_adapters(
    arms: Sequence[ArmSpec],
    index: IndexSettings,
    generator: GeneratorSettings,
    tune: Sequence[BankQuestion],
    settings: Sequence[EncoderTuning],
    folder: Path,
    tell: Callable[[str, int, int], None],
) -> TrainedAdapters:
    """Trains what the tuned arms need, an adapter for each of `settings`; what is in `folder` is used again.

    Raises:
        ArmUnavailable: another embedder than the bundled one is set.
        InvalidInput: an arm names an adapter that the encoder has no recipe for.
    """
    if index.embedder != EMBEDDED_MODEL:
        raise ArmUnavailable(
            f"the embedder {index.embedder!r} cannot be tuned here, only {EMBEDDED_MODEL}",
            hint="leave the tuned arms out, or the embedder at its default",
        )
    paths: dict[str, Path] = {}
    by_arm: dict[str, tuple[str, ...]] = {}
    recipes = {arm.adapter for arm in arms if arm.tuned}
    if unknown := sorted(recipe for recipe in recipes if recipe not in (None, PASSAGES_ADAPTER)):
        raise InvalidInput(
            f"the encoder has no adapter {unknown[0]!r}",
            hint=f"use ARM or ARM@{PASSAGES_ADAPTER} without a language model",
        )
    for recipe in sorted(recipes, key=str):
        words = " on passages" if recipe else ""
        trained = train_adapters(
            tuning_examples(tune, with_passages=recipe == PASSAGES_ADAPTER),
            Path(bundled_model_folder()),
            folder,
            settings,
            lambda number, step, steps, loss, words=words: tell(  # type: ignore[misc]  # bound for this recipe
                f"tuning{words}, seed {settings[number].seed}, loss {loss:.2f}", step, steps
            ),
        )
        named = {f"{name}{'-passages' if recipe else ''}": path for name, path in trained.items()}
        paths |= named
        by_arm |= {arm.name: tuple(named) for arm in arms if arm.tuned and arm.adapter == recipe}
    tuned = replace(generator, kind="encoder", adapters={name: str(path) for name, path in paths.items()})
    return TrainedAdapters(tuned, by_arm, tuning_seconds(list(paths.values())))
