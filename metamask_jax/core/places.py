"""Where files are: the name of a file or folder as a path, on this machine or in a bucket."""

import importlib.util
import os
import pathlib
import re
from typing import TYPE_CHECKING

from metamask_jax.errors import ConfigError

if TYPE_CHECKING:
    from metamask_jax.core.bucket import BucketPath

    Place = pathlib.Path | BucketPath
else:
    Place = pathlib.Path  # what reaches buckets is imported by those who have one

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one letter would be a drive of Windows
_BUCKET = re.compile(r"(gs|s3)://[A-Za-z0-9][A-Za-z0-9._-]*(/|$)")
_NEEDED = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # the package that reaches it, and our extra with it


def is_url(name: str | os.PathLike[str]) -> bool:
    """Whether a name has a scheme, such as `gs:`, so that it must not become a folder of that name.

    Example:
      >>> is_url("gs://bucket/run"), is_url(pathlib.Path("gs://bucket/run")), is_url("runs/gs"), is_url("C:/runs")
      (True, True, False, False)
    """
    return _URL.match(os.fspath(name)) is not None


def to_place(name: str | os.PathLike[str]) -> Place:
    """The path that a name stands for; nothing is asked of a bucket yet.

    Args:
      name: of a file or folder on this machine, or `gs://BUCKET/...`, `s3://BUCKET/...`.

    Raises:
      ConfigError: another kind of URL, or the package that reaches such a bucket is not installed.
    """
    text = os.fspath(name)
    if not is_url(text):
        return pathlib.Path(text)
    if problem := url_problem(text):
        raise ConfigError(problem)
    module, extra = _NEEDED[text[:2]]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"{text} needs {module}, which is not installed; expected `pip install 'metamask_jax[{extra}]'` first"
        )
    from metamask_jax.core.bucket import BucketPath

    return BucketPath(text)


def url_problem(text: str) -> str | None:
    """A sentence about a URL that is not one of a bucket we can reach; None if it is."""
    if _BUCKET.match(text) and ".." not in text.split("/"):
        return None
    return f"{text}; expected a local path, gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
