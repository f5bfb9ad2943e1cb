"""The fine-tuning recipes: they run at quick, start from one network, and are not part of the paper."""

import functools
import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.real_data import REAL, needs

from dualavg_bench.analysis import paper
from dualavg_bench.data import two_kinds
from dualavg_bench.recipe import RecipeError
from dualavg_bench.recipe.loading import load
from dualavg_bench.recipes import builtin
from dualavg_bench.run import outputs, pretraining
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.study.study import Study

NAMES = ("finetune_lm", "finetune_vision")
CASES = [(name, scale) for name in NAMES for scale in ("quick", "mini")]
DATA = {"finetune_lm": "books-wiki", "finetune_vision": "cifar-10-batches-py"}
RIVALS = {"mda", "dadapt-mda", "sgd", "sgd+l2sp", "adamw", "adamw+start"}
STEPS = 30  # of shortened runs

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def studies(embedded, tmp_path_factory):
    """Both studies at quick, with shortened runs."""
    root, found = tmp_path_factory.mktemp("studies"), {}
    for name in NAMES:
        study = Study.of(name, "quick", root, embedded)
        start = replace(study.recipe.start, steps=3 * STEPS, evaluations=1)
        start = replace(start, data=functools.cache(start.data))  # every run reads it
        data = functools.cache(study.recipe.data)
        recipe = replace(study.recipe, steps=STEPS, evaluations=1, start=start, data=data)
        found[name] = replace(study, recipe=recipe)
    return found


def executed(study, optimizer, seed=0, *, test=False):
    grid = study.recipe.grids[optimizer].points()
    spec = study.spec(optimizer, grid[len(grid) // 2], seed, test=test)
    folder = RunFolder.of(study.out, study.recipe.name, spec.hash)
    return pretraining.run(spec, study.recipe, folder, study.data)


# Running


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_starts_from_the_same_network(name, studies):
    study = studies[name]
    results = {optimizer: executed(study, optimizer) for optimizer in study.recipe.grids}
    assert {result.status for result in results.values()} == {"finished"}
    assert len(list((study.out / "runs" / f"{name}-start").iterdir())) == 1
    for score in (study.recipe.metric.name, study.recipe.also.name):
        first = [result.valid[score][0] for result in results.values()]
        assert first == pytest.approx([first[0]] * len(first), rel=1e-5)
    # dadapt-mda has not found its step size after so few steps.
    after = [tuple(r.valid[study.recipe.metric.name]) for n, r in results.items() if n != "dadapt-mda"]
    assert len(set(after)) == len(after)


@pytest.mark.parametrize("name", NAMES)
def test_both_scores_are_measured_on_test(name, studies):
    study = studies[name]
    result = executed(study, "sgd", 1000, test=True)
    also = study.recipe.also.name
    assert {study.recipe.metric.name, also} <= result.test.keys()
    assert result.also.name == also


@pytest.mark.parametrize("name", NAMES)
def test_pretraining_has_taught_the_old_task(name, studies):
    study = studies[name]
    executed(study, "adamw")
    (folder,) = (study.out / "runs" / f"{name}-start").iterdir()
    scores = RunFolder(folder).result().valid[study.recipe.also.name]
    sign = 1 if study.recipe.also.higher_is_better else -1
    assert sign * scores[-1] > sign * scores[0]


# Networks


def test_lora_trains_only_its_adapters():
    recipe = load("finetune_lm", "quick")[0]
    torch.manual_seed(0)
    model = outputs.network(recipe, "adamw+lora")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name in before if "lora_" in name}
    assert len(trained) == 2 * len({name.partition(".lora_")[0] for name in trained}) == 12
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    blocks = torch.randint(300, (4, 33)), torch.zeros(4, dtype=torch.bool)
    for _ in range(2):  # in the first step B is zero, so A has no gradient
        optimizer.zero_grad()
        recipe.loss(model, blocks).backward()
        optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == trained


def test_lora_starts_as_the_network_it_is_added_to():
    recipe = load("finetune_lm", "quick")[0]
    blocks = torch.randint(300, (2, 32))
    torch.manual_seed(0)
    plain = outputs.network(recipe, "sgd").eval()
    torch.manual_seed(0)
    adapted = outputs.network(recipe, "adamw+lora").eval()
    assert torch.equal(plain(blocks).logits, adapted(blocks).logits)


def test_fine_tuning_changes_no_statistics_of_batch_norm(studies):
    recipe = studies["finetune_vision"].recipe
    model = recipe.model().train()
    images, labels = recipe.data(studies["finetune_vision"].data).train.batch(torch.arange(10), None)
    before = {name: b.clone() for name, b in model.named_buffers()}
    recipe.loss(model, (images, labels)).backward()
    assert before
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert set(model.state_dict()) == set(recipe.start.model().state_dict())


def test_an_image_is_classified_among_the_classes_of_its_task():
    module = importlib.import_module(builtin()["finetune_vision"])
    labels = torch.tensor([0, 4, 5, 9])
    outputs_of = module.logits(lambda images: torch.ones(4, 10), (None, labels))
    assert [row.isfinite().nonzero().flatten().tolist() for row in outputs_of] == [[0, 1, 2, 3, 4]] * 2 + [
        [5, 6, 7, 8, 9]
    ] * 2


# Data


@pytest.mark.parametrize("name", NAMES)
def test_fine_tuning_sees_new_examples_only_and_is_scored_on_both(name, studies):
    study = studies[name]
    splits, start = study.recipe.data(study.data), study.recipe.start.data(study.data)

    def is_old(source):
        marks = source.batch(torch.arange(len(source)), None)[1]
        return marks if name == "finetune_lm" else marks < 5

    assert not is_old(splits.train).any()
    assert is_old(start.train).all()
    for split in ("valid", "test"):
        share = is_old(getattr(splits, split)).double().mean()
        assert 0.2 < share < 0.8


@functools.cache
def novel_lines(split):
    text = (REAL / "books-wiki" / f"{split}.txt").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    cut = two_kinds.change(lines, two_kinds.NOVEL)
    return lines[cut - 1], lines[cut]


@needs("books-wiki")
@pytest.mark.parametrize(
    ("split", "last", "first"),
    [
        (
            "train",
            'The Declaration also referred to the "Laws of Nature',
            "I do not mean to describe myself.",
        ),
        ("valid", "When using the name of the month rather than the", "And Eleanor's face was lighted up"),
        ("test", "The list is presented by area code, number and", "Eleanor, who had taken her books again"),
    ],
)
def test_the_cut_between_wikipedia_and_novels_is_exact(split, last, first):
    before, after = novel_lines(split)
    assert before.startswith(last)
    assert after.startswith(first)


def test_text_of_one_kind_is_refused(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("It is.\n" * 40)
    sizes = {
        "length": 4,
        "pieces": 300,
        "old_lines": None,
        "new_lines": None,
        "blocks": {"valid": 2, "test": 2},
    }
    with pytest.raises(ValueError, match=r"train\.txt does not have two kinds of text"):
        two_kinds.load(tmp_path, "books-wiki", **sizes)


def test_blocks_of_both_kinds_come_in_the_order_asked_for():
    new, old = (two_kinds.Blocks(torch.arange(start, start + 41), 4) for start in (0, 1000))
    blocks, is_old = two_kinds.TwoKinds(new, old).batch(torch.tensor([11, 0, 10, 9]), None)
    assert blocks[:, 0].tolist() == [1004, 0, 1000, 36]
    assert is_old.tolist() == [True, False, True, False]


# Settings


@pytest.mark.parametrize("name", NAMES)
def test_they_are_not_part_of_the_paper(name):
    assert name not in paper.RECIPES
    with pytest.raises(RecipeError, match=f"Recipe {name} has no scale paper: it has quick and mini"):
        load(name, "paper")


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_rivals_have_equal_budgets(name, scale):
    recipe = load(name, scale)[0]
    assert set(recipe.grids) == RIVALS | ({"adamw+lora"} if name == "finetune_lm" else set())
    assert {len(grid.points()) for grid in recipe.grids.values()} == {6}
    grids = recipe.grids
    assert grids["mda"].lr == pytest.approx([10 * lr for lr in grids["sgd"].lr])
    assert set(grids["sgd+l2sp"].lr) < set(grids["sgd"].lr)
    assert set(grids["adamw+start"].lr) < set(grids["adamw"].lr)
    assert recipe.start.grids.keys() == {"adamw"}
    if scale == "mini":
        assert recipe.seeds.confirm == 8
        assert recipe.steps >= 800


def table_of(name):
    lines = [re.split(r"\s{2,}", line.strip()) for line in load_module(name).__doc__.splitlines()]
    head = lines.index(["mini", "quick"])
    rows = lines[head + 1 : lines.index([""], head)]
    return {row[0]: dict(zip(("mini", "quick"), row[1:], strict=True)) for row in rows}


def load_module(name):
    return importlib.import_module(builtin()[name])


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_the_table_of_a_docstring_is_that_of_the_recipe(name, scale, embedded):
    recipe = load(name, scale)[0]
    stated = {
        row: float(cells[scale].split()[0].replace(",", ""))
        for row, cells in table_of(name).items()
        if cells[scale][0].isdigit()
    }
    assert stated["steps"] == recipe.steps
    assert stated["pretraining"] == recipe.start.steps
    assert stated["parameters"] == sum(p.numel() for p in recipe.model().parameters())
    assert stated["epochs"] == pytest.approx(recipe.steps * recipe.batch_size / stated["examples"], abs=0.06)
    folder = embedded if scale == "quick" else REAL
    if scale == "mini" and not Path(REAL / DATA[name]).is_dir():
        pytest.skip(f"no {DATA[name]} in {REAL}")
    tolerance = 0.2 if (name, scale) == ("finetune_lm", "quick") else 0  # of this Python's docstrings
    if name == "finetune_lm":
        text = recipe.data.keywords["load"](folder)  # once, it takes seconds
        train, start = text.fine_tuning().train, text.pretraining().train
    else:
        train, start = recipe.data(folder).train, recipe.start.data(folder).train
    assert len(train) == pytest.approx(stated["examples"], rel=tolerance)
    tokens = next(row for row in stated if row.startswith("of "))
    size = len(start) * (load_module(name).LENGTH[scale] if tokens == "of tokens" else 1)
    assert size == pytest.approx(stated[tokens], rel=tolerance)
