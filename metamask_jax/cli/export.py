"""Writes a pretrained encoder to a file, or proves that such a file gives the checkpoint's features.

metamask-export --workdir DIR --out FILE [--format safetensors|npz|msgpack] [--mask apart|folded|none]
metamask-export --workdir DIR --verify FILE
"""

import pathlib
import sys
from collections.abc import Sequence

from metamask_jax.cli.common import Parser, guarded, path_name, saved_step, set_up_process
from metamask_jax.core.array_files import read_export
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.export.write import FORMATS, MASKS, TOLERANCE, Difference, export_encoder, verify_export


def _export(arguments: Sequence[str]) -> int:
    parser = Parser(
        "Writes a pretrained encoder to a file, or proves that such a file gives the checkpoint's features."
    )
    parser.add_argument("--workdir", type=path_name, required=True, help="of the pretrained run")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=path_name, help="the file to write")
    what.add_argument("--verify", type=path_name, help="a file to compare with the checkpoint")
    parser.add_argument(
        "--step", type=saved_step, help="a saved step, 'last' or 'best' (last; with --verify the file's own)"
    )
    parser.add_argument("--format", choices=FORMATS, help="(by the suffix of --out, else safetensors)")
    parser.add_argument("--mask", choices=MASKS, default="apart", help="where the mask goes (%(default)s)")
    flags = parser.read(arguments)
    step = flags.step
    if step is None:
        step = int(read_export(flags.verify).metadata["step"]) if flags.verify else "last"
    set_up_process()
    run = load_run(flags.workdir, step=step)
    if flags.verify:
        difference = verify_export(flags.verify, run)
        print(_sentence(flags.verify, run.step, difference))
        return 0 if difference.equal else 1
    out = pathlib.Path(flags.out)
    suffix = out.suffix.removeprefix(".")
    format_ = flags.format or (suffix if suffix in FORMATS else "safetensors")
    difference = export_encoder(run, out, format=format_, mask=flags.mask)
    print(_sentence(out, run.step, difference))
    return 0


def _sentence(path: str | pathlib.Path, step: int, difference: Difference) -> str:
    verdict = "equal" if difference.equal else "NOT equal"
    return (
        f"{path}: features {verdict} to those of step {step}; largest difference {difference.largest:.1e} "
        f"where the largest feature is {difference.scale:.3g} (allowed: {TOLERANCE:g} of it)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_export, arguments)


if __name__ == "__main__":
    sys.exit(main())
