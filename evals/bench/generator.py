"""The local generator at a real size: precision, cache, attention, speculation and kept prefixes, side by side.

Weights are random, which changes no speed and needs no download; the default shape is Qwen3-0.6B's. Caches are filled
with random keys and values, because how long a step takes does not depend on what they hold. Text of random weights
repeats nothing useful, so speculation is measured by what a verifying step costs, not by how often a guess is right.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from evals.bench.timing import side_by_side
from rag.generators.cache import SlabCache, segment_of
from rag.generators.decode import decode, prefill
from rag.models.attention import register_attention
from rag.models.devices import peak_memory_bytes
from rag.models.loading import LoadedModel, load_model
from rag.models.memory import linear_layers

SHAPES: dict[str, dict[str, Any]] = {
    "0.6b": {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    },
    "8b": {
        "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True,
    },
}  # fmt: skip
PREFIX_TOKENS = 2000
QUESTION_TOKENS = 30
GUESSED_TOKENS = 8


def bench_generator(
    shape: str = "0.6b", rounds: int = 8, context_tokens: int = 4000, prefix_tokens: int = PREFIX_TOKENS
) -> dict[str, Any]:
    """Bytes, milliseconds a token and to the first token, and the ratios that the project is held to."""
    rows: list[dict[str, Any]] = []
    sizes: dict[str, dict[str, int]] = {}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = _random_model(Path(folder), SHAPES[shape])
        for precision in ("none", "nf4"):
            loaded = load_model(str(path), quantization=precision, dtype="bfloat16")
            sizes[precision] = _sizes(loaded)
            short = _decode_rows(loaded, 256, rounds)
            long = _decode_rows(loaded, context_tokens, rounds)
            no_cache = _no_cache_ms(loaded, 256)
            rows += [{"precision": precision, **row} for row in (*short, *long)]
            rows.append({"precision": precision, "context_tokens": 256, "cache": "none", "ms_per_token": no_cache})
            found[precision] = {"short": _by_cache(short), "long": _by_cache(long)}
            if precision == "nf4":
                found["prefix"] = _first_token(loaded, prefix_tokens)
                found["verify"] = _verify_ratio(loaded, rounds)
            del loaded
    bf16, nf4 = found["none"], found["nf4"]
    long = nf4["long"]
    ratios = {
        "nf4_over_bf16_decode": bf16["short"]["slab+grouped"] / nf4["short"]["slab+grouped"],
        "nf4_linear_share_of_bf16": sizes["nf4"]["linear"] / sizes["none"]["linear"],
        "nf4_model_share_of_bf16": sizes["nf4"]["all"] / sizes["none"]["all"],
        "prefix_first_token_speedup": found["prefix"]["full_s"] / found["prefix"]["kept_s"],
        "long_decode_speedup": long["dynamic+stock"] / long["slab+grouped"],
        "long_decode_speedup_cache_alone": long["dynamic+stock"] / long["slab+stock"],
        "long_decode_speedup_attention_alone": long["dynamic+stock"] / long["dynamic+grouped"],
        "verify_step_over_one_token": found["verify"],
    }
    return {
        "bench": "generator",
        "shape": shape,
        "context_tokens": context_tokens,
        "weights_bytes": {name: size["all"] for name, size in sizes.items()},
        "first_token_s": {name: round(value, 3) for name, value in found["prefix"].items()},
        "rows": rows,
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "peak_memory_bytes": peak_memory_bytes("cpu"),
    }


def _random_model(folder: Path, shape: dict[str, Any]) -> Path:
    """A model folder with random bfloat16 weights and a tokenizer that is never used for text."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.for_model("qwen3", max_position_embeddings=40_960, eos_token_id=0, **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<end>": 0}, unk_token="<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)
    return folder


def _sizes(loaded: LoadedModel) -> dict[str, int]:
    """Bytes of the linear layers that get quantized, and of everything, with the quantization's own scales."""

    def held(parameter: Any) -> int:
        state = getattr(parameter, "quant_state", None)
        scales = 0 if state is None else state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
        return int(parameter.numel() * parameter.element_size() + scales)

    linear = sum(held(layer.weight) for _, layer in linear_layers(loaded.model))
    everything = sum(held(p) for p in {id(p): p for p in loaded.model.parameters()}.values())
    return {"linear": linear, "all": everything}


def _decode_rows(loaded: LoadedModel, context_tokens: int, rounds: int) -> list[dict[str, Any]]:
    """A step's milliseconds behind `context_tokens` tokens, for each cache and attention, in turn."""
    model = loaded.model
    random_kv = _random_segment(loaded, context_tokens)
    steps: dict[str, Any] = {}
    for cache_kind in ("dynamic", "slab"):
        for attention in ("stock", "grouped"):
            steps[f"{cache_kind}+{attention}"] = _step(loaded, cache_kind, attention, random_kv, context_tokens, rounds)
    seconds = side_by_side(steps, rounds, warmup=2)
    model.set_attn_implementation(register_attention())
    return [
        {
            "context_tokens": context_tokens,
            "cache": name.partition("+")[0],
            "attention": name.partition("+")[2],
            "ms_per_token": round(1000 * value, 2),
            "tokens_per_s": round(1 / value, 1),
        }
        for name, value in seconds.items()
    ]


def _step(loaded: LoadedModel, cache_kind: str, attention: str, random_kv: Any, tokens: int, rounds: int) -> Any:
    """A function that decodes one token; the caches of all functions stay, as they would in a long answer."""
    import torch
    from transformers import DynamicCache

    model = loaded.model
    name = register_attention() if attention == "grouped" else "sdpa"
    if cache_kind == "slab":
        cache: Any = SlabCache(loaded.capabilities.num_layers, tokens + rounds + 8)
        cache.append(random_kv, tokens)
    else:
        cache = DynamicCache(config=model.config)
        for layer, (key, value) in enumerate(zip(random_kv.keys, random_kv.values, strict=True)):
            cache.update(key, value, layer)
    token = torch.tensor([[7]], device=model.device)

    def step() -> None:
        model.set_attn_implementation(name)
        with torch.inference_mode():
            output = model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
            int(output.logits[0, -1].argmax())  # waits for the device

    return step


def _random_segment(loaded: LoadedModel, tokens: int) -> Any:
    """Keys and values of `tokens` tokens, of the right shape and of no meaning."""
    import torch

    shape = loaded.capabilities
    dtype = getattr(torch, loaded.dtype)

    def draw(width: int) -> Any:
        return torch.randn(1, shape.kv_heads, tokens, width, dtype=dtype, device=loaded.model.device)

    keys = tuple(draw(shape.key_dim) for _ in range(shape.num_layers))
    values = tuple(draw(shape.value_dim) for _ in range(shape.num_layers))
    return segment_of(keys, values)


def _no_cache_ms(loaded: LoadedModel, context_tokens: int) -> float:
    """Milliseconds a token when every token reads the whole text anew."""
    import torch

    ids = torch.tensor([_prompt(loaded, context_tokens)], device=loaded.model.device)

    def whole() -> None:
        with torch.inference_mode():
            int(loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].argmax())

    return round(1000 * side_by_side({"none": whole}, 2)["none"], 2)


def _first_token(loaded: LoadedModel, prefix_tokens: int) -> dict[str, float]:
    """Seconds to the first and the second token of a prompt, read whole and behind a kept prefix."""
    layers = loaded.capabilities.num_layers
    prompt = _prompt(loaded, prefix_tokens + QUESTION_TOKENS)
    capacity = len(prompt) + 4
    reader = SlabCache(layers, capacity)
    prefill(loaded.model, prompt[:prefix_tokens], reader)
    kept = reader.copy_out(0, prefix_tokens)

    def first(cache: SlabCache) -> None:
        next(decode(loaded.model, prompt, cache, max_new_tokens=1))

    def from_prefix() -> None:
        cache = SlabCache(layers, capacity)
        cache.append(kept, prefix_tokens)
        first(cache)

    seconds = side_by_side({"full_s": lambda: first(SlabCache(layers, capacity)), "kept_s": from_prefix}, 2, warmup=1)
    return {**seconds, "second_token_s": _second_token(loaded, prompt, kept, prefix_tokens)}


def _second_token(loaded: LoadedModel, prompt: list[int], kept: Any, prefix_tokens: int) -> float:
    import time

    cache = SlabCache(loaded.capabilities.num_layers, len(prompt) + 4)
    cache.append(kept, prefix_tokens)
    tokens = decode(loaded.model, prompt, cache, max_new_tokens=2)
    next(tokens)
    started = time.perf_counter()
    next(tokens)
    return time.perf_counter() - started


def _verify_ratio(loaded: LoadedModel, rounds: int) -> float:
    """What a step that verifies eight guesses costs, in steps that write one token: below it guesses must pay off."""
    import torch

    tokens = 1000
    cache = SlabCache(loaded.capabilities.num_layers, tokens + GUESSED_TOKENS + 2)
    cache.append(_random_segment(loaded, tokens), tokens)

    def step(count: int) -> None:
        ids = torch.full((1, count), 7, device=loaded.model.device)
        with torch.inference_mode():
            output = loaded.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=count)
            int(output.logits[0, -1].argmax())
        cache.cut(tokens)

    seconds = side_by_side({"one": lambda: step(1), "verify": lambda: step(GUESSED_TOKENS + 1)}, rounds, warmup=2)
    return seconds["verify"] / seconds["one"]


def _prompt(loaded: LoadedModel, tokens: int) -> list[int]:
    draw = random.Random(0)
    return [draw.randrange(1, loaded.capabilities.vocab_size) for _ in range(tokens)]


def _by_cache(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {f"{row['cache']}+{row['attention']}": row["ms_per_token"] for row in rows}
