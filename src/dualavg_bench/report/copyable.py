"""The line to copy: how an optimizer and its schedule are made in the reader's own program."""

import inspect
from dataclasses import dataclass
from typing import Any

from dualavg_bench.recipe import registry
from dualavg_bench.recipe.optimizers import OPTIMIZERS, Entry
from dualavg_bench.store.summaries import Summary

UNKNOWN = (
    "An earlier version wrote this summary. It did not keep the fixed settings of the recipe, such as betas, "
    "nor whether a schedule is the recipe's own: compare with the recipe."
)
# As `recipe/schedules.py` makes them, with the numbers filled in.
_SCHEDULES = {
    "linear": "WarmupLinearDecay(optimizer, warmup_steps={tenth}, total_steps={steps})",
    "cosine": "WarmupCosine(optimizer, warmup_steps={tenth}, total_steps={steps})",
    "trapezoid": (
        "WarmupStableDecay(optimizer, warmup_steps={tenth}, decay_steps={fifth}, total_steps={steps})"
    ),
    "stagewise": "StageWise(optimizer, milestones=[{half}, {three_quarters}], ramp={ramp})",
    "inverse_sqrt": "WarmupInverseSqrt(optimizer, warmup_steps={tenth})",
    "flat_drop": "FlatThenDrop(optimizer, drop_at={four_fifths})",
    "tail": "ExponentialTail(optimizer, start={fifth}, factor={factor!r}, warmup_steps={twelfth})",
}


@dataclass(frozen=True)
class Lines:
    """What to copy: Python, and a sentence about the schedule where it cannot be written as a line."""

    optimizer: str
    schedule: str = ""
    remark: str = ""


def lines(summary: Summary, name: str) -> Lines:
    """Return the lines that make an optimizer of a study, and its schedule, at the chosen setting."""
    chosen, fixed = summary.optimizers[name].chosen, summary.optimizers[name].settings
    entry = OPTIMIZERS.get(name) or Entry(name)
    settings: dict[str, Any] = {"lr": float(chosen.lr), **(entry.settings if fixed is None else fixed)}
    if chosen.weight_decay or _takes_weight_decay(name):
        settings["weight_decay"] = float(chosen.weight_decay)
    arguments = ", ".join(f"{key}={_python(value)}" for key, value in settings.items())
    optimizer = f"{_name(entry.path)}(params, {arguments})"
    if chosen.schedule == "constant":
        return Lines(optimizer, remark="No schedule: lr stays as it is.")
    own = summary.own_schedules or []
    if chosen.schedule in own or chosen.schedule not in _SCHEDULES:
        return Lines(optimizer, remark=f"The schedule, {chosen.schedule}, is the recipe's own.")
    steps = max(run.steps for run in summary.runs.values())
    return Lines(optimizer, schedule_line(chosen.schedule, steps))


def _name(path: str) -> str:
    """Return the name of a public class of `dualavg`, which can be imported; other paths as they are."""
    package, _, name = path.rpartition(".")
    return name if package == "dualavg" else path


def schedule_line(name: str, steps: int) -> str:
    """Return the line that makes a schedule of `recipe/schedules.py` for runs of this many steps.

    Examples:
        >>> schedule_line("linear", 6000)
        'WarmupLinearDecay(optimizer, warmup_steps=600, total_steps=6000)'
    """
    return _SCHEDULES[name].format(
        steps=steps,
        tenth=max(1, steps // 10),
        fifth=steps // 5,
        twelfth=steps // 12,
        half=steps // 2,
        three_quarters=3 * steps // 4,
        four_fifths=4 * steps // 5,
        ramp=max(1, steps // 60),
        factor=1.0003 ** (50_000 / steps),
    )


def imports(summary: Summary) -> str:
    """Return the imports that the lines of a study need."""
    found = [lines(summary, name) for name in summary.optimizers]
    paths = [(OPTIMIZERS.get(name) or Entry(name)).path for name in summary.optimizers]
    classes = sorted({_name(path) for path in paths if _name(path) != path})
    schedules = sorted({each.schedule.partition("(")[0] for each in found if each.schedule})
    modules = sorted({path.rpartition(".")[0] for path in paths if _name(path) == path})
    parts = [("dualavg", classes), ("dualavg.schedules", schedules)]
    return "\n".join(
        [
            *(f"import {'torch' if module == 'torch.optim' else module}" for module in modules),
            *(f"from {module} import {', '.join(names)}" for module, names in parts if names),
        ]
    )


def warning(summary: Summary) -> str:
    """Return a warning if the summary lacks something that the lines need."""
    known = [entry.settings is not None for entry in summary.optimizers.values()]
    return "" if summary.own_schedules is not None and all(known) else UNKNOWN


def _takes_weight_decay(name: str) -> bool:
    """Return whether a class has this argument; one that is not installed here is asked for none."""
    try:
        return "weight_decay" in inspect.signature(registry.find(name)[0]).parameters
    except ValueError:
        return False


def _python(value: Any) -> str:
    """Return a JSON value as Python: lists were tuples, and dtypes are named."""
    if isinstance(value, list):
        return f"({', '.join(map(_python, value))}{',' * (len(value) == 1)})"
    if isinstance(value, str) and value.startswith("torch."):
        return value
    return repr(value)
