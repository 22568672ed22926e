"""More than one process: two CPU processes learn what one learns, and sharded weights are really sharded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tiny_models import build_model

pytestmark = pytest.mark.integration

LAUNCH = Path(__file__).parents[2] / "rag" / "tuning" / "launch"

TUNE = """
    import sys
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    from rag.tuning.data import TrainingRow
    from rag.tuning.settings import TuneSettings
    from rag.tuning.train import tune

    model, out, batch_size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    pairs = [("What is a warp?", "32 threads."), ("What is a block?", "A group of warps."), ("A grid?", "Blocks.")]
    rows = [TrainingRow(q + " " * n, a) for n in range(4) for q, a in pairs]
    settings = TuneSettings(
        quantization="none", dtype="float32", device="cpu", rank=4, alpha=8, dropout=0.0, learning_rate=3e-3,
        batch_size=batch_size, accumulation=1, max_tokens=256, max_steps=6, validation_share=0.0, checkpoint_steps=3,
    )
    report = tune(model, rows, out, settings)
    print("STEPS", report.steps)
"""

SHARD = """
    import sys
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from rag.tuning.data import TrainingRow
    from rag.tuning.examples import answer_loss, collate, encode_rows
    from rag.tuning.settings import Placement, TuneSettings
    from rag.tuning.train import add_lora, load_for_training

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    settings = TuneSettings(quantization="none", dtype="float32", device="cpu", rank=4, alpha=8, dropout=0.0)
    loaded = load_for_training(sys.argv[1], settings, Placement("cpu", False, 2, rank == 0))
    pairs = [("What is a warp?", "32 threads."), ("What is a block?", "A group of warps.")]
    rows = encode_rows(loaded.tokenizer, [TrainingRow(*pair) for pair in pairs], 256).rows
    whole = add_lora(loaded, settings)
    torch.manual_seed(7)
    for name, parameter in whole.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)

    def loss_of(model, row):
        batch = collate([row], 0)
        labels = batch.pop("labels")
        return answer_loss(model(**batch), labels)

    expected = sum(loss_of(whole, row) for row in rows) / 2
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in whole.named_parameters() if p.grad is not None}
    whole.zero_grad()

    mesh = init_device_mesh("cpu", (2,))
    for layer in whole.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    assert all(isinstance(parameter, DTensor) for parameter in whole.parameters())
    held = sum(p.to_local().numel() for p in whole.parameters())
    total = sum(p.numel() for p in whole.parameters())
    assert 0.4 < held / total < 0.6, held / total

    loss_of(whole, rows[rank]).backward()
    compared = 0
    for name, parameter in whole.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad.full_tensor(), gradients[name], atol=1e-5, rtol=1e-3)
            compared += 1
    assert compared == len(gradients) > 10
    print("SHARDED")
    dist.destroy_process_group()
"""


def run_processes(count: int, script: str, folder: Path, *arguments: str) -> str:
    """Output of a script in `count` processes of torchrun (or one without it)."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(script), "utf-8")
    launcher = [] if count == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(LAUNCH.parents[2])}
    process = subprocess.Popen(
        [sys.executable, *launcher, str(file), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the launcher's processes too
    assert process.returncode == 0, errors[-4000:]
    return output


@pytest.mark.parametrize(
    ("name", "kind", "options", "expected"),
    [
        ("fsdp", "FSDP", "fsdp_config", {"fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"}),
        ("deepspeed_zero3", "DEEPSPEED", "deepspeed_config", {"zero_stage": 3}),
    ],
)
def test_the_launch_configurations_shard_as_they_say(
    name: str, kind: str, options: str, expected: dict[str, Any]
) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(LAUNCH / f"{name}.yaml"))
    assert str(config.distributed_type).endswith(kind)
    assert config.mixed_precision == "bf16"
    assert expected.items() <= getattr(config, options).items()


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_with_twice_the_batch(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    model = build_model(tmp_path / "model")
    assert "STEPS 6" in run_processes(1, TUNE, tmp_path, str(model), str(tmp_path / "one"), "2")
    assert run_processes(2, TUNE, tmp_path, str(model), str(tmp_path / "two"), "1").count("STEPS 6") == 2
    one, two = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=2e-4, rtol=1e-2)
    assert (tmp_path / "two" / "coalesce_adapter.json").is_file()


@pytest.mark.slow
def test_sharded_weights_are_cut_in_two_and_give_the_same_gradients(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model")
    assert run_processes(2, SHARD, tmp_path, str(model)).count("SHARDED") == 2
