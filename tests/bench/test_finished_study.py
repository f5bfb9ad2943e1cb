"""What the command line makes of finished runs: the page, the table, TensorBoard."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
from support import two_scores
from support.synthetic_runs import renamed, study, summarize
from support.tiny_study import Command, write_recipe

from dualavg_bench.analysis.verdict import verdict
from dualavg_bench.store.documents import read_document, write_document
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import PassageSample, RunResult
from dualavg_bench.store.summaries import Summary


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny study, run without workers."""
    from dualavg_bench.run import training
    from dualavg_bench.study.study import Study

    root = tmp_path_factory.mktemp("finished")
    folder = root / "spirals-quick"
    study = Study.of(str(write_recipe(root, steps=30)), "quick", root, root / "data")

    def execute(specs):
        folders = [RunFolder.of(folder, "spirals", spec.hash) for spec in specs]
        return [
            training.run(spec, study.recipe, place, root) for spec, place in zip(specs, folders, strict=True)
        ]

    study.run(execute, extend=False)
    return folder


# The page


def test_report_is_made_again_from_the_runs(dualavg: Command, finished: Path) -> None:
    code, out, err = dualavg("report", finished)
    assert code == 0, err
    assert out.strip() == str(finished / "report.html")
    assert "spirals" in (finished / "report.html").read_text()


def test_report_compares_studies_on_one_page(dualavg: Command, finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / finished.name
    other.mkdir(parents=True)
    summary = json.loads((finished / "summary.json").read_text())
    reversed_hashes = re.sub(r'"[0-9a-f]{16}"', lambda name: f'"{name[0][1:-1][::-1]}"', json.dumps(summary))
    (other / "summary.json").write_text(reversed_hashes)
    code, out, err = dualavg("report", "--compare", finished, other)
    assert code == 0, err
    assert out.strip() == str(finished / "compare.html")
    page = (finished / "compare.html").read_text()
    for folder in (finished, other):  # of one name: told apart by what they lie in
        assert f"spirals (quick), {folder.parent.name}/spirals-quick" in page


def test_report_of_a_summary_is_written_beside_it(dualavg: Command, finished: Path, tmp_path: Path) -> None:
    dualavg("report", finished)
    file = tmp_path / "spirals.json"
    shutil.copy(finished / "summary.json", file)
    code, out, err = dualavg("report", file)
    assert (code, err, out.strip()) == (0, "", str(tmp_path / "spirals.html"))
    # The recipe has no samples, so nothing is lost without its runs.
    assert (tmp_path / "spirals.html").read_text() == (finished / "report.html").read_text()
    code, out, err = dualavg("report", finished / "summary.json")
    assert (code, err, out.strip()) == (0, "", str(finished / "report.html"))


def test_report_compares_summaries_with_folders(dualavg: Command, finished: Path, tmp_path: Path) -> None:
    summary = (finished / "summary.json").read_text()
    file = tmp_path / "other.json"
    file.write_text(re.sub(r'"[0-9a-f]{16}"', lambda name: f'"{name[0][1:-1][::-1]}"', summary))
    code, out, err = dualavg("report", "--compare", file, finished)
    assert (code, err, out.strip()) == (0, "", str(tmp_path / "compare.html"))
    page = (tmp_path / "compare.html").read_text()
    assert "spirals (quick), other.json" in page
    assert "spirals (quick), spirals-quick" in page


def test_report_needs_runs_for_samples_only(dualavg: Command, tmp_path: Path) -> None:
    runs = study()
    passage = PassageSample(given="x", truth="y", made="what the network made of it")
    runs = [run.model_copy(update={"samples": [passage] if run.phase == "confirm" else []}) for run in runs]
    summary = summarize(runs)
    write_document(tmp_path / "summary.json", summary)
    for run in runs:
        RunFolder.of(tmp_path, summary.recipe, run.hash).finish(run)
    page = tmp_path / "report.html"
    assert dualavg("report", tmp_path)[0] == 0
    assert passage.made in page.read_text()
    shutil.rmtree(tmp_path / "runs")
    code, _, err = dualavg("report", tmp_path)
    assert (code, err) == (0, "")
    assert passage.made not in page.read_text()
    assert "<h2>Training</h2>" in page.read_text()


@pytest.mark.parametrize("more", [[], ["--compare"]])
def test_a_page_that_cannot_be_written_is_a_one_line_error(
    more: list[str], dualavg: Command, finished: Path, tmp_path: Path
) -> None:
    file = tmp_path / "spirals.json"
    shutil.copy(finished / "summary.json", file)
    page = tmp_path / ("compare.html" if more else "spirals.html")
    page.mkdir()
    code, out, err = dualavg("report", file, *more)
    assert (code, out) == (1, "")
    assert err == f"dualavg: {page} cannot be written (Is a directory)."


def test_report_does_not_compare_a_study_with_itself(dualavg: Command, finished: Path) -> None:
    code, _, err = dualavg("report", "--compare", finished, finished)
    assert code == 1
    assert (
        err
        == "dualavg: spirals-quick and spirals-quick are the same study, with the same runs: name it once."
    )


@pytest.mark.parametrize("flags", [[], ["--compare"]], ids=["alone", "compared"])
def test_a_summary_that_lacks_a_field_raises_a_one_line_error(
    flags: list[str], dualavg: Command, finished: Path, tmp_path: Path
) -> None:
    file = tmp_path / "summary.json"
    complete = json.loads((finished / "summary.json").read_text())
    required = {name for name, field in Summary.model_fields.items() if field.is_required()}
    assert len(required) > 20
    for field in required - {"format"}:
        file.write_text(json.dumps({name: value for name, value in complete.items() if name != field}))
        code, _, err = dualavg("report", tmp_path, *flags)
        assert code == 1, field
        remedy = "run the study's command again to write it anew."
        assert err == f"dualavg: {file} is damaged ({field}: field required): {remedy}"


# The table


def announced(runs: list[RunResult], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the end of a study prints, up to the verdict."""
    from dualavg_bench import terminal

    summary = summarize(runs)
    terminal.announce(summary, Path("report.html"))
    return capsys.readouterr().out.partition(summary.verdict[:20])[0].splitlines()


def test_the_table_goes_from_best_to_worst_in_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualavg_bench.terminal.console._width", 80)
    long = "schedulefree.AdamWScheduleFree"
    names = {"mda": "z.Lion", "sgd": long, "adam": "adam"}
    runs = study(confirm_diverges={("adam", 1003)}, schedule="inverse_sqrt")
    lines = announced(renamed(runs, names), capsys)
    assert max(map(len, lines)) <= 80
    rows = [re.split(r"  +", line.strip()) for line in lines if " ± " in line]
    assert rows[0] == ["optimizer", "mean ± s.e.", "n", "loss", "lr", "decay", "schedule", "remarks"]
    assert [row[0] for row in rows[1:]] == ["Lion", "AdamWScheduleFree", "adam"]
    scores = [row[1] for row in rows[1:]]
    assert len({len(part.partition(".")[2]) for score in scores for part in score.split(" ± ")}) == 1
    means = [float(score.split(" ± ")[0]) for score in scores]
    assert means == sorted(means, reverse=True)
    expected = {name: entry.train.mean for name, entry in summarize(runs).optimizers.items()}
    assert [float(row[3]) for row in rows[1:]] == pytest.approx(
        [expected[name] for name in ("mda", "sgd", "adam")], abs=1e-3
    )
    assert "test accuracy (%), last network" in " ".join(lines)
    assert "diverged" in " ".join(lines)


def test_the_table_has_remarks_only_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert "remarks" not in "".join(announced(study(), capsys))
    assert "remarks" in "".join(announced(study(confirm_diverges={("adam", 1003)}), capsys))


def test_two_scores_fit_into_eighty_columns_and_no_number_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualavg_bench.terminal.console._width", 80)
    names = ("mda", "adamw", "some.package.SGDTowardsStart")
    grid = dict.fromkeys(names, two_scores.GRID["a"])
    lines = announced(two_scores.runs(grid, spread=0.3, schedule="linear_warmup"), capsys)
    assert max(map(len, lines)) <= 80
    assert sum(line.count("50.00 ± 0.00") for line in lines) == 3
    assert "decay" in " ".join(lines)


def test_headline_and_each_caution_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    from dualavg_bench import terminal

    summary = summarize(study())  # the best step size of mda is at the end of its grid
    terminal.announce(summary, Path("report.html"))
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    found = verdict(summary)
    for part in (found.headline, found.evidence, *found.cautions, found.limits):
        assert any(part.startswith(line) for line in printed if line), part
    assert found.cautions


def test_the_table_keeps_two_optimizers_of_one_name_apart(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"mda": "a.Lion", "sgd": "b.Lion", "adam": "adam"}
    lines = announced(renamed(study(), names), capsys)
    assert {line.split()[0] for line in lines if " ± " in line} >= {"a.Lion", "b.Lion", "adam"}


# TensorBoard

with_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="pip install tensorboard"
)


@pytest.mark.parametrize("command", [["study", "cifar10"], ["run", "cifar10", "--lr", "1"]], ids=" ".join)
def test_a_missing_tensorboard_is_said_before_anything_runs(
    command: list[str], dualavg: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "tensorboard" else find(name, *more)
    )
    code, _, err = dualavg(*command, "--tensorboard")
    assert code == 1
    assert err == "dualavg: --tensorboard needs the tensorboard package: pip install tensorboard."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", [True, False])
def test_the_flag_arrives(flag: bool, dualavg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("dualavg_bench.report.tensorboard.require_tensorboard", lambda: None)
    monkeypatch.setattr("dualavg_bench.commands.run_study", lambda *_, **more: seen.append(more))
    monkeypatch.setattr("dualavg_bench.commands.run_one", lambda *_, **more: seen.append(more))
    more = ["--tensorboard"] if flag else []
    dualavg("study", "cifar10", *more)
    dualavg("run", "cifar10", "--lr", "1", *more)
    assert [call.get("tensorboard", False) for call in seen] == [flag, flag]


@with_tensorboard
def test_tensorboard_shows_every_curve_and_score_and_writes_them_once(finished: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from dualavg_bench.report.tensorboard import write_tensorboard

    runs = [read_document(path, RunResult) for path in finished.rglob("result.json")]
    for _ in range(2):
        write_tensorboard(runs, tmp_path)
    folders = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert len(folders) == len(runs)
    assert "mda-lr0.3-wd0-linear-seed0" in folders
    diverged = 0
    for run in runs:
        name = f"{run.optimizer}-lr{run.lr:g}-wd0-linear-seed{run.seed}"
        events = EventAccumulator(str(tmp_path / "tensorboard" / name)).Reload()
        for split, curve in (("train", run.train), ("valid", run.valid)):
            points = events.Scalars(f"loss/{split}") if curve.step else []
            assert [point.step for point in points] == curve.step
            assert [point.value for point in points] == pytest.approx(curve["loss"], rel=1e-6)
        (said,) = events.Scalars("final/diverged")
        diverged += said.value
        assert said.value == run.diverged
        if run.test is not None:
            (score,) = events.Scalars("final/test accuracy")
            assert score.value == pytest.approx(run.test["accuracy"], rel=1e-6)
            (best,) = events.Scalars("final/test_best accuracy")
            assert best.value == pytest.approx(run.test_best["accuracy"], rel=1e-6)
    assert diverged == 1


@with_tensorboard
def test_a_strange_name_stays_in_the_folder(finished: Path, tmp_path: Path) -> None:
    from dualavg_bench.report.tensorboard import write_tensorboard

    run = read_document(next(finished.rglob("result.json")), RunResult)
    write_tensorboard([run.model_copy(update={"optimizer": "../../evil name"})], tmp_path / "study")
    assert [path.name for path in tmp_path.iterdir()] == ["study"]
    (only,) = (tmp_path / "study" / "tensorboard").iterdir()
    assert only.name.startswith(".._.._evil_name-lr")
