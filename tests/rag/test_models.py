"""Models on disk: what is wrong with a folder is said before it is loaded; sizes are computed as they come out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import build_model, build_tokenizer, edit_json

from rag.errors import AdapterMismatch, DoesNotFitInMemory, ModelCannotLoad
from rag.models import loading, memory
from rag.models.adapters import WEIGHTS_FILE, AdapterRecord, base_fingerprint, read_adapter
from rag.models.capabilities import read_capabilities
from rag.models.devices import choose_device, choose_dtype
from rag.models.fast_paths import attention_in_products, speed_up_norms
from rag.models.folder import load_config
from rag.models.loading import load_model
from rag.models.memory import estimate_memory, linear_layers, lora_kinds, usual_quantization

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for linear layers to outweigh the rest."""
    return build_model(
        tmp_path_factory.mktemp("models") / "wide", hidden_size=512, intermediate_size=1536, num_hidden_layers=4,
        head_dim=64, dtype="bfloat16",
    )  # fmt: skip


def weights_bytes(model: object) -> int:
    """Bytes of every distinct parameter with its quantization state."""
    total = 0
    for parameter in {id(p): p for p in model.parameters()}.values():  # type: ignore[attr-defined]
        total += parameter.numel() * parameter.element_size()
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            total += state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
    return total


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def lacks_a_shard(folder: Path) -> None:
    weight_map = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), "utf-8")


def is_unfinished(folder: Path) -> None:
    (folder / ".cache").mkdir()
    (folder / ".cache" / "model.safetensors.incomplete").touch()


def lacks_its_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    build_tokenizer(chat_template=None).save_pretrained(folder)


def lacks_its_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "said", "hint"),
    [
        (cut_short, r"model\.safetensors is cut short or damaged", "Download it again"),
        (lacks_a_shard, r"1 of 2 weight files are missing \(model-00002-of-00002", "hf download"),
        (is_unfinished, "half downloaded", "hf download"),
        (lambda folder: shutil.rmtree(folder), "does not exist", "--model"),
        (lambda folder: (folder / "config.json").unlink(), r"holds no config\.json", "config.json"),
        (lambda folder: (folder / "config.json").write_text("{", "utf-8"), "cannot be read", "Download"),
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "model.gguf"),
            "no weight files",
            "/model.gguf",  # a file of another program
        ),
        (lacks_its_chat_template, "no chat template", "instruct"),
        (lacks_its_tokenizer, "tokenizer", "chat_template.jinja"),
        (lambda folder: edit_json(folder / "config.json", model_type="no-such-architecture"), "no-such", "--model"),
        (
            lambda folder: edit_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
            "quantized with gptq",
            "--generator remote",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_with_what_to_do(
    folder: Path, damage: Callable[[Path], object], said: str, hint: str
) -> None:
    damage(folder)
    with pytest.raises(ModelCannotLoad, match=said) as error:
        load_model(str(folder))
    assert hint in error.value.hint


def test_an_adapter_is_no_model(tiny_adapter: Path) -> None:
    with pytest.raises(ModelCannotLoad, match="LoRA adapter, not a model") as error:
        load_model(str(tiny_adapter))
    assert "--adapter" in error.value.hint


def test_an_unreachable_hub_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelCannotLoad) as error:
        load_model("nobody/not-on-this-disk")
    assert "nobody/not-on-this-disk" in error.value.message
    assert "hub" in error.value.hint


def test_devices_and_formats_that_are_not_there_are_refused() -> None:
    with pytest.raises(ModelCannotLoad, match="has no device tpu"):
        choose_device("tpu")
    with pytest.raises(ModelCannotLoad, match="Unknown dtype 'float8'"):
        choose_dtype("float8", "cpu", "none")


@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_estimated_weights_are_within_5_percent_of_the_loaded_model(wide_model: Path, quantization: str) -> None:
    loaded = load_model(str(wide_model), quantization=quantization, dtype="bfloat16", device="cpu")
    measured = weights_bytes(loaded.model)
    estimate = estimate_memory(load_config(str(wide_model)), quantization=quantization).weights_bytes
    assert estimate == pytest.approx(measured, rel=0.05)


def test_layers_too_narrow_to_repack_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs with AVX512-BF16 the first pass would fail."""
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    narrow = build_model(tmp_path / "narrow", num_key_value_heads=1, num_hidden_layers=1)  # keys of 16
    loaded = load_model(str(narrow), quantization="nf4", device="cpu")
    packed = {name.rpartition(".")[2]: layer.support_avx512bf16_for_cpu for name, layer in linear_layers(loaded.model)}
    assert not packed["k_proj"]
    assert packed["q_proj"]


def test_the_estimate_counts_what_the_config_says(tiny_model: Path) -> None:
    estimate = estimate_memory(load_config(str(tiny_model / "config.json")), context_tokens=1000, batch=2)
    assert estimate.kv_cache_bytes == 2 * 1000 * 3 * 2 * (16 + 16) * 2  # batch × tokens × layers × heads × k+v × bytes
    assert estimate.optimizer_bytes == estimate.adapter_bytes == 0
    parts = estimate.weights_bytes + estimate.kv_cache_bytes + estimate.activation_bytes
    assert estimate.total_bytes == parts


def test_the_training_estimate_counts_the_adapter(tiny_model: Path, tiny_adapter: Path) -> None:
    estimate = estimate_memory(load_config(str(tiny_model)), quantization="nf4", context_tokens=256, train=True, rank=4)
    adapter = read_adapter(tiny_adapter)
    numbers = sum(layer.rank * (layer.in_features + layer.out_features) for layer in adapter.layers)
    assert estimate.trainable_parameters == numbers
    assert estimate.adapter_bytes == 4 * numbers
    assert estimate.optimizer_bytes == 12 * numbers
    assert estimate.kv_cache_bytes == 0


def test_a_model_quantized_on_disk_keeps_its_quantization(tmp_path: Path, wide_model: Path) -> None:
    loaded = load_model(str(wide_model), quantization="nf4", device="cpu")
    fingerprint = base_fingerprint(loaded.model)
    loaded.model.save_pretrained(tmp_path / "nf4")
    loaded.tokenizer.save_pretrained(tmp_path / "nf4")
    again = load_model(str(tmp_path / "nf4"), device="cpu")
    assert again.quantization == "nf4"
    assert base_fingerprint(again.model) == fingerprint
    assert fingerprint == base_fingerprint(load_model(str(wide_model), device="cpu").model)
    with pytest.raises(ModelCannotLoad, match="quantized as nf4 on disk; int8 was asked for"):
        load_model(str(tmp_path / "nf4"), quantization="int8")


@pytest.mark.parametrize(
    ("device", "parameters", "free_gib", "expected"),
    [
        ("cuda", "few", 1, "none"),
        ("cuda", "many", 100, "nf4"),
        ("cpu", "many", 100, "none"),
        ("cpu", "many", 3, "int8"),
        ("cpu", "many", 1, "nf4"),
    ],
)
def test_where_nobody_says_a_processor_holds_whole_weights_as_long_as_they_fit_and_a_gpu_four_bits(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, device: str, parameters: str, free_gib: int, expected: str
) -> None:
    """1.6 billion weights take 6 GiB in float32, 1.5 in 8 bits."""
    monkeypatch.setattr("rag.models.devices.cpu_computes_bfloat16", lambda: False)
    monkeypatch.setattr(memory, "choose_device", lambda device: device)
    monkeypatch.setattr(memory, "free_memory_bytes", lambda _: free_gib << 30)
    config = load_config(str(tiny_model))
    if parameters == "many":
        config.hidden_size, config.intermediate_size, config.num_hidden_layers = 4096, 11_008, 12
        config.layer_types = ["full_attention"] * 12
    assert usual_quantization(config, device) == expected
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    assert usual_quantization(config, device) == "int8", "as the weights are on disk"


def test_a_quantization_that_memory_demanded_is_told(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_model(str(tiny_model), quantization="auto", device="cpu").quantization == "none"
    assert not caplog.text
    monkeypatch.setattr(memory, "free_memory_bytes", lambda _: 1 << 20)
    assert load_model(str(tiny_model), quantization="auto", device="cpu").quantization == "nf4"
    assert "nf4" in caplog.text


@pytest.mark.parametrize("prompt_tokens", [1, 2, 30])
def test_the_last_token_reaches_the_output_embedding_as_a_row_of_its_own(tiny_model: Path, prompt_tokens: int) -> None:
    """As a slice of all tokens it made torch copy the whole vocabulary matrix: seconds for every prompt."""
    import torch

    loaded = load_model(str(tiny_model), dtype="float32", device="cpu")
    seen: list[tuple[int, ...]] = []
    head = loaded.model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].stride()))
    ids = torch.arange(5, 5 + prompt_tokens)[None]
    with torch.inference_mode():
        last = loaded.model(input_ids=ids, logits_to_keep=1).logits
        whole = loaded.model(input_ids=ids).logits
    assert seen[0] == (128, 128, 1)
    torch.testing.assert_close(last[0, -1], whole[0, -1])


@pytest.mark.parametrize("kind", ["none", "boolean", "added"])
def test_attention_in_two_products_is_attention(kind: str) -> None:
    import torch

    draw = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, size, 16, generator=draw) for size in (4, 40, 40))
    seen = torch.rand(2, 1, 4, 40, generator=draw) > 0.3
    mask = {"none": None, "boolean": seen, "added": torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))}[kind]
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(attention_in_products(query, key, value, mask, 0.3), expected)


@pytest.mark.parametrize(("family", "taken"), [("qwen3", True), ("llama", True), ("gemma", False)])
def test_norms_in_one_kernel_change_no_token(tmp_path: Path, family: str, taken: bool) -> None:
    """Gemma's multiplies with one more than its weight, and stays as it is."""
    import torch

    loaded = load_model(str(build_model(tmp_path, family=family)), dtype="float32", device="cpu")
    norms = [layer for layer in loaded.model.modules() if type(layer).__name__.endswith("RMSNorm")]
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        for layer in norms:
            layer.weight.add_(torch.linspace(-0.5, 0.5, layer.weight.numel()))
        before = loaded.model(input_ids=ids).logits
        speed_up_norms(loaded.model)
        torch.testing.assert_close(loaded.model(input_ids=ids).logits, before, atol=1e-4, rtol=1e-4)
    assert [("forward" in vars(layer)) for layer in norms] == [taken] * len(norms)


def test_an_adapter_whose_weights_are_not_those_recorded_is_refused(tmp_path: Path, tiny_adapter: Path) -> None:
    shutil.copytree(tiny_adapter, tmp_path / "qa")
    record = AdapterRecord("base", "0" * 16, "none", "", 0, False, {}, {})
    record.write(tmp_path / "qa")
    found = read_adapter(tmp_path / "qa").record
    assert found is not None
    assert len(found.weights_sha256) == 64
    weights = tmp_path / "qa" / WEIGHTS_FILE
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelCannotLoad, match="damaged: the digest"):
        read_adapter(tmp_path / "qa")


def test_a_damaged_adapter_is_refused(tmp_path: Path, tiny_adapter: Path) -> None:
    copy = Path(shutil.copytree(tiny_adapter, tmp_path / "adapter"))
    edit_json(copy / "adapter_config.json", r=16)
    with pytest.raises(AdapterMismatch, match=r"says rank 16 but .* has rank 4"):
        read_adapter(copy)
    edit_json(copy / "adapter_config.json", peft_type="IA3")
    with pytest.raises(AdapterMismatch, match="kind IA3"):
        read_adapter(copy)
    weights = copy / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ModelCannotLoad, match="damaged"):
        read_adapter(copy)
    weights.unlink()
    with pytest.raises(ModelCannotLoad, match="holds no adapter_model"):
        read_adapter(copy)


LATENT = {
    "kv_lora_rank": 24, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "first_k_dense_replace": 1, "num_key_value_heads": 8, "head_dim": 16,
}  # fmt: skip


GEMMA_3N: dict[str, Any] = {
    "num_hidden_layers": 5, "intermediate_size": [64, 256, 128, 64, 64], "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 64, "laurel_rank": 16, "activation_sparsity_pattern": [0.0] * 5, "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"], "sliding_window": 32,
    "num_kv_shared_layers": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("qwen3", {}),
        ("deepseek_v2", LATENT),
        ("deepseek_v3", LATENT),
        ("mixtral", {"num_local_experts": 4}),
        ("gemma3n_text", GEMMA_3N),
    ],
)
def test_keys_and_values_take_what_the_estimate_says(family: str, shape: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    numbers = {
        "vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64,
    } | shape  # fmt: skip
    config = AutoConfig.for_model(family, **numbers)
    with torch.inference_mode():
        cache = AutoModelForCausalLM.from_config(config)(torch.tensor([list(range(10))]), use_cache=True)
    held = sum(
        layer.keys.nbytes + layer.values.nbytes for layer in cache.past_key_values.layers if layer.keys is not None
    )
    assert read_capabilities(config).kv_bytes(10, dtype_bytes=4) == held


def test_a_mixture_that_does_not_fit_is_sent_to_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = build_model(tmp_path / "mixture", family="mixtral", num_local_experts=8)
    estimate = estimate_memory(load_config(str(mixture)), quantization="nf4")
    assert estimate.expert_parameters == 3 * 8 * 3 * 128 * 256
    monkeypatch.setattr(loading, "free_memory_bytes", lambda _: 1 << 20)
    with pytest.raises(DoesNotFitInMemory, match=r"needs .* GiB for its weights \(nf4\); .* are free on") as error:
        load_model(str(mixture), quantization="nf4")
    assert "experts stay in 16 bits" in error.value.hint


def test_one_width_per_layer_counts_as_the_widest() -> None:
    from transformers import AutoConfig

    assert read_capabilities(AutoConfig.for_model("gemma3n_text", **GEMMA_3N)).intermediate_size == 256


PUBLISHED: dict[str, dict[str, Any]] = {  # the shapes that their config.json files state
    "DeepSeek-V2-Lite": {
        "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6, "kv_lora_rank": 512,
        "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "first_k_dense_replace": 1, "max_position_embeddings": 163840, "tie_word_embeddings": False,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
        "max_position_embeddings": 40960, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "billion_parameters", "billion_in_experts", "kv_bytes"),
    [
        ("DeepSeek-V2-Lite", 15.706, 14.395, 27 * (512 + 64) * 2),
        ("Qwen3-30B-A3B", 30.532, 28.991, 48 * 4 * (128 + 128) * 2),
    ],
)
def test_published_models_are_as_large_as_they_say(
    name: str, billion_parameters: float, billion_in_experts: float, kv_bytes: int
) -> None:
    from transformers import AutoConfig

    numbers = dict(PUBLISHED[name])
    config = AutoConfig.for_model(numbers.pop("model_type"), **numbers)
    assert read_capabilities(config).attention == "full"
    estimate = estimate_memory(config, quantization="nf4", context_tokens=1000)
    assert estimate.num_parameters / 1e9 == pytest.approx(billion_parameters, abs=0.001)
    assert estimate.expert_parameters / 1e9 == pytest.approx(billion_in_experts, abs=0.001)
    assert estimate.kv_cache_bytes == 1000 * kv_bytes
    assert estimate.weights_bytes > 2 * estimate.expert_parameters  # they stay in 16 bits


SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_ssm": 128, "mamba_d_state": 16, "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "shape", "adapted"),
    [
        ("phimoe", {"num_local_experts": 4}, "q_proj k_proj v_proj o_proj"),  # its router is a linear layer
        ("falcon_h1", MAMBA, "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj in_proj"),
        ("gpt2", {}, ""),
    ],
)
def test_lora_adapts_attention_and_dense_layers_only(family: str, shape: dict[str, Any], adapted: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(SMALL | shape)))
    assert lora_kinds(model) == sorted(adapted.split())


def test_layers_in_a_list_are_named_in_full() -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3n_text", **(SMALL | GEMMA_3N)))
    kinds = lora_kinds(model)
    assert "model.altup_projections.0" in kinds
    assert "0" not in kinds  # would mean the first layer too


@pytest.mark.parametrize(
    ("family", "shape", "said"),
    [
        ("minimax", {"num_hidden_layers": 2}, "minimax cannot be run here: it keeps its state"),
        ("mamba", {}, "architecture mamba cannot be run"),
    ],
)
def test_an_architecture_that_cannot_be_run_is_refused_before_it_is_loaded(
    family: str, shape: dict[str, Any], said: str
) -> None:
    from transformers import AutoConfig

    with pytest.raises(ModelCannotLoad, match=said):
        read_capabilities(AutoConfig.for_model(family, **shape))


def test_the_memory_of_foreign_quantization_is_not_guessed(folder: Path) -> None:
    edit_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelCannotLoad, match="quantized with gptq"):
        estimate_memory(load_config(str(folder)))
