"""Where the checkpoints of a run are: folders named by their steps, on this machine or in a bucket, whole or not there.

On this machine orbax's manager keeps them. In a bucket a checkpoint is what orbax writes to a folder of this machine,
uploaded: orbax itself reaches some kinds of buckets only.
"""

import pathlib
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import orbax.checkpoint as ocp

from metamask_jax.core.places import Place
from metamask_jax.core.quiet import without_warnings
from metamask_jax.core.storage import temporary_folder

if TYPE_CHECKING:
    from metamask_jax.core.bucket import BucketPath

_UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of what is no checkpoint yet, or no more
_LAST = "commit_success.txt"  # what makes a checkpoint in a bucket one


class OnDisk:
    """Checkpoints in a folder of this machine."""

    def __init__(self, folder: pathlib.Path, *, read_only: bool = False) -> None:
        """Opens the folder and, unless it is only to be read, clears away what a killed process left half-written."""
        self._path = folder
        how: dict[str, Any] = {"cleanup_tmp_directories": True, "multiprocessing_options": _alone("main")}
        if read_only:
            name = f"reader{jax.process_index()}"
            how = {"read_only": True, "save_interval_steps": 0, "multiprocessing_options": _alone(name)}
        else:
            folder.mkdir(parents=True, exist_ok=True)
        with without_warnings():  # of a folder that is read only, as was asked for
            self._manager = ocp.CheckpointManager(
                folder,
                options=ocp.CheckpointManagerOptions(create=False, enable_async_checkpointing=False, **how),
                item_names=("state", "metadata"),
            )

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        self._manager.reload()  # a save that failed may be in its memory
        return sorted(self._manager.all_steps())

    def write(self, step: int, arrays: Any, metadata: dict[str, Any]) -> None:
        """Writes a checkpoint; it appears when it is whole."""
        items = ocp.args.Composite(state=ocp.args.StandardSave(arrays), metadata=ocp.args.JsonSave(metadata))
        self._manager.reload()  # what was removed or renamed meanwhile may be in its memory
        self._manager.save(step, args=items, force=True)

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and metadata of a checkpoint."""
        items = ocp.args.Composite(state=ocp.args.StandardRestore(), metadata=ocp.args.JsonRestore())
        found = self._manager.restore(step, args=items)
        return dict(found["state"]), dict(found["metadata"])

    def remove(self, step: int) -> None:
        """Removes a checkpoint in one go: half of one must not look like one."""
        # By this name a kill leaves something that is cleared away when the folder is opened.
        shutil.rmtree((self._path / str(step)).rename(self._path / f"{step}.removed{_UNFINISHED}"))

    def patiently(self, act: Callable[[], None]) -> None:
        """Calls a function that reads or removes checkpoints; a disk that refuses once refuses."""
        act()

    def close(self) -> None:
        """Lets go of the folder."""
        self._manager.close()


class InBucket:
    """Checkpoints in a bucket: one counts when its last object is there."""

    def __init__(self, folder: "BucketPath", *, read_only: bool = False) -> None:
        """Opens the folder and, unless it is only to be read, clears away what a killed process left half-written."""
        self._path = folder
        if not read_only:
            for path in set(_numbered(folder)) - set(self._whole()):
                path.rmtree(missing_ok=True)

    def _whole(self) -> list["BucketPath"]:
        return [path for path in _numbered(self._path) if (path / _LAST).is_file()]

    def steps(self) -> list[int]:
        """See `OnDisk`."""
        return sorted(int(path.name) for path in self._whole())

    def write(self, step: int, arrays: Any, metadata: dict[str, Any]) -> None:
        """See `OnDisk`; a bucket that refuses is asked again for minutes."""
        with temporary_folder() as folder:
            disk = OnDisk(folder)
            disk.write(step, arrays, metadata)
            disk.close()
            last = folder / str(step) / _LAST  # orbax may write one for its own purposes
            for file in sorted(path for path in folder.rglob("*") if path.is_file() and path != last):
                (self._path / file.relative_to(folder).as_posix()).upload(file)
        (self._path / str(step) / _LAST).write_bytes(b"all objects of this checkpoint are there\n")

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `OnDisk`."""
        with temporary_folder() as folder:
            for path in (self._path / str(step)).objects():
                file = folder / path.relative_to(self._path)
                file.parent.mkdir(parents=True, exist_ok=True)
                path.download(file)
            disk = OnDisk(folder, read_only=True)
            try:
                return disk.read(step)
            finally:
                disk.close()

    def remove(self, step: int) -> None:
        """See `OnDisk`."""
        old = self._path / str(step)
        (old / _LAST).unlink(missing_ok=True)  # without which it does not count any more
        old.rmtree(missing_ok=True)

    def patiently(self, act: Callable[[], None]) -> None:
        """Calls a function that asks for or removes objects, again and again while the bucket refuses."""
        from metamask_jax.core.bucket import patiently

        patiently(act, self._path)

    def close(self) -> None:
        """There is nothing to let go of."""


def open_steps(folder: Place, *, read_only: bool = False) -> OnDisk | InBucket:
    """The checkpoints of a folder, wherever it is."""
    if isinstance(folder, pathlib.Path):
        return OnDisk(folder, read_only=read_only)
    return InBucket(folder, read_only=read_only)


def has_checkpoints(folder: Place) -> bool:
    """Whether there is a checkpoint that was written to its end."""
    return any(isinstance(path, pathlib.Path) or (path / _LAST).is_file() for path in _numbered(folder))


def _numbered(folder: Any) -> list[Any]:
    """What lies in a folder, if there is one, by the name of a step."""
    return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []


def _alone(name: str) -> Any:
    """Lets a process of several use checkpoints without the others, who know nothing of it."""
    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    own = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own}, barrier_sync_key_prefix=name)
