"""What this package raises on purpose; every message is one sentence: what was found, and what is allowed."""

import signal


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
