"""Runs that fail, optimizers that are named twice, studies of fewer optimizers than before."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.pretended_study import make_study, pretend
from support.tiny_study import Command, write_recipe

from dualavg_bench import commands, reproduction, terminal
from dualavg_bench.recipe import Grid
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.documents import read_document
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Summary
from dualavg_bench.study.failures import Failure, Incomplete, StudyFailed
from dualavg_bench.study.study import Study

BEST = {"mda": 1.0, "sgd": 0.9, "adam": 1.1}
GRIDS = {name: Grid(lr=(0.1, 1.0, 10.0), schedule=("linear",)) for name in BEST}


def failing(fails: Any, executed: list[RunSpec]) -> Any:
    """An executor of which some runs fail, as the executor reports it: when all others are done."""
    execute = pretend(BEST, executed)

    def run(specs: list[RunSpec]) -> list[RunResult]:
        done = execute([spec for spec in specs if not fails(spec)])
        lost = [Failure(spec, f"{spec.optimizer} raised OSError: no") for spec in specs if fails(spec)]
        if lost:
            raise StudyFailed(lost, done)
        return done

    return run


def specs_of(folder: Path) -> list[RunSpec]:
    study = make_study(folder, grids=GRIDS)
    return study.tuning({name: grid.points() for name, grid in GRIDS.items()})


def incomplete(folder: Path, fails: Any) -> tuple[Incomplete, list[RunSpec]]:
    executed: list[RunSpec] = []
    study = make_study(folder, grids=GRIDS)
    with pytest.raises(Incomplete) as raised:
        study.run(failing(fails, executed))
    assert read_document(study.out / "summary.json", Summary) == raised.value.summary
    return raised.value, executed


def test_an_optimizer_with_a_failed_tuning_run_has_no_result_and_the_others_are_confirmed(
    tmp_path: Path,
) -> None:
    error, executed = incomplete(
        tmp_path, lambda s: s.optimizer == "adam" and (s.point.lr, s.seed) == (10, 1)
    )
    summary = error.summary
    assert {s.optimizer for s in executed if s.test} == {"mda", "sgd"}
    assert set(summary.optimizers) == {"mda", "sgd"}
    assert {run.optimizer for run in summary.runs.values()} == {"mda", "sgd"}
    assert len(summary.comparisons) == 1
    (failure,) = summary.failures
    assert (failure.optimizer, failure.lr, failure.seed, failure.phase) == ("adam", 10, 1, "tune")
    assert "NO RESULT: adam, because 1 run failed (adam raised OSError: no)" in summary.verdict
    assert "1 run failed; finished runs are kept. Run the command again to retry it." in str(error)


def test_an_optimizer_with_a_failed_confirmation_keeps_its_tuning_and_has_no_score(tmp_path: Path) -> None:
    error, _ = incomplete(tmp_path, lambda s: s.optimizer == "sgd" and s.seed == 1001)
    entry = error.summary.optimizers["sgd"]
    assert entry.test is None
    assert entry.grid.points == 3
    assert [(pair.a, pair.b) for pair in error.summary.comparisons] == [("mda", "adam")]
    assert not [r for r in error.runs if r.optimizer == "sgd" and r.phase == "confirm"]


def test_if_all_confirmations_failed_the_tuning_is_reported(tmp_path: Path) -> None:
    error, _ = incomplete(tmp_path, lambda s: s.test)
    assert error.summary.verdict.startswith("No winner: nothing is confirmed yet.")
    assert error.summary.verdict.count("NO RESULT") == 3


def test_if_all_optimizers_failed_in_tuning_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(StudyFailed, match="3 runs failed") as raised:
        make_study(tmp_path, grids=GRIDS).run(failing(lambda s: s.point.lr == 1 and s.seed == 0, []))
    assert not isinstance(raised.value, Incomplete)
    assert not (tmp_path / "summary.json").exists()


def test_a_reason_is_printed_once_with_its_runs(tmp_path: Path) -> None:
    specs = specs_of(tmp_path)[:7]
    runs = [f"{spec.optimizer} at lr {spec.point.lr:g}, seed {spec.seed}" for spec in specs]
    failures = [Failure(spec, f"{run}: no") for spec, run in zip(specs, runs, strict=True)]
    failures.insert(1, Failure(specs[0], f"{runs[0]}: yes"))
    said = str(StudyFailed(failures)).splitlines()
    assert said[0].startswith("8 runs failed")
    assert said[1:] == [
        f"  {runs[0]}: no",
        f"    and 6 more alike: {runs[1]}; {runs[2]}; {runs[3]}; ...",
        f"  {runs[0]}: yes",
    ]


def test_at_most_ten_reasons_are_printed(tmp_path: Path) -> None:
    spec, *_ = specs_of(tmp_path)
    said = str(StudyFailed([Failure(spec, f"reason {i}") for i in range(12)])).splitlines()
    assert said[1:] == [*(f"  reason {i}" for i in range(10)), "  and 2 more reasons"]


@pytest.mark.parametrize("phase", ["tune", "confirm", "all"])
def test_the_table_has_a_row_for_an_optimizer_without_result(
    phase: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(spec: RunSpec) -> bool:
        return spec.test if phase == "all" else spec.optimizer == "sgd" and spec.test == (phase == "confirm")

    error, _ = incomplete(tmp_path, fails)
    terminal.announce(error.summary, Path("report.html"))
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.split()[:1] == ["sgd"]]
    assert "no result" in row
    assert "failed" in printed


# Commands


def test_a_study_with_a_failed_run_writes_its_page_and_exits_with_an_error(
    dualavg: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualavg_bench.report.study_page._figures", lambda *_: {})
    study = make_study(tmp_path / "lines-quick", grids=GRIDS)
    monkeypatch.setattr(Study, "of", lambda *_: study)
    execute = failing(lambda s: s.optimizer == "adam" and s.point.lr == 10, [])
    monkeypatch.setattr("dualavg_bench.commands.finished_runs", lambda _root, _name, specs: execute(specs))
    code, out, err = dualavg("study", "lines.py", "--out", tmp_path)
    assert code == 1
    assert "2 runs failed; finished runs are kept. Run the command again to retry them." in err
    assert "adam raised OSError: no" in err
    assert f"report: {tmp_path / 'lines-quick' / 'report.html'}" in out.replace("\n", "")
    page = (tmp_path / "lines-quick" / "report.html").read_text()
    assert "adam: no result." in page
    found = reproduction._attempt("lines", {"scale": "quick", "out": tmp_path})
    assert isinstance(found, commands.Finished)
    assert found.failed == "Runs failed: adam raised OSError: no."
    assert found.report == tmp_path / "lines-quick" / "report.html"


def test_an_optimizer_or_a_value_of_a_grid_given_twice_is_refused(dualavg: Command, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    code, _, err = dualavg("study", recipe, "--optimizers", "mda,sgd,mda", "--out", tmp_path / "out")
    assert (code, err) == (1, "dualavg: The optimizer mda is named more than once: name each once.")
    recipe.write_text(recipe.read_text().replace("(0.3, 1.0, 3.0)", "(0.3, 1.0, 1)"))
    code, _, err = dualavg("study", recipe, "--out", tmp_path / "out")
    assert code == 1
    assert "more than once" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["study", "cifar10"], ["reproduce"]], ids=" ".join)
def test_workers_and_scheduler_exclude_each_other(
    command: list[str], dualavg: Command, tmp_path: Path
) -> None:
    more = ("--workers", 2, "--scheduler", "tcp://127.0.0.1:9", "--out", tmp_path)
    code, out, err = dualavg(*command, *more)
    assert (code, out) == (1, "")
    assert "--workers starts processes, --scheduler uses those of a cluster: give only one." in err


@pytest.mark.parametrize("command", [["study"], ["run", "--lr", "1"]], ids=" ".join)
def test_without_data_the_error_names_the_option_and_the_files(
    command: list[str], dualavg: Command, tmp_path: Path
) -> None:
    code, _, err = dualavg(*command, "cifar10", "--scale", "mini", "--out", tmp_path)
    assert code == 1
    assert "At mini scale, --data DIR says where the data set is. DIR holds `" in err
    code, _, err = dualavg(*command, "cifar10", "--scale", "mini", "--out", tmp_path, "--data", tmp_path)
    assert "data_batch_1 is missing" in err
    assert "--data" not in err


# Another study in the same folder


def test_a_study_of_fewer_optimizers_keeps_the_summary_and_page_of_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = make_study(tmp_path, grids=GRIDS)
    summary, _ = whole.run(pretend(BEST, []))
    (tmp_path / "report.html").write_text("the page of three")
    again, _ = make_study(tmp_path, grids=GRIDS).run(pretend(BEST, []))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "summary.json"]
    assert again == summary
    two = make_study(tmp_path, grids={name: GRIDS[name] for name in ("mda", "sgd")})
    two.run(pretend(BEST, []))
    assert set(read_document(tmp_path / "summary.json", Summary).optimizers) == {"mda", "sgd"}
    assert read_document(tmp_path / "summary-adam,mda,sgd.json", Summary) == summary
    assert (tmp_path / "report-adam,mda,sgd.html").read_text() == "the page of three"
    terminal.announce(summary, tmp_path / "report.html", two.kept)
    kept = "summary-adam,mda,sgd.json and report-adam,mda,sgd.html"
    assert f"kept from an earlier study: {kept}" in " ".join(capsys.readouterr().out.split())


def test_another_recipe_of_the_same_name_keeps_the_summary_and_page_of_the_first(tmp_path: Path) -> None:
    first = make_study(tmp_path)
    summary, _ = first.run(pretend(BEST, []))
    (tmp_path / "report.html").write_text("the page of the first")
    other = replace(make_study(tmp_path), reference="other.py")
    other.run(pretend(BEST, []))
    assert [path.name for path in other.kept] == ["summary-lines.py.json", "report-lines.py.html"]
    assert read_document(other.kept[0], Summary) == summary
    assert "other.py" in read_document(tmp_path / "summary.json", Summary).command


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_file_as_out_is_refused(out: str, tmp_path: Path, dualavg: Command) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = dualavg("study", "cifar10", "--out", tmp_path / out)
    assert code == 1
    assert f"{tmp_path / 'file'} is a file: --out must be a folder" in err


def test_an_out_that_cannot_be_written_is_refused_before_anything_is_read(dualavg: Command) -> None:
    code, out, err = dualavg("study", "cifar10", "--out", "/proc/nosuch")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"dualavg: --out /proc/nosuch cannot be written to \(.+\)\.", err)


def test_the_command_to_run_it_again_names_optimizers_data_and_extension(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for data_given, extend, flags in (
        (False, True, ""),
        (True, True, " --data DIR"),
        (True, False, " --data DIR --no-extend"),
    ):
        summary, _ = replace(study, data_given=data_given).run(pretend(BEST, []), extend=extend)
        assert summary.command == f"dualavg study lines.py --scale quick --optimizers mda,sgd{flags}"


def test_the_number_of_workers_is_kept_when_all_runs_are_on_disk(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    assert study.run(pretend(BEST, []), workers=3)[0].times.workers == 3
    assert study.run(pretend(BEST, []), workers=None)[0].times.workers == 3
