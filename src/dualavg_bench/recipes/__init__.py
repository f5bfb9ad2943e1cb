"""The paper's experiments, one file each."""

import pkgutil


def builtin() -> dict[str, str]:
    """Return the modules of the built-in recipes by name, without importing them. Each has `recipe(scale)`.

    Examples:
        >>> builtin()["cifar10"]
        'dualavg_bench.recipes.cifar10'
    """
    return {module.name: f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)}
