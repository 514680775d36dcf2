"""Writes a pretrained encoder to a file or folder, or proves that such a one gives the checkpoint's features.

metamask-export --workdir DIR --out FILE [--format safetensors|npz|msgpack] [--mask apart|folded|none]
metamask-export --workdir DIR --format hf --out FOLDER
metamask-export --workdir DIR --verify FILE_OR_FOLDER
"""

import sys
from collections.abc import Sequence

from metamask_jax.cli.common import Parser, guarded, path_name, saved_step, set_up_process
from metamask_jax.cli.terminal import say
from metamask_jax.core.array_files import read_export
from metamask_jax.core.encoder_folders import WEIGHTS
from metamask_jax.core.places import Place, to_place
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.export.hub import export_folder, verify_folder
from metamask_jax.export.write import FORMATS, MASKS, TOLERANCE, Difference, export_encoder, verify_export

_FOLDER = "hf"


def _export(arguments: Sequence[str]) -> int:
    parser = Parser(
        "Writes a pretrained encoder to a file or folder, or proves that such a one gives the checkpoint's features."
    )
    parser.add_argument("--workdir", type=path_name, required=True, help="of the pretrained run")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=path_name, help="the file to write, or the folder of --format hf")
    what.add_argument("--verify", type=path_name, help="a file or folder to compare with the checkpoint")
    parser.add_argument(
        "--step", type=saved_step, help="a saved step, 'last' or 'best' (last; with --verify the file's own)"
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, _FOLDER),
        help="hf is a folder that hubs of models and timm understand (by the suffix of --out, else safetensors)",
    )
    parser.add_argument("--mask", choices=MASKS, default="apart", help="where the mask goes (%(default)s)")
    flags = parser.read(arguments)
    if flags.format == _FOLDER and flags.mask != "apart":
        raise ConfigError(
            f"--mask {flags.mask} with --format {_FOLDER}; expected apart: the mask has a file of its own"
        )
    set_up_process()
    if flags.verify:
        return _verify(to_place(flags.verify), flags.workdir, flags.step)
    run = load_run(flags.workdir, step="last" if flags.step is None else flags.step)
    out = to_place(flags.out)
    suffix = out.suffix.removeprefix(".")
    format_ = flags.format or (suffix if suffix in FORMATS else "safetensors")
    if format_ == _FOLDER:
        difference = export_folder(run, out)
    else:
        difference = export_encoder(run, out, format=format_, mask=flags.mask)
    say(_sentence(out, run.step, difference))
    return 0


def _verify(path: Place, workdir: str, step: int | str | None) -> int:
    """Compares a file or folder with a checkpoint, by default with the one that it says it is of."""
    is_folder = (path / WEIGHTS).is_file()
    if step is None:
        step = int(read_export(path / WEIGHTS if is_folder else path).metadata["step"])
    run = load_run(workdir, step=step)
    difference = verify_folder(path, run) if is_folder else verify_export(path, run)
    say(_sentence(path, run.step, difference))
    return 0 if difference.equal else 1


def _sentence(path: Place, step: int, difference: Difference) -> str:
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
