"""The evaluation log: one JSON line per question and arm, appended as each finishes.

Metrics read records, never models, so scoring again costs nothing. A stopped run continues after its last whole line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from indexes.errors import Conflict, NotFound
from indexes.jsonl import JsonlLog, read_jsonl

AnswerKey: TypeAlias = tuple[str, str, int]
"""Question id, arm, repetition."""
RECORDS = "records.jsonl"
_HINT = "give another --out folder, or remove this one"


@dataclass(frozen=True, slots=True)
class PassageRecord:
    """A passage as the model read it."""

    document_id: str
    section: tuple[str, ...]
    chapter: int
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """One question asked of one arm.

    Attributes:
        repetition: number of the tuning seed, from 0; arms without tuning have 0 only.
        mode: `choice` (options scored) or `open`.
        scores: one number per option, higher is better, averaged over orders; extra: other scorings by name.
        picked: the option chosen; picked_by: `letter`, `likelihood` or `similarity` (of the encoder).
        passages: those that were read; passages_left_out: found, but too long for the model's context.
        evidence, note: as in `rag.types.Answer`.
        evidence_score: what `evidence` was judged by, 0 to 1; None where nothing was searched.
        error: why there is no answer; the question is then unscored, not wrong.
    """

    question_id: str
    arm: str
    repetition: int
    mode: str
    answer: str = ""
    refused: bool = False
    picked: int | None = None
    picked_by: str = ""
    scores: tuple[float, ...] = ()
    extra: dict[str, tuple[float, ...]] = field(default_factory=dict)
    passages: tuple[PassageRecord, ...] = ()
    passages_left_out: int = 0
    quotes: tuple[str, ...] = ()
    retrieve_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    finish: str = "stop"
    tokens_per_s: float = 0.0
    peak_memory_bytes: int = 0
    evidence: str | None = None
    evidence_score: float | None = None
    note: str = ""
    error: str = ""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Identifies the record within a run: question, arm, repetition, mode."""
        return (self.question_id, self.arm, self.repetition, self.mode)

    @property
    def answer_key(self) -> AnswerKey:
        """Identifies the open answer within a run."""
        return (self.question_id, self.arm, self.repetition)


class RecordFile:
    """Appends the records of one run to a file. The first line names the run that they belong to.

    Arms may be added to it later: then another such line stands where they begin.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        """Opens the file of a run, or starts it.

        Raises:
            Conflict: the file belongs to a run with other questions, adapters or settings, or a line is not a record.
        """
        self._log = JsonlLog(path)
        lines = list(self._log.read())
        known = [row["run"] for _, row in lines if "run" in row] or [{}] * bool(lines)
        if known:
            _check_same_run(path, known, run)
        self.records = [_record(row, where) for where, row in lines if "run" not in row]
        self._known = {record.key for record in self.records}
        if run not in known:
            self._log.append({"run": run})

    def __contains__(self, key: tuple[str, str, int, str]) -> bool:
        return key in self._known

    def append(self, record: Record) -> None:
        """Adds one record; it is on disk when this returns.

        Raises:
            StorageFull: the disk is full; earlier records stay readable.
        """
        self._log.append(asdict(record))
        self.records.append(record)
        self._known.add(record.key)


def read_records(folder: Path) -> list[Record]:
    """The records of a run.

    Raises:
        NotFound: the folder holds none.
        Conflict: a line is not a record.
    """
    path = folder / RECORDS
    if not path.is_file():
        raise NotFound(f"{folder} holds no {RECORDS}", hint="name the folder of an earlier run, as given to --out")
    return [_record(row, where) for where, row in read_jsonl(path, Conflict) if "run" not in row]


def _check_same_run(path: Path, known: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> None:
    """Arms may differ, and an arm's adapters where it is new."""
    first, added = known[0], ("arms", "adapters")
    different = {key for key in first.keys() | run.keys() if key not in added and first.get(key) != run.get(key)}
    used = {arm: names for each in known for arm, names in each.get("adapters", {}).items()}
    if any(used.get(arm, names) != names for arm, names in run.get("adapters", {}).items()):
        different.add("adapters")
    if different:
        raise Conflict(f"{path.parent} holds another run (different: {', '.join(sorted(different))})", hint=_HINT)


def _record(row: Mapping[str, Any], where: str) -> Record:
    try:
        passages = tuple(PassageRecord(**{**p, "section": tuple(p["section"])}) for p in row["passages"])
        extra = {name: tuple(scores) for name, scores in row["extra"].items()}
        lists = {name: tuple(row[name]) for name in ("scores", "quotes")}
        return Record(**{**row, **lists, "passages": passages, "extra": extra})
    except (AttributeError, KeyError, TypeError) as error:
        raise Conflict(f"{where}: not a record ({error})", hint=_HINT) from None
