"""What the result of a run holds, and what is wrong with a file that does not."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

POINT = ("lr", "weight_decay", "schedule")


def spec_hash(spec: Mapping[str, Any]) -> str:
    """The hash of a spec as it stands in a result: what `RunSpec.hash` gives for it."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fault(result: Mapping[str, Any]) -> str | None:
    """What a result lacks or has wrong, as the end of a sentence about it; None if it is sound."""
    for name, (expected, holds) in FIELDS.items():
        if name not in result:
            return f"lacks {name!r}"
        if not holds(result[name]):
            return f"has {_short(result[name])} as its {name!r}, where {expected} was expected"
    return next((said for said, wrong in _contradictions(result).items() if wrong), None)


def _contradictions(result: Mapping[str, Any]) -> dict[str, bool]:
    """What fields that are sound by themselves may have wrong together."""
    spec, metric, diverged = result["spec"], result["metric"], result["status"] == "diverged"
    told = [result["optimizer"], [result[name] for name in POINT], result["seed"]]
    tested = result["phase"] == "tune" or _is_number((result["test"] or {}).get(metric))
    return {
        "has the spec of another run": spec_hash(spec) != result["hash"],
        "is of another setting than its spec": told != [spec.get(k) for k in ("optimizer", "point", "seed")],
        f"has no validation {metric}": not result["valid"].get(metric),
        "has no training loss": not diverged and not result["train"]["loss"],
        f"has no test {metric}": not tested,
        "does not say when it diverged": diverged and result["diverged_at"] is None,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_curve(*names: str) -> Callable[[Any], bool]:
    """Whether a value has these series, and all of its series are numbers, equally many."""

    def holds(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and {"step", *names} <= value.keys()
            and all(isinstance(series, list) and all(map(_is_number, series)) for series in value.values())
            and len({len(series) for series in value.values()}) == 1
        )

    return holds


def _has_numbers(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(_is_number(value.get(name)) for name in names)


def _one_of(*values: str) -> tuple[str, Callable[[Any], bool]]:
    return " or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}\N{HORIZONTAL ELLIPSIS}"


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("recipe", "scale", "optimizer", "schedule", "metric", "unit"), ("text", _is_text)),
    **dict.fromkeys(("lr", "weight_decay"), ("a number", _is_number)),
    **dict.fromkeys(("seed", "steps"), ("a whole number", _is_count)),
    "phase": _one_of("tune", "confirm"),
    "status": _one_of("finished", "diverged"),
    "higher_is_better": ("true or false", lambda value: isinstance(value, bool)),
    "diverged_at": ("a step or null", _or_none(_is_count)),
    "why": ("text or null", _or_none(_is_text)),
    "spec": ("what the run was made from", lambda value: isinstance(value, dict)),
    "train": ("a curve", _is_curve("loss")),
    "valid": ("a curve", _is_curve()),
    "test": ("scores or null", _or_none(lambda value: isinstance(value, dict))),
    "time": ("seconds, step_ms and optimizer_ms", _has_numbers("seconds", "step_ms", "optimizer_ms")),
    "peak_mb": ("a number or null", _or_none(_is_number)),
    "machine": ("its description", lambda value: isinstance(value, dict)),
}
