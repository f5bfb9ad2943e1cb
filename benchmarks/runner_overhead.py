"""What the runner costs: its step against a bare loop's, and a study on two workers against one.

    python benchmarks/runner_overhead.py                     # about four minutes on two idle cores
    python benchmarks/runner_overhead.py --data DIR          # with CIFAR-10 instead of random pixels
    python benchmarks/runner_overhead.py --rounds 10 --repeats 1

The step: the runner asks `should_stop` after every ten steps, and that is where the bare loop takes its ten,
with the same network, data, augmentation, optimizer and schedule; the figure is the median over the rounds of
the runner's time divided by the bare loop's in the same round. With a network of one layer the difference is
the runner's own time, in microseconds.

The study: the recipe that `dualavg new` writes, grid and confirmation. One worker and two take turns.
"Without start-up" begins when every worker has imported what it needs. Two workers need two free cores: on a
machine with other work, the ratio of wall times says more about that work, and that of the busiest worker's
CPU time is what to look at.
"""

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WINDOW = 10  # steps between two questions whether to stop: dualavg_bench.run.training.WINDOW
TARGET_STEP, TARGET_STUDY = 1.05, 0.6


def bare_loop(recipe, point, splits) -> Callable[[], None]:
    """Return a function that takes ten steps and does what it must, nothing else."""
    import torch

    from dualavg_bench.recipe import registry
    from dualavg_bench.recipe.schedules import make_schedule

    torch.manual_seed(0)
    model = recipe.model()
    optimizer = registry.make("mda", model.parameters(), point, {})
    schedule = make_schedule(point.schedule, {}, optimizer, recipe.steps)
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(splits.train)).split(recipe.batch_size)
    place = 0

    def take_steps() -> None:
        nonlocal place
        for _ in range(WINDOW):
            loss = recipe.loss(model, splits.train.batch(order[place % (len(order) - 1)], rng))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            place += 1

    return take_steps


def measure_step(recipe, splits, rounds: int) -> dict[str, float]:
    """Let the runner and the bare loop take turns, ten steps each."""
    import torch

    from dualavg_bench.recipe import Point
    from dualavg_bench.run import training
    from dualavg_bench.run.data import fingerprint
    from dualavg_bench.run.spec import RunSpec
    from dualavg_bench.store.folder import RunFolder

    steps = WINDOW * (rounds + 3)
    recipe = dataclasses.replace(recipe, data=lambda _: splits, steps=steps, evaluations=1)
    point = Point(0.1, 1e-4, "stagewise")
    spec = RunSpec(
        *("", "", fingerprint(splits, test=False), recipe.settings(), "mda", point, {}),
        seed=0,
        test=False,
        versions={},
    )
    torch.set_num_threads(recipe.threads)
    bare = bare_loop(recipe, point, splits)
    ours, theirs = [], []
    started = time.perf_counter()

    def take_turns() -> bool:
        nonlocal started
        between = time.perf_counter()
        ours.append((between - started) / WINDOW)
        bare()
        started = time.perf_counter()
        theirs.append((started - between) / WINDOW)
        return False

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.of(Path(folder), recipe.name, spec.hash)
        training.run(spec, recipe, run, Path(folder), checkpoint_seconds=1e9, should_stop=take_turns)
    ours, theirs = ours[2:], theirs[2:]  # the first rounds warm up
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "runner_ms": 1e3 * statistics.median(ours),
        "bare_ms": 1e3 * statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-len(ratios) // 4]],
        "difference_us": 1e6 * statistics.median(a - b for a, b in zip(ours, theirs, strict=True)),
        "n": len(ratios),
    }


def cifar(data: Path | None):
    """Return the cifar10 recipe's splits, or random pixels of their shapes."""
    import torch

    from dualavg_bench.data import cifar
    from dualavg_bench.recipe import Splits

    if data is not None:
        return cifar.load(data)
    rng = torch.Generator().manual_seed(0)

    def images(n: int) -> cifar.Images:
        pixels = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=rng)
        return cifar.Images(pixels, torch.randint(10, (n,), generator=rng))

    return Splits(images(5000), images(100), images(100))


def one_layer():
    """Return the smallest network that can be trained."""
    import torch

    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))


def measure_study(reference: Path, workers: int) -> dict[str, float]:
    """Run a study from nothing; return its wall time with and without the workers' start-up."""
    from dualavg_bench.study.cluster import cluster
    from dualavg_bench.study.executor import Executor
    from dualavg_bench.study.study import Study

    with tempfile.TemporaryDirectory() as folder:
        study = Study.of(str(reference), "quick", Path(folder), Path(folder))
        begun = time.perf_counter()
        with cluster(workers, None) as client:
            client.wait_for_workers(workers)
            before = client.run(cpu_seconds)
            started = time.perf_counter()
            executor = Executor(client, study.out, Path(folder), "quick", notify=print)
            _, runs = study.run(lambda specs: executor.execute(specs, study.recipe.name), extend=False)
            ended = time.perf_counter()
            after = client.run(cpu_seconds)
    return {
        "workers": workers,
        "runs": len(runs),
        "with_start_up_s": ended - begun,
        "without_start_up_s": ended - started,
        "busiest_worker_cpu_s": max(after[worker] - before[worker] for worker in before),
    }


def cpu_seconds() -> float:
    """Return a worker's CPU time, once it has imported what its first run would."""
    import dualavg_bench.run.training  # noqa: F401

    return time.process_time()


def compare_workers(repeats: int, steps: int) -> dict:
    """One worker and two take turns."""
    import dualavg_bench

    text = (Path(dualavg_bench.__file__).parent / "recipe" / "templates" / "new_recipe.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "spirals.py"
        reference.write_text(text.replace("steps=400", f"steps={steps}"))
        pairs = [(measure_study(reference, 1), measure_study(reference, 2)) for _ in range(repeats)]
    keys = ("with_start_up_s", "without_start_up_s", "busiest_worker_cpu_s")
    return {
        "runs": pairs[0][0]["runs"],
        "n": repeats,
        "studies": [study for pair in pairs for study in pair],
        "ratios": {key: [two[key] / one[key] for one, two in pairs] for key in keys},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with cifar-10-batches-py; random pixels without")
    parser.add_argument("--rounds", type=int, default=40, help="of ten steps each (default: 40)")
    parser.add_argument("--repeats", type=int, default=3, help="of the study (default: 3); 0 leaves it out")
    parser.add_argument("--steps", type=int, default=1500, help="of each of its runs (default: 1500)")
    parser.add_argument("--out", type=Path, default=Path("out/runner_overhead.json"), help="where figures go")
    arguments = parser.parse_args()

    import torch

    from dualavg_bench.recipes import cifar10

    mini, splits = cifar10.recipe("mini"), cifar(arguments.data)
    recipes = {"cifar10 mini": mini, "one layer": dataclasses.replace(mini, model=one_layer)}
    results = {"torch": torch.__version__, "cores": os.cpu_count(), "load": os.getloadavg(), "steps": {}}
    print(
        f"{'step of':16}{'runner':>12}{'bare loop':>12}{'ratio':>8}{'quartiles':>16}"
        f"{'difference':>13}{'n':>5}"
    )
    for name, recipe in recipes.items():
        row = results["steps"][name] = measure_step(recipe, splits, arguments.rounds)
        low, high = row["ratio_quartiles"]
        print(
            f"{name:16}{row['runner_ms']:>9.2f} ms{row['bare_ms']:>9.2f} ms{row['ratio']:>8.3f}"
            f"{f'{low:.3f} to {high:.3f}':>16}{row['difference_us']:>10.0f} us{row['n']:>5}"
        )
    print(f"target for cifar10 mini: at most {TARGET_STEP}\n")
    if arguments.repeats:
        study = results["study"] = compare_workers(arguments.repeats, arguments.steps)
        title = f"study of {study['runs']} runs"
        print(f"{title:28}{'1 worker':>10}{'2 workers':>11}{'ratio':>8}{'n':>5}")
        for key, ratios in study["ratios"].items():
            one, two = (
                statistics.median(s[key] for s in study["studies"] if s["workers"] == n) for n in (1, 2)
            )
            what = key.removesuffix("_s").replace("_", " ").replace("start up", "start-up")
            what = what.replace("cpu", "CPU")
            print(f"{what:28}{one:>8.1f} s{two:>9.1f} s{statistics.median(ratios):>8.3f}{study['n']:>5}")
        print(f"target: at most {TARGET_STUDY}\n")
    results["load_after"] = os.getloadavg()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"saved: {arguments.out}")


if __name__ == "__main__":
    main()
