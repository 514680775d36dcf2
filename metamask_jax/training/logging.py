"""What a run shows while it goes on: metrics.jsonl, TensorBoard, W&B, and the terminal."""

import importlib.util
import logging
import math
import pathlib
import secrets
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import flatten
from metamask_jax.core.mirror import Mirror
from metamask_jax.core.places import Place
from metamask_jax.core.storage import JsonLines, write_atomically
from metamask_jax.errors import ConfigError

_log = logging.getLogger(__name__)
_NEVER = 1e9  # seconds


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
        self._batch_size = config.train.batch_size
        self._total_steps = total_steps
        self._last: tuple[float, int] | None = None  # when which step was done
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
            unit="step",
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

    def log(self, step: int, metrics: Mapping[str, Any], *, done: float | None = None) -> None:
        """Writes one logged step everywhere; `done` is when it was, on the monotonic clock, None for now."""
        self._open_tensorboard()
        rate = self._rate(step, time.monotonic() if done is None else done)
        values = {name: _plain(value) for name, value in metrics.items()}
        if rate is not None:
            values["images_per_second"] = round(rate * self._batch_size, 2)
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
        }
        text = "  ".join(form.format(values[name]) for name, form in parts.items() if name in values)
        if self._bar.disable:
            if rate is not None:
                seconds = 1 / max(rate, 1e-9)
                text += f"  {1000 * seconds:.3g} ms/step  {_duration((self._total_steps - step) * seconds)} left"
            _log.info("step %d/%d  %s", step, self._total_steps, text)
        else:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)


class Silence(Watch):
    """What the other processes of a run have instead."""

    def __init__(self, config: ConfigDict, workdir: Place, *, start_step: int, total_steps: int) -> None:
        """Opens nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def upload(self) -> None:
        """Does nothing."""

    def start_clock(self, step: int) -> None:
        """Does nothing."""

    def log(self, step: int, metrics: Mapping[str, Any], *, done: float | None = None) -> None:
        """Does nothing."""

    def log_mask(self, step: int, weights: np.ndarray) -> None:
        """Does nothing."""

    def say(self, message: str) -> None:
        """Does nothing."""


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
