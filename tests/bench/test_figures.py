"""Figures of a study: in the page's colours, each optimizer in its own, nothing hidden."""

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from support.synthetic_runs import renamed, study, summarize

from dualavg_bench.report import drawing, figures
from dualavg_bench.store.results import Curve
from dualavg_bench.store.summaries import Budget


def drawn_axes(figure, monkeypatch, summary):
    """The axes of a figure, of the default scale, drawn but not turned into SVG."""
    return all_axes(figure, monkeypatch, summary)[0]


def all_axes(figure, monkeypatch, summary):
    drawn = []
    with monkeypatch.context() as patch:
        patch.setattr(
            figures, "svg", lambda draw, *_, **__: (drawn.append(Figure().add_subplot()), draw(drawn[-1]))
        )
        figure(summary)
    return drawn


def with_points(summary, change):
    """The summary with `change(name, point)` applied to every point of the sensitivity, as a dictionary."""
    changed = {
        name: [point.model_copy(update=change(name, point)) for point in points]
        for name, points in summary.sensitivity.items()
    }
    return summary.model_copy(update={"sensitivity": changed})


def with_budget(summary, scores):
    entry = Budget(scores=scores, n=2, runs=[])
    return summary.model_copy(update={"budget": dict.fromkeys(summary.budget, entry)})


def with_scores(summary, change):
    """The summary with `change(values)` as validation curves."""
    curves = {}
    for name, both in summary.curves.items():
        valid = {"step": both.valid.step, "accuracy": change(both.valid["accuracy"])}
        curves[name] = both.model_copy(update={"valid": Curve.model_validate(valid)})
    return summary.model_copy(update={"curves": curves})


def sensitivity_axes(summary, monkeypatch):
    return drawn_axes(figures.sensitivity, monkeypatch, summary)


def marks(axes, marker):
    """Where each optimizer's marks of a kind are, in pixels; one list a line."""
    return [
        line.get_transform().transform(line.get_xydata()).tolist()
        for line in axes.lines
        if line.get_marker() == marker and len(line.get_xdata())
    ]


def drawings(summary):
    return {
        **{f"train {plot.scale}": plot.svg for plot in figures.training_curves(summary)},
        **{f"valid {plot.scale}": plot.svg for plot in figures.validation_curves(summary)},
        "sensitivity": figures.sensitivity(summary),
        "budget": figures.budget(summary),
        **({"differences": figures.differences(summary)} if summary.comparisons else {}),
        "time": figures.step_time(summary),
    }


def test_figures_are_svg_with_text_in_the_page_s_colours(summary):
    for name, text in drawings(summary).items():
        root = ET.fromstring(text)
        assert root.tag.endswith("svg"), name
        assert "width" not in root.attrib
        assert root.attrib["role"] == "img"
        assert "<text" in text
        assert "<style" not in text
        assert "var(--ink" in text
        bare = re.sub(r"var\(--\w+, #[0-9a-f]{6}\)", "", text)
        assert set(re.findall(r"#[0-9a-f]{6}\b", bare)) == set(), name


def test_an_optimizer_has_one_colour_in_every_figure_and_study(runs):
    alone = [r for r in runs if r.optimizer == "adam"]
    expected = f"--c{drawing.looks(['adam'])['adam']},"
    for text in drawings(summarize(alone)).values():
        assert set(re.findall(r"--c\d,", text)) <= {expected}
    names = ["mda", "sgd", "adam", "x.Y", "z.W"]
    looks = drawing.looks(names)
    assert len(set(looks.values())) == 5
    assert looks["adam"] == drawing.looks(["adam"])["adam"]
    assert len(drawing.looks([f"o{i}" for i in range(20)])) == 20


def test_diverged_points_are_crossed_in_the_sensitivity_figure(summary):
    calm = with_points(summary, lambda *_: {"diverged": 0})
    cross = re.compile(r"M -4\.5 4\.5\s+L 4\.5 -4\.5")
    assert len(cross.findall(figures.sensitivity(summary))) == 3  # one marker an optimizer
    assert cross.findall(figures.sensitivity(calm)) == []


def test_no_optimizer_s_cross_hides_another_s(monkeypatch):
    lrs = dict.fromkeys(("mda", "sgd", "adam"), (0.1, 0.3, 1.0))
    for higher in (True, False):
        axes = sensitivity_axes(summarize(study(lrs=lrs, higher_is_better=higher)), monkeypatch)
        crosses = marks(axes, "x")
        assert [len(places) for places in crosses] == [1, 1, 1]
        (xs, ys) = zip(*(places[0] for places in crosses), strict=True)
        assert max(xs) - min(xs) < 1  # they diverged at one step size
        points = [72 * y / axes.figure.dpi for y in sorted(ys)]
        assert min(b - a for a, b in pairwise(points)) > 5
        inside = axes.get_window_extent()
        assert inside.y0 < min(ys) < max(ys) < inside.y1
        assert inside.x0 < xs[0] < inside.x1


def test_crosses_are_at_the_end_that_the_caption_names_and_hide_no_point(monkeypatch):
    for higher, end in ((True, "bottom"), (False, "top")):
        summary = summarize(study(higher_is_better=higher))
        axes = sensitivity_axes(summary, monkeypatch)
        heights = [y for crosses in marks(axes, "x") for _, y in crosses]
        points = [y for marker in "os^" for places in marks(axes, marker) for _, y in places]
        assert len(heights) == 3
        if higher:
            assert max(heights) < min(points)
        else:
            assert min(heights) > max(points)
        assert figures.worst_end(summary) == end


def test_a_step_size_at_which_everything_diverged_is_on_the_axis(summary, monkeypatch):
    wild = with_points(
        summary, lambda name, p: {"lr": 50.0, "diverged": 2} if (name, p.lr) == ("sgd", 0.1) else {}
    )
    low, high = sensitivity_axes(wild, monkeypatch).get_xlim()
    assert low < 1e-4
    assert high > 50


def test_one_bad_point_does_not_flatten_the_others(summary, monkeypatch):
    before = sensitivity_axes(summary, monkeypatch)
    spoilt = with_points(
        summary,
        lambda name, p: {"mean": -5000.0} if (name, p.lr, p.weight_decay) == ("sgd", 0.01, 0.0) else {},
    )
    after = sensitivity_axes(spoilt, monkeypatch)
    assert after.get_ylim()[0] >= before.get_ylim()[0] - 1
    assert marks(before, "v") == []
    (((x, y),),) = marks(after, "v")  # a hollow caret, at the axis, over its step size
    assert x == pytest.approx(after.transData.transform((0.01, 0))[0])
    box = after.get_window_extent()
    assert box.y0 <= y < (box.y0 + box.y1) / 2
    caret = next(line for line in after.lines if line.get_marker() == "v" and len(line.get_xdata()))
    assert caret.get_markerfacecolor() == "none"


def test_the_chosen_points_are_always_shown(summary, monkeypatch):
    entry = summary.optimizers["adam"]
    valid = entry.chosen.valid.model_copy(update={"mean": -5000.0})
    poor = entry.model_copy(update={"chosen": entry.chosen.model_copy(update={"valid": valid})})
    summary = summary.model_copy(update={"optimizers": summary.optimizers | {"adam": poor}})
    assert sensitivity_axes(summary, monkeypatch).get_ylim()[0] < -5000


def test_rows_show_the_last_part_of_a_name_unless_two_are_alike(runs):
    for names, shown in (
        ({"mda": "schedulefree.SGDScheduleFree"}, ["SGDScheduleFree"]),
        ({"mda": "one.Lion", "sgd": "two.Lion"}, ["one.Lion", "two.Lion"]),
    ):
        other = summarize(renamed(runs, names))
        for figure in (figures.differences, figures.step_time):
            text = figure(other)
            assert all(name in text for name in shown), figure.__name__
            assert "schedulefree." not in text, figure.__name__


def test_error_bars_end_inside_the_frame(summary, monkeypatch):
    best = max(summary.sensitivity["mda"], key=lambda point: point.mean)
    wide = with_points(summary, lambda _, p: {"se": 4.0} if p == best else {})
    low, high = sensitivity_axes(wide, monkeypatch).get_ylim()
    assert low < best.mean - 4.0
    assert best.mean + 4.0 < high


def test_one_long_error_bar_does_not_flatten_the_points(summary, monkeypatch):
    narrow = sensitivity_axes(summary, monkeypatch).get_ylim()
    wild = with_points(summary, lambda _, p: {"se": 1e4} if p == summary.sensitivity["mda"][0] else {})
    low, high = sensitivity_axes(wild, monkeypatch).get_ylim()
    assert high - low < 2.5 * (narrow[1] - narrow[0])


@pytest.mark.parametrize(
    ("higher", "first", "scale"),
    [
        (True, 0.0, "linear"),  # BLEU: nothing at first, which has no logarithm
        (True, 1.0, "linear"),  # a score is read by its differences, however small it was at first
        (False, 5000.0, "log"),  # perplexity
        (False, 0.0, "linear"),
    ],
)
def test_only_what_is_positive_and_read_by_ratios_has_a_log_axis(higher, first, scale, monkeypatch):
    summary = with_scores(
        summarize(study(higher_is_better=higher)),
        lambda old: [first, *(40.0 ** (k / (len(old) - 2)) for k in range(len(old) - 1))],
    )
    axes = drawn_axes(figures.validation_curves, monkeypatch, summary)
    assert axes.get_yscale() == scale
    budget = drawn_axes(figures.budget, monkeypatch, with_budget(summary, [100.0, 1.0]))
    assert budget.get_yscale() == ("linear" if higher else "log")


def test_a_score_of_zero_is_not_far_above_the_frame_s_end(monkeypatch):
    summary = with_scores(summarize(study()), lambda old: [0.0 for _ in old[:-1]] + [80.0])
    axes = drawn_axes(figures.validation_curves, monkeypatch, summary)
    assert -4 < axes.get_ylim()[0] < 0


LONG = "mean_absolute_error of the reconstructed volumes over all slices of every patient of the test split"


def text_boxes(axes):
    """Where the labels of the axes end up, and the whole figure, in pixels."""
    axes.figure.set_layout_engine("constrained")
    axes.figure.set_size_inches(drawing.WIDTH / 72, 230 / 72)
    axes.figure.draw_without_rendering()
    return axes.xaxis.label.get_window_extent(), axes.yaxis.label.get_window_extent(), axes.figure.bbox


@pytest.mark.parametrize("unit", ["%", "points per thousand of the largest value"])
def test_a_long_metric_s_name_stays_within_its_figure(unit, monkeypatch):
    summary = summarize(study(metric=LONG, unit=unit))
    for figure in (figures.sensitivity, figures.budget, figures.differences, figures.validation_curves):
        below, beside, whole = text_boxes(drawn_axes(figure, monkeypatch, summary))
        assert whole.x0 <= below.x0 < below.x1 <= whole.x1, figure.__name__
        if beside.height > 0:
            assert whole.y0 <= beside.y0 < beside.y1 <= whole.y1, figure.__name__


def test_curves_have_both_axes_and_the_usual_one_first(monkeypatch):
    summary = summarize(study())
    for figure in (figures.training_curves, figures.validation_curves):
        assert [axes.get_yscale() for axes in all_axes(figure, monkeypatch, summary)] == ["linear", "log"]
        assert [plot.scale for plot in figure(summary)] == ["linear", "log"]
    with_zero = with_scores(summary, lambda old: [0.0, *old[1:]])
    assert len(all_axes(figures.validation_curves, monkeypatch, with_zero)) == 1  # zero has no logarithm


def values_of(svg):
    """What a page shows under the pointer: the points of each optimizer."""
    return {name: points for _, name, points in json.loads(ET.fromstring(svg).attrib["data-values"])}


def test_every_value_of_a_curve_is_in_its_figure_where_it_is_drawn(summary):
    for plot in figures.training_curves(summary):
        for name, points in values_of(plot.svg).items():
            x, y, at, text = points[-1]
            assert at == "step 300"
            runs = [h for h, run in summary.runs.items() if h in summary.curves and run.optimizer == name]
            losses = [summary.curves[h].train["loss"][-1] for h in runs if not summary.runs[h].diverged]
            assert float(text.split()[0]) == pytest.approx(sum(losses) / len(losses), abs=1e-4)
            own = f'class="o{drawing.looks([name])[name]}"'
            lines = re.findall(rf'{own}[^>]*>\s*<path d="([^"]*)" clip', plot.svg)
            ends = [[float(number) for number in line.split()[-2:]] for line in lines]
            assert pytest.approx([x, y], abs=0.1) in ends


def test_a_diverged_setting_is_named_so(summary):
    texts = [text for points in values_of(figures.sensitivity(summary)).values() for *_, text in points]
    assert any(text.startswith("90.") and "weight decay 0.0001, linear (n = 2)" in text for text in texts)


def test_all_that_an_optimizer_has_in_a_figure_can_be_hidden(summary):
    """Its colour is found only inside of elements with its class."""
    for name, text in drawings(summary).items():
        if name in ("time", "differences"):
            continue
        root = ET.fromstring(text)
        for look in drawing.looks(summary.optimizers).values():
            own = [part for part in root.iter() if part.attrib.get("class") == f"o{look}"]
            colour = f"var(--c{look},"
            inside = sum(ET.tostring(part, encoding="unicode").count(colour) for part in own)
            assert own, name
            assert inside == text.count(colour), name


@pytest.mark.parametrize("limits", [(3.0, 70.0), (15.0, 90.0), (1.0, 1e6), (0.96, 1.25), (2.0, 9.0)])
def test_a_log_axis_has_at_least_two_numbers(limits):
    axes = Figure().add_subplot()
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    drawing.log_ticks(axes.yaxis, limits)
    ticks = [tick for tick in axes.yaxis.get_majorticklocs() if limits[0] <= tick <= limits[1]]
    assert 2 <= len(ticks) <= 12
    assert len(set(axes.yaxis.get_major_formatter().format_ticks(ticks))) == len(ticks)


def test_a_sensitivity_figure_over_one_decade_has_two_numbers_on_each_log_axis(monkeypatch):
    lrs = {"mda": (0.2, 0.4, 0.8), "sgd": (0.3, 0.4, 0.5)}
    summary = summarize(study(lrs=lrs, higher_is_better=False))
    summary = with_points(summary, lambda _, point: {"mean": 3.0 if point.lr < 0.45 else 75.0})
    axes = sensitivity_axes(summary, monkeypatch)
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        assert len([tick for tick in axis.get_majorticklocs() if limits[0] <= tick <= limits[1]]) > 1


def test_diverged_points_do_not_flatten_the_budget(monkeypatch):
    summary = summarize(study())
    scores = [30.0, 80.0, 88.0, 89.0, 90.0, 90.5, 90.8, 90.9, 91.0]
    axes = drawn_axes(figures.budget, monkeypatch, with_budget(summary, scores))
    low, high = axes.get_ylim()
    assert 80 < low < 91 < high
    carets = marks(axes, "v")
    assert [len(places) for places in carets] == [2, 2, 2]
    assert len({round(y) for places in carets for _, y in places}) == 3  # each at a height of its own
    calm = with_budget(summary, [90.0, 90.5, 91.0])
    assert marks(drawn_axes(figures.budget, monkeypatch, calm), "v") == []


def with_step_time(summary, **ends):
    times = summary.times
    cost = times.optimizers["mda"]
    cost = cost.model_copy(update={"step_ms": cost.step_ms.model_copy(update=ends)})
    times = times.model_copy(update={"optimizers": times.optimizers | {"mda": cost}})
    return summary.model_copy(update={"times": times})


def test_the_cost_is_drawn_with_its_spread(summary, monkeypatch):
    ends = {"low": 3.0, "lower": 4.0, "median": 5.0, "upper": 5.5, "high": 6.0}
    axes = drawn_axes(figures.step_time, monkeypatch, with_step_time(summary, **ends))
    drawn = [list(line.get_xdata()) for line in axes.lines]
    assert [3.0, 6.0] in drawn
    assert [4.0, 5.5] in drawn
    assert marks(axes, ">") == []
    busy = with_step_time(summary, **ends | {"high": 5000.0})  # one run on a busy machine
    far = drawn_axes(figures.step_time, monkeypatch, busy)
    assert len(marks(far, ">")) == 1
    assert far.get_xlim()[1] < 20
