"""The branches of the error tree (see `indexes/errors.py`) that belong to answering and tuning.

CoalesceError
├── ArmUnavailable         an arm that cannot run here: no model, no adapter                   (409)
├── ModelCannotLoad        a model folder that is missing, half downloaded or of no known kind (409)
├── AdapterMismatch        an adapter trained on another base model or shape                   (409)
├── PromptTooLong          the question does not fit the generator's context                   (413)
├── DoesNotFitInMemory     more bytes needed than the budget holds, with the arithmetic        (413)
├── GenerationFailed       the generator failed in the middle of an answer                     (503)
│   └── EngineRefuses      the remote engine refuses the request as it stands                   (503)
├── EngineUnreachable      the remote engine does not answer                                   (503)
└── MalformedTrainingData  a training file with a broken line, named by number                 (422)
"""

from __future__ import annotations

from indexes.errors import CoalesceError


class ArmUnavailable(CoalesceError):
    """The arm cannot run with what is configured."""


class ModelCannotLoad(CoalesceError):
    """The model's folder is missing, incomplete, or of a kind that cannot be loaded."""


class AdapterMismatch(CoalesceError):
    """The adapter was trained on another base model or has another shape."""


class PromptTooLong(CoalesceError):
    """The question alone exceeds the generator's context."""


class DoesNotFitInMemory(CoalesceError):
    """The request needs more bytes than the budget holds."""


class GenerationFailed(CoalesceError):
    """The generator failed in the middle of an answer."""


class EngineRefuses(GenerationFailed):
    """The remote engine refuses the request as it stands (400, 422)."""


class EngineUnreachable(CoalesceError):
    """The remote engine does not answer, or not in the OpenAI format."""


class MalformedTrainingData(CoalesceError):
    """A training file has a line that cannot be read."""
