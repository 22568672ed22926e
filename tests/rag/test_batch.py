"""Rows decoded together write what each writes alone, in one step that can be recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import DEVICE, decode_together, prompt_of, write_alone

from rag.generators.local.cache import SlabCache
from rag.generators.local.decode import static_step
from rag.generators.local.recorder import GraphMemory, Recorder, Replay
from rag.models.adapters import load_adapters
from rag.models.devices import RANDOM_NUMBERS
from rag.models.loading import LoadedModel, load_model

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

TWO = [(20, 0, 13), (33, 0, 13)]


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> LoadedModel:
    return load_model(str(tiny_model), dtype="float32", device=DEVICE)


def decode_alone(model: Any, rows: list[tuple[int, int, int]]) -> list[list[int]]:
    return [write_alone(model, prompt_of(length), SlabCache(3, length + most), most) for length, _, most in rows]


class Recorded(Recorder):
    """Computes in place of a GPU; notes the shapes that it is to record, and fails as told.

    Args:
        errors: raised by the first recordings; step: what is recorded.
    """

    def __init__(self, model: Any, *errors: str, step: Any = static_step) -> None:
        super().__init__(model, GraphMemory())
        self.errors = list(errors)
        self.step_of = step
        self.asked: list[tuple[int, ...]] = []

    def _record(self, ids: Any, lengths: Any, keys: Any, values: Any) -> Replay:
        import torch

        self.asked.append((len(ids), keys[0].shape[2]))
        if self.errors:
            raise RuntimeError(self.errors.pop(0))

        def replay(new_ids: Any, new_lengths: Any) -> Any:
            ids.copy_(new_ids)
            lengths.copy_(new_lengths)
            with torch.inference_mode():
                return self.step_of(self._model, ids, lengths, keys, values)

        return replay


@pytest.mark.parametrize(
    ("rows", "recorded"),
    [
        pytest.param(
            [(30, 0, 24), (250, 3, 20), (5, 6, 16), (380, 9, 12), (120, 12, 8)],
            [(1, 130), (2, 350), (3, 350), (4, 480), (5, 480)],
            id="all come and go in their own time, with room made for them",
        ),
        pytest.param(
            [(30, 0, 9), (20, 0, 2), (5, 0, 2), (380, 2, 7)],
            [(2, 480)],
            id="a longer one joins after others left: there is memory for more rows, but not for longer ones",
        ),
        pytest.param(
            [(30, 0, 21), (250, 0, 31), (120, 0, 31)],
            [(3, 350), (2, 350)],
            id="one leaves, and the last takes its place",
        ),
    ],
)
def test_rows_write_what_each_writes_alone_and_each_shape_is_recorded_once(
    loaded: LoadedModel, rows: list[tuple[int, int, int]], recorded: list[tuple[int, ...]]
) -> None:
    alone = decode_alone(loaded.model, rows)
    assert decode_together(loaded.model, rows) == alone
    recorder = Recorded(loaded.model)
    assert decode_together(loaded.model, rows, recorder) == alone
    assert recorder.asked == recorded


@pytest.mark.parametrize(
    ("errors", "tried", "said"),
    [
        (["CUDA out of memory"], 2, ""),
        (["operation not permitted when stream is capturing\nand more"], 1, "operation not permitted"),
    ],
)
def test_what_cannot_be_recorded_is_computed_step_by_step(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture, errors: list[str], tried: int, said: str
) -> None:
    recorder = Recorded(loaded.model, *errors)
    assert decode_together(loaded.model, TWO, recorder) == decode_alone(loaded.model, TWO)
    assert len(recorder.asked) == tried
    assert said in caplog.text if said else not caplog.text


def test_nothing_is_recorded_while_training_draws_random_numbers(loaded: LoadedModel) -> None:
    recorder = Recorded(loaded.model)
    with RANDOM_NUMBERS:
        assert decode_together(loaded.model, TWO, recorder) == decode_alone(loaded.model, TWO)
    assert recorder.asked == []


def test_a_step_is_one_graph_with_quantized_weights_and_an_adapter(tiny_model: Path, tiny_adapter: Path) -> None:
    """One of static shape, which can be captured; what it writes are the tokens of a step as it is."""
    import torch

    loaded = load_model(str(tiny_model), quantization="nf4", dtype="float32", device=DEVICE)
    load_adapters(loaded, {"qa": str(tiny_adapter)}).activate("qa")
    graphs: list[Any] = []

    def counted(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    expected = decode_together(loaded.model, TWO)
    torch.compiler.reset()
    traced = torch.compile(static_step, fullgraph=True, backend=counted)
    recorder = Recorded(loaded.model, step=traced)
    assert decode_together(loaded.model, TWO, recorder) == expected
    assert len(graphs) == 1
