"""Trains a LoRA adapter: QLoRA over an NF4 base or plain LoRA, on one device or under `accelerate launch`.

Settings follow QLoRA (Dettmers et al. 2023): NF4 with double quantization, bfloat16 products, adapters on all linear
layers, checkpointed activations. Rows of similar length share a batch. Norms and embeddings keep their format (float32
would double the cache that serving needs). The optimizer's loop is transformers' Trainer; ours are the labels (only
the answer is learnt, behind exactly the prompt that serving will use), the folder that survives interruption
(`run_folder`), and the record that ties the adapter to its base.
"""

from __future__ import annotations

import importlib.metadata
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from indexes.disk import disk_error
from indexes.errors import Cancelled, CoalesceError, InvalidInput, first_line
from rag.citations import MARKER
from rag.errors import DoesNotFitInMemory, MalformedTrainingData, ModelCannotLoad
from rag.generators.chat_prompt import ChatPrompt, ever_smaller
from rag.generators.excerpts import Excerpts, is_small
from rag.generators.prompts import Message
from rag.generators.protocol import GenerationRequest
from rag.models.adapters import AdapterRecord, base_fingerprint
from rag.models.capabilities import read_capabilities
from rag.models.devices import RANDOM_NUMBERS, choose_device, is_out_of_memory, peak_memory_bytes, reset_peak_memory
from rag.models.folder import load_config
from rag.models.loading import LoadedModel, load_model, load_tokenizer
from rag.models.memory import lora_kinds
from rag.sentence_reader import CrossEncoder, LearnedReader
from rag.tuning.data import TrainingRow, rows_sha256, split_rows
from rag.tuning.run_folder import RunFolder
from rag.tuning.settings import Placement, TuneProgress, TuneReport, TuneSettings, place_process, training_arguments

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


@dataclass(frozen=True, slots=True)
class _Data:
    """Encoded rows, and what the adapter's record says of them."""

    train: EncodedRows
    validation: EncodedRows
    split_by: str
    sha256: str
    num_rows: int
    with_passages: bool


def tune(
    model: str,
    rows: Sequence[TrainingRow],
    out: Path,
    settings: TuneSettings | None = None,
    *,
    resume: bool = False,
    progress: Callable[[TuneProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> TuneReport:
    """Trains an adapter into `out` (minutes to hours).

    Args:
        model: folder or hub name of the base.
        resume: go on from the newest complete checkpoint in `out`.
        progress: called after every step.
        cancelled: polled before training and after every step; after a step a checkpoint is written first.

    Raises:
        ModelCannotLoad, DoesNotFitInMemory: the base.
        MalformedTrainingData: no rows, an empty split, or all rows too long.
        Conflict: `out` holds another run.
        Cancelled: `cancelled` became true; go on with `resume`.
        StorageFull: the disk is full; the last complete checkpoint is kept.
    """
    settings = settings or TuneSettings()
    settings.check()
    started = time.monotonic()
    settings = settings.over(choose_device(settings.device))
    tokenizer, config = load_tokenizer(model), load_config(model)
    data = _encode(tokenizer, config, rows, settings, cancelled)
    place = place_process(settings.device)
    folder = RunFolder(out)
    if place.main:
        folder.open({"model": model, "data_sha256": data.sha256, "settings": settings.as_record()}, resume=resume)
    place.wait()
    checkpoint = folder.newest_checkpoint()
    validation = data.validation.rows
    arguments = training_arguments(
        folder.checkpoints, settings, place, config, len(data.train.rows), validates=bool(validation)
    )
    reset_peak_memory(place.device)
    loaded = load_for_training(model, settings, place)
    fingerprint = base_fingerprint(loaded.model)  # before the adapter renames its layers
    watcher = _watcher(folder, settings.patience, progress, cancelled)
    trainer = _trainer(add_lora(loaded, settings), tokenizer, arguments, data.train.rows, validation, watcher)
    with _known_errors(folder, place), RANDOM_NUMBERS if place.kind == "cuda" else nullcontext():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if watcher.stopped:
            raise Cancelled(f"Training was stopped at step {trainer.state.global_step}; nothing learnt is lost.")
        report = TuneReport(
            adapter=str(out),
            steps=trainer.state.global_step,
            train_loss=_mean_loss(trainer.state.log_history),
            eval_loss=trainer.state.best_metric,
            tokens_per_s=watcher.tokens_per_s,
            peak_memory_bytes=peak_memory_bytes(place.device),
            seconds=time.monotonic() - started,
            train_rows=len(data.train.rows),
            validation_rows=len(validation),
            split_by=data.split_by,
            shortened_rows=data.train.shortened + data.validation.shortened,
            dropped_rows=data.train.dropped + data.validation.dropped,
            best_step=trainer.state.best_global_step or trainer.state.global_step,
        )
        trainer.save_model(str(out))
        if place.main:
            (out / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
            folder.write_curve(trainer.state.log_history)
            _record(loaded, fingerprint, data, settings, report).write(out)
    return report


def _encode(
    tokenizer: Any, config: Any, rows: Sequence[TrainingRow], settings: TuneSettings, cancelled: Callable[[], bool]
) -> _Data:
    rows = list(rows) if settings.passages else [replace(row, passages=()) for row in rows]
    split = split_rows(rows, settings.validation_share, settings.seed)
    longest = min(settings.max_tokens, read_capabilities(config).context_tokens)
    encode = partial(encode_rows, tokenizer, max_tokens=longest, cancelled=cancelled)
    if is_small(config):
        encode = partial(encode, brief=True, shortened=shown_excerpts(tokenizer, settings.device))
    return _Data(
        train=encode(split.train, train_on_prompt=settings.train_on_prompt),
        validation=encode(split.validation),
        split_by=split.by,
        sha256=rows_sha256(rows),
        num_rows=len(rows),
        with_passages=any(row.passages for row in rows),
    )


def shown_excerpts(tokenizer: Any, device: str) -> Callable[[GenerationRequest], GenerationRequest]:
    """What serving shows a small model of the passages."""
    chat = ChatPrompt(tokenizer, "the model")
    reader = LearnedReader(CrossEncoder(device=device).score)
    return Excerpts(reader, lambda text: len(chat.text_tokens(text))).of


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
        brief, shortened: the words for small models, and what chooses their excerpts.
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
            f"All {dropped} rows are longer than {max_tokens} tokens.", hint="Raise --max-length, or shorten the rows."
        )
    return EncodedRows(encoded, num_shortened, dropped)


def _shows_cited(row: TrainingRow, request: GenerationRequest) -> bool:
    """Whether the prompt shows every passage that the answer cites; a number that no passage has does not count."""
    numbers = {int(number) for number in MARKER.findall(row.answer)}
    shown = {excerpt.number for excerpt in request.excerpts} or set(range(1, len(request.passages) + 1))
    return all(number in shown for number in numbers if number <= len(row.passages))


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


def _tokens(tokenizer: Any, chat: ChatPrompt, messages: list[Message]) -> tuple[list[int], int]:
    """(tokens of the chat, how many of them are the prompt)."""
    prompt = chat.message_tokens(messages[:-1])
    whole = chat.message_tokens(messages, answer_follows=False)
    if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
        # the template rewrites the prompt's end: take the serving prompt, then the answer and the end of the turn
        whole = [*prompt, *chat.text_tokens(messages[-1]["content"]), tokenizer.eos_token_id]
    return whole, len(prompt)


@contextmanager
def _known_errors(folder: RunFolder, place: Placement) -> Iterator[None]:
    """Turns a full disk and exhausted memory into our own errors."""
    try:
        yield
    except CoalesceError:
        raise
    except Exception as error:
        kept = "the last complete checkpoint is kept: go on with --resume"
        if (ours := disk_error(error, folder.path, kept=kept)) is not None:
            if place.main:
                folder.drop_incomplete()
            raise ours from error
        if is_out_of_memory(error):
            raise DoesNotFitInMemory(
                f"Training ran out of memory: {error}",
                hint="Lower --batch-size or --max-length, use --quantization nf4; `coalesce memory --train` estimates.",
            ) from error
        raise


def load_for_training(model: str, settings: TuneSettings, place: Placement) -> LoadedModel:
    """The frozen base, ready for adapters to be trained on it."""
    loaded = load_model(
        model,
        quantization=settings.quantization,
        device=place.device,
        dtype=settings.dtype,
        for_training=True,
        sharded=place.sharded,
    )
    loaded.model.config.use_cache = False
    loaded.model.requires_grad_(False)
    keep_gradients_right(loaded.model)
    return loaded


def keep_gradients_right(model: Any) -> None:
    """Stops bitsandbytes from repacking 4-bit weights on CPUs with AVX512-BF16.

    It repacks them at the first pass in evaluation mode, and the packed layers have no gradient of their own: after
    one validation pass LoRA gradients are silently wrong (mean cosine 0.51 on a Qwen3 shape) or training stops with an
    error. Serving keeps the packed, faster form.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def add_lora(loaded: LoadedModel, settings: TuneSettings) -> Any:
    """The base with a fresh adapter; float32, seeded.

    Raises:
        InvalidInput: `target_modules` names no layer of this model.
        ModelCannotLoad: it has no layer that could be adapted.
    """
    import torch

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on import it advises installing a package
    from peft import LoraConfig, get_peft_model

    kinds = _without_experts(lora_kinds(loaded.model), loaded.model)
    if not kinds:
        raise ModelCannotLoad(
            f"{loaded.name} has no linear layers that could be adapted.",
            hint="Models of the GPT-2 kind cannot be tuned here; take a newer one.",
        )
    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.lora_targets() or kinds,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
        bias="none",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an old name
            return get_peft_model(loaded.model, config)
    except ValueError as error:
        if settings.target_modules is None:
            raise
        raise InvalidInput(
            f"{loaded.name} cannot be tuned at {settings.target_modules!r}: {first_line(error)}",
            hint=f"It has the layers {', '.join(kinds)}.",
        ) from error


_OF_EXPERTS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})


def _without_experts(kinds: list[str], model: Any) -> list[str]:
    """The kinds without those that peft takes for a mixture's experts; dense layers of these names go with them.

    transformers holds the experts as one block; peft's adapters on it take no dropout, and engines do not read them.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    probe = LoraConfig(target_modules=[*kinds, *_OF_EXPERTS])
    convert_peft_config_for_transformers(probe, model, None)
    return [kind for kind in kinds if kind in probe.target_modules]


def _trainer(
    peft_model: Any,
    tokenizer: Any,
    arguments: Any,
    train: list[EncodedRow],
    validation: list[EncodedRow],
    watcher: Any,
) -> Any:
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    class LikeLengths(Trainer):  # type: ignore[misc]  # the base class is untyped
        """A trainer whose batches hold rows of similar length."""

        def _get_train_sampler(self, train_dataset: Any = None) -> LengthSampler:
            del train_dataset  # always `train`
            together = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
            lengths = [len(row.input_ids) for row in train]
            return LengthSampler(lengths, together, arguments.seed, lambda: int((self.state.epoch or 0) + 1e-6))

    trainer = LikeLengths(
        model=peft_model,
        args=arguments,
        train_dataset=train,
        eval_dataset=validation or None,
        data_collator=partial(collate, pad_token=pad_token(tokenizer)),
        compute_loss_func=answer_loss,
        processing_class=tokenizer,
        callbacks=[watcher],
    )
    trainer.remove_callback(PrinterCallback)  # prints to stdout, where the command's JSON belongs
    return trainer


class LengthSampler:
    """Puts rows of similar length next to each other, the longest of all first, in a new order for each epoch.

    transformers' own sampler draws from the global generator, so that an interrupted run would resume in another order.

    Args:
        lengths: of the rows; together: rows per update.
        epoch: gives the number of the epoch that begins.
    """

    def __init__(self, lengths: Sequence[int], together: int, seed: int, epoch: Callable[[], int]) -> None:
        self._lengths = lengths
        self._together = together
        self._seed = seed
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        import torch
        from transformers.trainer_pt_utils import get_length_grouped_indices

        draw = torch.Generator().manual_seed(1000 * self._seed + self._epoch())
        order: list[int] = get_length_grouped_indices(self._lengths, self._together, generator=draw)
        return iter(order)


def _watcher(
    folder: RunFolder, patience: int, progress: Callable[[TuneProgress], None], cancelled: Callable[[], bool]
) -> Any:
    """A `transformers.TrainerCallback` for progress, stopping and checkpoints, with `stopped` and `tokens_per_s`."""
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):  # type: ignore[misc]  # the base class is untyped
        """Watches one run."""

        def __init__(self) -> None:
            self.stopped = False
            self._tokens = 0
            self._seconds = 0.0
            self._step_began = 0.0
            self._tokens_before = 0
            self._loss: float | None = None
            self._eval_loss: float | None = None

        @property
        def tokens_per_s(self) -> float:
            return self._tokens / self._seconds if self._seconds > 0 else 0.0

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                progress(TuneProgress(state.global_step, state.max_steps, None, None, 0.0))

        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            self._step_began = time.monotonic()
            self._tokens_before = int(state.num_input_tokens_seen)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._seconds += time.monotonic() - self._step_began
            self._tokens += int(state.num_input_tokens_seen) - self._tokens_before
            if state.is_world_process_zero:
                progress(
                    TuneProgress(state.global_step, state.max_steps, self._loss, self._eval_loss, self.tokens_per_s)
                )
            if state.global_step >= state.max_steps:
                control.should_evaluate = args.eval_strategy != "no"  # the last step may be the best one
            if cancelled():
                self.stopped = state.global_step < state.max_steps
                control.should_training_stop = control.should_save = True

        def on_evaluate(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            # from the log, which a resumed run has too; transformers' EarlyStoppingCallback would start counting again
            losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
            if patience and len(losses) - 1 - losses.index(min(losses)) >= patience:
                control.should_training_stop = True

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            self._loss = (logs or {}).get("loss", self._loss)
            self._eval_loss = (logs or {}).get("eval_loss", self._eval_loss)

        def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                folder.mark_complete(state.global_step)
                folder.write_curve(state.log_history)

    return Watcher()


def _mean_loss(history: Sequence[Mapping[str, Any]]) -> float:
    """Mean loss over all logged steps; the Trainer's own figure leaves out the steps before a resume."""
    total, before = 0.0, 0
    for entry in history:
        if "loss" in entry:  # the mean since the entry before
            total += float(entry["loss"]) * (int(entry["step"]) - before)
            before = int(entry["step"])
    return total / before if before else 0.0


def pad_token(tokenizer: Any) -> int:
    """The token that fills a batch."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def _record(
    loaded: LoadedModel, fingerprint: str, data: _Data, settings: TuneSettings, report: TuneReport
) -> AdapterRecord:
    measured = ("steps", "best_step", "train_loss", "eval_loss", "tokens_per_s", "peak_memory_bytes", "seconds")
    return AdapterRecord(
        base_model=loaded.name,
        base_fingerprint=fingerprint,
        quantization=loaded.quantization,
        data_sha256=data.sha256,
        num_rows=data.num_rows,
        with_passages=data.with_passages,
        settings=settings.as_record(),
        metrics={name: getattr(report, name) for name in measured},
        versions={name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
