"""The choices behind DAdaptMDA: each changed alone, on the benchmark's miniatures, validation only.

    python benchmarks/dadapt_choices.py                                     # quick, half an hour on two cores
    python benchmarks/dadapt_choices.py --scale mini --data DIR --seeds 1   # an hour and a half

Every variant runs untuned, with the schedule and without the weight decay of examples/no_tuning, except for
the rows about decay and warm-up. `CASES` says what is changed. Each finished run is added to the file --out
at once, so the command resumes. `make results` writes the tables of the documentation from that file.
"""

import argparse
import importlib
import json
import math
import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualavg_bench.recipe import Point
from dualavg_bench.run import training
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.files import write_atomically
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.study.study import Study

ROOT = Path(__file__).parent.parent
TASKS = ("cifar10", "imagenet", "fastmri", "iwslt14", "wikitext103", "roberta")
CASES: dict[str, dict[str, Any]] = {  # settings of `Variant`; "decay" is the weight decay of the run
    "as it is": {},
    "G: exponential mean": {"average": "exponential"},
    "G: first gradient": {"average": "first"},
    "decay 1e-3": {"decay": 1e-3},
    "decay 1e-3, outside of r": {"decay": 1e-3, "decay_in_r": False},
    "no warm-up": {"warm_up": False},
    "d0 1e-8": {"d0": 1e-8},
    "d0 1e-4": {"d0": 1e-4},
    "growth at most 2% a step": {"growth_rate": 1.02},
    "lr 2": {"lr": 2.0},
    "lr 0.5": {"lr": 0.5},
    "r at z instead of x": {"at": "z"},
}


class Variant(Optimizer):
    """DAdaptMDA with choices, for one group of parameters. Plain loops: this is for reading."""

    last: "Variant"  # the one that was created last

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
        warm_up: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.average, self.decay_in_r, self.at = average, decay_in_r, at
        self.d0, self.growth_rate, self.warm_up, self.top_lr = d0, growth_rate, warm_up, lr
        self.trace: list[tuple[float, float]] = []  # d_k and eta_k of every step
        # In the group, so that a checkpoint has them; `squares` is what G_k is made of.
        self.param_groups[0].update(k=0, d=0.0, r=0.0, squares=0.0, peak_lr=0.0)
        Variant.last = self

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
        if not self.warm_up and lr == peak:  # it has not fallen yet
            lr = peak = group["peak_lr"] = self.top_lr
        c = min(1.0, (1 - group["momentum"]) * peak / lr) if lr > 0 else 1.0
        hs = [p.grad + decay * p for p in params]
        square, root = sum(map(_square, hs)), math.sqrt(k + 1)
        # G_k, from the gradients before this one; at first, of this one
        mean = square if k == 0 else group["squares"] / (k if self.average == "mean" else 1)
        eta = lr * group["d"] / max(math.sqrt(mean), 1e-30)
        lam = eta * root
        self.trace.append((group["d"], eta))
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


@dataclass(frozen=True)
class Job:
    """One run."""

    scale: str
    case: str
    task: str
    seed: int
    data: Path | None

    def spec(self, study: Study) -> RunSpec:
        """Return what names the run."""
        settings = dict(CASES[self.case])
        decay, lr = settings.pop("decay", 0.0), settings.pop("lr", 1.0)
        point = Point(lr, decay, study.recipe.grids["dadapt-mda"].schedule[0])
        spec = study.spec(f"{Path(__file__).stem}.Variant", point, self.seed, test=False)
        return replace(spec, optimizer_settings=settings)


def run(job: Job) -> dict[str, Any]:
    """Train one run; return its last validation score, and the step size that it found."""
    with TemporaryDirectory() as out:
        study = _study(job, Path(out))
        spec = job.spec(study)
        result = training.run(spec, study.recipe, RunFolder.of(study.out, job.task, spec.hash), study.data)
    module = importlib.import_module(Path(__file__).stem)  # this one, as the run has imported it
    ds, etas = zip(*module.Variant.last.trace, strict=True)
    largest = max(range(len(etas)), key=etas.__getitem__)
    return {
        **{key: value for key, value in asdict(job).items() if key != "data"},
        "run": spec.hash,
        "metric": result.metric,
        "score": result.valid[result.metric][-1],
        "diverged": result.diverged,
        "steps": len(etas),
        "eta": etas[largest],
        "eta_step": largest,
        "d": [ds[len(ds) * quarter // 4 - 1] for quarter in (1, 2, 3, 4)],  # after each quarter of the run
    }


def _study(job: Job, out: Path) -> Study:
    file = ROOT / "examples" / "no_tuning" / f"{job.task}.py"
    return Study.of(str(file), job.scale, out, job.data, ["dadapt-mda"])


def missing(jobs: Iterable[Job], rows: Iterable[dict[str, Any]]) -> list[Job]:
    """Return the jobs that have no row, or only one that other code made."""
    finished = {row["run"] for row in rows}
    with TemporaryDirectory() as out:
        studies: dict[str, Study] = {}
        return [
            job
            for job in jobs
            if job.spec(studies.setdefault(job.task, _study(job, Path(out)))).hash not in finished
        ]


def main() -> None:
    """Run what is missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument(
        "--cases", default=",".join(CASES), help="names separated by commas, or parts of them"
    )
    parser.add_argument("--scale", default="quick", choices=["quick", "mini"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "dadapt_choices.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    tasks = arguments.tasks.split(",")
    jobs = [
        Job(arguments.scale, case, task, seed, arguments.data)
        for seed in range(arguments.seeds)
        for case in CASES
        if any(part in case for part in arguments.cases.split(","))
        for task in tasks
    ]
    left = missing(jobs, rows)
    print(f"{len(jobs)} runs, {len(left)} of them to do", flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        for done, future in enumerate(as_completed([pool.submit(run, job) for job in left]), 1):
            row = future.result()
            same = {key: row[key] for key in ("scale", "case", "task", "seed")}
            rows = [other for other in rows if not same.items() <= other.items()] + [row]
            rows.sort(key=order)
            lines = ",\n".join(map(json.dumps, rows))
            write_atomically(arguments.out, f"[\n{lines}\n]\n".encode())
            found = f"{row['score']:.4g}, eta {row['eta']:.3g}"
            print(f"{done}/{len(left)}", *same.values(), found, flush=True)


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that sorts the rows of the file."""
    return row["scale"], list(CASES).index(row["case"]), TASKS.index(row["task"]), row["seed"]


sys.path.append(str(Path(__file__).parent))  # the optimizer is found by its dotted path, in workers too
if __name__ == "__main__":
    main()
