"""Numbers as people read them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def decimals(errors: Iterable[float | None]) -> int:
    """Decimals that show two digits of the smallest standard error, or one more than the median one needs."""
    known = sorted(1 - math.floor(math.log10(error)) for error in errors if error)
    return min(6, max(0, min(known[-1], known[len(known) // 2] + 1))) if known else 2


def interval_decimals(pairs: Iterable[Mapping[str, Any]]) -> int:
    """The same for pairs, all of which must show: a 95% interval is about four standard errors wide."""
    return max((decimals([(p["high"] - p["low"]) / 4]) for p in pairs if p["low"] is not None), default=2)


def with_error(described: Mapping[str, Any], places: int) -> str:
    """Mean ± standard error, where there is one."""
    mean = f"{described['mean']:.{places}f}".replace("-", "\N{MINUS SIGN}")
    return mean if described["se"] is None else f"{mean} ± {described['se']:.{places}f}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The last component of each dotted name, where no other name ends alike, for places that are narrow.

    Examples:
        >>> short_names(["sgd", "schedulefree.SGDScheduleFree"])["schedulefree.SGDScheduleFree"]
        'SGDScheduleFree'
        >>> list(short_names(["a.Lion", "b.Lion"]).values())
        ['a.Lion', 'b.Lion']
    """
    last = {name: name.rpartition(".")[2] or name for name in names}
    ends = Counter(last.values())
    return {name: short if ends[short] == 1 else name for name, short in last.items()}


def signed(value: float, places: int) -> str:
    """A number with its sign, and a true minus."""
    return f"{value:+.{places}f}".replace("-", "\N{MINUS SIGN}")


def p_text(p: float) -> str:
    """A p value as it follows the letter p; never rounded to the 5% that it is compared with.

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
    """A time, in the unit that suits it.

    Examples:
        >>> duration(42.2), duration(600), duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(n: int, what: str) -> str:
    """A number and what it counts, in the plural unless it is one.

    Examples:
        >>> counted(1, "point"), counted(3, "point")
        ('1 point', '3 points')
    """
    return f"{n} {what}{'' if n == 1 else 's'}"
