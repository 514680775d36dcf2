"""Downloads a public dataset and writes it for random access: the only command that runs TensorFlow.

metamask-prepare cifar10 --data-dir DIR
"""

import pathlib
import socket
import sys
import urllib.parse
from collections.abc import Sequence
from typing import Any

from metamask_jax.cli.common import Parser, guarded, local_path_name
from metamask_jax.errors import DataError


def check_network(builder: Any) -> None:
    """Refuses at once what tfds would retry for minutes: a download from a host that cannot be found."""
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:  # tfds says itself what to put where
        return
    manual = pathlib.Path(builder.data_dir_root) / "downloads" / "manual"
    for url, info in (builder.url_infos or {}).items():
        try:
            socket.getaddrinfo(urllib.parse.urlparse(url).hostname, None)
        except OSError as e:
            if not (manual / info.filename).exists():
                raise DataError(f"{url} cannot be reached ({e}); put the file into {manual}") from e


def _prepare(arguments: Sequence[str]) -> int:
    parser = Parser("Downloads a public dataset and writes it for random access.")
    parser.add_argument("name", help="tfds name, such as cifar10")
    parser.add_argument("--data-dir", type=local_path_name, required=True, help="where prepared datasets live")
    flags = parser.read(arguments)

    import tensorflow_datasets as tfds

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        builder = tfds.builder(flags.name, data_dir=flags.data_dir, file_format="array_record")
        check_network(builder)
        builder.download_and_prepare()
    except DataError:
        raise
    except tfds.core.DatasetNotFoundError as error:
        raise DataError(f"{flags.name}; expected a name that tfds knows, such as cifar10") from error
    except ModuleNotFoundError as error:
        raise DataError(
            f"{flags.name}: {error}; expected what `pip install 'metamask_jax[prepare]'` installs"
        ) from error
    except Exception as error:  # whatever stops tfds, the user gets its reason rather than its stack
        reason = " ".join(str(error).split())
        raise DataError(f"{flags.name} could not be prepared, {type(error).__name__}: {reason}") from error
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_prepare, arguments)


if __name__ == "__main__":
    sys.exit(main())
