"""Loads a recipe: a built-in one by its name, a user's by the path of its file."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from dualavg_bench.recipe.recipe import Recipe
from dualavg_bench.recipe.user_code import RecipeError, format_error, location
from dualavg_bench.scales import SCALES, Scale


def load(reference: str, scale: Scale) -> tuple[Recipe, Path]:
    """Return a recipe and its file.

    Args:
        reference: a built-in name, or a path that ends in .py; that file can import what lies beside it.
        scale: what the file's `recipe` is called with.
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
            hint = f"{reference}.py, which exists here, or " if Path(f"{reference}.py").is_file() else ""
            raise RecipeError(
                f"There is no recipe called {reference!r}: give {hint}a name that `dualavg recipes` lists, "
                "or a file that ends in .py."
            ) from error
        path = Path(str(module.__file__))
        if scale not in (offered := scales_of(module)):
            raise RecipeError(f"Recipe {reference} has no scale {scale}: it has {' and '.join(offered)}.")
    function = getattr(module, "recipe", None)
    if not callable(function):
        raise RecipeError(f"{path} has no function recipe(scale).")
    try:
        inspect.signature(function).bind(scale)
    except TypeError as error:
        raise RecipeError(f"recipe of {path} must take one argument, the scale ({error}).") from None
    try:
        recipe = function(scale)
    except (Exception, SystemExit) as error:
        raise RecipeError(
            f"recipe({scale!r}) of {path} raised {format_error(error)}{location(error)}."
        ) from error
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"recipe({scale!r}) of {path} returned {type(recipe).__name__}, not a Recipe.")
    if recipe.scale != scale:
        raise RecipeError(
            f"recipe({scale!r}) of {path} returned a Recipe of scale {recipe.scale!r}: "
            "pass the scale on, Recipe(scale=scale, ...)."
        )
    return recipe, path


def scales_of(module: Any) -> tuple[Scale, ...]:
    """Return the scales of a built-in recipe: its `SCALES`, or all three."""
    offered: tuple[Scale, ...] = getattr(module, "SCALES", SCALES)
    return offered


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} cannot be imported.")
    folder = str(path.parent.absolute())
    if folder not in sys.path:
        sys.path.append(folder)  # as Python does for a script
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{path} cannot be imported ({format_error(error)}){location(error)}.") from error
    return module


def data_needed(docstring: str | None) -> str:
    """Return what DIR must hold: the paragraph of a recipe's docstring from "DIR holds" on."""
    _, start, rest = (docstring or "").partition("DIR holds")
    return " ".join((start + rest).partition("\n\n")[0].split())
