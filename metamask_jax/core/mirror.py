"""Files that grow, such as logs, in a place where nothing can be appended to: a bucket."""

import contextlib
import logging
import pathlib
import shutil
import threading

from metamask_jax.core.places import Place
from metamask_jax.core.storage import make_temporary_folder
from metamask_jax.errors import one_line

_log = logging.getLogger(__name__)
_EVERY = 60.0  # seconds between two uploads of what has grown


class Mirror:
    """A folder on this machine for files that grow, whose files appear below a place.

    For a place on this machine it is that folder itself. For one in a bucket it is a folder of its own; what has
    changed there is uploaded, whole, every minute and whenever `upload` is called.

    Attributes:
      folder: where to write.
    """

    def __init__(self, place: Place) -> None:
        """Makes the folder and, for a bucket, the thread that uploads."""
        self._bucket = None if isinstance(place, pathlib.Path) else place
        self.folder = place if isinstance(place, pathlib.Path) else make_temporary_folder()
        self._uploaded: dict[pathlib.Path, tuple[int, int]] = {}
        self._busy, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._upload_often, name="mirror", daemon=True)
        if self._bucket is not None:
            self._thread.start()

    def continued(self, name: str) -> pathlib.Path:
        """The local file of a name, with what the bucket has of it, if it has any; its folder is there."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._bucket is not None:
            with contextlib.suppress(FileNotFoundError):
                (self._bucket / name).download(path)
        return path

    def upload(self) -> None:
        """Makes the bucket have what is in the folder; returns when it has.

        Raises:
          OSError: the bucket refused for minutes.
        """
        if self._bucket is None:
            return
        with self._busy:
            for path in sorted(self.folder.rglob("*")):
                status = path.stat()
                found = (status.st_size, status.st_mtime_ns)
                if path.is_file() and self._uploaded.get(path) != found:
                    (self._bucket / path.relative_to(self.folder).as_posix()).write_bytes(path.read_bytes())
                    self._uploaded[path] = found

    def close(self) -> None:
        """Uploads what is left and removes the folder."""
        if self._bucket is None:
            return
        self._closed.set()
        self._thread.join()
        try:
            self.upload()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _upload_often(self) -> None:
        while not self._closed.wait(_EVERY):
            try:
                self.upload()
            except OSError as error:  # the next save fails for the same reason, and says so
                _log.warning("logs are not uploaded: %s", one_line(error))
