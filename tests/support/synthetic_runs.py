"""A study made up from a formula: results as `store` hands them over, without training anything."""

import math
import random
import re

from dualavg_bench.analysis.summary import summarize as summarize_runs
from dualavg_bench.store.results import Curve, Machine, RunResult, RunTime, spec_hash
from dualavg_bench.store.summaries import Extension, Summary

LRS = {"mda": (0.1, 0.3, 1.0), "sgd": (0.01, 0.03, 0.1), "adam": (1e-4, 1e-3, 1e-2)}
DECAYS = (0.0, 1e-4, 1e-3)
STEPS = 300
MACHINE = Machine(
    cpu="Synthetic CPU @ 2.0 GHz",
    cores=2,
    gpu=None,
    system="Linux",
    python="3.11.7",
    torch="2.13.0",
    dualavg="0.1",
)
NOT_EXTENDED = Extension(allowed=False, rounds=0, most=3)


def run(optimizer="mda", lr=1.0, seed=0, phase="tune", final=90.0, **changes):
    """One result; `final` is its last validation score, half a point more than its test score.

    The best network has another test score, `best_score`, so that a mistake between the two is seen.
    """
    weight_decay, schedule = changes.pop("weight_decay", 0.0), changes.pop("schedule", "linear")
    diverged_at, untrained = changes.pop("diverged_at", None), changes.pop("untrained", 10.0)
    test_score = untrained if diverged_at else changes.pop("test_score", final - 0.5)
    best_score = untrained if diverged_at else changes.pop("best_score", test_score - 0.25)
    metric = changes.setdefault("metric", "accuracy")
    why = changes.pop("why", "the training loss is nan") if diverged_at else None
    rng = random.Random(repr((optimizer, lr, weight_decay, schedule, seed, phase)))
    values = {
        "recipe": "cifar10",
        "scale": "quick",
        "optimizer": optimizer,
        "lr": lr,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "seed": seed,
        "phase": phase,
        "higher_is_better": True,
        "unit": "%",
        "steps": STEPS,
        "status": "diverged" if diverged_at else "finished",
        "diverged_at": diverged_at,
        "why": why,
        **curves(rng, metric, final, untrained, diverged_at),
        "test": {"loss": 0.4, metric: test_score} if phase == "confirm" else None,
        "test_best": {"loss": 0.4, metric: best_score} if phase == "confirm" else None,
        "report": "last",
        "samples": [],
        "time": RunTime(
            seconds=12 + rng.random(),
            step_ms=4.2 + 0.5 * len(optimizer) / 4 + 0.1 * rng.random(),
            optimizer_ms=0.2 * len(optimizer) + 0.05 * rng.random(),
        ),
        "peak_mb": 400.0 + 12 * len(optimizer),
        "state_bytes": {"sgd": 4000}.get(optimizer, 8000),
        "parameters": 1000,
        "packages": {},
        "machine": MACHINE,
    }
    values |= changes
    settings = {name: values[name] for name in ("scale", "steps", "report")}
    settings |= {"name": values["recipe"], "metric": [metric, values["higher_is_better"]]}
    spec = {
        "settings": settings,
        "optimizer": optimizer,
        "optimizer_settings": {} if optimizer == "adam" else {"momentum": 0.9},
        "point": [lr, weight_decay, schedule],
        "seed": seed,
        "phase": phase,
    }
    return RunResult(**{"spec": spec, "hash": spec_hash(spec), **values})


def curves(rng, metric, final, untrained, diverged_at):
    """Training loss and validation scores that approach their ends exponentially."""
    end = diverged_at or STEPS
    shape = [(s, 1 - math.exp(-4 * s / STEPS)) for s in range(0, end + 1, 30)]
    wiggle = [final * 0.01 * rng.gauss(0, 1) * (0 < s < STEPS) for s, _ in shape]
    scores = [
        untrained + (final - untrained) * t / (1 - math.exp(-4)) + w
        for (_, t), w in zip(shape, wiggle, strict=True)
    ]
    train = [(s, 2.3 * math.exp(-3 * s / STEPS) + 0.03 * rng.random()) for s in range(10, end + 1, 10)]
    train += [(end + 1, 40.0)] if diverged_at else []
    losses = [2.3 - 2 * t for _, t in shape]
    return {
        "train": Curve.model_validate({"step": [s for s, _ in train], "loss": [loss for _, loss in train]}),
        "valid": Curve.model_validate({"step": [s for s, _ in shape], "loss": losses, metric: scores}),
    }


def study(seed=0, lrs=None, offsets=None, confirm_diverges=(), **changes):
    """Three optimizers, nine points, two tuning seeds, five fresh ones; big step sizes diverge."""
    rng = random.Random(seed)
    lrs, offsets = lrs or LRS, offsets or {"mda": 1.2, "sgd": 0.9, "adam": 0.0}
    runs, best = [], {}
    sign = 1 if changes.get("higher_is_better", True) else -1
    for optimizer, grid in lrs.items():
        for i, lr in enumerate(grid):
            for j, weight_decay in enumerate(DECAYS):
                peak = len(grid) - 1 if optimizer == "mda" else 1
                loss = 3 * (i - peak) ** 2 + 0.6 * (j - 1) ** 2
                height = 90 + offsets.get(optimizer, 0) - sign * loss
                for s in range(2):
                    lost = i == len(grid) - 1 and j == 2 and (optimizer != "adam" or s == 0)
                    extra = {"diverged_at": 112 + 150 * s} if lost else {}
                    final = height + rng.gauss(0, 0.15)
                    runs.append(
                        run(optimizer, lr, s, "tune", final, weight_decay=weight_decay, **extra, **changes)
                    )
                if not lost and (optimizer not in best or sign * (height - best[optimizer][0]) > 0):
                    best[optimizer] = (height, lr, weight_decay)
    for s in range(1000, 1005):
        luck = rng.gauss(0, 0.4)
        for optimizer, (height, lr, weight_decay) in best.items():
            extra = {"diverged_at": 212} if (optimizer, s) in confirm_diverges else {}
            final = height + luck + rng.gauss(0, 0.12)
            runs.append(
                run(optimizer, lr, s, "confirm", final, weight_decay=weight_decay, **extra, **changes)
            )
    return runs


def summarize(runs, **arguments):
    """The summary of a study whose grids were not extended, unless `arguments` say otherwise."""
    defaults = {"command": "dualavg study cifar10 --scale quick", "extension": NOT_EXTENDED}
    return summarize_runs(runs, **defaults | {"test_examples": 400, "own_schedules": ()} | arguments)


def renamed(runs, names):
    """The same runs as if other optimizers had made them; specs and hashes stay as they were."""
    return [r.model_copy(update={"optimizer": names.get(r.optimizer, r.optimizer)}) for r in runs]


def another(summary):
    """The same study as if other runs had made it."""
    reverse = re.sub(r'"[0-9a-f]{16}"', lambda name: f'"{name[0][1:-1][::-1]}"', summary.model_dump_json())
    return Summary.model_validate_json(reverse)
