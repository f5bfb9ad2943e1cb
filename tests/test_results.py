"""The printed results are those of the files: README and docs/results.md are made from results/mini alone."""

import importlib
import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest
from support import two_scores
from support.made_up_horizon import horizon
from support.page_reader import words
from support.paper_study import study as paper_study
from support.synthetic_runs import renamed, study, summarize

from dualavg_bench.store.documents import read_document, write_document
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.results import spec_hash
from dualavg_bench.store.summaries import Summary

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "results").glob("*/*.json"))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "results")
    yield importlib.import_module("make")
    for name in ("make", "choices", "complete", "pairs", "tables", "figures", "untuned"):
        importlib.sys.modules.pop(name, None)


@pytest.fixture
def made_up(make, tmp_path: Path):
    """Files of a made-up study, of its pull and of its run lengths."""
    folder = tmp_path / "mini"
    runs = study(scale="mini")
    write_document(folder / "cifar10.json", summarize(runs))
    fading = [run for run in runs if run.optimizer == "sgd"]
    pull = summarize(renamed(fading, {"sgd": "pull.FadingPull"}))
    write_document(folder / "cifar10-pull.json", pull)
    untuned = study(scale="mini", lrs=dict.fromkeys(make.untuned.NAMES, (0.1, 0.3, 1.0)))
    write_document(folder / "cifar10-untuned.json", summarize(untuned))
    write_document(folder / "cifar10-horizon.json", horizon(scale="mini"))
    grid = {"mda": two_scores.GRID["a"], "adamw": two_scores.GRID["b"]}
    tuned = two_scores.runs(grid, spread=0.1, recipe="finetune_lm", scale="mini")
    write_document(folder / "finetune_lm.json", summarize(tuned))
    return make.Results(folder)


def test_every_printed_number_is_that_of_its_file(make) -> None:
    assert make.outdated(make.Results()) == []


def test_a_number_that_differs_is_noticed(make, made_up) -> None:
    page = make.filled("<!-- results: scores -->\n<!-- end -->\n", made_up)
    test = made_up.studies["cifar10"].confirmed["mda"].mean
    assert f"{test:.2f}" in page
    assert make.filled(page, made_up) == page
    assert make.filled(page.replace(f"{test:.2f}", "99.99"), made_up) == page


def test_prose_has_no_measured_numbers(make) -> None:
    """What no table holds would not be checked."""
    text = make.BLOCK.sub("", (ROOT / "docs" / "results.md").read_text())
    assert re.findall(r"\d\.\d", re.sub(r"`[^`]*`", "", text)) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_file_can_be_read_and_is_small(file: Path) -> None:
    read_document(file, Horizon if file.stem.endswith("-horizon") else Summary)
    assert file.stat().st_size <= 300_000


@pytest.mark.parametrize(
    "name",
    [
        "scores",
        "training",
        "target",
        "claims",
        "finding",
        "horizon",
        "pull",
        "costs",
        "untuned",
        "untuned-goals",
    ],
)
def test_a_table_has_a_row_for_what_is_there(make, made_up, name: str) -> None:
    text = make.BLOCKS[name](made_up)
    assert "cifar10" in text or name == "finding"
    assert "Not run yet." not in text


def test_nothing_that_was_not_run_is_printed(make, tmp_path: Path) -> None:
    nothing = make.Results(tmp_path)
    later = [name for name in make.BLOCKS if name.startswith(("finetune", "untuned", "choices"))]
    for name in ("scores", "training", "target", "horizon", "pull", "costs", *later):
        assert make.BLOCKS[name](nothing) == "Not run yet."


def test_fine_tuning_is_published_with_both_scores(make, made_up) -> None:
    # See test_frontier.py: at 78.5, mda has 81.5 and adamw 53.
    equal = make.BLOCKS["finetune-equal"](made_up)
    assert "| accuracy 78.500 | MDA | 81.500 (81.400 to 81.600) |  | 4 |" in equal
    assert "| accuracy 78.500 | AdamW | 53.000 (52.800 to 53.200) | \N{MINUS SIGN}28.500 (" in equal
    assert "AdamW | 84.500 ± 0.058 | 40.00 ± 0.00" in make.BLOCKS["finetune-scores"](made_up)
    said = make.BLOCKS["finetune"](made_up)
    assert said.startswith("Language model, Wikipedia to novels: at accuracy 78.5")
    assert "(img/results_finetune.svg)" in make.BLOCKS["finetune-figure"](made_up)


def test_the_choices_of_dadapt_mda_are_means_over_seeds(make, made_up) -> None:
    same = {"scale": "mini", "task": "cifar10", "run": "", "steps": 100, "d": [1.0, 2.0, 3.0, 4.0]}
    rows = [
        {**same, "case": case, "seed": seed, "score": score + seed, "eta": 0.5 + seed, "eta_step": 40}
        for case, score in (("as it is", 60.0), ("lr 2", 61.0), ("lr 0.5", 59.0))
        for seed in (0, 1)
    ]
    made_up.choices.write_text(json.dumps(rows))
    table = make.BLOCKS["choices-mini"](made_up)
    assert table.startswith("| mini, n = 2 | `cifar10`, accuracy")
    assert table.endswith("| as it is | 60.5 |\n| lr 2 | **61.5** |\n| lr 0.5 | 59.5 |")
    lr = made_up.studies["cifar10"].optimizers["mda"].chosen.lr
    assert f"| `cifar10` | mini | {lr:g} | 1 | 40 | 100 | 1 | 2 | 3 | 4 |" in make.BLOCKS["choices-found"](
        made_up
    )
    assert make.BLOCKS["choices-quick"](made_up) == "Not run yet."


def test_the_score_of_mda_against_the_better_other_is_paired_by_seed(make, made_up) -> None:
    summary = made_up.studies["cifar10"]
    others = {name: summary.confirmed[name].mean for name in ("sgd", "adam")}
    rival = max(others, key=others.get)
    (pair,) = (pair for pair in summary.comparisons if {pair.a, pair.b} == {"mda", rival})
    advantage = pair.difference if pair.a == "mda" else -pair.difference
    assert f"{make.tables.NAMES[rival]}: {advantage:+.2f}"[:-1] in make.BLOCKS["scores"](made_up)


def test_pairs_are_positive_where_mda_is_better_in_score_and_in_training_loss(make, tmp_path: Path) -> None:
    means, losses = {"mda": 94.0, "sgd": 95.0, "adam": 90.0}, {"mda": 1.0, "sgd": 2.0, "adam": 0.5}
    runs = [run.model_copy(update={"scale": "mini"}) for run in paper_study("cifar10", means, train=losses)]
    summary = summarize(runs)
    write_document(tmp_path / "cifar10.json", summary)
    sgd, adam = make.BLOCKS["pairs"](make.Results(tmp_path)).splitlines()[2:]
    cells = [cell.strip() for cell in sgd.strip("| ").split(" | ")]
    assert (cells[2], cells[4], cells[6], cells[8]) == ("SGD+M", "0 of 5", "5 of 5", "5")
    assert cells[3].startswith("\N{MINUS SIGN}1.0")
    assert cells[5].startswith("+1.0")
    cells = [cell.strip() for cell in adam.strip("| ").split(" | ")]
    assert (cells[2], cells[4], cells[6]) == ("Adam", "5 of 5", "0 of 5")


def test_published_files_have_the_settings_of_their_recipes(make) -> None:
    complete = importlib.import_module("complete")
    for name in ("cifar10", "roberta"):
        summary = make.Results().studies[name]
        bare = {key: e.model_copy(update={"settings": None}) for key, e in summary.optimizers.items()}
        older = summary.model_copy(update={"optimizers": bare, "own_schedules": None})
        assert complete.complete(older, name) == summary


def test_the_end_of_a_grid_is_marked_on_its_own_axis(make, made_up) -> None:
    chosen = made_up.studies["cifar10"].optimizers["mda"].chosen
    assert chosen.edge == ["lr"]
    setting = f"| {chosen.lr:g} (end of its grid) | {chosen.weight_decay:g} |"
    assert setting in make.BLOCKS["training"](made_up)


@pytest.mark.parametrize(
    ("shift", "within", "ahead"), [(-3.0, "no", "no"), (-0.5, "yes", "no"), (2.0, "yes", "yes")]
)
def test_the_goals_of_no_tuning_are_paired_by_seed_and_positive_is_better(
    make, tmp_path: Path, shift: float, within: str, ahead: str
) -> None:
    """The margin of accuracy is one point: better by any amount is within it."""
    tuned = [run for run in study(scale="mini") if run.optimizer == "mda"]
    moved = [_shifted(run, shift) for run in tuned]
    sgd = renamed(tuned, {"mda": "sgd"})
    write_document(tmp_path / "cifar10.json", summarize(tuned))
    others = [run for name in list(make.untuned.NAMES)[1:] for run in _as(sgd, name)]
    write_document(tmp_path / "cifar10-untuned.json", summarize(_as(moved, make.untuned.OURS) + others))
    (row,) = make.BLOCKS["untuned-goals"](make.Results(tmp_path)).splitlines()[2:]
    _, against_mda, margin, is_within, against_sgd, is_ahead, n = row.strip("| ").split(" | ")
    assert float(against_mda.split(" ")[0].replace("\N{MINUS SIGN}", "-")) == pytest.approx(shift)
    assert (float(margin), is_within, is_ahead, n) == (1.0, within, ahead, "5")
    assert against_sgd == against_mda


def _shifted(run, by: float):
    if run.test is None:
        return run
    test = {**run.test, run.metric: run.test[run.metric] + by}
    return run.model_copy(update={"test": test})


def _as(runs, name: str):
    """The same runs of another optimizer, with hashes of their own."""
    own = [(run, spec_hash({"run": run.hash, "name": name})) for run in runs]
    return [run.model_copy(update={"optimizer": name, "hash": fresh}) for run, fresh in own]


def test_a_file_of_another_study_is_refused(make, tmp_path: Path) -> None:
    write_document(tmp_path / "imagenet.json", summarize(study(scale="mini")))
    with pytest.raises(ValueError, match=r"imagenet\.json is of cifar10 at mini scale"):
        _ = make.Results(tmp_path).studies


def test_a_mean_edited_by_hand_is_refused(make, made_up) -> None:
    file = made_up.folder / "cifar10.json"
    values = json.loads(file.read_text())
    values["optimizers"]["mda"]["test"]["mean"] += 1
    file.write_text(json.dumps(values))
    with pytest.raises(StoreError, match="test of mda is not the mean of its runs"):
        _ = make.Results(made_up.folder).studies


def test_a_table_that_does_not_end_is_refused(make, made_up) -> None:
    page = "<!-- results: scores -->\n## Next\n<!-- results: claims -->\n<!-- end -->\n"
    with pytest.raises(ValueError, match="does not end"):
        make.filled(page, made_up)


def test_a_figure_that_differs_is_noticed(make, made_up, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(make, "FIGURES", tmp_path)
    monkeypatch.setattr(make, "PAGES", ())
    drawn = make.figures.draw(made_up, tmp_path)
    assert make.outdated(made_up) == []
    whole = drawn[0].read_text()
    drawn[0].write_text(whole.replace("<path", "<path ", 1))
    (tmp_path / "results_old.svg").write_text("<svg/>")
    assert make.outdated(made_up) == sorted([drawn[0], tmp_path / "results_old.svg"])
    (tmp_path / "results_old.svg").unlink()
    drawn[0].write_text("<svg/>")
    assert make.outdated(made_up) == [drawn[0]]
    drawn[0].write_text(whole.replace(f"v{mpl.__version__},", "v3.0.0,").replace("<path", "<path ", 1))
    assert make.outdated(made_up) == []  # another version draws other bytes


def test_the_page_about_the_paper_says_what_readme_says(make, tmp_path: Path, monkeypatch) -> None:
    page = tmp_path / "paper.html"
    monkeypatch.setattr("sys.argv", ["make.py", "--page", str(page)])
    make.main()
    assert make.tables.finding(make.Results()) in words(page.read_text())


def test_every_file_and_every_table_is_published(make) -> None:
    known = {f"{name}{kind}" for name in make.tables.TASKS for kind in ("", "-pull", "-horizon", "-untuned")}
    assert {file.stem for file in FILES} <= known | set(make.tables.FINE_TUNED)
    text = "".join(page.read_text() for page in make.PAGES)
    assert {name for name in make.BLOCKS if f"{make.MARKER}{name} -->" not in text} == set()


def test_an_unknown_table_is_one_line(make, made_up) -> None:
    with pytest.raises(ValueError, match="no table called 'scorse'"):
        make.filled("<!-- results: scorse -->\n<!-- end -->", made_up)


def test_figures_are_drawn_from_the_files_the_same_each_time(make, made_up, tmp_path: Path) -> None:
    drawn = make.figures.draw(made_up, tmp_path)
    assert [path.name for path in drawn] == [
        "results_horizon.svg",
        "results_curves.svg",
        "results_untuned.svg",
        "results_finetune.svg",
    ]
    first = [path.read_bytes() for path in drawn]
    assert [path.read_bytes() for path in make.figures.draw(made_up, tmp_path)] == first
