"""The paper's experiments, one file each."""

_NAMES = ("cifar10", "wikitext103")


def builtin() -> dict[str, str]:
    """Return the built-in recipes' modules by name, without importing any; each has `recipe(scale)`.

    Examples:
        >>> builtin()["cifar10"]
        'dualavg_bench.recipes.cifar10'
    """
    return {name: f"{__name__}.{name}" for name in _NAMES}
