"""Where the time of a miniature's training step goes, and what would change it.

    python benchmarks/miniatures.py --data DIR        # all six at mini, about three minutes on two idle cores
    python benchmarks/miniatures.py --data DIR --recipes cifar10,roberta

First the parts of a step, medians over --steps steps on one thread, and the seconds of an evaluation on the
validation set with the network of these few steps. Then ratios of step times: two threads, without channels
last, compiled. The variant and the recipe as it is take turns, ten steps each; the figure is the median ratio
over the rounds. Below 1 the variant is faster. Compilation is not in the ratio: its seconds stand beside it.
"""

import argparse
import copy
import itertools
import logging
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from dualavg_bench.analysis.paper import RECIPES
from dualavg_bench.recipe import Recipe, Splits, registry
from dualavg_bench.recipe.loading import load
from dualavg_bench.run.data import read

PARTS = ("data", "forward", "backward", "optimizer")
ROUND = 10  # steps
WARM_UP = 10


class Steps:
    """A network of a recipe, trained step by step."""

    def __init__(self, recipe: Recipe, splits: Splits, model: torch.nn.Module, *, threads: int = 1) -> None:
        self.recipe, self.splits, self.model, self.threads = recipe, splits, model, threads
        point = recipe.grids["mda"].points()[0]
        self.optimizer = registry.make("mda", model.parameters(), point, {})
        self.rng = torch.Generator().manual_seed(0)
        self.indices = self._indices()

    def _indices(self) -> Iterator[torch.Tensor]:
        while True:
            order = torch.randperm(len(self.splits.train), generator=self.rng)
            size = self.recipe.batch_size
            yield from (part for part in order.split(size) if len(part) == size)

    def step(self) -> list[float]:
        """Take a step; return the seconds of its parts."""
        times = [time.perf_counter()]
        batch = self.splits.train.batch(next(self.indices), self.rng)
        times.append(time.perf_counter())
        loss = self.recipe.loss(self.model, batch)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
        return [after - before for before, after in itertools.pairwise(times)]

    def take(self, steps: int) -> float:
        """Return the median seconds of a step."""
        torch.set_num_threads(self.threads)
        return statistics.median(sum(self.step()) for _ in range(steps))


def parts(steps: Steps, count: int) -> dict[str, float]:
    """Return the milliseconds of the parts of a step, and the seconds of an evaluation."""
    steps.take(WARM_UP)
    columns = zip(*(steps.step() for _ in range(count)), strict=True)
    medians = {name: 1000 * statistics.median(column) for name, column in zip(PARTS, columns, strict=True)}
    source, size = steps.splits.valid, steps.recipe.eval_batch_size or steps.recipe.batch_size
    batches = (source.batch(indices, None) for indices in torch.arange(len(source)).split(size))
    steps.model.eval()
    before = time.perf_counter()
    with torch.no_grad():
        steps.recipe.evaluate(steps.model, batches)
    return {**medians, "evaluation": time.perf_counter() - before}


def ratio(base: Steps, variant: Steps, rounds: int) -> float:
    """Return the median ratio of step times."""
    ratios = []
    for _ in range(rounds):
        before = base.take(ROUND)
        ratios.append(variant.take(ROUND) / before)
    return statistics.median(ratios)


def compiled(base: Steps, model: torch.nn.Module, rounds: int) -> str:
    """Return the ratio of the compiled network and the seconds of its compilation."""
    variant = Steps(base.recipe, base.splits, torch.compile(model))  # type: ignore[arg-type]
    before = time.perf_counter()
    try:
        variant.take(WARM_UP)
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the result
        return f"fails ({type(error).__name__})"
    seconds = time.perf_counter() - before
    return f"{ratio(base, variant, rounds):.2f} (after {seconds:.0f} s)"


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipes", default=",".join(name for name in RECIPES if "ablation" not in name))
    parser.add_argument("--scale", default="mini", choices=["quick", "mini"])
    parser.add_argument("--data", type=Path, default=Path("out/data"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    logging.disable()  # of the compiler, where it fails
    header = [
        *(f"{name}, ms" for name in PARTS),
        "evaluation, s",
        "2 threads",
        "no channels last",
        "compiled",
    ]
    print("| recipe |", " | ".join(header), "|")
    print("| --- |", " | ".join("---" for _ in header), "|")
    for name in arguments.recipes.split(","):
        recipe, _ = load(name, arguments.scale)
        splits = read(recipe, arguments.data)
        torch.manual_seed(0)
        model = recipe.model()
        first = copy.deepcopy(model)
        steps = Steps(recipe, splits, model)
        cells = [f"{value:.1f}" for value in parts(steps, arguments.steps).values()]
        model.train()
        threads = Steps(recipe, splits, copy.deepcopy(first), threads=2)
        cells.append(f"{ratio(steps, threads, arguments.rounds):.2f}")
        plain = copy.deepcopy(first).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        changed = any(
            p.stride() != q.stride() for p, q in zip(plain.parameters(), first.parameters(), strict=True)
        )
        cells.append(f"{ratio(steps, Steps(recipe, splits, plain), arguments.rounds):.2f}" if changed else "")
        cells.append(compiled(steps, first, arguments.rounds))
        print(f"| `{name}` |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
