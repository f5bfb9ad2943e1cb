"""The last network of a run and its best one: both are tested, and the recipe says which one decides."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lines import execute, make_recipe, make_spec, numbers
from support.synthetic_runs import run, study, summarize
from torch import Tensor, nn

from dualavg_bench.analysis.scores import score
from dualavg_bench.analysis.selection import select
from dualavg_bench.recipe import Passage, Recipe, Splits
from dualavg_bench.run import training
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.terminal import print_run

VALID, TEST = 1, 2
LRS = {"mda": 2.0, "sgd": 0.005, "adam": 0.5, "schedulefree.SGDScheduleFree": 0.1}  # from 0 to beyond 5


class Split:
    """Examples that tell nothing but their split."""

    def __init__(self, mark: int) -> None:
        self.mark = mark

    def __len__(self) -> int:
        return 40

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Tensor:
        return torch.full((len(indices),), self.mark)


class Number(nn.Module):
    """A network of one number, which training moves from 0 to 10; a buffer counts the steps."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, batch: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.number


class Numbers:
    """A recipe whose validation score is best when the number is 5, and whose test score is the number."""

    def __init__(self, **changes: Any) -> None:
        self.evaluated: dict[int, dict[str, float]] = {}  # what validation saw of the network, by step
        splits = Splits(Split(0), Split(VALID), Split(TEST))
        parts = {"model": Number, "loss": lambda model, batch: (model(batch) - 10) ** 2}
        self.recipe: Recipe = make_recipe(splits, **{**parts, "evaluate": self.evaluate, **changes})

    def evaluate(self, model: Any, batches: Any) -> dict[str, float]:
        split = next(iter(batches))[0].item()
        network = {"loss": 0.0, "error": model.number.item(), "steps": model.steps.item()}
        if split == TEST:
            return network
        self.evaluated[model.steps.item()] = network
        return {**network, "error": abs(model.number.item() - 5)}

    def spec(self, optimizer: str = "sgd", **changes: Any) -> Any:
        return make_spec(self.recipe, optimizer, **{"lr": LRS[optimizer], **changes})


def best_step(result: Any) -> int:
    scores = result.valid["error"]
    return result.valid.step[scores.index(min(scores))]


@pytest.mark.parametrize("optimizer", LRS)
def test_both_networks_are_tested_bitwise_with_their_buffers(optimizer: str, tmp_path: Path) -> None:
    if "." in optimizer:
        pytest.importorskip(optimizer.partition(".")[0])
    task = Numbers()
    result = execute(tmp_path, task.recipe, task.spec(optimizer))
    best = best_step(result)
    assert 10 <= best <= 50  # it got worse after that
    assert result.test_best == task.evaluated[best]
    assert result.test_best["steps"] == best
    if "." not in optimizer:  # schedulefree rounds when it switches between its two points
        assert result.test == task.evaluated[60]
    assert result.test == pytest.approx(task.evaluated[60])


@pytest.mark.parametrize("optimizer", LRS)
def test_the_best_network_survives_an_interruption_after_it(optimizer: str, tmp_path: Path) -> None:
    if "." in optimizer:
        pytest.importorskip(optimizer.partition(".")[0])
    whole, parts = Numbers(), Numbers()
    expected = execute(tmp_path / "whole", whole.recipe, whole.spec(optimizer))
    assert best_step(expected) <= 50
    # The last window but one is behind the best step.
    result = execute(tmp_path / "parts", parts.recipe, parts.spec(optimizer), stop_at=(2, 5))
    assert numbers(result) == numbers(expected)
    assert result.test_best == whole.evaluated[best_step(expected)]


def test_of_equal_scores_the_first_network_is_the_best(tmp_path: Path) -> None:
    class Indifferent(Numbers):
        def evaluate(self, model: Any, batches: Any) -> dict[str, float]:
            return {**super().evaluate(model, batches), "error": 1.0}

    task = Indifferent()
    result = execute(tmp_path, task.recipe, task.spec())
    assert (result.test_best["steps"], result.test["steps"]) == (0, 60)


def test_tuning_keeps_no_weights_and_reads_no_test(tmp_path: Path) -> None:
    class Forbidden(Split):
        def batch(self, indices: Tensor, rng: torch.Generator | None) -> Tensor:
            pytest.fail("the test split was read while tuning")

    task = Numbers(report="best")
    splits = Splits(Split(0), Split(VALID), Forbidden(TEST))
    recipe = make_recipe(splits, model=Number, loss=task.recipe.loss, evaluate=task.evaluate)
    kept = {}
    for test, tuned in ((False, recipe), (True, task.recipe)):
        spec = make_spec(tuned, "sgd", lr=0.005, test=test)
        folder = RunFolder.of(tmp_path, "lines", spec.hash)
        with pytest.raises(training.Interrupted):
            training.run(spec, tuned, folder, tmp_path, should_stop=lambda: True)
        kept[test] = torch.load(folder.path / "checkpoint.pt", weights_only=True)["best"]
        result = training.run(spec, tuned, folder, tmp_path)
        assert (result.test is None) == (result.test_best is None) == (not test)
    assert kept[False] == {}
    assert kept[True]["steps"] == 10


@pytest.mark.parametrize("report", ["last", "best"])
def test_a_diverged_run_has_the_untrained_scores_in_both(report: str, tmp_path: Path) -> None:
    def breaks(model: Any, batch: Any) -> Tensor:
        return (model(batch) - 10) ** 2 * (math.nan if model.steps > 45 else 1)

    task = Numbers(loss=breaks, report=report)
    result = execute(tmp_path, task.recipe, task.spec())
    assert (result.status, result.diverged_at) == ("diverged", 46)
    assert best_step(result) > 0
    assert result.test == result.test_best == task.evaluated[0]
    assert score(result, "test") == 0.0
    assert score(result, "valid") == 5.0


@pytest.mark.parametrize("report", ["last", "best"])
def test_samples_and_scores_are_those_of_the_network_that_decides(report: str, tmp_path: Path) -> None:
    def shown(model: Any, _: Any) -> list[Passage]:
        return [Passage("", "", str(model.steps.item()))]

    task = Numbers(samples=shown, report=report)
    result = execute(tmp_path, task.recipe, task.spec())
    step = best_step(result) if report == "best" else 60
    assert [sample.made for sample in result.samples] == [str(step)]
    assert score(result, "test") == task.evaluated[step]["error"]
    assert score(result, "valid") == abs(task.evaluated[step]["error"] - 5)


def test_what_decides_is_a_part_of_the_run_s_name() -> None:
    hashes = {Numbers(report=report).spec().hash for report in ("last", "best")}
    assert len(hashes) == 2


@pytest.mark.parametrize(("report", "chosen"), [("last", 0.1), ("best", 1.0)])
def test_the_choice_on_validation_follows_the_network_that_decides(report: str, chosen: float) -> None:
    early, steady = (run(lr=lr, final=end, report=report) for lr, end in ((1.0, 80.0), (0.1, 81.0)))
    early.valid["accuracy"][-2] = 99.0
    assert select([early, steady])["mda"].lr == chosen
    lower = [r.model_copy(update={"higher_is_better": False}) for r in (early, steady)]
    assert select(lower)["mda"].valid.mean == pytest.approx(10.0 if report == "best" else 80.0)


def test_a_summary_has_the_scores_of_both_and_the_deciding_ones_apart() -> None:
    runs = study(confirm_diverges={("adam", 1003)})
    best = study(confirm_diverges={("adam", 1003)}, report="best")
    last = summarize(runs).optimizers["mda"]
    assert last.test_last.mean == pytest.approx(last.test_best.mean + 0.25)
    assert last.test == last.test_last
    summary = summarize(best)
    entry = summary.optimizers["mda"]
    assert (summary.report, entry.test) == ("best", entry.test_best)
    assert entry.test != entry.test_last
    for name, one in summary.runs.items():
        if one.phase == "confirm":
            assert one.test == one.test_best == next(r for r in best if r.hash == name).test_best["accuracy"]
            assert (one.test_last == one.test_best) == one.diverged
    difference = summary.comparisons[0].difference
    expected = entry.test_best.mean - summary.optimizers[summary.comparisons[0].b].test_best.mean
    assert difference == pytest.approx(expected)


def test_runs_with_different_reports_are_no_study() -> None:
    *others, last = study()
    with pytest.raises(ValueError, match="their report differs"):
        summarize([*others, last.model_copy(update={"report": "best"})])


def test_a_single_run_prints_the_best_score_too_if_that_decides(capsys: pytest.CaptureFixture[str]) -> None:
    print_run(run(report="best", final=80.0))
    assert "best accuracy" in capsys.readouterr().out
    print_run(run(report="last", final=80.0))
    assert "best" not in capsys.readouterr().out


def test_the_verdict_names_the_network_that_decides() -> None:
    said = "Scores are of the best network of each run by validation."
    assert said in summarize(study(report="best")).verdict
    assert "network" not in summarize(study()).verdict
