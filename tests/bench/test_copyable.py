"""The lines to copy make what the study ran: the same optimizer, the same schedule."""

from pathlib import Path

import pytest
import torch
from support.synthetic_runs import run, study, summarize

import dualavg
import dualavg_bench
from dualavg_bench.recipe import registry
from dualavg_bench.recipe.optimizers import OPTIMIZERS
from dualavg_bench.recipe.schedules import SCHEDULES, make_schedule
from dualavg_bench.recipe.settings import Point
from dualavg_bench.report import copyable
from dualavg_bench.store.documents import read_document
from dualavg_bench.store.summaries import Summary

PUBLISHED = Path(__file__).parents[2] / "results" / "mini" / "wikitext103.json"
PACKAGES = {"dualavg": dualavg, "dualavg_bench": dualavg_bench, "torch": torch}
NAMES = {**vars(dualavg), **vars(dualavg.schedules), **PACKAGES}


def tuned(name, settings=None, **changes):
    """A study of one optimizer at one setting, with these fixed settings."""
    one = run(name, 0.3, 0, **changes)
    spec = {**one.spec, "optimizer_settings": OPTIMIZERS[name].settings | (settings or {})}
    return summarize([one.model_copy(update={"spec": spec})])


def evaluated(line, **names):
    return eval(line, {**NAMES, **names})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_imports_and_lines_make_the_optimizer_that_the_study_ran(name):
    settings = {"betas": (0.9, 0.98)} if name.startswith("adam") else {}
    params = [torch.nn.Parameter(torch.zeros(2))]
    written = {key: list(value) for key, value in settings.items()}
    summary = tuned(name, written, weight_decay=1e-4, schedule="linear")
    lines = copyable.lines(summary, name)
    code = f"{copyable.imports(summary)}\noptimizer = {lines.optimizer}\nschedule = {lines.schedule}"
    program = {"params": params}
    exec(code, program)  # as it is copied
    ours = program["optimizer"]
    theirs = registry.make(name, params, Point(0.3, 1e-4), settings)
    assert type(ours) is type(theirs)
    assert ours.defaults == theirs.defaults


@pytest.mark.parametrize("steps", [300, 6000])
@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"constant"}))
def test_the_line_makes_the_schedule_that_the_study_ran(name, steps):
    courses = []
    for make in (
        lambda optimizer: evaluated(copyable.schedule_line(name, steps), optimizer=optimizer),
        lambda optimizer: make_schedule(name, {}, optimizer, steps),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule, course = make(optimizer), []
        for _ in range(steps):
            course.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        courses.append(course)
    assert courses[0] == courses[1]


def test_mda_reads_as_in_the_documentation():
    lines = copyable.lines(tuned("mda", weight_decay=0.0, schedule="linear"), "mda")
    assert lines.optimizer == "MDA(params, lr=0.3, momentum=0.9, weight_decay=0.0)"
    assert lines.schedule == "WarmupLinearDecay(optimizer, warmup_steps=30, total_steps=300)"
    assert copyable.imports(tuned("mda", schedule="linear")) == (
        "from dualavg import MDA\nfrom dualavg.schedules import WarmupLinearDecay"
    )


def test_a_constant_lr_and_a_schedule_of_the_recipe_s_own_have_a_sentence():
    constant = copyable.lines(tuned("sgd", schedule="constant"), "sgd")
    assert (constant.schedule, constant.remark) == ("", "No schedule: lr stays as it is.")
    runs = [run("sgd", 0.3, 0, schedule="tail")]
    own = copyable.lines(summarize(runs, own_schedules=["tail"]), "sgd")
    assert (own.schedule, own.remark) == ("", "The schedule, tail, is the recipe's own.")
    assert copyable.lines(summarize(runs), "sgd").schedule.startswith("ExponentialTail(")


def test_a_class_without_weight_decay_is_not_given_any():
    runs = [run("torch.optim.Rprop", 0.3, 0)]
    line = copyable.lines(summarize(runs), "torch.optim.Rprop").optimizer
    assert line == "torch.optim.Rprop(params, lr=0.3, momentum=0.9)"
    unknown = copyable.lines(summarize([run("not.Installed", 0.3, 0)]), "not.Installed").optimizer
    assert unknown == "not.Installed(params, lr=0.3, momentum=0.9)"


def test_a_file_of_an_earlier_version_says_that_settings_may_be_missing():
    published = read_document(PUBLISHED, Summary)
    assert copyable.warning(published) == ""
    unknown = {
        name: entry.model_copy(update={"settings": None}) for name, entry in published.optimizers.items()
    }
    old = published.model_copy(update={"optimizers": unknown})
    assert "compare with the recipe" in copyable.warning(old)
    assert copyable.lines(old, "mda").optimizer == "MDA(params, lr=3.0, momentum=0.9, weight_decay=0.0001)"
    assert copyable.warning(summarize(study())) == ""


def test_published_lines_have_the_fixed_settings_of_the_recipe():
    published = read_document(PUBLISHED, Summary)
    line = copyable.lines(published, "adam").optimizer
    assert "betas=(0.9, 0.98), decoupled_weight_decay=True" in line
    imagenet = read_document(PUBLISHED.with_name("imagenet.json"), Summary)
    assert "recipe's own" in copyable.lines(imagenet, "mda").remark
