"""A recipe at several run lengths, made up: standings, verdict, document, figures and page."""

import json
import re

import pytest
from matplotlib.figure import Figure
from support.made_up_horizon import COMMAND, SCORES, horizon, length, study
from support.page_reader import Reader, without_own_script, words

from dualavg_bench.analysis import statistics
from dualavg_bench.analysis.horizon import combine
from dualavg_bench.analysis.standings import keeps_up_from, standings
from dualavg_bench.commands import write_reports
from dualavg_bench.report import horizon_figures, horizon_page
from dualavg_bench.store.documents import read_document, write_document
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.summaries import FailedRun

MINUS = "\N{MINUS SIGN}"
EVIL = "<script>alert('x')</script>\"'&amp;{{ 7*7 }}"


@pytest.fixture(scope="module")
def made_up():
    return horizon()


@pytest.fixture(scope="module")
def page(made_up):
    return horizon_page.render(made_up, {250: "report-250-steps.html"})


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures: drawing takes most of the time."""
    monkeypatch.setattr(horizon_page, "_figures", lambda *_: {})


def relations(made_up):
    return {(one.steps, one.optimizer): one.relation for one in standings(made_up)}


def said(made_up, start):
    """The sentence of the verdict that begins like this."""
    (sentence,) = (each for each in made_up.verdict if each.startswith(start))
    return sentence


def test_a_horizon_is_recognised_by_its_content_not_by_its_name(made_up, undrawn, tmp_path):
    write_document(tmp_path / "renamed.json", made_up)
    assert write_reports([tmp_path / "renamed.json"], compare=False) == [tmp_path / "renamed.html"]
    assert "how long is long enough?" in (tmp_path / "renamed.html").read_text()


def test_the_page_of_a_length_is_written_again_and_names_its_steps(tmp_path):
    write_document(tmp_path / "summary-1250-steps.json", study(1250, SCORES[1000]))
    (page,) = write_reports([tmp_path], compare=False)
    assert page == tmp_path / "report-1250-steps.html"
    assert "<title>cifar10 (quick, 1,250 steps) " in page.read_text()


# Standings


def test_every_optimizer_is_compared_with_the_best_other_one(made_up):
    rivals = {(one.steps, one.optimizer): one.rival for one in standings(made_up)}
    assert rivals[250, "sgd"] == "adam"
    assert rivals[250, "mda"] == rivals[250, "adam"] == "sgd"
    assert rivals[4000, "mda"] == "sgd"
    assert rivals[4000, "sgd"] == rivals[4000, "adam"] == "mda"
    assert len(rivals) == 9


@pytest.mark.parametrize("higher", [True, False])
def test_a_positive_advantage_is_better_in_any_metric(higher):
    scores = {100: {"mda": 90.0, "sgd": 80.0}}
    one, other = standings(horizon(scores, higher_is_better=higher, untrained=10.0 if higher else 200.0))
    assert (one.optimizer, other.optimizer) == (("mda", "sgd") if higher else ("sgd", "mda"))
    assert one.advantage == pytest.approx(10, abs=0.5)
    assert 0 < one.low < one.advantage < one.high
    assert (other.advantage, other.low, other.high) == (-one.advantage, -one.high, -one.low)
    assert (one.relation, other.relation) == ("ahead", "behind")


def test_a_difference_within_noise_is_neither_ahead_nor_behind(made_up):
    found = relations(made_up)
    assert found[1000, "mda"] == found[1000, "sgd"] == "within noise"
    assert (found[250, "mda"], found[4000, "mda"]) == ("behind", "ahead")


def test_an_optimizer_that_diverged_in_all_runs_is_behind():
    made_up = horizon({100: {"mda": 90.0, "sgd": 90.0}})
    (first,) = made_up.lengths
    test = first.optimizers["mda"].test.model_copy(update={"diverged": 5})
    entry = first.optimizers["mda"].model_copy(update={"test": test})
    lengths = [first.model_copy(update={"optimizers": {**first.optimizers, "mda": entry}})]
    assert relations(made_up)[100, "mda"] == "within noise"
    found = relations(made_up.model_copy(update={"lengths": lengths}))
    assert (found[100, "mda"], found[100, "sgd"]) == ("behind", "within noise")


def test_one_seed_admits_no_test():
    made_up = horizon({100: {"mda": 90.0, "sgd": 80.0}}, n=1)
    assert set(relations(made_up).values()) == {"not tested"}
    assert "cannot be compared" in said(made_up, "sgd")


def test_p_is_corrected_over_all_pairs_of_all_lengths(made_up):
    pairs = [(each.steps, pair) for each in made_up.lengths for pair in each.comparisons]
    corrected = statistics.holm([pair.p for _, pair in pairs])
    expected = {(steps, pair.a, pair.b): p for (steps, pair), p in zip(pairs, corrected, strict=True)}
    for one in standings(made_up):
        pair = (one.steps, one.optimizer, one.rival)
        assert one.p_holm == expected.get(pair, expected.get((one.steps, one.rival, one.optimizer)))
    at_1000 = next(each for each in made_up.lengths if each.steps == 1000)
    alone = {frozenset((pair.a, pair.b)): pair.p_holm for pair in at_1000.comparisons}
    adam = next(one for one in standings(made_up) if (one.steps, one.optimizer) == (1000, "adam"))
    assert adam.p_holm > alone[frozenset(("adam", adam.rival))]


@pytest.mark.parametrize(
    ("mda", "expected"),
    [
        ((60, 60, 60), None),
        ((60, 60, 90), 4000),
        ((60, 70, 80), 1000),
        ((90, 70, 80), 250),
        ((90, 60, 90), 4000),  # behind in between: the shortest length from which on it is never behind
        ((90, 90, 60), None),
    ],
)
def test_an_optimizer_keeps_up_from_the_length_from_which_on_it_is_never_behind(mda, expected):
    others = (80, 70, 80)
    scores = {
        steps: {"mda": float(a), "sgd": float(b)}
        for steps, a, b in zip((250, 1000, 4000), mda, others, strict=True)
    }
    found = standings(horizon(scores, noise=0.5))
    assert keeps_up_from([one for one in found if one.optimizer == "mda"]) == expected


# Verdict


def test_the_verdict_says_from_which_length_on_and_where_the_order_changes(made_up):
    lead = "1.866 points in test accuracy"
    assert made_up.verdict[:2] == [
        f"mda wins at 4,000 steps, the longest run, by {lead} over sgd, certain to 95%.",
        "Best mean test accuracy: sgd at 250 and 1,000 steps; mda at 4,000 steps.",
    ]
    assert said(made_up, "mda keeps") == (
        "mda keeps up with the best other optimizer from 1,000 steps on: behind at 250 steps, no certain "
        "difference at 1,000 steps, ahead at 4,000 steps."
    )
    assert said(made_up, "sgd").startswith(
        "sgd does not keep up with the best other optimizer at 4,000 steps"
    )
    assert said(made_up, "adam") == "adam is behind the best other optimizer at every length."
    turned = said(made_up, "The order changes, certain to 95%")
    assert "sgd is ahead of mda at 250 steps, and mda of sgd at 4,000 steps" in turned
    assert "sgd is ahead of adam" not in turned  # at every length


def test_a_lead_at_the_longest_run_that_can_be_chance_has_no_winner():
    close = horizon({250: SCORES[250], 1000: {"mda": 80.0, "sgd": 80.0, "adam": 60.0}})
    assert close.verdict[0].startswith("No winner at 1,000 steps, the longest run: sgd leads mda by 0.0")
    assert close.verdict[0].endswith("points in test accuracy, which can be chance.")


def test_an_order_that_changes_within_noise_is_not_called_a_change():
    made_up = horizon({250: {"mda": 78.0, "sgd": 80.0}, 1000: {"mda": 92.0, "sgd": 90.0}}, noise=4.0)
    assert [max(each.confirmed, key=lambda name: each.confirmed[name].mean) for each in made_up.lengths] == [
        *("sgd", "mda")
    ]
    assert set(relations(made_up).values()) == {"within noise"}
    assert said(made_up, "The order") == (
        "The order of the means changes with the length, which can be chance."
    )
    same_order = horizon(dict.fromkeys((250, 1000), SCORES[4000]))
    assert said(same_order, "The order") == (
        "The order of the means is the same at every length: mda, sgd, adam."
    )


def test_one_length_is_a_horizon_too():
    made_up = horizon({250: SCORES[250]}, own_steps=250)
    assert said(made_up, "mda") == "mda is behind the best other optimizer at 250 steps."
    assert not [each for each in made_up.verdict if each.startswith("The order")]


def test_ties_edges_and_divergences_are_said():
    tied = horizon({250: {"mda": 80.0, "sgd": 80.0}}, noise=0.0)
    assert tied.verdict[0] == "No winner at 250 steps: mda and sgd tie."
    summary = study(250, SCORES[250])
    entry = summary.optimizers["mda"]
    edged = entry.model_copy(update={"chosen": entry.chosen.model_copy(update={"edge": ["lr"]})})
    scores = entry.test.model_copy(update={"diverged": 2})
    edged = edged.model_copy(update={"test": scores})
    summary = summary.model_copy(update={"optimizers": {**summary.optimizers, "mda": edged}})
    parts = {"command": COMMAND, "own_steps": 250, "planned": [250]}
    made_up = combine([summary], [length(summary, 250)], **parts)
    assert (
        "CAUTION: best settings that are the smallest or largest tried: step size 1 of mda at 250 steps."
        in made_up.verdict
    )
    assert "CAUTION: confirmation runs that diverged: 2 of 5 of mda at 250 steps." in made_up.verdict


def failed_study(steps=250):
    failure = FailedRun(
        optimizer="adam",
        lr=1.0,
        weight_decay=0.0,
        schedule="linear",
        seed=0,
        phase="tune",
        run="0" * 16,
        why=f"it raised {EVIL}",
    )
    return study(steps, {"mda": 60.0, "sgd": 70.0}, failures=[failure])


def test_an_optimizer_without_a_result_is_said_and_the_others_are_compared(undrawn):
    summaries = [failed_study(250), study(1000, SCORES[1000])]
    lengths = [length(summary, steps) for summary, steps in zip(summaries, (250, 1000), strict=True)]
    made_up = combine(summaries, lengths, command=COMMAND, own_steps=1000, planned=[250, 1000])
    assert said(made_up, "NO RESULT").startswith(
        "NO RESULT: adam at 250 steps, because a run failed (it raised"
    )
    assert said(made_up, "adam") == "adam is behind the best other optimizer at 1,000 steps."
    assert relations(made_up)[250, "sgd"] == "ahead"
    page = horizon_page.render(made_up)
    assert "<script" not in without_own_script(page)
    assert "no result" in words(page)


def test_studies_of_different_recipes_are_no_horizon():
    summaries = [study(250, SCORES[250]), study(1000, SCORES[1000], recipe="imagenet")]
    lengths = [length(summary, steps) for summary, steps in zip(summaries, (250, 1000), strict=True)]
    with pytest.raises(ValueError, match="not of one recipe: their recipe differs"):
        combine(summaries, lengths, command=COMMAND, own_steps=250, planned=[250, 1000])


# The document


def test_the_document_is_small_complete_and_read_back(made_up, tmp_path):
    path = tmp_path / "horizon.json"
    write_document(path, made_up)
    assert read_document(path, Horizon) == made_up
    assert path.stat().st_size < 30_000
    first = json.loads(path.read_text())["lengths"][0]
    assert (first["steps"], first["epochs"], first["summary"]) == (250, 2.5, "summary-250-steps.json")
    assert len(first["optimizers"]["mda"]["test"]["runs"]) == first["optimizers"]["mda"]["test"]["n"] == 5
    assert first["optimizers"]["mda"]["train"]["mean"] == pytest.approx(1.0)
    assert first["optimizers"]["mda"]["chosen"]["lr"] == 1.0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda doc: doc["lengths"].reverse(), "lengths are not in order"),
        (lambda doc: doc["planned"].pop(), "lengths has 4000 steps, planned has not"),
        (lambda doc: doc["lengths"][0]["comparisons"].pop(), "comparisons are not the pairs"),
        (lambda doc: doc.update(lengths=[]), "lengths: list should have at least 1 item"),
        (lambda doc: doc.pop("verdict"), "verdict: field required"),
    ],
)
def test_a_damaged_document_raises_a_one_line_error(damage, message, made_up, tmp_path):
    path = tmp_path / "horizon.json"
    document = made_up.model_dump(mode="json")
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=message) as raised:
        read_document(path, Horizon)
    assert "run its command again to write it anew" in str(raised.value)
    assert "\n" not in str(raised.value)


# Figures


def drawn(figure, made_up, monkeypatch):
    """The axes of a figure, drawn but not turned into SVG."""
    axes = Figure().add_subplot()
    with monkeypatch.context() as patch:
        patch.setattr(horizon_figures, "svg", lambda draw, *_, **__: draw(axes))
        figure(made_up)
    return axes


def test_the_lengths_are_on_a_log_axis_with_their_numbers(made_up, monkeypatch):
    for figure in (horizon_figures.scores, horizon_figures.training_loss, horizon_figures.gaps):
        axes = drawn(figure, made_up, monkeypatch)
        assert axes.get_xscale() == "log"
        assert sorted(axes.get_xticks()) == [250, 1000, 4000]
        assert axes.xaxis.get_major_formatter()(4000) == "4,000"


def test_lengths_that_are_close_are_not_written_over_each_other(monkeypatch):
    made_up = horizon({steps: {"mda": 80.0, "sgd": 70.0} for steps in (100, 105, 110, 1000)})
    ticks = sorted(drawn(horizon_figures.scores, made_up, monkeypatch).get_xticks())
    assert ticks == [110, 1000]


def test_every_mean_and_interval_is_drawn_within_the_frame(made_up, monkeypatch):
    axes = drawn(horizon_figures.scores, made_up, monkeypatch)
    low, high = axes.get_ylim()
    points = {round(y, 9) for line in axes.lines for y in line.get_ydata()}
    for each in made_up.lengths:
        for test in each.confirmed.values():
            assert round(test.mean, 9) in points
            assert low < test.mean - test.se < test.mean + test.se < high


def test_a_wide_gap_of_a_short_run_does_not_flatten_the_others(monkeypatch):
    scores = {50: {"mda": 900.0, "sgd": 400.0}}
    scores |= {steps: {"mda": 40.0, "sgd": 42.0} for steps in (200, 800, 3200, 12800)}
    made_up = horizon(scores, higher_is_better=False, untrained=5000.0)
    axes = drawn(horizon_figures.gaps, made_up, monkeypatch)
    assert max(map(abs, axes.get_ylim())) < 50
    carets = {line.get_marker() for line in axes.lines} & {"^", "v"}
    assert carets == {"^", "v"}
    assert drawn(horizon_figures.scores, made_up, monkeypatch).get_yscale() == "log"


# The page


def test_the_page_needs_no_network_and_no_script_but_its_own(page):
    reader = Reader(without_own_script(page))
    assert "script" not in reader.tags
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    assert len(reader.ids) == len(set(reader.ids))
    assert page.count("<figure>") == page.count('<svg role="img"') == 3


def test_the_page_has_every_score_gap_and_setting_with_its_n(made_up, page):
    text = words(page)
    for sentence in made_up.verdict:
        assert sentence in text
    for each in made_up.lengths:
        for test in each.confirmed.values():
            assert f"{test.mean:.3f} ± {test.se:.3f} (5)" in text
    for one in standings(made_up):
        sign = re.escape("+" if one.advantage > 0 else MINUS)
        row = rf"{one.steps:,}\s?{one.optimizer}\s?{one.rival} \(5\)\s?{sign}"
        assert re.search(row, text), one
    assert text.count("lr 1, weight decay 0, linear") == 9
    assert "1,000 *10" in text  # its own length, and its epochs
    assert COMMAND in text
    assert page.count('href="report-250-steps.html"') == 1


def test_the_page_of_an_unfinished_horizon_says_what_is_missing(undrawn):
    made_up = horizon(planned=[250, 1000, 4000, 16000, 64000])
    assert "Still to run: 16,000 and 64,000 steps." in words(horizon_page.render(made_up))
    assert "Still to run" not in words(horizon_page.render(horizon()))


def test_every_string_of_a_recipe_is_escaped(made_up, undrawn):
    evil = {"recipe": EVIL, "about": EVIL, "metric": EVIL, "unit": EVIL, "paper": EVIL}
    page = horizon_page.render(made_up.model_copy(update=evil), {250: EVIL})
    assert "<script" not in without_own_script(page)
    assert words(page).count("alert('x')") >= 6


def test_on_a_narrow_screen_every_cell_has_its_label(page):
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    assert len(tables) == 4
    for table in tables:
        assert 'class="stack' in table
        assert table.count("<td") == table.count("<td data-label=") > 8


@pytest.mark.parametrize("scores", [{250: {"mda": 60.0}}, {250: {"mda": 60.0, "sgd": 60.0}}])
def test_one_optimizer_or_one_seed_has_a_page_too(scores):
    made_up = horizon(scores, n=1)
    text = words(horizon_page.render(made_up))
    assert "60." in text
    assert ("Against the best other optimizer" in text) == (len(scores[250]) > 1)
