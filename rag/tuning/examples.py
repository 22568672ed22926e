"""Training rows as tokens: the prompt that serving will use, the answer to learn, batches of both, and their losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from indexes.errors import Cancelled
from rag.citations import MARKER
from rag.errors import MalformedTrainingData
from rag.generators.chat_prompt import ChatPrompt, Excerpts, ever_smaller, form_of
from rag.generators.prompts import Message
from rag.generators.protocol import GenerationRequest
from rag.models.capabilities import read_capabilities
from rag.sentence_reader import CrossEncoder, LearnedReader
from rag.tuning.data import TrainingRow
from rag.tuning.settings import TuneSettings

IGNORED = -100
"""Label of a token that is read but not learnt (torch's cross entropy skips it)."""
_PAD_TO = 8  # matrix products are faster at multiples of it


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """Token ids and as many labels; `IGNORED` over the prompt."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows that fit. `shortened` of them lost passages or turns to fit; `dropped` more were still too long."""

    rows: list[EncodedRow]
    shortened: int
    dropped: int


def row_encoder(
    tokenizer: Any, config: Any, settings: TuneSettings, cancelled: Callable[[], bool] = lambda: False
) -> Callable[..., EncodedRows]:
    """`encode_rows` for a base model, by its transformers config: with the words and excerpts of its serving."""
    longest = min(settings.max_tokens, read_capabilities(config).context_tokens)
    encode = partial(encode_rows, tokenizer, max_tokens=longest, cancelled=cancelled)
    form, chat = form_of(config), ChatPrompt(tokenizer, "the model")
    reader = LearnedReader(CrossEncoder(device=settings.device).score)
    excerpts = Excerpts(reader, lambda text: len(chat.text_tokens(text)), form)
    return partial(encode, brief=form.brief, shortened=excerpts.of)


def encode_rows(
    tokenizer: Any,
    rows: Sequence[TrainingRow],
    max_tokens: int,
    *,
    train_on_prompt: bool = False,
    brief: bool = False,
    shortened: Callable[[GenerationRequest], GenerationRequest] = lambda request: request,
    cancelled: Callable[[], bool] = lambda: False,
) -> EncodedRows:
    """Encodes every exchange of every row.

    Args:
        tokenizer: with a chat template.
        max_tokens: longest row; longer ones lose their last passages, then their oldest turns, and are left out where
            that is not enough or would take a passage that the answer cites.
        train_on_prompt: learn the prompt's tokens too.
        brief, shortened: the words for small models, and what chooses the excerpts that a model is shown.
        cancelled: polled before every row, since choosing excerpts takes time.

    Raises:
        MalformedTrainingData: no row fits.
        Cancelled: `cancelled` became true.
    """
    chat = ChatPrompt(tokenizer, "the model")
    encoded: list[EncodedRow] = []
    num_shortened = dropped = 0
    for row in (exchange for whole in rows for exchange in whole.exchanges()):
        if cancelled():
            raise Cancelled("Training was stopped before it began.")
        for attempt, request in enumerate(ever_smaller(shortened(row.request()), fewest_passages=1)):
            ids, prompt_tokens = _tokens(tokenizer, chat, row.messages(request, brief=brief))
            if not _shows_cited(row, request):
                dropped += 1  # it would learn to cite what it does not see
                break
            if len(ids) <= max_tokens:
                learnt_from = 0 if train_on_prompt else prompt_tokens
                encoded.append(EncodedRow(ids, [IGNORED] * learnt_from + ids[learnt_from:]))
                num_shortened += attempt > 0
                break
        else:
            dropped += 1
    if rows and not encoded:
        raise MalformedTrainingData(
            f"No row fits into {max_tokens} tokens; left out: {dropped}.",
            hint="Raise --max-length, or shorten the rows.",
        )
    return EncodedRows(encoded, num_shortened, dropped)


def _shows_cited(row: TrainingRow, request: GenerationRequest) -> bool:
    """Whether the prompt shows every passage that the answer cites; a number that no passage has does not count."""
    numbers = {int(number) for number in MARKER.findall(row.answer)}
    shown = {excerpt.number for excerpt in request.excerpts} or set(range(1, len(request.passages) + 1))
    return all(number in shown for number in numbers if number <= len(row.passages))


def _tokens(tokenizer: Any, chat: ChatPrompt, messages: list[Message]) -> tuple[list[int], int]:
    """(tokens of the chat, how many of them are the prompt)."""
    prompt = chat.message_tokens(messages[:-1])
    whole = chat.message_tokens(messages, answer_follows=False)
    if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
        # the template rewrites the prompt's end: take the serving prompt, then the answer and the end of the turn
        whole = [*prompt, *chat.text_tokens(messages[-1]["content"]), tokenizer.eos_token_id]
    return whole, len(prompt)


def collate(rows: Sequence[EncodedRow], pad_token: int) -> dict[str, Any]:
    """A batch padded on the right; `logits_to_keep` marks the positions whose next token is learnt.

    The model computes its output only there: the logits of a long prompt would take most of time and memory, unused.
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
    kept = torch.zeros((len(rows), length), dtype=torch.bool)
    kept[:, :-1] = labels[:, 1:] != IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "logits_to_keep": kept}


def answer_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Cross entropy of the learnt tokens: their sum divided by `num_items_in_batch`, or their mean without it.

    Args:
        outputs: of the model for a batch of `collate`; its logits are (learnt tokens, vocabulary).
    """
    import torch

    targets = labels[:, 1:]
    targets = targets[targets != IGNORED]
    if num_items_in_batch is None:
        return torch.nn.functional.cross_entropy(outputs["logits"].float(), targets)
    loss = torch.nn.functional.cross_entropy(outputs["logits"].float(), targets, reduction="sum")
    return loss / num_items_in_batch


def log_probabilities(model: Any, batch: dict[str, Any]) -> Any:
    """log P(answer | prompt) of each row of a batch of `collate`, in nats: (rows,)."""
    import torch

    logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits.float()
    targets = batch["labels"][:, 1:]
    learnt = targets != IGNORED
    gained = -torch.nn.functional.cross_entropy(logits, targets[learnt], reduction="none")
    return torch.zeros(len(targets), device=gained.device).index_add(0, learnt.nonzero()[:, 0], gained)


def pad_token(tokenizer: Any) -> int:
    """The token that fills a batch."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
