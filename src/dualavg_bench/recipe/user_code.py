"""Turns errors of a recipe's own code into one line with file and line number."""

import contextlib
import functools
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary

_PACKAGE = Path(__file__).parents[1]


class RecipeError(Exception):
    """A recipe cannot be used; one line says why."""


class RecipeRaised(ValueError):  # noqa: N818 - the error is the recipe's
    """The code of a recipe raised an exception.

    Args:
        message: what, and where.
        details: the traceback, from the recipe's code on.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def user_code(recipe: str, part: str) -> Iterator[None]:
    """Turn an exception of the recipe's code, or its `sys.exit`, into `RecipeRaised`.

    Exceptions of our own code, and of packages that it calls, pass unchanged.

    Args:
        recipe: the name of the recipe.
        part: the function of the recipe that is called in the block.
    """
    try:
        yield
    except (RecipeError, RecipeRaised):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        innermost = _innermost(frames)
        if innermost is None and not isinstance(error, SystemExit):
            raise
        message = f"{part} of recipe {recipe} raised {format_error(error)}{location(error)}."
        first = next((i for i, frame in enumerate(frames) if _is_user_frame(frame)), 0)
        shown = traceback.format_list(frames[first:])
        raise RecipeRaised(message, "".join([*shown, *traceback.format_exception_only(error)])) from error


def format_error(error: BaseException) -> str:
    """Return the type and the message of an exception, on one line."""
    words = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def location(error: BaseException) -> str:
    """Return the line of the recipe that raised it, such as " (my_recipe.py, line 12)", or ""."""
    frame = _innermost(traceback.extract_tb(error.__traceback__))
    return "" if frame is None else f" ({Path(frame.filename).name}, line {frame.lineno})"


def _innermost(frames: list[FrameSummary]) -> FrameSummary | None:
    """Return the user's frame that an exception comes from; None if it comes from our code."""
    for frame in reversed(frames):
        if _is_user_frame(frame):
            return frame
        if _is_own_frame(frame):
            return None
    return None


def _is_own_frame(frame: FrameSummary) -> bool:
    return _PACKAGE in Path(frame.filename).parents


def _is_user_frame(frame: FrameSummary) -> bool:
    file = frame.filename
    return not (file.startswith("<") or _is_own_frame(frame) or is_installed_file(file))


def is_installed_file(path: str) -> bool:
    """Return whether a file belongs to the standard library or to an installed package."""
    return any(path.startswith(f"{root}{os.sep}") for root in _installed_in())


@functools.cache
def _installed_in() -> set[str]:
    return {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
