"""Atomic files: a reader sees the old content, the new content or no file, whenever the writer is killed."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

_UMASK = os.umask(0)  # can only be read by setting it
os.umask(_UMASK)


class StoreError(Exception):
    """A file that cannot be read or written: one line that names the file and says what to do."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, then rename it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                temporary.chmod(0o666 & ~_UMASK)  # mkstemp's default is for one user only
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> StoreError:
    """Return the error to raise when a file could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"The disk is full, {path} was not written: free some space and start again.")
    return StoreError(f"{path} cannot be written ({error.strerror}).")
