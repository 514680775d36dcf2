"""Where exported encoders are: folders that `metamask-export` has written, and those in the box."""

import os
import pathlib

from metamask_jax.errors import ConfigError, shown

WEIGHTS, MASK, CONFIG, CARD = "model.safetensors", "mask.safetensors", "config.json", "README.md"
BOX = pathlib.Path(__file__).resolve().parents[1] / "zoo"
_ZOO = "zoo:"


def zoo_names() -> list[str]:
    """The encoders in the box, such as `NAME` of `load_encoder("zoo:NAME")`."""
    return sorted(path.parent.name for path in BOX.glob(f"*/{WEIGHTS}"))


def encoder_folder(source: str | os.PathLike[str]) -> pathlib.Path | None:
    """The folder of an exported encoder.

    Args:
      source: such a folder, or `zoo:NAME`.

    Returns:
      The folder; None if there is nothing exported, such as in the working directory of a run.

    Raises:
      ConfigError: there is no encoder of that name in the box.
    """
    text = os.fspath(source)
    if text.startswith(_ZOO):
        name = text.removeprefix(_ZOO)
        if name not in zoo_names():
            known = ", ".join(f"{_ZOO}{known}" for known in zoo_names()) or "none: the box of this version is empty"
            raise ConfigError(f"{shown(text)[1:-1]} is not in the box; expected one of {known}")
        return BOX / name
    folder = pathlib.Path(text)
    # A run's folder may hold a single exported file of any name, and stays a run's.
    return folder if all(os.path.isfile(folder / name) for name in (WEIGHTS, MASK)) else None
