"""Recipes: each one trains, is deterministic, is fair, and at paper scale says what the appendix says."""

import importlib
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from dualavg_bench.models.preact_resnet import preact_resnet152
from dualavg_bench.recipe import Point, Splits, registry
from dualavg_bench.recipe.schedules import make_schedule
from dualavg_bench.recipes import builtin
from dualavg_bench.run import training
from dualavg_bench.run.data import fingerprint
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.folder import RunFolder

NAMES = sorted(builtin())
SCALES = ("quick", "mini", "paper")

pytestmark = pytest.mark.usefixtures("one_thread")


def recipe_of(name, scale="quick"):
    return importlib.import_module(builtin()[name]).recipe(scale)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def scores(recipe, model, source):
    model.eval()
    size = recipe.eval_batch_size or recipe.batch_size
    with torch.no_grad():
        return recipe.evaluate(
            model, (source.batch(part, None) for part in torch.arange(len(source)).split(size))
        )


def trained(recipe, splits, steps, seed=0, lr=0.01):
    torch.manual_seed(seed)
    model = recipe.model()
    before = scores(recipe, model, splits.valid)
    optimizer = registry.make("adam", model.parameters(), Point(lr), {})
    rng = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        indices = torch.randint(len(splits.train), (recipe.batch_size,), generator=rng)
        optimizer.zero_grad()
        recipe.loss(model, splits.train.batch(indices, rng)).backward()
        optimizer.step()
    return before, scores(recipe, model, splits.valid)


def test_listing_recipes_imports_none_of_them():
    code = (
        "import sys; from dualavg_bench.recipes import builtin; names = builtin(); "
        "assert names; assert not set(names.values()) & set(sys.modules); assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_tells_its_story_in_150_lines(name):
    module = importlib.import_module(builtin()[name])
    assert len(Path(module.__file__).read_text().splitlines()) <= 150
    for said in ("dualavg study " + name, "of the paper", "Ours, on validation"):
        assert said in module.__doc__, said


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_improve_on_the_untrained_model(name, folder):
    recipe = recipe_of(name)
    before, after = trained(recipe, recipe.data(folder), steps=60)
    assert after["loss"] < 0.9 * before["loss"]
    sign = 1 if recipe.metric.higher_is_better else -1
    assert sign * after[recipe.metric.name] > sign * before[recipe.metric.name]


@pytest.mark.parametrize("name", NAMES)
def test_training_is_deterministic(name, folder):
    recipe = recipe_of(name)
    first, second = (trained(recipe, recipe.data(folder), steps=5) for _ in range(2))
    assert first == second
    assert first != trained(recipe, recipe.data(folder), steps=5, seed=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_cut_off_goes_on_bit_for_bit(name, folder, tmp_path):
    recipe = replace(
        recipe_of(name), steps=20, evaluations=1, data=partial(with_few_examples, recipe_of(name).data)
    )
    spec = RunSpec(
        recipe=name,
        source="",
        data=fingerprint(recipe.data(folder), test=False),
        settings=recipe.settings(),
        optimizer="mda",
        point=Point(0.3, 0.0, recipe.grids["mda"].schedule[0]),
        optimizer_settings={},
        seed=0,
        test=False,
        versions={},
    )
    whole, parts = (RunFolder.of(tmp_path / where, name, spec.hash) for where in ("whole", "parts"))
    with pytest.raises(training.Interrupted):
        training.run(spec, recipe, parts, folder, should_stop=lambda: True)
    assert (parts.path / "checkpoint.pt").exists()
    first, second = (training.run(spec, recipe, run, folder) for run in (whole, parts))
    for part in ("train", "valid", "status"):
        assert getattr(first, part) == getattr(second, part)


def with_few_examples(data, folder):
    """Evaluation on the first examples, which is what takes long."""
    splits = data(folder)
    return Splits(splits.train, First(splits.valid), First(splits.test))


class First:
    """The first twelve examples of a split."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return min(12, len(self.source))

    def batch(self, indices, rng):
        return self.source.batch(indices, rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "wikitext103"])
def test_the_paper_s_network_takes_two_steps_at_its_true_shape(name):
    recipe = recipe_of(name, "paper")
    torch.manual_seed(0)
    model = recipe.model()
    words = torch.randint(1000, (1, 513))
    batch = words if name == "wikitext103" else (torch.randn(2, 3, 32, 32), torch.tensor([3, 5]))
    optimizer = registry.make("mda", model.parameters(), Point(0.01), {})
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = recipe.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_scores_do_not_depend_on_how_examples_are_batched(name, folder):
    recipe = recipe_of(name)
    source = recipe.data(folder).valid
    n = min(90, len(source))
    torch.manual_seed(0)
    model = recipe.model().eval()
    with torch.no_grad():
        one, many = (
            recipe.evaluate(model, (source.batch(part, None) for part in torch.arange(n).split(size)))
            for size in (n, 2 * n // 5)
        )
    assert one == pytest.approx(many, rel=1e-5)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_functions_travel_between_processes(name, scale):
    recipe = recipe_of(name, scale)
    for function in (recipe.data, recipe.model, recipe.loss, recipe.evaluate, *recipe.schedules.values()):
        # A partial is equal to itself alone; its repr names its function and all that it holds.
        assert repr(pickle.loads(pickle.dumps(function))) == repr(function)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_grids_can_be_run(name, scale):
    recipe = recipe_of(name, scale)
    assert recipe.name == name
    assert recipe.scale == scale
    assert set(recipe.grids) >= (
        {"da", "da+momentum", "mda"} if "ablation" in name else {"mda", "sgd", "adam"}
    )
    for optimizer, grid in recipe.grids.items():
        assert min(b / a for a, b in zip(grid.lr, grid.lr[1:], strict=False)) >= 2.5
        for point in grid.points():
            made = registry.make(optimizer, [torch.nn.Parameter(torch.zeros(1))], point, grid.settings)
            make_schedule(point.schedule, recipe.schedules, made, recipe.steps)


@pytest.mark.parametrize("name", NAMES)
def test_missing_data_names_the_folder(name, tmp_path):
    for scale in ("mini", "paper"):
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            recipe_of(name, scale).data(tmp_path)


def test_spoilt_embedded_data_says_how_to_mend_it(tmp_path):
    recipe = recipe_of("cifar10")
    recipe.data(tmp_path)
    next(tmp_path.rglob("test_batch")).write_bytes(b"")
    with pytest.raises(ValueError, match="remove the folder"):
        recipe.data(tmp_path)


def test_cifar10_at_paper_scale_is_the_appendix():
    recipe = recipe_of("cifar10", "paper")
    assert recipe.batch_size == 128
    assert recipe.steps == 300 * (45_000 // 128)
    assert recipe.seeds.confirm == 10
    for grid in recipe.grids.values():
        assert grid.weight_decay == (1e-4,)
        assert grid.schedule == ("stagewise",)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule("stagewise", recipe.schedules, optimizer, recipe.steps)
    epoch = recipe.steps // 300
    factors = [schedule.factor(epoch * n) for n in (0, 150, 160, 225, 235, 299)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_preact_resnet152_has_58_million_parameters():
    assert recipe_of("cifar10", "paper").model is preact_resnet152
    with torch.device("meta"):
        model = preact_resnet152()
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(convolutions) == 1 + 3 + 8 + 36 + 3
    # Layer by layer the public one for CIFAR (kuangliu/pytorch-cifar), 58,144,842, and the last norm.
    assert sum(p.numel() for p in model.parameters()) == 58_144_842 + 2 * 2048
