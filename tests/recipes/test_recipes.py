"""Each built-in recipe trains, is deterministic and resumable, and has grids that can be run."""

import functools
import importlib
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dualavg_bench.models.preact_resnet import preact_resnet152
from dualavg_bench.recipe import Point, Splits, registry
from dualavg_bench.recipe.loading import scales_of
from dualavg_bench.recipe.schedules import make_schedule
from dualavg_bench.recipes import builtin
from dualavg_bench.run import training
from dualavg_bench.run.data import fingerprint
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.folder import RunFolder

NAMES = sorted(builtin())
TRAINED = [name for name in NAMES if name != "cifar10_ablation"]  # trains as cifar10: test_ablation.py
FINETUNED = ("finetune_lm", "finetune_vision")  # more in test_finetune.py

pytestmark = pytest.mark.usefixtures("one_thread")


def recipe_of(name, scale="quick"):
    return importlib.import_module(builtin()[name]).recipe(scale)


@functools.cache
def data_of(name, folder):
    return recipe_of(name).data(folder)


CASES = [(name, scale) for name in NAMES for scale in scales_of(importlib.import_module(builtin()[name]))]


class SomeExamples:
    """Examples of a split, from its first to its last."""

    def __init__(self, source, count):
        self.source, self.count = source, count

    def __len__(self):
        return min(self.count, len(self.source))

    def batch(self, indices, rng):
        chosen = torch.linspace(0, len(self.source) - 1, len(self)).round().long()
        return self.source.batch(chosen[indices], rng)


def shortened(splits, count):
    """The same training data, but only `count` examples to evaluate, which takes longest."""
    return Splits(splits.train, SomeExamples(splits.valid, count), SomeExamples(splits.test, count))


def scores(recipe, model, source):
    model.eval()
    size = recipe.eval_batch_size or recipe.batch_size
    with torch.no_grad():
        return recipe.evaluate(
            model, (source.batch(part, None) for part in torch.arange(len(source)).split(size))
        )


def train(recipe, model, source, steps, seed=0):
    """Take some steps of Adam, and return their losses."""
    optimizer = registry.make("adam", model.parameters(), Point(0.01), {})
    rng = torch.Generator().manual_seed(seed)
    model.train()
    losses = []
    for _ in range(steps):
        indices = torch.randint(len(source), (recipe.batch_size,), generator=rng)
        optimizer.zero_grad()
        loss = recipe.loss(model, source.batch(indices, rng))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# Importing


@pytest.fixture(scope="module")
def imported():
    """The modules of a new process after listing the recipes, and after making all of them."""
    code = (
        "import importlib, json, sys; from dualavg_bench.recipes import builtin; names = builtin(); "
        "listed = list(sys.modules); "
        f"[importlib.import_module(names[name]).recipe(scale) for name, scale in {CASES}]; "
        "print(json.dumps([listed, list(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(modules) for modules in json.loads(done.stdout)]


def test_listing_recipes_imports_none_of_them(imported):
    assert not imported[0] & {*builtin().values(), "torch"}


def test_recipes_are_made_without_heavy_libraries(imported):
    assert imported[1] >= set(builtin().values())
    heavy = {
        "transformers",
        "tokenizers",
        "sacrebleu",
        "babel",
        "num2words",
        "sklearn",
        "skimage",
        "h5py",
        "peft",
    }
    assert not imported[1] & heavy


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_tells_its_story_in_185_lines(name):
    module = importlib.import_module(builtin()[name])
    assert len(Path(module.__file__).read_text().splitlines()) <= 185
    for words in ("dualavg study " + name, "of the paper"):
        assert words in module.__doc__, words


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_functions_can_be_pickled(name, scale):
    recipe = recipe_of(name, scale)
    functions = [recipe.data, recipe.model, recipe.loss, recipe.evaluate, recipe.samples]
    functions += [*recipe.schedules.values(), *recipe.adapt.values()]
    if recipe.start is not None:
        functions += [recipe.start.data, recipe.start.model, recipe.start.loss, recipe.start.evaluate]
    for function in functions:
        # A partial is equal only to itself; its repr has its function and all arguments.
        assert repr(pickle.loads(pickle.dumps(function))) == repr(function)


# Training


@pytest.mark.parametrize("name", [name for name in TRAINED if name not in FINETUNED])
def test_a_few_steps_improve_on_the_untrained_model(name, embedded):
    recipe, splits = recipe_of(name), shortened(data_of(name, embedded), 100)
    torch.manual_seed(0)
    model = recipe.model()
    before = scores(recipe, model, splits.valid)
    train(recipe, model, splits.train, steps=25 if name == "fastmri" else 60)
    after = scores(recipe, model, splits.valid)
    assert after["loss"] < 0.9 * before["loss"]
    sign = 1 if recipe.metric.higher_is_better else -1
    assert sign * after[recipe.metric.name] > sign * before[recipe.metric.name]


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_deterministic(name, embedded):
    recipe = recipe_of(name)

    def results(splits, seed):
        torch.manual_seed(seed)
        model = recipe.model()
        losses = train(recipe, model, splits.train, steps=4, seed=seed)
        return losses, scores(recipe, model, SomeExamples(splits.valid, 2))

    expected = results(data_of(name, embedded), 0)
    assert results(recipe.data(embedded), 0) == expected
    assert results(data_of(name, embedded), 1) != expected


@pytest.mark.parametrize("name", TRAINED)
def test_a_resumed_run_is_bitwise_equal(name, embedded, tmp_path):
    recipe = replace(
        recipe_of(name),
        data=lambda folder: shortened(data_of(name, embedded), 20 if name in FINETUNED else 2),
        steps=13,  # a run can stop after ten
        evaluations=1,
    )
    spec = RunSpec(
        recipe=name,
        source="",
        data=fingerprint(recipe.data(embedded), test=False),
        settings=recipe.settings(),
        optimizer="mda",
        point=Point(0.3, 0.0, recipe.grids["mda"].schedule[0]),
        optimizer_class="",
        optimizer_settings={},
        seed=0,
        test=False,
        versions={},
    )
    straight, resumed = (RunFolder.of(tmp_path / kind, name, spec.hash) for kind in ("straight", "resumed"))
    with pytest.raises(training.Interrupted):
        training.run(spec, recipe, resumed, embedded, should_stop=lambda: True)
    assert (resumed.path / "checkpoint.pt").exists()
    first, second = (training.run(spec, recipe, folder, embedded) for folder in (straight, resumed))
    for part in ("train", "valid", "status"):
        assert getattr(first, part) == getattr(second, part)


@pytest.mark.parametrize("name", TRAINED)
def test_scores_do_not_depend_on_the_batch_size(name, embedded):
    recipe = recipe_of(name)
    source = data_of(name, embedded).valid
    n = min(30, len(source))
    torch.manual_seed(0)
    model = recipe.model().eval()
    with torch.no_grad():
        one, many = (
            recipe.evaluate(model, (source.batch(part, None) for part in torch.arange(n).split(size)))
            for size in (n, 2 * n // 5)
        )
    assert one == pytest.approx(many, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "wikitext103"])
def test_the_papers_network_takes_two_steps_at_its_true_shape(name):
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


# Settings


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_grids_can_be_run(name, scale):
    recipe = recipe_of(name, scale)
    assert recipe.name == name
    assert recipe.scale == scale
    if name not in FINETUNED:
        expected = {"da", "da+momentum", "mda"} if name == "cifar10_ablation" else {"mda", "sgd", "adam"}
        assert set(recipe.grids) == expected
    for name_of_optimizer, grid in recipe.grids.items():
        assert min(b / a for a, b in zip(grid.lr, grid.lr[1:], strict=False)) >= 2.5
        for point in grid.points():
            parameters = [torch.nn.Parameter(torch.zeros(1))]
            optimizer = registry.make(name_of_optimizer, parameters, point, grid.settings)
            make_schedule(point.schedule, recipe.schedules, optimizer, recipe.steps)


@pytest.mark.parametrize(("name", "scale"), [case for case in CASES if case[1] != "quick"])
def test_missing_data_names_the_folder(name, scale, tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        recipe_of(name, scale).data(tmp_path)


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
    # kuangliu/pytorch-cifar has 58,144,842 parameters without the last norm.
    assert sum(p.numel() for p in model.parameters()) == 58_144_842 + 2 * 2048
