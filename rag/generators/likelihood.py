"""Scores the options of a choice question by how likely the model finds them, without writing text.

Three scores an option: the sum of its tokens' log-probabilities after the question (lm-evaluation-harness `acc`), the
same divided by its UTF-8 bytes (`acc_norm`), and the log-probability of its letter after a prompt that lists all
options. Options continue from the prompt's kept keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rag.generators.decode import prefill
from rag.generators.prompts import CHOICE_LETTERS


def option_log_probability(model: Any, logits: Any, option: Sequence[int], cache: Any) -> float:
    """log P(option | prompt): the sum over the option's tokens.

    Args:
        logits: (1, vocab) after the prompt.
        cache: holds the prompt; afterwards also the option.
    """
    import torch

    with torch.inference_mode():
        total = float(logits[-1].float().log_softmax(-1)[option[0]])
        if len(option) > 1:
            fed = torch.tensor([list(option[:-1])], device=model.device)
            output = model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=len(option) - 1)
            rows = output.logits[0].float().log_softmax(-1)
            wanted = torch.tensor(list(option[1:]), device=rows.device)
            total += float(rows.gather(1, wanted[:, None]).sum())
    return total


def letter_log_probabilities(model: Any, tokenizer: Any, prompt: Sequence[int], cache: Any, count: int) -> list[float]:
    """log P of each option's letter as the answer's first token, with and without a space before it, the larger."""
    logits = prefill(model, prompt, cache)
    if logits is None:
        raise ValueError("reading a prompt that nobody cancels cannot be cancelled")
    row = logits[-1].float().log_softmax(-1)
    scores = []
    for letter in CHOICE_LETTERS[:count]:
        tokens = {tokenizer.encode(text, add_special_tokens=False)[-1] for text in (letter, f" {letter}")}
        scores.append(max(float(row[token]) for token in tokens))
    return scores
