"""Several processes share a run: the numbers of one process, one writer, and no process waits for ever.

The two processes are real ones: `torchrun` runs this very file, which does what `TASKS` says and writes what
each rank saw; the tests compare that with one process's run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.lines import Lines, evaluate, make_recipe, make_spec, network
from support.tiny_study import Command, write_recipe

from dualavg_bench.recipe import Recipe, RecipeError, Splits
from dualavg_bench.run import training
from dualavg_bench.store import folder as store
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult


class Plain(Lines):
    def batch(self, indices, rng):
        return self.inputs[indices], self.targets[indices]


class OneBad(Lines):
    """Example 7 is not a number: on the day it comes up, one process sees it and the other does not."""

    def batch(self, indices, rng):
        inputs, targets = super().batch(indices, rng)
        return inputs, targets.masked_fill((indices == 7)[:, None], float("nan"))


def quiet_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def with_batch_norm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))


def quiet_recipe(**changes: Any) -> Recipe:
    splits = Splits(Plain(100, 0), Plain(40, 1), Plain(40, 2))
    return make_recipe(splits, model=quiet_network, **changes)


# One process draws dropout and jitter part by part; two processes with a part each draw the very same.
RECIPES: dict[str, Callable[[], Recipe]] = {
    "one part": quiet_recipe,
    "two parts": partial(quiet_recipe, accumulate=2),
    "clipped": partial(quiet_recipe, clip_norm=0.05),
    "four parts, clipped": partial(quiet_recipe, accumulate=4, clip_norm=0.05),
    "dropout and jitter": partial(make_recipe, accumulate=2, model=network),
    "diverging": lambda: make_recipe(Splits(OneBad(100, 0), Lines(40, 1), Lines(40, 2)), accumulate=2),
}


DATA = make_spec(make_recipe()).data


def train(name: str, root: Path, **more: Any) -> dict[str, Any]:
    recipe = RECIPES[name]()
    spec = make_spec(recipe, "mda", lr=0.5)
    run = RunFolder.of(root, recipe.name, spec.hash)
    return training.run(spec, recipe, run, root, **more).model_dump(mode="json")


# What the two processes do, each in a folder of its own --------------------------------------------


def resumed(root: Path) -> dict[str, Any]:
    """Cut off by rank 1's wish alone, and taken up again."""
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return dist.get_rank() == 1 and asked == 3

    try:
        train("two parts", root, should_stop=should_stop)
    except training.Interrupted:
        checkpoints = len(list(root.rglob("checkpoint.pt")))
        return {"asked": asked, "checkpoints": checkpoints, **train("two parts", root)}
    return {}


def cut_off(root: Path) -> dict[str, Any]:
    """Left to somebody else after the second window."""
    asked = iter((False, True))
    try:
        return train("two parts", root, should_stop=lambda: next(asked))
    except training.Interrupted:
        return {"folder": str(root)}


def finished(root: Path) -> dict[str, Any]:
    """A run that is there already: rank 0 is slow to find out, and nobody may begin before."""
    first = train("one part", root)
    recipe = make_recipe(data=lambda _: pytest.fail("the data was read"), model=quiet_network)
    spec = make_spec(recipe, "mda", lr=0.5, data=DATA)
    again = training.run(spec, recipe, RunFolder.of(root, recipe.name, spec.hash), root)
    return {"first": first, "again": again.model_dump(mode="json")}


def order(root: Path) -> dict[str, Any]:
    """When rank 0 found the run unfinished, and when each rank asked for the data."""
    times: dict[str, Any] = {}
    find = RunFolder.result

    def slow_find(self: RunFolder) -> RunResult | None:
        time.sleep(0.5)
        value = find(self)
        times["found"] = time.monotonic()
        return value

    def data(_: Path) -> Splits:
        times["data"] = time.monotonic()
        time.sleep(0.2)
        times["data there"] = time.monotonic()
        return Splits(Lines(100, 0), Lines(40, 1), Lines(40, 2))

    recipe = make_recipe(data=data)
    spec = make_spec(recipe, data=DATA)
    RunFolder.result = slow_find  # type: ignore[method-assign]
    try:
        training.run(spec, recipe, RunFolder.of(root, recipe.name, spec.hash), root)
    finally:
        RunFolder.result = find  # type: ignore[method-assign]
    return times


def rank_0_evaluates(root: Path) -> dict[str, Any]:
    """Rank 1 would evaluate to something else."""
    mine = evaluate if dist.get_rank() == 0 else lambda *_: {"loss": float("nan"), "error": -1.0}
    recipe = quiet_recipe(evaluate=mine)
    spec = make_spec(recipe, "mda", lr=0.5)
    return training.run(spec, recipe, RunFolder.of(root, recipe.name, spec.hash), root).model_dump(
        mode="json"
    )


def refusal(root: Path, recipe: Recipe, *, spoil: bool = False) -> dict[str, Any]:
    """What each rank is told."""
    spec = make_spec(recipe, data=DATA)
    folder = RunFolder.of(root, recipe.name, spec.hash)
    if spoil and dist.get_rank() == 0:
        folder.path.mkdir(parents=True)
        (folder.path / "result.json").write_text('{"format": 1, "ha')
    dist.barrier()
    try:
        return training.run(spec, recipe, folder, root).model_dump(mode="json")
    except (RecipeError, store.StoreError) as error:
        return {"refused": str(error)}


TASKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{name: partial(train, name) for name in RECIPES},
    "resumed": resumed,
    "cut off": cut_off,
    "finished": finished,
    "order": order,
    "rank 0 evaluates": rank_0_evaluates,
    "odd batch": lambda root: refusal(root, make_recipe(batch_size=15)),
    "batch norm": lambda root: refusal(root, make_recipe(model=with_batch_norm)),
    "spoilt": lambda root: refusal(root, make_recipe(), spoil=True),
}


def work(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank > 0:  # whoever is not rank 0 and writes, or locks, fails

        def forbidden(*_: object) -> None:
            raise AssertionError(f"rank {rank} writes")

        store.write_atomically = forbidden  # type: ignore[assignment]
        RunFolder.locked = forbidden  # type: ignore[method-assign,assignment]
    seen = {name: task(folder / name) for name, task in TASKS.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


# The claims ----------------------------------------------------------------------------------------


def torchrun(*arguments: str, processes: int = 2, timeout: float = 240) -> tuple[int, str]:
    """Run with processes that end with us, whatever happens."""
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    process = subprocess.Popen(
        [sys.executable, "-m", *launch, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"the processes wait for each other:\n{output}")
    return process.returncode, output


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw in each task."""
    folder = tmp_path_factory.mktemp("two")
    code, output = torchrun(__file__, str(folder))
    assert code == 0, output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def losses(result: dict[str, Any]) -> list[float]:
    return [*result["train"]["loss"], *result["valid"]["loss"], result["test"]["loss"]]


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "diverging"])
def test_two_processes_give_the_losses_of_one(name: str, ranks: list[dict[str, Any]], tmp_path: Path) -> None:
    alone = train(name, tmp_path)
    assert losses(ranks[0][name]) == pytest.approx(losses(alone), rel=1e-5, abs=1e-5)
    assert abs(alone["valid"]["loss"][-1] - alone["valid"]["loss"][0]) > 1e-2  # it has moved


def test_clipping_is_of_the_whole_gradient(tmp_path: Path) -> None:
    """The norm above bites, so that the comparison says something."""
    assert losses(train("clipped", tmp_path)) != pytest.approx(losses(train("one part", tmp_path)), rel=1e-3)


def test_all_ranks_return_the_same(ranks: list[dict[str, Any]]) -> None:
    for name in (*RECIPES, "finished", "rank 0 evaluates"):
        assert ranks[0][name] == ranks[1][name], name


def test_one_rank_stops_all_and_resume_is_bitwise(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        assert seen["resumed"]["asked"] == 3
        assert seen["resumed"]["checkpoints"] == 1
        for field in ("train", "valid", "test", "status", "diverged_at"):
            assert seen["resumed"][field] == seen["two parts"][field], field


def test_one_process_resumes_a_run_of_two(ranks: list[dict[str, Any]], tmp_path: Path) -> None:
    steps = []
    result = train("two parts", Path(ranks[0]["cut off"]["folder"]), progress=lambda k, _: steps.append(k))
    assert steps == [30, 40, 50, 60]
    assert losses(result) == pytest.approx(losses(train("two parts", tmp_path)), rel=1e-5, abs=1e-5)


def test_a_divergence_in_one_process_ends_all(ranks: list[dict[str, Any]], tmp_path: Path) -> None:
    alone = train("diverging", tmp_path)
    assert alone["status"] == "diverged"
    for seen in ranks:
        assert seen["diverging"]["diverged_at"] == alone["diverged_at"] > 0
        assert seen["diverging"]["why"] == alone["why"]


def test_a_finished_run_is_returned_and_not_trained(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        first, again = seen["finished"]["first"], seen["finished"]["again"]
        assert again == first


def test_no_rank_starts_before_rank_0_found_the_run_unfinished(ranks: list[dict[str, Any]]) -> None:
    zero, one = (seen["order"] for seen in ranks)
    assert zero["found"] < zero["data"]
    assert zero["data there"] <= one["data"]  # rank 0 may have to write the data set first
    assert "found" not in one


def test_rank_0_evaluates_for_all(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        assert losses(seen["rank 0 evaluates"]) == losses(seen["one part"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("odd batch", "batch_size 15 of recipe lines cannot be split into 2 equal parts"),
        ("batch norm", "has batch norm, whose statistics processes share on GPUs only"),
        ("spoilt", "result.json is not a complete result of a run"),
    ],
)
def test_all_ranks_refuse_what_cannot_be_run(name: str, message: str, ranks: list[dict[str, Any]]) -> None:
    assert ranks[0][name]["refused"] == ranks[1][name]["refused"]
    assert message in ranks[0][name]["refused"]


def test_the_command_under_torchrun_gives_the_run_of_the_command(tmp_path: Path, dualavg: Command) -> None:
    command = ["run", str(write_recipe(tmp_path)), "--optimizer", "mda", "--lr", "1"]
    code, output = torchrun("-m", "dualavg_bench", *command, "--out", str(tmp_path / "two"))
    assert code == 0, output
    assert output.count("validation after 120 steps") == 1
    assert dualavg(*command, "--out", tmp_path / "one")[0] == 0
    (two,), (one,) = (list((tmp_path / name).rglob("result.json")) for name in ("two", "one"))
    assert two.parent.name != one.parent.name  # their sums differ in the last digit: two runs, not one
    curves = [json.loads(path.read_text()) for path in (two, one)]
    for part in ("train", "valid"):
        assert curves[0][part]["loss"] == pytest.approx(curves[1][part]["loss"], rel=1e-5, abs=1e-5)


def test_the_command_under_torchrun_says_once_why_it_refuses(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("batch_size=64", "batch_size=63"))
    command = ["-m", "dualavg_bench", "run", str(recipe), "--lr", "1", "--out", str(tmp_path / "out")]
    code, output = torchrun(*command)
    assert code != 0
    assert output.count("dualavg: batch_size 63 of recipe spirals cannot be split into 2 equal parts") == 1


if __name__ == "__main__":
    work(Path(sys.argv[1]))
