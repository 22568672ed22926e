"""Models that several files of this floor share, built once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import build_adapter, build_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 model with grouped-query attention."""
    return build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_adapter(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A random LoRA adapter for `tiny_model`."""
    return build_adapter(tmp_path_factory.mktemp("adapters") / "qa", tiny_model)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny models on one torch thread: on a busy machine two threads wait for each other at every product."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
