"""Language models of a few thousand weights, made on the spot: a tokenizer trained on ten sentences, random weights."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag.generators.local.recorder import Recorder

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
"""Where the local generator's tests run: `TEST_DEVICE=cuda` takes them to a GPU."""

SENTENCES = (
    "A warp is 32 threads that execute in lockstep on a streaming multiprocessor.",
    "Shared memory is divided into banks; bank conflicts serialize accesses.",
    "Coalesced global memory access needs consecutive threads to touch consecutive addresses.",
    "Occupancy is the ratio of active warps to the maximum warps supported.",
    "Use __syncthreads() to make a barrier for every thread in the block.",
    "线程束由三十二个线程组成。",
)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """A byte-level BPE tokenizer with ChatML's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if chat_template:
        fast.chat_template = chat_template
    return fast


def build_model(folder: Path, *, family: str = "qwen3", seed: int = 0, dtype: str = "float32", **shape: Any) -> Path:
    """Writes a model folder with random weights and returns it.

    Args:
        family: `qwen3`, `qwen2` (biases), `llama`, or another model type of transformers.
        shape: overrides of the config.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    numbers: dict[str, Any] = {
        "vocab_size": 640, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": family.startswith("gemma"),
    }  # fmt: skip
    config = AutoConfig.for_model(family, **(numbers | shape))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    # Larger weights than a fresh model's, and embeddings that are not tied where the family allows it: a token then
    # depends on all before it. Else it is the last one once more, whatever the cache holds.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(6.0 if "q_proj" in name or "k_proj" in name else 2.0)
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def build_adapter(folder: Path, base: Path, *, rank: int = 4, seed: int = 1, targets: str = "all-linear") -> Path:
    """Writes a LoRA adapter with random weights for the model in `base` and returns its folder."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False
    )
    get_peft_model(model, config).save_pretrained(folder)
    return folder


def prompt_of(length: int) -> list[int]:
    """So many tokens, others for another length."""
    return [3 + (7 * length + 13 * place * place) % 590 for place in range(length)]


def write_alone(model: Any, prompt: Sequence[int], cache: Any, count: int) -> list[int]:
    """So many greedy tokens of one answer, the library's own way to take steps."""
    from rag.generators.local.decode import prefill, step

    logits, written = prefill(model, prompt, cache), list[int]()
    while True:
        written.append(int(logits[-1].argmax()))
        if len(written) == count:
            return written
        logits = step(model, written[-1:], cache)


def decode_together(
    model: Any, rows: Sequence[tuple[int, int, int]], recorder: Recorder | None = None
) -> list[list[int]]:
    """The greedy tokens of rows that share steps; each: its prompt length, first turn, tokens to write."""
    from rag.generators.local.batch import Batch, Row
    from rag.generators.local.cache import SlabCache
    from rag.generators.local.decode import prefill

    batch = Batch(model, recorder)
    going: dict[int, Any] = {}
    written: list[list[int]] = [[] for _ in rows]

    def take(number: int, logits: Any) -> None:
        written[number].append(int(logits[-1].argmax()))
        if len(written[number]) >= rows[number][2]:
            batch.remove(going.pop(number))

    for turn in count():
        for number, (length, begins, _) in enumerate(rows):
            if begins == turn:
                going[number] = SlabCache(3, length + 100)
                take(number, prefill(model, prompt_of(length), going[number]))
        if not going and all(written):
            assert not len(batch)
            return written
        asked = [Row(cache, written[number][-1]) for number, cache in going.items()]
        for number, logits in zip(list(going), batch.step(asked) if asked else [], strict=True):
            take(number, logits)
    raise AssertionError("no end")


def edit_json(file: Path, **changes: Any) -> None:
    """Overwrites keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), "utf-8")


def write_gguf(
    folder: Path,
    file: Path,
    *,
    pre: str = "smollm",
    architecture: str = "",
    tensor_type: int = 0,
    half: bool = False,
) -> Path:
    """Writes a model folder of `build_model` (Llama, Mistral, Qwen, Gemma, Phi) as a GGUF file with float32 tensors.

    Args:
        half: matrices in float16.
        pre: the splitting rule that the file names.
        architecture: named in place of the right one; tensor_type: of the output norm, in place of 0 (float32).
    """
    import gguf
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text("utf-8"))
    spelled = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    family = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(file, architecture or family)
    writer.add_file_type(0)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    turning = config["rope_parameters"]
    writer.add_rope_freq_base(turning.get("full_attention", turning)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _write_vocabulary(writer, spelled, config["vocab_size"], pre)
    writer.add_chat_template(CHAT_TEMPLATE)
    weights = load_file(folder / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], config["num_hidden_layers"])
    for name, tensor in weights.items():
        stored = tensor.float()
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        if family == "llama" and (turned := heads.get(name.split(".")[-2])):
            # llama.cpp turns pairs of neighbours where transformers turns halves
            stored = stored.view(turned, 2, -1, stored.shape[1]).transpose(1, 2).reshape(stored.shape)
        if family.startswith("gemma") and "norm" in name:
            stored = stored + 1  # llama.cpp multiplies with what transformers adds one to
        stem, _, ending = name.rpartition(".")
        raw = gguf.GGMLQuantizationType(tensor_type) if tensor_type and name == "model.norm.weight" else None
        stored = stored.half() if half and stored.dim() == 2 else stored
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", stored.contiguous().numpy(), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write_adapter_gguf(adapter: Path, file: Path, layers: int = 3) -> Path:
    """Writes an adapter of `build_adapter` over a `qwen3` model as llama.cpp takes it."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(config["lora_alpha"]))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
        layer, _, half = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        writer.add_tensor(f"{names.get_name(layer)}.weight.{half.lower()}", tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_vocabulary(writer: Any, spelled: dict[str, Any], size: int, pre: str) -> None:
    tokens = sorted(spelled["model"]["vocab"], key=spelled["model"]["vocab"].__getitem__)
    special = {token["content"] for token in spelled["added_tokens"]}
    tokens += [f"[PAD{number}]" for number in range(len(tokens), size)]
    merges = [each if isinstance(each, str) else " ".join(each) for each in spelled["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 5 if token.startswith("[PAD") else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
