"""Tunes an adapter on pairs of answers, one of them preferred: direct preference optimisation (Rafailov et al. 2023).

Pairs come from votes and thumbs that readers gave, or from answers that the model itself sampled and a rule scored. The
reference is the base without the adapter. The loss is ten lines; `trl` would bring four packages for it.
"""

from __future__ import annotations

import importlib.metadata
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from indexes.disk import make_folder
from indexes.errors import Cancelled
from rag.conversations import ConversationStore
from rag.errors import MalformedTrainingData
from rag.generators.excerpts import is_small
from rag.generators.protocol import GenerationRequest, Generator, TextPiece
from rag.models.adapters import AdapterRecord, base_fingerprint
from rag.models.capabilities import read_capabilities
from rag.models.devices import choose_device, peak_memory_bytes, reset_peak_memory
from rag.models.folder import load_config
from rag.models.loading import load_tokenizer
from rag.tuning.data import RowPassage, TrainingRow, rows_sha256
from rag.tuning.run_folder import RunFolder
from rag.tuning.settings import TuneProgress, TuneReport, TuneSettings, place_process
from rag.tuning.train import EncodedRow, add_lora, collate, encode_rows, load_for_training, pad_token, shown_excerpts
from rag.types import Answer

BETA = 0.1
"""How closely the tuned model stays to the base; the paper's value."""
USUAL_RATE = 5e-5
SAMPLES = 4
"""Answers sampled for a question."""
_ROWS_AT_ONCE = 4  # sixteen answers: a step of the local generator that writes so many takes 1.6 times one of four


@dataclass(frozen=True, slots=True)
class Preference:
    """A question with the preferred answer, and the text that was liked less."""

    row: TrainingRow
    rejected: str


def kept_preferences(store: ConversationStore) -> list[Preference]:
    """The pairs in votes, and in thumbs up and down to the same question; the prompt is the preferred answer's."""
    found = []
    for vote in store.votes():
        best = next((answer for answer in vote.answers if answer.name == vote.winner), None)
        if best is not None:
            found += [_pair(best, other) for other in vote.answers if other is not best]
    thumbs = store.feedback()
    liked = {answer.question: answer for feedback, answer in thumbs if feedback.rating == "up"}
    found += [
        _pair(liked[answer.question], answer)
        for feedback, answer in thumbs
        if feedback.rating == "down" and answer.question in liked
    ]
    return [each for each in found if each.row.answer != each.rejected]


def sampled_preferences(
    generator: Generator,
    rows: Iterable[tuple[TrainingRow, Callable[[str], float | None]]],
    *,
    max_tokens: int = 96,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Preference]:
    """For each row, the best and the worst of `SAMPLES` answers by the row's rule; nothing where all are alike."""

    def write(request: GenerationRequest) -> str:
        return "".join(piece.text for piece in generator.stream(request) if isinstance(piece, TextPiece)).strip()

    def pairs(
        row: TrainingRow, score: Callable[[str], float | None], writing: list[Future[str]]
    ) -> Iterator[Preference]:
        texts = [each.result() for each in writing]
        scored = {text: value for text in texts if text and (value := score(text)) is not None}
        if scored and max(scored.values()) > min(scored.values()):
            best, worst = max(scored, key=scored.__getitem__), min(scored, key=scored.__getitem__)
            yield Preference(replace(row, answer=best), worst)

    asked: deque[tuple[TrainingRow, Callable[[str], float | None], list[Future[str]]]] = deque()
    with ThreadPoolExecutor(_ROWS_AT_ONCE * SAMPLES) as together:
        for row, score in rows:
            request = replace(row.request(), temperature=1.0, max_tokens=max_tokens, cancelled=cancelled)
            asked.append((row, score, [together.submit(write, replace(request, seed=n)) for n in range(SAMPLES)]))
            if len(asked) == _ROWS_AT_ONCE:
                yield from pairs(*asked.popleft())
        for each in asked:
            yield from pairs(*each)


def tune_preferences(
    model: str,
    preferences: Iterable[Preference],
    out: Path,
    settings: TuneSettings,
    *,
    source: str,
    progress: Callable[[TuneProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> TuneReport:
    """Trains an adapter into `out` (minutes to hours). No checkpoints, validation or dropout.

    Nothing is kept of a run that does not reach its end, so that it can be started again in the same folder.

    Args:
        preferences: read once `out` is known to be free.
        source: where the pairs are from, for the adapter's record.

    Raises:
        MalformedTrainingData: no pair fits; others as `rag.tuning.train.tune`.
    """
    import torch

    settings.check()
    folder = RunFolder(out)
    folder.require_free()
    make_folder(out)
    preferences = list(preferences)
    if not preferences:
        raise _nothing_to_learn(0)
    started = time.monotonic()
    settings = settings.over(choose_device(settings.device))
    tokenizer, config = load_tokenizer(model), load_config(model)
    longest = min(settings.max_tokens, read_capabilities(config).context_tokens)
    encode = partial(encode_rows, tokenizer, max_tokens=longest)
    if is_small(config):
        encode = partial(encode, brief=True, shortened=shown_excerpts(tokenizer, settings.device))
    pairs = [pair for each in preferences if (pair := _encoded(encode, each)) is not None]
    if not pairs:
        raise _nothing_to_learn(len(preferences))
    place = place_process(settings.device)
    sha256 = rows_sha256(row for each in preferences for row in (each.row, replace(each.row, answer=each.rejected)))
    reset_peak_memory(place.device)
    loaded = load_for_training(model, settings, place)
    fingerprint = base_fingerprint(loaded.model)
    peft_model = add_lora(loaded, settings)
    optimizer = torch.optim.AdamW(
        [each for each in peft_model.parameters() if each.requires_grad], lr=settings.learning_rate or USUAL_RATE
    )
    batch = settings.batch_size * settings.accumulation
    order = _order(len(pairs), settings)
    steps = -(-len(order) // batch)
    history, tokens, margins = [], 0, [0.0] * len(pairs)
    for step in range(1, steps + 1):
        losses = []
        for number in order[(step - 1) * batch : step * batch]:
            if cancelled():
                raise Cancelled(f"Training was stopped at step {step - 1}; nothing is kept.")
            loss, margins[number] = _loss(peft_model, pairs[number], pad_token(tokenizer), place.device)
            (loss / batch).backward()
            losses.append(float(loss.detach()))
            tokens += sum(len(row.input_ids) for row in pairs[number])
        torch.nn.utils.clip_grad_norm_(peft_model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        history.append({"step": step, "loss": sum(losses) / len(losses)})
        seconds = time.monotonic() - started
        progress(TuneProgress(step, steps, history[-1]["loss"], None, tokens / seconds))
    seconds = time.monotonic() - started
    peft_model.save_pretrained(str(out))
    folder.write_curve(history)
    report = TuneReport(
        adapter=str(out),
        steps=steps,
        train_loss=sum(entry["loss"] for entry in history) / steps,
        eval_loss=None,
        tokens_per_s=tokens / seconds,
        peak_memory_bytes=peak_memory_bytes(place.device),
        seconds=seconds,
        train_rows=len(pairs),
        split_by="none",
        dropped_rows=len(preferences) - len(pairs),
        best_step=steps,
    )
    AdapterRecord(
        base_model=loaded.name,
        base_fingerprint=fingerprint,
        quantization=loaded.quantization,
        data_sha256=sha256,
        num_rows=len(preferences),
        with_passages=any(each.row.passages for each in preferences),
        settings=settings.as_record() | {"preferences": source, "beta": BETA},
        metrics={name: value for name, value in asdict(report).items() if isinstance(value, float | int)}
        | {"preferred_share": sum(margin > 0 for margin in margins) / len(pairs)},
        versions={name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    ).write(out)
    return report


def _nothing_to_learn(found: int) -> MalformedTrainingData:
    return MalformedTrainingData(
        f"There are {found} preferences, and none can be learnt from.",
        hint="Vote between answers or rate them on the page, or take --preferences sampled with --data.",
    )


def _pair(better: Answer, worse: Answer) -> Preference:
    passages = tuple(RowPassage(each.title, each.section, each.text) for each in better.passages)
    return Preference(TrainingRow(better.question, better.answer, passages=passages), worse.answer)


def _encoded(encode: Callable[..., Any], preference: Preference) -> tuple[EncodedRow, EncodedRow] | None:
    """Both answers behind one prompt; None where one does not fit, or cites what the other's prompt does not show."""
    found = []
    for answer in (preference.row.answer, preference.rejected):
        try:
            found.append(encode([replace(preference.row, answer=answer)]).rows[0])
        except MalformedTrainingData:
            return None
    prompts = [row.input_ids[: sum(label < 0 for label in row.labels)] for row in found]
    return (found[0], found[1]) if prompts[0] == prompts[1] else None


def _order(count: int, settings: TuneSettings) -> list[int]:
    """Numbers of the pairs, shuffled for each pass."""
    draw = random.Random(settings.seed)
    wanted = max(round(count * settings.epochs), 1)
    if settings.max_steps:
        wanted = min(wanted, settings.max_steps * settings.batch_size * settings.accumulation)
    order: list[int] = []
    while len(order) < wanted:
        order += draw.sample(range(count), count)
    return order[:wanted]


def _loss(peft_model: Any, pair: tuple[EncodedRow, EncodedRow], pad: int, device: str) -> tuple[Any, float]:
    """The loss of a pair, and how much more the tuned model favours the preferred answer than the base does (nats)."""
    import torch

    batch = {name: tensor.to(device) for name, tensor in collate(pair, pad).items()}
    with torch.no_grad(), peft_model.disable_adapter():
        reference = log_probabilities(peft_model, batch)
    tuned = log_probabilities(peft_model, batch)
    gains = tuned - reference
    margin = gains[0] - gains[1]
    return -torch.nn.functional.logsigmoid(BETA * margin), float(margin.detach())


def log_probabilities(model: Any, batch: dict[str, Any]) -> Any:
    """log P(answer | prompt) of each row of a batch of `collate`, in nats."""
    import torch

    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits = model(**inputs).logits.float()
    targets = batch["labels"][:, 1:]
    learnt = targets != -100
    gained = -torch.nn.functional.cross_entropy(logits, targets[learnt], reduction="none")
    return torch.zeros(len(targets), device=gained.device).index_add(0, learnt.nonzero()[:, 0], gained)
