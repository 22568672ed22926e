"""Rows into tokens and labels: only the answer is learnt, behind exactly the prompt that serving will use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag.errors import MalformedTrainingData
from rag.generators.chat_prompt import ChatPrompt
from rag.tuning.rows import TrainingRow

IGNORED = -100
"""Label of a token that is read but not learnt (torch's cross entropy skips it)."""
_PAD_TO = 8  # matrix products prefer lengths that are multiples of it


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """Token ids and as many labels; `IGNORED` over the prompt."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows that fit, and how many did not: `shortened` lost passages or turns, `dropped` were too long even so."""

    rows: list[EncodedRow]
    shortened: int
    dropped: int


def encode_rows(
    tokenizer: Any, rows: Sequence[TrainingRow], max_tokens: int, *, train_on_prompt: bool = False
) -> EncodedRows:
    """Encodes every exchange of every row.

    Args:
        tokenizer: with a chat template.
        max_tokens: longest row; longer ones lose their last passages, then their oldest turns, then are left out.
        train_on_prompt: learn the prompt's tokens too.

    Raises:
        MalformedTrainingData: no row fits.
    """
    chat = ChatPrompt(tokenizer, "the model")
    encoded: list[EncodedRow] = []
    shortened = dropped = 0
    for row in (exchange for whole in rows for exchange in whole.exchanges()):
        for attempt, smaller in enumerate(_ever_smaller(row)):
            ids, prompt_tokens = _tokens(tokenizer, chat, smaller)
            if len(ids) <= max_tokens:
                learnt_from = 0 if train_on_prompt else prompt_tokens
                encoded.append(EncodedRow(ids, [IGNORED] * learnt_from + ids[learnt_from:]))
                shortened += attempt > 0
                break
        else:
            dropped += 1
    if rows and not encoded:
        raise MalformedTrainingData(
            f"All {dropped} rows are longer than {max_tokens} tokens.", hint="Raise --max-length, or shorten the rows."
        )
    return EncodedRows(encoded, shortened, dropped)


def collate(rows: Sequence[EncodedRow], pad_token: int) -> dict[str, Any]:
    """A batch padded on the right; `logits_to_keep` counts the positions from the first learnt token's on.

    The model computes its output only for those: a long prompt's logits would be most of the memory and are not used.
    """
    import torch

    length = max(len(row.input_ids) for row in rows)
    length += -length % _PAD_TO
    ids = torch.full((len(rows), length), pad_token)
    labels = torch.full((len(rows), length), IGNORED)
    mask = torch.zeros((len(rows), length), dtype=torch.long)
    for place, row in enumerate(rows):
        count = len(row.input_ids)
        ids[place, :count] = torch.tensor(row.input_ids)
        labels[place, :count] = torch.tensor(row.labels)
        mask[place, :count] = 1
    first = min(next(i for i, label in enumerate((*row.labels[1:], 0), 1) if label != IGNORED) for row in rows)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "logits_to_keep": length - first + 1}


def answer_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Cross entropy of the learnt tokens, their sum over `num_items_in_batch`, their mean without it."""
    import torch

    logits = outputs["logits"][:, :-1].float()
    targets = labels[:, labels.shape[1] - logits.shape[1] :]
    flat = (logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    if num_items_in_batch is None:
        return torch.nn.functional.cross_entropy(*flat, ignore_index=IGNORED)
    return torch.nn.functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum") / num_items_in_batch


def _tokens(tokenizer: Any, chat: ChatPrompt, row: TrainingRow) -> tuple[list[int], int]:
    """(tokens, how many of them are the prompt)."""
    messages = row.messages()
    prompt = chat.message_tokens(messages[:-1])
    whole = chat.whole_tokens(messages)
    if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
        # templates that rewrite what the prompt ended with: the answer and the end of turn behind the serving prompt
        whole = [*prompt, *chat.text_tokens(row.answer), tokenizer.eos_token_id]
    return whole, len(prompt)


def _ever_smaller(row: TrainingRow) -> list[TrainingRow]:
    by_passages = [replace(row, passages=row.passages[:count]) for count in range(len(row.passages), 0, -1)]
    bare = replace(row, passages=row.passages[:1])
    by_turns = [replace(bare, history=row.history[start:]) for start in range(1, len(row.history) + 1)]
    return [*(by_passages or [row]), *by_turns]
