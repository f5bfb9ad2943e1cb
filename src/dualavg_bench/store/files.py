"""Writes and reads files so that none is ever half there.

Every file is written beside its place and moved there in one step: a reader sees the old one, the new one or
none, whenever the writer is killed.
"""

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FORMAT = 1
_UMASK = os.umask(0)  # can only be read by setting it
os.umask(_UMASK)


class StoreError(Exception):
    """A file that cannot be read or written, in one sentence that names it and says what to do."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                Path(name).chmod(0o666 & ~_UMASK)  # as any other file: mkstemp's are for one person
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> StoreError:
    """Describe why a file could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"The disk is full: {path} was not written; make room and start again.")
    return StoreError(f"{path} cannot be written ({error.strerror}).")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON that any reader takes: no NaN, keys in order."""
    write_atomically(path, (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a file of ours, or say in a sentence why it is not one."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"There is no {what} at {path}.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}).") from error
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise StoreError(
            f"{path} is not a whole {what}: delete it, and what it held is done again."
        ) from None
    if not isinstance(value, dict) or not isinstance(value.get("format"), int):
        raise StoreError(f"{path} is not a {what} of dualavg: move it away.")
    if value["format"] > FORMAT:
        raise StoreError(
            f"{path} was written by a newer version of dualavg (format {value['format']}, this one reads "
            f"{FORMAT}): update dualavg, or use another folder."
        )
    return value
