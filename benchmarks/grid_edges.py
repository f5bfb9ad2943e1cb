"""Whether a recipe's grids are wide enough: does each optimizer's best step size lie inside its grid?

    python benchmarks/grid_edges.py cifar10 --scale mini --data DIR       # one thread, resumable

Trains, with the first tuning seed, the largest and the smallest step size of every optimizer's grid, then the
ones between from the middle outwards until one has a better validation score than both ends: the grid's best
is then inside, whatever the rest would score. Weight decay and schedule are the grid's first, or all of them
with --all. Ends with status 1 if an optimizer's best is on an end. Runs are kept in --out, where the study of
the same recipe finds them.
"""

import argparse
import sys
import time
from pathlib import Path


def inside_out(values):
    """The largest, the smallest, then from the middle outwards."""
    inner = values[1:-1]
    middle = (len(inner) - 1) / 2
    order = sorted(range(len(inner)), key=lambda i: abs(i - middle))
    return [values[-1], values[0], *(inner[i] for i in order)]


def main() -> None:
    """Look at every optimizer's grid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--scale", default="mini", choices=("quick", "mini", "paper"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("studies"))
    parser.add_argument("--optimizers", help="names, with commas between; all of the recipe's if not said")
    parser.add_argument("--all", action="store_true", help="every weight decay and schedule, not the first")
    args = parser.parse_args()

    from dualavg_bench.recipe import Point
    from dualavg_bench.run import training
    from dualavg_bench.store.folder import RunFolder
    from dualavg_bench.study.study import Study

    names = args.optimizers.split(",") if args.optimizers else None
    study = Study.of(args.recipe, args.scale, args.out, args.data or args.out.absolute() / "data", names)
    recipe, metric = study.recipe, study.recipe.metric
    sign = 1 if metric.higher_is_better else -1

    def score(name: str, point: Point) -> float:
        spec = study.spec(name, point, 0, test=False)
        began = time.process_time()
        folder = RunFolder.of(study.out, recipe.name, spec.hash)
        result = training.run(spec, recipe, folder, study.data, progress=lambda *_: None)
        value = None if result.diverged else result.valid[metric.name][-1]
        outcome = f"diverged at step {result.diverged_at}" if value is None else f"{metric.name} {value:.4g}"
        took = f"{result.time.seconds:.0f} s, {time.process_time() - began:.0f} s of CPU time"
        where = f"{recipe.name} {name} {point.schedule}, decay {point.weight_decay:g}, lr {point.lr:g}"
        print(f"{where}: {outcome}; {took}", flush=True)
        return float("-inf") if value is None else sign * value

    outside = []
    for name in study.names:
        grid = recipe.grids[name]
        for schedule in grid.schedule if args.all else grid.schedule[:1]:
            for decay in grid.weight_decay if args.all else grid.weight_decay[:1]:
                ends: list[float] = []
                for lr in inside_out(sorted(grid.lr)):
                    value = score(name, Point(lr, decay, schedule))
                    if len(ends) < 2:
                        ends.append(value)
                    elif value > max(ends):
                        print(f"{recipe.name} {name}: inside, lr {lr:g} is better than both ends\n")
                        break
                else:
                    outside.append(f"{name} ({schedule}, decay {decay:g})")
                    print(f"{recipe.name} {name} {schedule}: ON AN END of {sorted(grid.lr)}\n")
    if outside:
        sys.exit(f"{recipe.name}: the best step size is on an end of the grid for {', '.join(outside)}.")


if __name__ == "__main__":
    main()
