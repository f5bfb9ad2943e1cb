"""The registry: every name trains and resumes bit for bit; a wrong one is a one-line error."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lines import Lines, execute, make_recipe, make_spec, numbers
from support.tiny_study import write_recipe

from dualavg import MDA, DualAveraging
from dualavg._dadapt import DAdaptMDA
from dualavg_bench.commands import run_one
from dualavg_bench.recipe import Grid, Point, Recipe, Splits, registry
from dualavg_bench.recipe.optimizers import OPTIMIZERS
from dualavg_bench.recipe.schedules import SCHEDULES, make_schedule
from dualavg_bench.recipe.towards_start import AdamWTowardsStart, SGDTowardsStart
from dualavg_bench.study.study import Study

FOREIGN = {"madgrad.MADGRAD": 0.01, "schedulefree.SGDScheduleFree": 0.5, "torch.optim.Rprop": 0.001}
CLASSES = {
    "mda": MDA,
    "da": DualAveraging,
    "da+momentum": DualAveraging,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd+l2sp": SGDTowardsStart,
    "adamw+start": AdamWTowardsStart,
    "adamw+lora": torch.optim.AdamW,
    "dadapt-mda": DAdaptMDA,
}


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3))]


@pytest.fixture(params=[*CLASSES, *FOREIGN])
def name(request: pytest.FixtureRequest) -> str:
    """Every name of the registry, and dotted paths to packages that may be there."""
    package = request.param.partition(".")[0]
    if request.param in FOREIGN:
        pytest.importorskip(package, reason=f"pip install --no-deps {package}")
    return request.param


def test_every_registered_optimizer_is_tested() -> None:
    assert set(CLASSES) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", CLASSES)
def test_a_name_gives_its_class_at_the_point(name: str) -> None:
    made = registry.make(name, parameters(), Point(0.25, 0.125), {})
    assert type(made) is CLASSES[name]
    assert made.defaults["lr"] == 0.25
    assert made.defaults["weight_decay"] == 0.125
    momentum = {"mda": 0.9, "da": 0, "da+momentum": 0.9, "sgd": 0.9, "sgd+l2sp": 0.9, "dadapt-mda": 0.9}
    assert made.defaults.get("momentum") == momentum.get(name)


def test_settings_of_the_recipe_override_the_registry() -> None:
    assert registry.make("sgd", parameters(), Point(0.1), {"momentum": 0.5}).defaults["momentum"] == 0.5


class Straight(Lines):
    """Something that can be learnt."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, seed)
        self.targets = self.inputs.sum(1, keepdim=True)


def test_every_optimizer_trains(name: str, tmp_path: Path) -> None:
    recipe = make_recipe(Splits(Straight(100, 0), Straight(40, 1), Straight(40, 2)), steps=200, evaluations=2)
    lr = {"mda": 0.3, "da": 0.3, "da+momentum": 0.3, "dadapt-mda": 1.0, **FOREIGN}.get(name, 0.02)
    result = execute(tmp_path, recipe, make_spec(recipe, name, lr=lr))
    assert result.status == "finished"
    assert result.valid["loss"][-1] < 0.3 * result.valid["loss"][0]


def test_every_optimizer_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    recipe = make_recipe(clip_norm=1.0)
    spec = make_spec(recipe, name, lr=FOREIGN.get(name, 0.02))
    whole = execute(tmp_path / "whole", recipe, spec)
    parts = execute(tmp_path / "parts", recipe, spec, stop_at=(2, 3))
    assert numbers(parts) == numbers(whole)


class Spy(torch.optim.SGD):
    """Two sets of parameters, like schedule_free: says when it was told which one is wanted."""

    said: list[str] = []  # noqa: RUF012

    def train(self) -> None:
        self.said.append("train")

    def eval(self) -> None:
        self.said.append("eval")

    def step(self, closure: Any = None) -> Any:
        self.said.append("step")
        return super().step(closure)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> str:
    """A spy by its dotted path."""
    monkeypatch.setitem(sys.modules, "spies", sys.modules[Spy.__module__])
    Spy.said = []
    return "spies.Spy"


def spied_recipe() -> Recipe:
    """Its evaluation says that it happens."""
    from support.lines import evaluate

    def spoken(model, batches):
        Spy.said.append("evaluate")
        return evaluate(model, batches)

    return make_recipe(steps=20, evaluations=2, evaluate=spoken)


def test_every_evaluation_is_in_eval_mode_and_every_step_in_train_mode(spy: str, tmp_path: Path) -> None:
    recipe = spied_recipe()
    execute(tmp_path, recipe, make_spec(recipe, spy, lr=0.1))
    evaluation, steps = ["eval", "evaluate", "train"], ["step"] * 10
    both = [*evaluation, *evaluation]  # validation and test, before the first step and after the last
    assert Spy.said == ["train", *both, *steps, *evaluation, *steps, *both]


def test_a_resumed_run_steps_in_train_mode(spy: str, tmp_path: Path) -> None:
    recipe = spied_recipe()
    execute(tmp_path, recipe, make_spec(recipe, spy, lr=0.1), stop_at=(1,))
    for before, what in zip(Spy.said, Spy.said[1:], strict=False):
        assert what != "step" or before in {"train", "step"}
    assert Spy.said.count("step") == 20


def test_schedule_free_is_scored_at_its_average(tmp_path: Path) -> None:
    """The network that is evaluated is not the one that is trained."""
    schedulefree = pytest.importorskip("schedulefree", reason="pip install --no-deps schedulefree")
    modes = []

    class Watched(schedulefree.SGDScheduleFree):
        def step(self, closure=None):
            modes.append(("step", self.param_groups[0]["train_mode"]))
            return super().step(closure)

    def evaluate(model, batches):
        modes.append(("evaluate", watched[0].param_groups[0]["train_mode"]))
        return {"loss": 1.0, "error": 1.0}

    watched: list[torch.optim.Optimizer] = []
    made = registry.make

    def make(name, params, point, settings):
        watched.append(Watched(list(params), lr=point.lr))
        return watched[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "make", make)
        recipe = make_recipe(evaluate=evaluate)
        execute(tmp_path, recipe, make_spec(recipe, "schedulefree.SGDScheduleFree"))
    assert registry.make is made
    assert set(modes) == {("step", True), ("evaluate", False)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("lion", "There is no optimizer called 'lion': give one of mda, dadapt-mda, da"),
        ("", "There is no optimizer called ''"),
        ("Adam", "There is no optimizer called 'Adam': give adam, one of mda"),
        ("adagrad", "There is no optimizer called 'adagrad': give torch.optim.Adagrad, one of mda"),
        ("nosuchpackage.Lion", "No module named 'nosuchpackage'): install its package, or give"),
        ("torch.optim.Lion", "cannot be imported (module 'torch.optim' has no attribute 'Lion')"),
        ("..Lion", "'..Lion' cannot be imported"),
        ("torch.nn.Linear", "'torch.nn.Linear' is not a subclass of torch.optim.Optimizer"),
        ("torch.zeros", "'torch.zeros' is not a subclass of torch.optim.Optimizer"),
        ("torch.optim.Optimizer", "'torch.optim.Optimizer' is not a subclass of torch.optim.Optimizer"),
        ("torch.optim.LBFGS", "'torch.optim.LBFGS' needs a closure for each step"),
    ],
)
def test_a_wrong_name_is_a_one_line_error(wrong: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at below
        registry.find(wrong)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_package_that_cannot_be_imported_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('needs a GPU')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"'broken_package.X' cannot be imported \(needs a GPU\)"):
        registry.find("broken_package.X")


def test_an_unknown_setting_is_a_one_line_error() -> None:
    with pytest.raises(ValueError, match=r"'adam' cannot be made with .*momentum"):
        registry.make("adam", parameters(), Point(0.1), {"momentum": 0.9})


def test_an_optimizer_without_weight_decay_gets_none() -> None:
    made = registry.make("torch.optim.Rprop", parameters(), Point(0.1, 0.0), {})
    assert "weight_decay" not in made.defaults
    with pytest.raises(ValueError, match=r"has no weight_decay, but its grid asks for 0\.01"):
        registry.make("torch.optim.Rprop", parameters(), Point(0.1, 0.01), {})


@pytest.mark.parametrize(
    ("name", "decay"),
    [("adamw", 0.01), ("adam", 0.0), ("sgd", 0.0), ("mda", 0.0), ("da", 0.0), ("torch.optim.Rprop", 0.0)],
)
def test_a_grid_without_weight_decay_gets_the_default_of_the_class(name: str, decay: float) -> None:
    completed = registry.complete(name, Grid(lr=0.1))
    assert completed.weight_decay == (decay,)
    assert type(completed.weight_decay[0]) is float  # SGD's is the integer 0: another name of a run
    made = registry.make(name, parameters(), completed.points()[0], {})
    assert made.param_groups[0].get("weight_decay", 0.0) == decay


def test_a_grid_that_names_zero_means_zero() -> None:
    assert registry.complete("adamw", Grid(lr=0.1, weight_decay=0.0)).points() == [Point(0.1, 0.0)]


def test_a_study_and_a_run_use_the_weight_decay_of_the_class(tmp_path: Path) -> None:
    file = write_recipe(tmp_path)
    file.write_text(file.read_text().replace('"adam": Grid', '"adamw": Grid'))
    study = Study.of(str(file), "quick", tmp_path)
    assert {name: {p.weight_decay for p in points} for name, points in study.points().items()} == {
        "mda": {0.0},
        "sgd": {0.0},
        "adamw": {0.01},
    }
    run_one(str(file), "quick", "adamw", 0.01, None, None, 0, None, tmp_path)
    (result,) = tmp_path.rglob("result.json")
    assert json.loads(result.read_text())["weight_decay"] == 0.01


@pytest.mark.parametrize("schedule", [*SCHEDULES, "own"])
def test_every_schedule_lasts_a_run(schedule: str) -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.5)
    own = {"own": lambda opt, steps: torch.optim.lr_scheduler.StepLR(opt, steps // 2)}
    made = make_schedule(schedule, own, optimizer, 120)
    seen = []
    for _ in range(120):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    assert max(seen) == pytest.approx(0.5)
    assert all(lr >= 0 for lr in seen)
    assert (min(seen) < 0.5) == (schedule != "constant")


def test_a_wrong_schedule_is_a_one_line_error() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.5)
    with pytest.raises(ValueError, match=r"no schedule called 'sine': give one of constant, .*, mine"):
        make_schedule("sine", {"mine": lambda *_: None}, optimizer, 10)
