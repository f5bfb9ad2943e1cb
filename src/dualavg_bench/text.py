"""Numbers as people read them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any


def decimals(errors: Iterable[float | None]) -> int:
    """Decimals that show two digits of the smallest standard error, or one more than the median one needs."""
    known = sorted(1 - math.floor(math.log10(error)) for error in errors if error)
    return min(6, max(0, min(known[-1], known[len(known) // 2] + 1))) if known else 2


def interval_decimals(pairs: Iterable[Mapping[str, Any]]) -> int:
    """The same for pairs, all of which must show: a 95% interval is about four standard errors wide."""
    return max((decimals([(p["high"] - p["low"]) / 4]) for p in pairs if p["low"] is not None), default=2)


def signed(value: float, places: int) -> str:
    """A number with its sign, and a true minus."""
    return f"{value:+.{places}f}".replace("-", "\N{MINUS SIGN}")


def p_text(p: float) -> str:
    """A p value as it follows the letter p."""
    return "< 0.001" if p < 0.001 else f"= {p:.{2 if p >= 0.1 else 3}f}"


def duration(seconds: float) -> str:
    """A time, in the unit that suits it.

    Examples:
        >>> duration(42.2), duration(600), duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
