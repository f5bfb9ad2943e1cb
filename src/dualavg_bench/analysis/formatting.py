"""Numbers as people read them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from dualavg_bench.store.summaries import Comparison, Scores, Statistics

MINUS = "\N{MINUS SIGN}"


def decimals(errors: Iterable[float | None]) -> int:
    """Return the decimals that show two digits of the smallest standard error.

    One far smaller than the others does not count: at most one more than the median one needs.
    """
    needed = sorted(1 - math.floor(math.log10(error)) for error in errors if error)
    return min(6, max(0, min(needed[-1], needed[len(needed) // 2] + 1))) if needed else 2


def score_places(confirmed: Iterable[Scores], comparisons: Iterable[Comparison]) -> int:
    """Return the decimals of all scores, differences and intervals of a study: one number for all of them."""
    errors = [scores.se for scores in confirmed]
    errors += [
        (pair.high - pair.low) / 4 for pair in comparisons if pair.low is not None and pair.high is not None
    ]
    return decimals(errors)


def interval_decimals(intervals: Iterable[tuple[float | None, float | None]]) -> int:
    """Return the decimals for 95% intervals, which are about four standard errors wide."""
    widths = [high - low for low, high in intervals if low is not None and high is not None]
    return max((decimals([width / 4]) for width in widths), default=2)


def with_error(described: Statistics, places: int) -> str:
    """Return mean ± standard error, or the mean alone."""
    mean = plain(described.mean, places)
    return mean if described.se is None else f"{mean} ± {described.se:.{places}f}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the last component of each dotted name, or the full name where two end in the same one.

    Examples:
        >>> short_names(["sgd", "schedulefree.SGDScheduleFree"])["schedulefree.SGDScheduleFree"]
        'SGDScheduleFree'
        >>> list(short_names(["a.Lion", "b.Lion"]).values())
        ['a.Lion', 'b.Lion']
    """
    last = {name: name.rpartition(".")[2] or name for name in names}
    counts = Counter(last.values())
    return {name: short if counts[short] == 1 else name for name, short in last.items()}


def plain(value: float, places: int) -> str:
    """Return a number with a true minus."""
    return f"{value:.{places}f}".replace("-", MINUS)


def signed(value: float, places: int) -> str:
    """Return a number with its sign, and a true minus. The rounding of sums does not show in the last digit.

    Examples:
        >>> signed(1.0250000000000012, 2) == signed(1.0249999999999990, 2) == "+1.02"
        True
    """
    return f"{float(f'{value:.12g}'):+.{places}f}".replace("-", MINUS)


def p_text(p: float) -> str:
    """Return what follows the letter p. A p value is never rounded to the 5% that it is compared with.

    Examples:
        >>> p_text(0.0497), p_text(0.0003), p_text(0.25)
        ('= 0.0497', '< 0.001', '= 0.25')
    """
    if p < 0.001:
        return "< 0.001"
    places = 2 if p >= 0.1 else 3
    while p != 0.05 and places < 6 and float(f"{p:.{places}f}") == 0.05:
        places += 1
    return f"= {p:.{places}f}"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it.

    Examples:
        >>> duration(42.2), duration(600), duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(n: float) -> str:
    """Return a number of bytes in the unit that suits it.

    Examples:
        >>> size(512), size(820_000), size(12_345_678)
        ('512 B', '820 kB', '12.3 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= factor:
            return f"{n / factor:.3g} {unit}"
    return f"{n:g} B"


def counted(n: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is one.

    Examples:
        >>> counted(1, "point"), counted(3000, "point")
        ('1 point', '3,000 points')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    Examples:
        >>> listed(["mda"]), listed(["mda", "sgd"]), listed(["mda", "sgd", "adam"])
        ('mda', 'mda and sgd', 'mda, sgd and adam')
    """
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
