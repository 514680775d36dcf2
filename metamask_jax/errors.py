"""What this package raises on purpose; every message is one sentence: what was found, and what is allowed."""

import signal
from typing import Any

_WIDEST = 200  # characters of a value or of another's message within a sentence of ours


class ConfigError(ValueError):
    """A configuration or a flag that cannot be used."""


class DataError(ValueError):
    """Data that are missing, damaged, or not what the configuration says."""


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, damaged, or of another run."""


class ExportError(ConfigError):
    """An encoder that cannot be exported, or an exported file that cannot be read."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message also says what to try."""


class Interrupted(Exception):  # noqa: N818
    """A signal asked the run to stop; its state is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; the state is saved")
        self.exit_code = 128 + signal_number


def one_line(error: BaseException) -> str:
    r"""What an exception of somebody else says, short enough for a sentence of ours; its kind if it says nothing.

    Example:
      >>> one_line(ValueError("two\nlines")), one_line(KeyboardInterrupt())
      ('two lines', 'KeyboardInterrupt')
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception of a user's file may say anything
        text = ""
    if isinstance(error, KeyError):
        text = f"{text} is missing"
    return _shortened(text or type(error).__name__)


def shown(value: Any) -> str:
    r"""A value as Python writes it, on one line and shortened.

    Example:
      >>> shown("a\nb"), len(shown("x" * 10_000))
      ("'a\\nb'", 200)
    """
    if isinstance(value, int) and value.bit_length() > _WIDEST:  # Python refuses to write very large ones at all
        return f"a whole number of {value.bit_length()} bits"
    try:
        return _shortened(" ".join(repr(value).split("\n")))
    except Exception:  # a very deep structure, or an object that cannot show itself
        return f"an object of type {type(value).__name__}"


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
