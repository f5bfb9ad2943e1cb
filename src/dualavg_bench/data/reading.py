"""Error messages for data files that are missing, unreadable or malformed.

Each is one line: the path, what was expected there, and where to get it.
"""

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def reading(path: Path | str, expected: str, source: str) -> Iterator[None]:
    """Turn any error in the block into a one-line error about `path`.

    Args:
        path: the file or folder that the block reads.
        expected: what should be there.
        source: where to get it.
    """
    try:
        yield
    except FileNotFoundError:
        raise missing(path, expected, source) from None
    except Exception as error:  # a malformed file can raise anything, on several lines
        number = error.errno if isinstance(error, OSError) else None
        if number:  # from the system; libraries also raise OSError, without a number, for malformed files
            raise ValueError(
                f"{path} cannot be read ({os.strerror(number)}): expected {expected}; {source}."
            ) from error
        raise ValueError(f"{path} is not {expected} ({' '.join(str(error).split())}); {source}.") from error


def missing(path: Path | str, expected: str, source: str) -> FileNotFoundError:
    """Return the error for a file or folder that does not exist."""
    return FileNotFoundError(f"{path} is missing: expected {expected}; {source}.")


def find_folder(folder: Path, name: str, file: str, expected: str, source: str) -> Path:
    """Return `folder / name` if it exists, or `folder` itself if it contains `file`."""
    inner = folder / name
    for found, evidence in ((inner, inner), (folder, folder / file)):
        with reading(evidence, expected, source), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            evidence.stat()
            return found
    raise FileNotFoundError(
        f"{folder / file} is missing, and so is the folder {inner}: expected {expected}; {source}."
    )


def check_count(path: Path, unit: str, found: int, expected: int, source: str) -> None:
    """Raise if `path` holds the wrong number of `unit`."""
    if found != expected:
        raise ValueError(f"{path} has {found:,} {unit}, expected {expected:,}; {source}.")


def read_lines(path: Path, expected: str, source: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text with their newlines. Refuse blank texts and a last line without one."""
    with reading(path, expected, source), path.open("rb") as raw:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(max(0, size - 1))
        last = raw.read()
    if last not in (b"", b"\n"):
        raise ValueError(
            f"{path} does not end with a newline and was probably cut short; if it is complete, add one: "
            f"expected {expected}; {source}."
        )
    blank = True
    with reading(path, expected, source), path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            blank = blank and not line.strip()
            yield line
    if blank:
        raise ValueError(f"{path} is empty: expected {expected}; {source}.")


def random_part(items: Sequence[T], count: int | None) -> list[T]:
    """Return `count` of the items, in their order: always the same ones, chosen at random. All if None."""
    if count is None or count >= len(items):
        return list(items)
    return [items[i] for i in sorted(random.Random(0).sample(range(len(items)), count))]  # noqa: S311
