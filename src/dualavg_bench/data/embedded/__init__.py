"""The data of the quick scale, from what pip already installed, written in the official formats."""

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

SOURCE = "remove the folder it is in, and it is written again"


def once(target: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` fill the folder `target` unless it is there, whole or not at all, and return it."""
    if target.is_dir():
        return target
    draft = target.with_name(f".{target.name}-{uuid4().hex}")
    draft.mkdir(parents=True)
    try:
        write(draft)
        draft.rename(target)  # atomic, and refused where another process was faster
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
