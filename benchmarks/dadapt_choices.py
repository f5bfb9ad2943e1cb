"""The choices behind DAdaptMDA: each changed alone, on the benchmark's miniatures, validation only.

    python benchmarks/dadapt_choices.py                                     # quick, about an hour on one core
    python benchmarks/dadapt_choices.py --scale mini --data DIR --seeds 1   # about three hours

Every variant runs untuned, with the schedule and without the weight decay of examples/no_tuning, except for
the rows about decay. `CASES` says what is changed. Finished runs are kept in --out, so the command resumes.
"""

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualavg_bench.recipe import Point
from dualavg_bench.run import training
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.study.study import Study

TASKS = Path(__file__).parent.parent / "examples" / "no_tuning"
CASES = {  # settings of `Variant`; "decay" is the weight decay of the run
    "as it is": {},
    "G: exponential mean": {"average": "exponential"},
    "G: first gradient": {"average": "first"},
    "decay 1e-3": {"decay": 1e-3},
    "decay 1e-3, outside of r": {"decay": 1e-3, "decay_in_r": False},
    "d0 1e-8": {"d0": 1e-8},
    "d0 1e-4": {"d0": 1e-4},
    "growth at most 2% a step": {"growth_rate": 1.02},
    "lr 2": {"lr": 2.0},
    "lr 0.5": {"lr": 0.5},
    "r at z instead of x": {"at": "z"},
}


class Variant(Optimizer):
    """DAdaptMDA with choices, for one group of parameters. Plain loops: this is for reading."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        average: str = "mean",
        decay_in_r: bool = True,
        d0: float = 1e-6,
        growth_rate: float = math.inf,
        at: str = "x",
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.average, self.decay_in_r, self.at = average, decay_in_r, at
        self.d0, self.growth_rate = d0, growth_rate
        # In the group, so that a checkpoint has them; `squares` is what G_k is made of.
        self.param_groups[0].update(k=0, d=0.0, r=0.0, squares=0.0, peak_lr=0.0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Take a step."""
        (group,) = self.param_groups
        params = [p for p in group["params"] if p.grad is not None]
        k, lr, decay = group["k"], group["lr"], group["weight_decay"]
        if k == 0:
            self.state.update({p: {"x0": p.clone(), "s": torch.zeros_like(p)} for p in params})
            group["d"] = self.d0 * (1 + math.sqrt(sum(map(_square, params))))
        peak = group["peak_lr"] = max(group["peak_lr"], lr)
        c = min(1.0, (1 - group["momentum"]) * peak / lr) if lr > 0 else 1.0
        hs = [p.grad + decay * p for p in params]
        square, root = sum(map(_square, hs)), math.sqrt(k + 1)
        # G_k, from the gradients before this one; at first, of this one
        mean = square if k == 0 else group["squares"] / (k if self.average == "mean" else 1)
        lam = lr * group["d"] / max(math.sqrt(mean), 1e-30) * root
        inner = sums = 0.0
        for p, h in zip(params, hs, strict=True):
            x0, s = self.state[p]["x0"], self.state[p]["s"]
            point = p if self.at == "x" else x0 - s / math.sqrt(max(k, 1))
            inner += float(((h if self.decay_in_r else p.grad) * (x0 - point)).sum(dtype=torch.float64))
            s.add_(h, alpha=lam)
            sums += _square(s)
            p.lerp_(x0, c).add_(s, alpha=-c / root)
        if math.isfinite(inner + sums) and sums > 0:
            group["r"] += lam * inner
            found = min(group["r"] / math.sqrt(sums), self.growth_rate * group["d"])
            group["d"] = max(group["d"], found)
        if self.average == "mean" or k == 0:
            group["squares"] += square
        elif self.average == "exponential":
            group["squares"] = 0.999 * group["squares"] + 0.001 * square
        group["k"] += 1


def _square(t: Tensor) -> float:
    return float(t.square().sum(dtype=torch.float64))


def valid_score(task: str, scale: str, data: Path | None, out: Path, case: str, seed: int) -> float:
    """Train one run, unless it is finished, and return its last validation score."""
    settings = dict(CASES[case])
    decay, lr = settings.pop("decay", 0.0), settings.pop("lr", 1.0)
    study = Study.of(str(TASKS / f"{task}.py"), scale, out, data, ["dadapt-mda"])
    schedule = study.recipe.grids["dadapt-mda"].schedule[0]
    name = f"{Path(__file__).stem}.Variant"
    spec = study.spec(name, Point(lr, decay, schedule), seed, test=False)
    spec = replace(spec, optimizer_settings=settings)
    result = training.run(spec, study.recipe, RunFolder.of(study.out, task, spec.hash), study.data)
    return result.valid[result.metric][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    tasks = ("cifar10", "imagenet", "fastmri", "iwslt14", "wikitext103", "roberta")
    parser.add_argument("--tasks", default=",".join(tasks))
    parser.add_argument("--scale", default="quick", choices=["quick", "mini"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/dadapt_choices"))
    arguments = parser.parse_args()
    names = arguments.tasks.split(",")
    print("| choice |", " | ".join(names), "|")
    print("| --- |", " | ".join("---" for _ in names), "|")
    for case in CASES:
        print(f"| {case} |", end="", flush=True)
        for task in names:
            place = (arguments.scale, arguments.data, arguments.out)
            scores = [valid_score(task, *place, case, seed) for seed in range(arguments.seeds)]
            print(f" {fmean(scores):.4g} |", end="", flush=True)
        print()


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))  # the optimizer is found by its dotted path
    main()
