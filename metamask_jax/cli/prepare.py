"""Downloads a public dataset and writes it for random access: the only program here that runs TensorFlow.

python -m metamask_jax.cli.prepare cifar10 --data_dir=DIR
"""

import argparse
import pathlib
import socket
import sys
import urllib.parse
from typing import Any

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


def main() -> None:
    """Prepares a dataset, or says in one sentence why it cannot be."""
    parser = argparse.ArgumentParser(description="Download a public dataset and write it for random access.")
    parser.add_argument("name", help="tfds name, such as cifar10")
    parser.add_argument("--data_dir", required=True, help="where prepared datasets live")
    args = parser.parse_args()
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(args.name, data_dir=args.data_dir, file_format="array_record")
        check_network(builder)
        builder.download_and_prepare()
    except Exception as e:  # whatever stops tfds, the user gets its reason rather than its stack
        sys.exit(f"{type(e).__name__}: {' '.join(str(e).split())}")


if __name__ == "__main__":
    main()
