"""Loads a recipe by a built-in name, or by the path of a user's own file."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from dualavg_bench.recipe.recipe import Recipe
from dualavg_bench.recipe.user_code import RecipeError, format_error, location
from dualavg_bench.scales import Scale


def load(reference: str, scale: Scale) -> tuple[Recipe, Path]:
    """Return a recipe and its file, by a built-in name or the path of a person's own file.

    A person's file can import what lies beside it.
    """
    if reference.endswith(".py"):
        path = Path(reference)
        if not path.is_file():
            raise RecipeError(f"There is no recipe at {path}.")
        module = _import(path)
    else:
        try:
            module = importlib.import_module(f"dualavg_bench.recipes.{reference}")
        except ModuleNotFoundError as error:
            meant = f"{reference}.py, which is here, or " if Path(f"{reference}.py").is_file() else ""
            raise RecipeError(
                f"There is no recipe called {reference!r}: give {meant}a name that `dualavg recipes` lists, "
                "or a file that ends in .py."
            ) from error
        path = Path(str(module.__file__))
    make = getattr(module, "recipe", None)
    if not callable(make):
        raise RecipeError(f"{path} has no function recipe(scale).")
    try:
        inspect.signature(make).bind(scale)
    except TypeError as error:
        raise RecipeError(f"recipe of {path} must take one argument, the scale ({error}).") from None
    try:
        made = make(scale)
    except (Exception, SystemExit) as error:
        raise RecipeError(
            f"recipe({scale!r}) of {path} cannot be made ({format_error(error)}){location(error)}."
        ) from error
    if not isinstance(made, Recipe):
        raise RecipeError(f"recipe({scale!r}) of {path} returned {type(made).__name__}, not a Recipe.")
    if made.scale != scale:
        raise RecipeError(
            f"recipe({scale!r}) of {path} returned a Recipe of scale {made.scale!r}: "
            "hand what it is asked for on, Recipe(scale=scale, ...)."
        )
    return made, path


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} cannot be imported.")
    beside = str(path.parent.absolute())
    if beside not in sys.path:
        sys.path.append(beside)  # as Python does for a script
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{path} cannot be imported ({format_error(error)}){location(error)}.") from error
    return module


def data_needed(docstring: str | None) -> str:
    """What DIR must hold, as a recipe's docstring says: from there to the next blank line."""
    _, found, after = (docstring or "").partition("DIR holds")
    return " ".join((found + after).partition("\n\n")[0].split())
