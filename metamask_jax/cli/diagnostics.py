"""Runs the diagnostics on a pretrained run: one JSON and one PNG each, and a table.

metamask-diagnostics --workdir DIR [--step last] [--only NAME,NAME]
"""

import json
import logging
import sys
from collections.abc import Sequence

from metamask_jax.cli.common import Parser, guarded, set_up_process, whole_number
from metamask_jax.cli.terminal import say
from metamask_jax.core.storage import to_plain, write_atomically
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.diagnostics.subject import Subject
from metamask_jax.evaluate.diagnostics.suite import DIAGNOSTICS, DiagnosticResult
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.reporting import plots

_log = logging.getLogger("metamask_jax.diagnostics")


def run_diagnostics(subject: Subject, names: Sequence[str]) -> dict[str, DiagnosticResult]:
    """Runs diagnostics by name, keeping what each finds in the run's `diagnostics/`; those without labels are skipped.

    Returns:
      What was found, by name.
    """
    folder = subject.run.workdir / "diagnostics"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--workdir {folder.parent}; expected a folder that can be written, but: {error}") from error
    found = {}
    left_out = [name for name in names if DIAGNOSTICS[name].needs_labels and not subject.has_labels]
    if left_out:
        _log.warning("%r has no labels: %s left out", subject.run.config.data.name, ", ".join(left_out))
    for name in names:
        if name in left_out:
            continue
        found[name] = DIAGNOSTICS[name].run(subject)
        head = {"diagnostic": name, "step": subject.run.step, "images": subject.size}
        write_atomically(folder / f"{name}.json", json.dumps(head | to_plain(found[name].values), indent=1))
        write_atomically(folder / f"{name}.png", plots.to_png(found[name].figure))
    return found


def _diagnose(arguments: Sequence[str]) -> int:
    parser = Parser("Runs the diagnostics on a pretrained run.")
    parser.add_run()
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(DIAGNOSTICS)} (all)")
    parser.add_argument("--size", type=whole_number(1), default=5000, help="images of either split (%(default)s)")
    parser.add_argument("--trials", type=whole_number(1), default=10, help="random masks per rate (%(default)s)")
    parser.add_argument("--classifier", choices=("knn", "linear"), default="knn", help="of masks (%(default)s)")
    flags = parser.read(arguments)
    names = flags.only.split(",") if flags.only else list(DIAGNOSTICS)
    for name in names:
        if name not in DIAGNOSTICS:
            raise ConfigError(f"--only {name}; expected some of {', '.join(DIAGNOSTICS)}")
    set_up_process()
    run = load_run(flags.workdir, step=flags.step)
    subject = Subject(run, size=flags.size, classifier=flags.classifier, trials=flags.trials)
    found = run_diagnostics(subject, names)
    for name, outcome in found.items():
        say(f"{name:<14}{outcome.summary}", indent=14)
    print(f"\nwritten to {run.workdir / 'diagnostics'}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_diagnose, arguments)


if __name__ == "__main__":
    sys.exit(main())
