"""Grids that are extended: by equally many points for all, whatever their shapes, and not for ever."""

import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pretended_study import make_study, pretend
from support.synthetic_runs import run

from dualavg_bench.recipe import Grid, Point
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.summaries import Extension
from dualavg_bench.study.extension import MOST_EXTENSIONS, further_points


def grid(lrs: Any, decays: Any = (0.0,), schedules: Any = ("linear",)) -> Grid:
    return Grid(lr=lrs, weight_decay=decays, schedule=schedules)


def outcome(folder: Path, grids: dict[str, Grid], best: dict[str, float]) -> tuple[Any, list[RunSpec]]:
    executed: list[RunSpec] = []
    summary, _ = make_study(folder, grids=grids).run(pretend(best, executed))
    return summary, executed


SHAPES = {
    "8x1 and 4x2": (grid([2.0**k for k in range(8)]), grid((1.0, 3.0, 9.0, 27.0), (0.0, 0.1))),
    "4x3 and 3x4": (grid((0.1, 0.3, 1, 3), (0, 0.1, 1)), grid((1, 3, 9), (0, 0.1), ("linear", "constant"))),
    "1x3 and 3x1": (grid((1.0,), (0.0, 0.1, 1.0)), grid((0.1, 1.0, 10.0))),
    "1 and 1": (grid((1.0,)), grid((0.1,))),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("best", [1e-9, 1e-2, 2.0, 1e3, 1e9])
def test_grids_of_all_shapes_keep_the_same_size(shape: str, best: float, tmp_path: Path) -> None:
    mda, sgd = SHAPES[shape]
    summary, executed = outcome(tmp_path, {"mda": mda, "sgd": sgd}, {"mda": best, "sgd": 2.0})
    sizes = {name: row.grid.points for name, row in summary.optimizers.items()}
    assert sizes["mda"] == sizes["sgd"]
    for name in ("mda", "sgd"):  # what was executed, not what was said
        assert len({s.point for s in executed if s.optimizer == name and not s.test}) == sizes[name]
    assert "unequal" not in summary.verdict


def test_a_further_lr_is_tried_with_every_weight_decay_and_schedule(tmp_path: Path) -> None:
    mda, sgd = SHAPES["4x3 and 3x4"]
    _, executed = outcome(tmp_path, {"mda": mda, "sgd": sgd}, {"mda": 1e9, "sgd": 3.0})
    for name, others in (("mda", 3), ("sgd", 4)):
        points = {spec.point for spec in executed if spec.optimizer == name}
        assert set(Counter(point.lr for point in points).values()) == {others}


def test_a_single_lr_is_extended_until_it_is_inside(tmp_path: Path) -> None:
    for best, expected in ((1.0, [1 / 3, 1.0, 3.0]), (7.0, [1.0, 3.0, 9.0, 27.0])):
        grids = {"mda": grid((1.0,)), "sgd": grid((1.0,))}
        summary, executed = outcome(tmp_path / str(best), grids, {"mda": best, "sgd": best})
        assert sorted({s.point.lr for s in executed}) == pytest.approx(expected, rel=1e-2)
        assert summary.optimizers["mda"].chosen.edge == []


def test_a_single_lr_is_at_the_end_of_its_grid(tmp_path: Path) -> None:
    study = make_study(tmp_path, grids={"mda": grid((1.0,)), "sgd": grid((1.0,))})
    summary, _ = study.run(pretend({"mda": 1.0, "sgd": 1.1}, []), extend=False)
    said = "the best step size of mda, 1, is the only one tried, and a smaller or larger one may be better"
    assert said in summary.verdict


def test_extension_ends_and_the_verdict_says_so(tmp_path: Path) -> None:
    grids = {name: grid((0.1, 1.0, 10.0)) for name in ("mda", "sgd")}
    summary, executed = outcome(tmp_path, grids, {"mda": 1e30, "sgd": 1.0})
    assert len({s.point.lr for s in executed if s.optimizer == "mda"}) == 3 + MOST_EXTENSIONS
    assert summary.extension == Extension(allowed=True, rounds=3, most=3)
    assert "a larger one may be better; grids were extended 3 times, the maximum" in summary.verdict


def test_documentation_and_help_name_the_limit(dualavg: Any) -> None:
    docs = Path(__file__).parents[2] / "docs" / "benchmark.md"
    assert MOST_EXTENSIONS == 3
    assert "at most three times" in " ".join(docs.read_text().split())
    for command in ("study", "reproduce"):
        assert "at most three times" in " ".join(re.sub("[│ ]+", " ", dualavg(command, "--help")[1]).split())


lrs = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5, unique=True)


@settings(max_examples=60)
@given(lrs=lrs, near=st.booleans(), best=st.floats(1e-8, 1e8), rows=st.integers(1, 3))
def test_no_lr_is_tried_twice(lrs: list[float], near: bool, best: float, rows: int) -> None:
    grid = sorted({*lrs, *([lrs[0] * (1 + 1e-6)] if near else [])})
    points = {"mda": [Point(lr) for lr in grid], "sgd": [Point(1.0, decay) for decay in range(rows)]}
    runs = [
        run(
            name,
            final=abs(point.lr - (best if name == "mda" else 1.0)),
            higher_is_better=False,
            **asdict(point),
        )
        for name, mine in points.items()
        for point in mine
    ]
    more = further_points(runs, points)
    assert more  # the only step size of sgd is on an edge
    assert len(more["mda"]) == len(more["sgd"]) > 0
    for name, mine in points.items():
        assert len({*mine, *more[name]}) == len(mine) + len(more[name])
        assert all(point.lr > 0 for point in more[name])
