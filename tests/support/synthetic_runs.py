"""A study made up from a formula: what `store` hands over, without training anything."""

import math
import random

from dualavg_bench.store.results import spec_hash

LRS = {"mda": (0.1, 0.3, 1.0), "sgd": (0.01, 0.03, 0.1), "adam": (1e-4, 1e-3, 1e-2)}
DECAYS = (0.0, 1e-4, 1e-3)
MACHINE = {
    "cpu": "Synthetic CPU @ 2.0 GHz",
    "cores": 2,
    "python": "3.11.7",
    "torch": "2.13.0",
    "dualavg": "0.1",
}


def run(optimizer="mda", lr=1.0, seed=0, phase="tune", final=90.0, **changes):
    """One result; `final` is its last validation score, and its test score in a confirmation."""
    weight_decay, schedule = changes.pop("weight_decay", 0.0), changes.pop("schedule", "linear")
    diverged_at, steps = changes.pop("diverged_at", None), 300
    test_score, untrained = changes.pop("test_score", final - 0.5), changes.pop("untrained", 10.0)
    metric = changes.get("metric", "accuracy")
    spec = {"optimizer": optimizer, "point": [lr, weight_decay, schedule], "seed": seed, "phase": phase}
    rng = random.Random(repr((optimizer, lr, weight_decay, schedule, seed, phase)))
    end = diverged_at or steps
    shape = [(s, 1 - math.exp(-4 * s / steps)) for s in range(0, end + 1, 30)]
    wiggle = [final * 0.01 * rng.gauss(0, 1) * (0 < s < steps) for s, _ in shape]
    scores = [
        untrained + (final - untrained) * t / (1 - math.exp(-4)) + w
        for (_, t), w in zip(shape, wiggle, strict=True)
    ]
    train = [(s, 2.3 * math.exp(-3 * s / steps) + 0.03 * rng.random()) for s in range(10, end + 1, 10)]
    if diverged_at:
        train += [(end + 1, 40.0)]
        test_score = untrained
    result = {
        "format": 1,
        "hash": spec_hash(spec),
        "recipe": "cifar10",
        "scale": "quick",
        "optimizer": optimizer,
        "lr": lr,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "seed": seed,
        "phase": phase,
        "metric": metric,
        "higher_is_better": True,
        "unit": "%",
        "status": "diverged" if diverged_at else "finished",
        "diverged_at": diverged_at,
        "why": "the training loss is nan" if diverged_at else None,
        "steps": steps,
        "spec": spec,
        "train": {"step": [s for s, _ in train], "loss": [loss for _, loss in train]},
        "valid": {"step": [s for s, _ in shape], "loss": [2.3 - 2 * t for _, t in shape], metric: scores},
        "test": {"loss": 0.4, metric: test_score} if phase == "confirm" else None,
        "time": {
            "seconds": 12 + rng.random(),
            "step_ms": 4.2 + 0.5 * len(optimizer) / 4 + 0.1 * rng.random(),
            "optimizer_ms": 0.2 * len(optimizer) + 0.05 * rng.random(),
        },
        "peak_mb": 400.0 + 12 * len(optimizer),
        "machine": dict(MACHINE),
    }
    return result | changes


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
