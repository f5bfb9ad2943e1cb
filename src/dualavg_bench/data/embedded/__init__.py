"""Data of the quick scale: made from installed packages, written in the official formats."""

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from dualavg_bench.store.files import StoreError

SOURCE = "remove the folder it is in; the next run writes it again"


def once(target: Path, write: Callable[[Path], None]) -> Path:
    """Create the folder `target` with `write`, atomically, unless it exists. Return it."""
    if target.is_dir():
        return target
    draft = target.with_name(f".{target.name}-{uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        write(draft)
        draft.rename(target)  # atomic; fails if another process was faster
    except OSError as error:
        if not target.is_dir():
            raise StoreError(
                f"{target} cannot be written ({error.strerror or error}): free space, or use another folder."
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
