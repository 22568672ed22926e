"""Tunes an adapter on pairs of answers, one of them preferred: direct preference optimisation (Rafailov et al. 2023).

Pairs come from votes and thumbs that users gave, or from answers that the model itself sampled and a rule scored. The
reference is the base without the adapter. The run is that of `train`, with another loss; why not `trl`'s:
docs/decisions.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indexes.disk import disk_errors, make_folder
from indexes.jsonl import read_jsonl, to_jsonl
from rag.conversations import ConversationStore
from rag.errors import MalformedTrainingData
from rag.generators.protocol import GenerationRequest, Generator, TextPiece
from rag.models.folder import load_config
from rag.models.loading import load_tokenizer
from rag.tuning.data import FORMATS, RowPassage, TrainingRow, rows_sha256
from rag.tuning.examples import EncodedRows, log_probabilities, row_encoder
from rag.tuning.run_folder import RunFolder
from rag.tuning.settings import TuneProgress, TuneReport, TuneSettings
from rag.tuning.train import Example, TrainingSet, train_adapter
from rag.types import Answer

BETA = 0.1
"""How closely the tuned model stays to the base; the paper's value."""
USUAL_RATE = 5e-5
SAMPLES = 4
"""Answers sampled for a question."""
PAIRS_FILE = "preferences.jsonl"
_ROWS_AT_ONCE = 4  # sixteen answers: a step of the local generator that writes so many takes 1.6 times one of four


@dataclass(frozen=True, slots=True)
class Preference:
    """A question with the preferred answer, and the text that was liked less."""

    row: TrainingRow
    rejected: str

    @property
    def rejected_row(self) -> TrainingRow:
        """The question with the answer that was liked less."""
        return replace(self.row, answer=self.rejected)


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
    resume: bool = False,
    progress: Callable[[TuneProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> TuneReport:
    """Trains an adapter into `out` (minutes to hours), without validation and dropout.

    The pairs are written into `out` before training begins, and read from there by `resume`.

    Args:
        preferences: read once `out` is known to be free.
        source: where the pairs are from, for the adapter's record.
        model, resume, progress, cancelled: as in `train_adapter`.

    Raises:
        MalformedTrainingData: no pair fits; others as `train_adapter`.
    """
    settings.check()
    if not resume:
        RunFolder(out).require_free()
    preferences = _kept_pairs(out, preferences, resume=resume)
    rate = USUAL_RATE if settings.learning_rate is None else settings.learning_rate
    settings = replace(settings, dropout=0.0, validation_share=0.0, learning_rate=rate)
    pairs: list[Example] = []
    if preferences:
        encode = row_encoder(load_tokenizer(model), load_config(model), settings, cancelled)
        pairs = [pair for each in preferences if (pair := _encoded(encode, each)) is not None]
    if not pairs:
        raise MalformedTrainingData(
            f"There are {len(preferences)} preferences, and none can be learnt from.",
            hint="Vote between answers or rate them on the page, or take --preferences sampled with --data.",
        )
    training_set = TrainingSet(
        train=pairs,
        validation=[],
        data_sha256=rows_sha256(row for each in preferences for row in (each.row, each.rejected_row)),
        num_rows=len(preferences),
        with_passages=any(each.row.passages for each in preferences),
        split_by="none",
        shortened=0,
        dropped=len(preferences) - len(pairs),
        loss=preference_loss,
        constant_rate=True,
        notes={"preferences": source, "beta": BETA},
    )
    return train_adapter(model, training_set, out, settings, resume=resume, progress=progress, cancelled=cancelled)


def preference_loss(model: Any, batch: dict[str, Any]) -> Any:
    """Mean loss of a batch in which a preferred answer and the other one take turns."""
    import torch

    with torch.no_grad(), model.disable_adapter():
        reference = log_probabilities(model, batch)
    better, worse = (log_probabilities(model, batch) - reference).view(-1, 2).unbind(1)
    return -torch.nn.functional.logsigmoid(BETA * (better - worse)).mean()


def _kept_pairs(out: Path, preferences: Iterable[Preference], *, resume: bool) -> list[Preference]:
    """The pairs of the run in `out` that is resumed, else the given ones, which are then written there."""
    file = out / PAIRS_FILE
    if resume and file.is_file():
        records = [record for _, record in read_jsonl(file, MalformedTrainingData)]
        return [Preference(FORMATS["messages"].read(record), str(record["rejected"])) for record in records]
    found = list(preferences)
    if found:
        make_folder(out)
        with disk_errors(file):
            file.write_text(
                to_jsonl([FORMATS["messages"].write(e.row) | {"rejected": e.rejected} for e in found]), "utf-8"
            )
    return found


def _encoded(encode: Callable[..., EncodedRows], preference: Preference) -> Example | None:
    """Both answers behind one prompt; None where one does not fit, or cites what the other's prompt does not show."""
    try:
        better, worse = (encode([row]).rows[0] for row in (preference.row, preference.rejected_row))
    except MalformedTrainingData:
        return None
    prompts = [row.input_ids[: sum(label < 0 for label in row.labels)] for row in (better, worse)]
    return (better, worse) if prompts[0] == prompts[1] else None


def _pair(better: Answer, worse: Answer) -> Preference:
    passages = tuple(RowPassage(each.title, each.section, each.text) for each in better.passages)
    return Preference(TrainingRow(better.question, better.answer, passages=passages), worse.answer)
