"""What the report claims: a safe, self-contained, deterministic page; figures that stand side by side."""

import copy
import html
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from synthetic_runs import study

from dualavg_bench import figures, report, stats
from dualavg_bench.text import p_text

MINUS = "\N{MINUS SIGN}"
EVIL = "<script>alert('x')</script>\"'&amp;{{ 7*7 }}$\\frac{"


@pytest.fixture(scope="module")
def runs():
    return study(confirm_diverges={("adam", 1003)})


@pytest.fixture(scope="module")
def summary(runs):
    return stats.summarize(runs, about="A small network.", paper="Section 4.1")


@pytest.fixture(scope="module")
def page(summary, runs):
    return report.render(summary, runs)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures, for claims about words: drawing takes most of the time."""
    monkeypatch.setattr(report, "_figures", lambda *_: {})


class Reader(HTMLParser):
    """Collects tags, attributes and text; checks that what is opened is closed."""

    VOID = frozenset({"meta", "br", "use", "path"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.ids, self.open, self.text = [], [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for key, value in attrs if key == "id"]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


class Tables(HTMLParser):
    """The headers of each table that a page shows at once, and the labels of its cells on a narrow screen."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.folded, self.heading = [], False, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "details":
            self.folded = True
        elif self.folded:
            return
        elif tag == "table":
            self.tables.append({"class": dict(attrs).get("class"), "headers": [], "rows": []})
        elif tag == "th":
            self.tables[-1]["headers"].append("")
        elif tag == "tr":
            self.tables[-1]["rows"].append([])
        elif tag == "td":
            self.tables[-1]["rows"][-1].append(dict(attrs).get("data-label"))
        self.heading = tag == "th"

    def handle_endtag(self, tag):
        self.folded = self.folded and tag != "details"

    def handle_data(self, data):
        if self.heading:
            self.tables[-1]["headers"][-1] += data.strip()


def another(summary):
    """The same study as if other runs had made it."""
    return json.loads(re.sub(r'"[0-9a-f]{16}"', lambda name: f'"{name[0][1:-1][::-1]}"', json.dumps(summary)))


def sensitivity_axes(summary, monkeypatch):
    """The axes of the sensitivity figure, drawn but not turned into SVG."""
    axes = Figure().add_subplot()
    with monkeypatch.context() as patch:
        patch.setattr(figures, "_svg", lambda draw, *_, **__: draw(axes))
        figures.sensitivity(summary)
    return axes


def marks(axes, marker):
    """Where each optimizer's marks of a kind are, in pixels; one list a line."""
    return [
        line.get_transform().transform(line.get_xydata()).tolist()
        for line in axes.lines
        if line.get_marker() == marker and len(line.get_xdata())
    ]


def words(page):
    return re.sub(r"\s+", " ", Reader(page).text)


def drawings(summary, runs):
    return {
        "train": figures.training_curves(summary, runs),
        "valid": figures.validation_curves(summary, runs),
        "sensitivity": figures.sensitivity(summary),
        "budget": figures.budget(summary),
        **({"differences": figures.differences(summary)} if summary["comparisons"] else {}),
        "time": figures.step_time(summary),
        "memory": figures.memory(summary),
    }


def test_the_verdict_comes_first(page, summary):
    text = words(page)
    assert text.index(summary["verdict"]) < text.index("Test accuracy (%)") < text.index("Paired differences")


def test_scores_and_differences_stand_there_with_their_n(page, summary):
    text = words(page)
    test = summary["optimizers"]["mda"]["test"]
    assert f"{test['mean']:.2f} ± {test['se']:.2f}" in text
    pair = summary["comparisons"][0]
    assert f"mda {MINUS} sgd (5) +{pair['difference']:.2f} +{pair['low']:.2f} to +{pair['high']:.2f}" in text
    assert "(n = 23)" in text
    assert "1 of 5" in text


def test_a_winner_on_the_edge_is_an_alarm_and_one_inside_is_not(page, summary, runs, undrawn):
    assert "mda: best step size on the edge of its grid." in words(page)
    inside = copy.deepcopy(summary)
    for entry in inside["optimizers"].values():
        entry["chosen"]["edge"] = []
    assert 'class="alarm"' in page
    assert 'class="alarm"' not in report.render(inside, runs)


def test_unequal_budgets_are_an_alarm(summary, runs, undrawn):
    uneven = copy.deepcopy(summary)
    uneven["optimizers"]["sgd"]["grid"]["points"] = 12
    assert "Unequal budgets. Grid points tried: mda 9, sgd 12, adam 9." in words(report.render(uneven, runs))


def test_divergences_are_results(page, undrawn):
    text = words(page)
    assert "diverged at step 212 (seed 1003): the training loss is nan" in text
    assert "diverged at step 112 (seed 0), step 262 (seed 1)" in text
    calm = [r for r in study() if r["status"] != "diverged"]
    # The grid lost some settings with its diverged runs; what is left has nothing to report.
    assert re.search(r"None of the \d+ runs diverged", words(report.render(stats.summarize(calm), calm)))


def test_it_says_what_was_run_on_what_and_how_to_repeat_it(page):
    text = words(page)
    for said in (
        "Synthetic CPU @ 2.0 GHz",
        "torch: 2.13.0",
        "seeds 0, 1",
        "dualavg study cifar10 --scale quick",
    ):
        assert said in text


def test_the_page_needs_no_network_and_no_script(page):
    reader = Reader(page)
    assert not {"script", "link", "iframe", "img", "object", "base", "form"} & set(reader.tags)
    for key, value in reader.attributes:
        assert not key.startswith("on")
        if key in ("href", "xlink:href", "src"):
            assert value.startswith("#")
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page


def test_every_string_from_a_recipe_or_run_is_escaped():
    lrs = {f"pkg.{EVIL}": (0.1, 0.3, 1.0), "sgd": (0.1, 0.3, 1.0)}
    runs = study(lrs=lrs, metric=EVIL, unit=EVIL, recipe=EVIL, scale=EVIL, why=EVIL, schedule=EVIL)
    for r in runs:
        r["machine"] = {EVIL: EVIL}
    summary = stats.summarize(runs, about=EVIL, paper=EVIL)
    both = report.render_comparison([summary, another(summary)], [EVIL, "b"])
    for page in (report.render(summary, runs, command=EVIL), both):
        reader = Reader(page)
        assert "script" not in reader.tags
        assert "alert('x')" in reader.text  # it is there, as text
        assert "49" not in {word.strip("{} ") for word in reader.text.split(EVIL)}
        assert "<script" not in page.lower()


def test_ids_are_unique_and_every_reference_has_its_target(page, summary):
    for text in (page, report.render_comparison([summary, another(summary)])):
        ids = Reader(text).ids
        assert len(ids) == len(set(ids)) > 100
        targets = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
        assert targets
        assert targets <= set(ids)


def test_the_same_input_gives_the_same_page_to_the_byte(page, summary, runs):
    again = json.loads(json.dumps(summary))  # as read back from summary.json
    assert report.render(again, list(reversed(runs))) == page


def test_a_page_without_runs_has_all_but_the_curves(summary):
    text = words(report.render(summary))
    assert "Training loss at the chosen" not in text
    assert "Step-size sensitivity" in text


def test_a_study_of_one_optimizer_one_seed_or_tuning_alone_has_a_page_too(runs):
    alone = [r for r in runs if r["optimizer"] == "mda"]
    one_seed = [r for r in runs if r["phase"] == "tune" or r["seed"] == 1000]
    tuned = [r for r in runs if r["phase"] == "tune"]
    assert "Paired differences" not in words(report.render(stats.summarize(alone), alone))
    assert "no test possible" in words(report.render(stats.summarize(one_seed), one_seed))
    assert "not confirmed" in words(report.render(stats.summarize(tuned), tuned))


def test_the_comparison_corrects_over_all_studies(summary):
    others = [stats.summarize(study(seed, scale=f"s{seed}")) for seed in (1, 2)]
    for other in others:
        other["runs"] = {f"{other['scale']}{name}": run for name, run in other["runs"].items()}
    everything = [summary, *others]
    pairs = [pair for one in everything for pair in one["comparisons"]]
    corrected = stats.holm([pair["p"] for pair in pairs])
    text = words(report.render_comparison(everything))
    overview = text[: text.index(html.unescape(summary["verdict"]))]
    assert overview.count(f"mda {MINUS} sgd (5)") == 3
    for p in corrected:
        assert p_text(p).removeprefix("= ") in overview
    assert any(p > pair["p_holm"] for p, pair in zip(corrected, pairs, strict=True))
    with pytest.raises(ValueError, match="no studies"):
        report.render_comparison([])


def test_studies_of_one_title_are_told_apart(summary, undrawn):
    both = [summary, another(summary)]
    named = words(report.render_comparison(both, ["here", "there"]))
    assert "cifar10 (quick), here" in named
    assert "cifar10 (quick), there" in named
    assert "cifar10 (quick), study 2" in words(report.render_comparison(both))
    other = {**both[1], "scale": "mini"}
    assert "there" not in words(report.render_comparison([summary, other], ["here", "there"]))
    assert "6 pairs of all studies on this page, and so is larger than in the study's own table" in named


def test_a_study_is_not_compared_with_itself(summary):
    with pytest.raises(ValueError, match=r"^here and there are the same study, run for run: name it once\.$"):
        report.render_comparison([summary, another(summary), summary], ["here", "other", "there"])


def test_on_a_narrow_screen_every_cell_keeps_its_label(page, summary, undrawn):
    tables = Tables(page).tables
    assert len(tables) == 4
    for table in tables:
        assert table["class"] == "stack"
        assert len(table["rows"]) > 2
        assert all(row == table["headers"] for row in table["rows"][1:])
    comparison = Tables(report.render_comparison([summary, another(summary)])).tables
    assert comparison[0]["rows"][1] == ["optimizer", "cifar10 (quick), study 1", "cifar10 (quick), study 2"]
    assert all(row == comparison[1]["headers"] for row in comparison[1]["rows"][1:])
    narrow = page[page.index("@media (max-width") : page.index("@media print")]
    hidden = re.findall(r"([\w. ]+) \{ display: none", narrow)
    assert [name.strip() for name in hidden] == [".stack thead", ".stack td.empty"]


def test_what_a_machine_lacks_is_left_out(summary, undrawn):
    bare = {**summary, "machines": [{"cores": 2, "gpu": None, "torch": "2.13.0"}]}
    text = words(report.render(bare))
    assert "cores: 2; torch: 2.13.0" in text
    assert "gpu" not in text
    assert "None" not in text


def test_packages_are_listed_and_pinned_where_there_is_one_version(summary, undrawn):
    packages = {"dualavg": ["0.1"], "madgrad": ["1.3"], "torch": ["2.13.0"], "zoo": ["1.0+cpu"]}
    text = words(report.render({**summary, "packages": packages | {"lion": ["1", "2"]}}))
    assert "pip install torch==2.13.0 'dualavg[bench]==0.1' madgrad==1.3 zoo==1.0 dualavg study" in text
    assert "madgrad 1.3" in text
    assert "lion 1 and 2" in text
    older = {key: value for key, value in summary.items() if key != "packages"}
    assert "pip install torch==2.13.0 'dualavg[bench]==0.1' dualavg study" in words(report.render(older))


def test_a_winner_that_never_trained_is_not_in_bold(undrawn):
    runs = study(confirm_diverges={("mda", s) for s in range(1000, 1005)}, untrained=95.0)
    assert "<strong>95." not in report.render(stats.summarize(runs), runs)


def test_writing_goes_through_the_given_function(summary, runs, page, tmp_path):
    seen = []
    path = tmp_path / "report.html"
    assert report.write_report(summary, runs, path, write=lambda *a: seen.append(a)) == path
    assert seen == [(path, page)]
    report.compare_report([summary], path)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_figures_are_svg_with_text_in_the_page_s_colours(summary, runs):
    for name, text in drawings(summary, runs).items():
        root = ET.fromstring(text)
        assert root.tag.endswith("svg"), name
        assert "width" not in root.attrib
        assert root.attrib["role"] == "img"
        assert "<text" in text
        assert "<style" not in text
        assert "var(--ink" in text
        bare = re.sub(r"var\(--\w+, #[0-9a-f]{6}\)", "", text)
        assert set(re.findall(r"#[0-9a-f]{6}\b", bare)) == set(), name


def test_an_optimizer_has_one_colour_in_every_figure_and_study(summary, runs):
    alone = [r for r in runs if r["optimizer"] == "adam"]
    expected = f"--c{figures.looks(['adam'])['adam']},"
    for text in drawings(stats.summarize(alone), alone).values():
        assert set(re.findall(r"--c\d,", text)) <= {expected}
    names = ["mda", "sgd", "adam", "x.Y", "z.W"]
    looks = figures.looks(names)
    assert len(set(looks.values())) == 5
    assert looks["adam"] == figures.looks(["adam"])["adam"]
    assert len(figures.looks([f"o{i}" for i in range(20)])) == 20


def test_diverged_points_are_crossed_in_the_sensitivity_figure(summary):
    calm = copy.deepcopy(summary)
    for points in calm["sensitivity"].values():
        for point in points:
            point["diverged"] = 0
    cross = re.compile(r"M -4\.5 4\.5\s+L 4\.5 -4\.5")
    assert len(cross.findall(figures.sensitivity(summary))) == 3  # one marker an optimizer
    assert cross.findall(figures.sensitivity(calm)) == []


def test_no_optimizer_s_cross_hides_another_s(monkeypatch):
    lrs = dict.fromkeys(("mda", "sgd", "adam"), (0.1, 0.3, 1.0))
    for higher in (True, False):
        axes = sensitivity_axes(stats.summarize(study(lrs=lrs, higher_is_better=higher)), monkeypatch)
        crosses = marks(axes, "x")
        assert [len(places) for places in crosses] == [1, 1, 1]
        (xs, ys) = zip(*(places[0] for places in crosses), strict=True)
        assert max(xs) - min(xs) < 1  # they diverged at one step size
        points = [72 * y / axes.figure.dpi for y in sorted(ys)]
        assert min(b - a for a, b in pairwise(points)) > 5
        inside = axes.get_window_extent()
        assert inside.y0 - 1 < min(ys) < max(ys) < inside.y1 + 1
        assert inside.x0 < xs[0] < inside.x1


def test_a_step_size_at_which_everything_diverged_is_on_the_axis(summary, monkeypatch):
    wild = copy.deepcopy(summary)
    for point in wild["sensitivity"]["sgd"]:
        if point["lr"] == 0.1:
            point |= {"lr": 50.0, "diverged": 2}
    low, high = sensitivity_axes(wild, monkeypatch).get_xlim()
    assert low < 1e-4
    assert high > 50


def test_one_bad_point_does_not_flatten_the_others(summary, monkeypatch):
    before = sensitivity_axes(summary, monkeypatch)
    spoilt = copy.deepcopy(summary)
    bad = next(point for point in spoilt["sensitivity"]["sgd"] if point["lr"] == 0.01)
    bad["mean"] = -5000.0
    after = sensitivity_axes(spoilt, monkeypatch)
    assert after.get_ylim()[0] >= before.get_ylim()[0] - 1
    assert marks(before, "v") == []
    (((x, y),),) = marks(after, "v")  # a hollow caret, at the axis, over its step size
    assert x == pytest.approx(after.transData.transform((0.01, 0))[0])
    box = after.get_window_extent()
    assert box.y0 <= y < (box.y0 + box.y1) / 2
    caret = next(line for line in after.lines if line.get_marker() == "v" and len(line.get_xdata()))
    assert caret.get_markerfacecolor() == "none"
    caption = words(report.render(spoilt))
    assert (
        f"a hollow caret where one lies beyond it; the axis goes from the best point to {figures.REACH}"
        in caption
    )


def test_the_chosen_points_are_always_shown(summary, monkeypatch):
    poor = copy.deepcopy(summary)
    chosen = poor["optimizers"]["adam"]["chosen"]
    chosen["valid"]["mean"] = -5000.0
    assert sensitivity_axes(poor, monkeypatch).get_ylim()[0] < -5000


def test_legends_show_the_last_part_of_a_name_unless_two_are_alike(runs):
    def renamed(names):
        made = [{**r, "optimizer": names.get(r["optimizer"], r["optimizer"])} for r in runs]
        return drawings(stats.summarize(made), made)

    for name, text in renamed({"mda": "schedulefree.SGDScheduleFree"}).items():
        assert "SGDScheduleFree" in text, name
        assert "schedulefree." not in text, name
    for name, text in renamed({"mda": "one.Lion", "sgd": "two.Lion"}).items():
        assert "one.Lion" in text, name
        assert "two.Lion" in text, name
