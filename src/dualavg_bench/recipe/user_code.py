"""What a recipe's own code raises: one sentence, with the file and the line that it came from."""

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
    """A recipe that cannot be used, in one line."""


class RecipeRaised(ValueError):  # noqa: N818 - not ours: what the recipe's code raised
    """The code of a recipe raised something.

    Args:
        sentence: what, and where.
        details: the traceback, from the recipe's code on.
    """

    def __init__(self, sentence: str, details: str = "") -> None:
        super().__init__(sentence, details)
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def user_code(recipe: str, part: str) -> Iterator[None]:
    """Let whatever the recipe's code raises in the block be a `RecipeRaised`; `sys.exit` too.

    What our own code raises, and that of the packages it calls, stays as it is.

    Args:
        recipe: whose code it is.
        part: which part of it.
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
        sentence = f"{part} of recipe {recipe} raised {format_error(error)}{location(error)}."
        first = next((i for i, frame in enumerate(frames) if _is_user_frame(frame)), 0)
        shown = traceback.format_list(frames[first:])
        raise RecipeRaised(sentence, "".join([*shown, *traceback.format_exception_only(error)])) from error


def format_error(error: BaseException) -> str:
    """Return what an exception says, on one line."""
    words = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def location(error: BaseException) -> str:
    """Return where in the recipe's code it was raised, such as " (my_recipe.py, line 12)", if there."""
    frame = _innermost(traceback.extract_tb(error.__traceback__))
    return "" if frame is None else f" ({Path(frame.filename).name}, line {frame.lineno})"


def _innermost(frames: list[FrameSummary]) -> FrameSummary | None:
    """Return the last frame outside of installed packages, unless it is ours."""
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
    """Say whether a file is the standard library's or an installed package's."""
    return any(path.startswith(f"{root}{os.sep}") for root in _installed_in())


@functools.cache
def _installed_in() -> set[str]:
    return {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
