"""What a run shows while it goes on: metrics.jsonl, TensorBoard, W&B, and the terminal."""

import importlib.util
import logging
import math
import pathlib
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import flatten
from metamask_jax.core.mirror import Mirror
from metamask_jax.core.places import Place
from metamask_jax.core.storage import JsonLines, write_atomically
from metamask_jax.errors import ConfigError
from metamask_jax.training.host_log import HostLog
from metamask_jax.training.roofline import Peak

_log = logging.getLogger(__name__)
_NEVER = 1e9  # seconds
_FORMAT = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_BAR = 38  # columns of it: everything but the postfix and the steps, with ten for the bar itself
_IMPORTANCE = ("loss", "knn_accuracy", "images_per_second", "mfu", "hfu", "loss_method", "mask_std", "loss_drr")
CLOCKS = ("images_per_second", "step_seconds", "mfu", "hfu")
"""What is logged of time: it differs from run to run."""


def check_libraries(log: ConfigDict) -> None:
    """Refuses `config.log` settings whose library is not installed."""
    if log.wandb_project is not None and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"config.log.wandb_project={log.wandb_project!r}, but wandb is not installed; expected None, or "
            "`pip install metamask_jax[wandb]` first"
        )


class Watch:
    """All of a run's outputs as one; a context manager. Only the main process has one."""

    def __init__(
        self,
        config: ConfigDict,
        workdir: Place,
        *,
        start_step: int,
        total_steps: int,
    ) -> None:
        """Opens every output the configuration asks for but TensorBoard's, whose import would delay the first step."""
        self._mirror = Mirror(workdir)
        self._metrics = JsonLines(self._mirror.continued("metrics.jsonl"), resume_step=start_step)
        self._masks = JsonLines(self._mirror.continued("masks.jsonl"), resume_step=start_step)
        self._host_log = HostLog(self._mirror)
        self._batch_size = config.train.batch_size
        self._total_steps = total_steps
        self._last: tuple[float, int] | None = None  # when which step was done
        self._peak: Peak | None = None
        self._shown: dict[str, str] = {}  # the last of each number that the terminal shows
        self._tensorboard = self._wandb = None
        self._events = (self._mirror.folder / "tensorboard", start_step + 1) if config.log.tensorboard else None
        if config.log.wandb_project is not None:
            import wandb

            self._wandb = wandb.init(
                project=config.log.wandb_project,
                id=_run_id(workdir / "wandb_id"),
                dir=str(workdir) if isinstance(workdir, pathlib.Path) else None,
                config=flatten(config),
                resume="allow",
            )
        from tqdm import tqdm

        self._bar = tqdm(
            total=total_steps,
            initial=start_step,
            bar_format=_FORMAT,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),  # plain lines instead
            delay=_NEVER,  # while XLA compiles, its own messages would tear the bar: it begins with the clock
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
        self._metrics.close()
        self._masks.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)
        self._host_log.close(error)
        self._mirror.close()

    def upload(self) -> None:
        """Makes what was logged outlive this process, if it does not yet; any thread may ask for it."""
        if self._tensorboard is not None:
            self._tensorboard.flush()
        self._mirror.upload()

    def start_clock(self, step: int) -> None:
        """Counts time from now on, after a step: rates are of training, not of compiling and evaluating."""
        self._open_tensorboard()
        self._last = (time.monotonic(), step)
        self._bar.delay = 0.0
        self._bar.unpause()

    def compare_with(self, peak: Peak | None) -> None:
        """Logs from now on how much of what the chips can do is used; None: that is not known of these chips."""
        self._peak = peak

    def log(self, step: int, metrics: Mapping[str, Any], *, done: float | None = None) -> None:
        """Writes one logged step everywhere; `done` is when it was, on the monotonic clock, None for now."""
        self._open_tensorboard()
        rate = self._rate(step, time.monotonic() if done is None else done)
        values = {name: _plain(value) for name, value in metrics.items()}
        if rate is not None:
            values["images_per_second"] = round(rate * self._batch_size, 2)
            values["step_seconds"] = round(1 / rate, 6)
            if self._peak is not None:
                values[self._peak.name] = round(self._peak.seconds * rate, 4)
        self._metrics.write(step, {name: value if math.isfinite(value) else None for name, value in values.items()})
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(values, step=step)
        self._show(step, values, rate)

    def _open_tensorboard(self) -> None:
        if self._events is not None and self._tensorboard is None:
            from tensorboardX import SummaryWriter

            folder, first_step = self._events
            self._tensorboard = SummaryWriter(str(folder), purge_step=first_step)

    def _rate(self, step: int, now: float) -> float | None:
        """Steps per second since the clock was last looked at; None if it does not run yet."""
        if self._last is None or self._last[1] >= step:
            return None
        (then, last_step), self._last = self._last, (now, step)
        return (step - last_step) / max(now - then, 1e-9)

    def log_mask(self, step: int, weights: np.ndarray) -> None:
        """Keeps a snapshot of the mask for the report."""
        self._masks.write(step, {"weights": weights.round(5).tolist()})

    def say(self, message: str) -> None:
        """Prints a line of its own without tearing the progress bar."""
        if self._bar.disable or self._bar.delay:
            _log.info(message)
            return
        with self._bar.external_write_mode():
            _log.info(message)

    def _show(self, step: int, values: Mapping[str, float], rate: float | None) -> None:
        parts = {
            "loss": "loss {:.3f}",
            "loss_drr": "drr {:.2f}",
            "loss_method": "method {:.3f}",
            "mask_std": "mask ±{:.4f}",
            "knn_accuracy": "kNN {:.1%}",
            "images_per_second": "{:.0f} img/s",
            "mfu": "MFU {:.1%}",
            "hfu": "HFU {:.1%}",
        }
        self._shown |= {name: form.format(values[name]) for name, form in parts.items() if name in values}
        text = "  ".join(self._shown[name] for name in parts if name in values)
        if rate is not None:
            left = _duration((self._total_steps - step) / rate)
            text += f"  {1000 / rate:.3g} ms/step  {left} left"
        line = f"step {step}/{self._total_steps}  {text}"
        if self._bar.disable:
            _log.info(line)
        else:
            self._host_log.note(line)
            self._bar.set_postfix_str(self._fitting(parts), refresh=False)
            self._bar.update(step - self._bar.n)

    def _fitting(self, order: Iterable[str]) -> str:
        """The last of each number, that of the accuracy included, as many as there is room for beside the bar."""
        room = shutil.get_terminal_size().columns - _BAR - 2 * len(str(self._total_steps))
        names = [name for name in order if name in self._shown]
        while len(text := "  ".join(self._shown[name] for name in names)) > room and len(names) > 1:
            names.remove(max(names, key=_IMPORTANCE.index))
        return text


class Silence(Watch):
    """What the other processes of a run have instead: a log file of their own, and nothing to say."""

    def __init__(self, config: ConfigDict, workdir: Place, *, start_step: int, total_steps: int) -> None:
        """Opens the log file."""
        self._mirror = Mirror(workdir)
        self._host_log = HostLog(self._mirror)
        self._total_steps, self._last = total_steps, None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._host_log.close(error)
        self._mirror.close()

    def upload(self) -> None:
        """Does nothing."""

    def start_clock(self, step: int) -> None:
        """Counts time from now on."""
        self._last = (time.monotonic(), step)

    def compare_with(self, peak: Peak | None) -> None:
        """Does nothing."""

    def log(self, step: int, metrics: Mapping[str, Any], *, done: float | None = None) -> None:
        """Notes how long steps take here."""
        rate = self._rate(step, time.monotonic() if done is None else done)
        time_per_step = "" if rate is None else f"  {1000 / rate:.3g} ms/step"
        self._host_log.note(f"step {step}/{self._total_steps}{time_per_step}")

    def log_mask(self, step: int, weights: np.ndarray) -> None:
        """Does nothing."""

    def say(self, message: str) -> None:
        """Notes it."""
        self._host_log.note(message)


def _run_id(path: Place) -> str:
    """The name under which W&B knows the run in a working directory, made up at its first start."""
    if not path.exists():
        write_atomically(path, secrets.token_hex(4))
    return path.read_text()


def _plain(value: Any) -> float | int:
    """A JSON number; whole ones stay whole."""
    number = value.item() if hasattr(value, "item") else value
    return number if isinstance(number, int) else float(number)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
