"""What data modules say of files that are missing, cannot be read, or are not what they should be.

A sentence each: the path, what was expected there, and where it can be had.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def reading(path: Path | str, expected: str, source: str) -> Iterator[None]:
    """Make a sentence about `path` of whatever goes wrong in the block.

    Args:
        path: what is read.
        expected: what it should be.
        source: where it can be had.
    """
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: {expected}, was expected; {source}.") from None
    except Exception as error:  # a spoilt file can raise anything, on several lines
        number = error.errno if isinstance(error, OSError) else None
        if number:  # the system's; libraries raise OSError for what they cannot understand, too
            raise ValueError(
                f"{path} cannot be read ({os.strerror(number)}): {expected}, was expected; {source}."
            ) from error
        raise ValueError(f"{path} is not {expected} ({' '.join(str(error).split())}); {source}.") from error


def folder_of(folder: Path, name: str, first: str, expected: str, source: str) -> Path:
    """Return the folder `name` in `folder`, or `folder` itself if `first`, which must be there, is in it."""
    inner = folder / name
    for place, sign in ((inner, inner), (folder, folder / first)):
        with reading(sign, expected, source), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            sign.stat()
            return place
    raise FileNotFoundError(
        f"{folder / first} is missing, and so is the folder {inner}: {expected}, was expected; {source}."
    )


def check_count(where: Path, what: str, found: int, expected: int, source: str) -> None:
    """Refuse data of which there is another number than there must be."""
    if found != expected:
        raise ValueError(f"{where} has {found:,} {what} where {expected:,} were expected; {source}.")


def lines(path: Path, expected: str, source: str) -> Iterator[str]:
    """Yield the lines of a text in UTF-8, their ends included; a text must have some, and all of the last."""
    with reading(path, expected, source), path.open("rb") as raw:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(max(0, size - 1))
        last = raw.read()
    if last not in (b"", b"\n"):
        raise ValueError(
            f"{path} does not end with an end of line, and was probably cut short; if it is whole, add one: "
            f"{expected}, was expected; {source}."
        )
    blank = True
    with reading(path, expected, source), path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            blank = blank and not line.strip()
            yield line
    if blank:
        raise ValueError(f"{path} is empty: {expected}, was expected; {source}.")
