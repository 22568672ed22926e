"""LoRA adapters over one base model in memory, switched by name. Only the model's own thread may switch them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag.errors import AdapterMismatch
from rag.models.adapter_folder import AdapterFolder, check_base, check_fits, read_adapter
from rag.models.fingerprint import base_fingerprint
from rag.models.loading import LoadedModel, first_line


class AdapterSet:
    """The adapters of a loaded model. `load_adapters` makes it.

    Args:
        peft_model: the `peft.PeftModel` around the base; None without adapters.
        folders: adapters by name.
        fingerprint: of the base model.
    """

    def __init__(self, peft_model: Any, folders: Mapping[str, AdapterFolder], fingerprint: str) -> None:
        self._peft_model = peft_model
        self._folders = dict(folders)
        self._inner = {name: inner_name(number) for number, name in enumerate(self._folders)}
        self.fingerprint = fingerprint
        self._active: str | None = None
        self._switch(None)

    @property
    def names(self) -> tuple[str, ...]:
        """Adapters that can be activated."""
        return tuple(self._folders)

    def revision(self, name: str | None) -> str | None:
        """Hash of an adapter's weights; None for the bare base."""
        return None if name is None else f"{name}@{self._folders[name].revision}"

    def activate(self, name: str | None) -> None:
        """Makes the model answer through adapter `name`, or bare."""
        if name != self._active:
            self._switch(name)

    def _switch(self, name: str | None) -> None:
        if self._peft_model is not None:
            if name is None:
                self._peft_model.base_model.disable_adapter_layers()
            else:
                self._peft_model.base_model.enable_adapter_layers()
                self._peft_model.set_adapter(self._inner[name], inference_mode=True)
            self._peft_model.requires_grad_(False)  # switching layers on marks them trainable
        self._active = name


def load_adapters(loaded: LoadedModel, adapters: Mapping[str, str]) -> AdapterSet:
    """Loads every adapter into the one base model.

    Args:
        adapters: folder by name.

    Raises:
        ModelCannotLoad: a folder is missing or damaged.
        AdapterMismatch: it was trained on another base, or has other shapes.
    """
    fingerprint = base_fingerprint(loaded.model)
    folders = {name: read_adapter(Path(path).expanduser()) for name, path in adapters.items()}
    shapes = linear_shapes(loaded.model)
    for folder in folders.values():
        check_base(folder, fingerprint, loaded.name)
        check_fits(folder, shapes, loaded.name)
    peft_model = None
    for number, (name, folder) in enumerate(folders.items()):
        try:
            peft_model = _attach(loaded, peft_model, inner_name(number), folder.path)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise AdapterMismatch(
                f"The adapter {name} ({folder.path}) cannot be put on {loaded.name}: {first_line(error)}",
                hint="Train one for this base with `coalesce tune`.",
            ) from error
    return AdapterSet(peft_model, folders, fingerprint)


def inner_name(number: int) -> str:
    """What peft calls an adapter: names that users choose (`train`, `v1.2`) may be attributes or paths of modules."""
    return f"coalesce{number}"


def linear_shapes(model: Any) -> dict[str, tuple[int, int]]:
    """(in_features, out_features) of every linear layer but the output embedding, by module name."""
    from rag.models.memory import linear_layers

    return {name: (module.in_features, module.out_features) for name, module in linear_layers(model)}


def _attach(loaded: LoadedModel, peft_model: Any, name: str, path: Path) -> Any:
    """Adds one adapter, in the model's own number format: training ran its products in it as well (autocast)."""
    from peft import PeftModel

    options = {"adapter_name": name, "autocast_adapter_dtype": False, "torch_device": loaded.device}
    if peft_model is None:
        peft_model = PeftModel.from_pretrained(loaded.model, str(path), **options)
    else:
        peft_model.load_adapter(str(path), **options)
    import torch

    for parameter_name, parameter in peft_model.named_parameters():
        if "lora_" in parameter_name and f".{name}." in parameter_name:
            parameter.data = parameter.data.to(getattr(torch, loaded.dtype))
    peft_model.eval()
    return peft_model
