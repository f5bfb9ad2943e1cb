"""The data of the quick scale, from what pip already installed, written in the official formats."""

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from dualavg_bench.store.files import StoreError

SOURCE = "remove the folder it is in, and it is written again"


def once(target: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` fill the folder `target` unless it is there, whole or not at all, and return it."""
    if target.is_dir():
        return target
    draft = target.with_name(f".{target.name}-{uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        write(draft)
        draft.rename(target)  # atomic, and refused where another process was faster
    except OSError as error:
        if not target.is_dir():
            raise StoreError(
                f"{target} cannot be written ({error.strerror or error}): make room, or name another folder."
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
