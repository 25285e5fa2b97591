"""What can go wrong, and what to do next. Every message names the value and the remedy.

PacelineError
├── UnsupportedModel    the target cannot be speculated on (recurrent state, unknown position scheme, no such folder)
├── IncompatibleDraft   the draft model does not fit the target (another tokenizer)
├── IncompatibleRule    the rule does not fit the drafter, the target or the sampling settings
├── InvalidRequest      a prompt, a setting or an option with a value that cannot be served
│   └── PromptTooLong   the prompt does not fit the context
├── NumericalError      NaN logits
└── CheckpointMismatch  weights and configuration do not belong together
"""


class PacelineError(Exception):
    """Base of all errors that a user can act on."""


class UnsupportedModel(PacelineError):
    """The model cannot be loaded or cannot roll back."""


class IncompatibleDraft(PacelineError):
    """The draft model does not belong to this target."""


class IncompatibleRule(PacelineError):
    """The rule cannot verify what this drafter proposes."""


class InvalidRequest(PacelineError, ValueError):
    """A prompt, a setting or an option with a value that cannot be served."""


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the model's context."""


class NumericalError(PacelineError):
    """The target returned logits that are not numbers."""


class CheckpointMismatch(PacelineError):
    """Weights and configuration do not belong together."""
