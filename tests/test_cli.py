"""The command line: quick to answer, a sentence for every mistake, nothing done twice."""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import study
from tiny_study import TEMPLATE, write_recipe

from dualavg_bench import cli

COMMANDS = ["study", "demo", "reproduce", "run", "report", "recipes", "new"]
HEAVY = {"torch", "dask", "distributed", "pandas", "matplotlib", "scipy", "sklearn", "numpy"}

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dualavg(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code: Any = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code or 0
        captured = capsys.readouterr()
        if isinstance(code, str):  # what the interpreter does with it
            return 1, captured.out, captured.err + code
        return code, captured.out, " ".join(captured.err.replace("│", " ").split())

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny study, run without workers."""
    from dualavg_bench import runner
    from dualavg_bench.store import RunFolder
    from dualavg_bench.study import Study

    root = tmp_path_factory.mktemp("finished")
    folder = root / "spirals-quick"
    study = Study.of(str(write_recipe(root, steps=30)), "quick", folder, root / "data")

    def execute(specs):
        folders = [RunFolder.of(folder, "spirals", spec.hash) for spec in specs]
        return [
            runner.run(spec, study.recipe, place, root) for spec, place in zip(specs, folders, strict=True)
        ]

    study.run(execute, extend=False)
    return folder


# Answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["study", "--help"], ["--version"]], ids=" ".join)
def test_help_answers_without_importing_anything_heavy(arguments: list[str]) -> None:
    script = f"""
import sys
from dualavg_bench import cli
sys.argv = ["dualavg", *{arguments!r}]
try:
    cli.main()
except SystemExit as stopped:
    assert not stopped.code
print("heavy:", sorted({HEAVY!r} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert len(done.stdout.splitlines()) > 1


def test_help_names_every_command(dualavg: Command) -> None:
    code, out, _ = dualavg("--help")
    assert code == 0
    for command in COMMANDS:
        assert f" {command} " in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, dualavg: Command) -> None:
    code, out, _ = dualavg(command, "--help")
    assert code == 0
    assert f"dualavg {command}" in out
    function = getattr(cli, command)
    assert function.__doc__.splitlines()[0].split(":")[0][:40] in " ".join(out.split())


def test_every_option_is_explained(dualavg: Command) -> None:
    for command in COMMANDS:
        _, out, _ = dualavg(command, "--help")
        explained = [line for line in out.splitlines() if "--" in line and line.startswith("│")]
        for line in explained:
            assert len(line.strip("│ ").split()) > 2, line


def test_version_is_the_installed_one(dualavg: Command) -> None:
    code, out, _ = dualavg("--version")
    assert (code, out.strip()) == (0, importlib.metadata.version("dualavg"))


def test_the_installed_command_is_this_one() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="dualavg")
    assert script.load() is cli.main


def test_recipes_lists_every_recipe_with_its_scales(dualavg: Command) -> None:
    from dualavg_bench.recipes import builtin

    code, out, _ = dualavg("recipes")
    assert code == 0
    for name in builtin():
        assert name in out
    for scale in ("quick", "mini", "paper"):
        assert out.count(scale) >= len(builtin())
    assert len(re.findall(r"quick +embedded +[\d,]+ +\d+ +\d+ \w+", out)) == len(builtin())
    assert len(re.findall(r"paper +--data DIR +[\d,]+ +\d+ +not measured", out)) == len(builtin())
    said = " ".join(out.split())
    assert said.count("DIR holds `") == len(builtin())
    assert (
        "DIR holds `wikitext-103`, or `wikitext-2` for mini, with `wiki.{train,valid,test}.tokens`." in said
    )
    assert "Test perplexity of the paper" not in said  # the next paragraph
    assert max(map(len, out.splitlines())) <= 80


# Commands that write ------------------------------------------------------------------------------------


def test_new_writes_the_template_once(dualavg: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    code, out, _ = dualavg("new", path)
    assert code == 0
    assert f"dualavg study {path}" in out
    assert path.read_bytes() == TEMPLATE.read_bytes()
    path.write_text("my work")
    code, _, err = dualavg("new", path)
    assert code == 1
    assert f"dualavg: {path} is there already: choose another name." in err
    assert path.read_text() == "my work"


def test_new_refuses_what_is_no_python_file(dualavg: Command, tmp_path: Path) -> None:
    code, _, err = dualavg("new", tmp_path / "mine")
    assert code == 1
    assert "A recipe is a Python file" in err
    assert list(tmp_path.iterdir()) == []


def test_run_of_the_new_recipe_prints_a_result_and_does_nothing_twice(
    dualavg: Command, tmp_path: Path
) -> None:
    path, out_folder = tmp_path / "mine.py", tmp_path / "studies"
    dualavg("new", path)
    command = ("run", path, "--optimizer", "mda", "--lr", 3, "--seed", 1, "--out", out_folder)
    code, out, err = dualavg(*command)
    assert code == 0, err
    (result,) = out_folder.rglob("result.json")
    score = json.loads(result.read_text())["valid"]["accuracy"][-1]
    assert score > 80
    assert "validation after 400 steps: loss" in out
    assert f"accuracy {score:.5g}" in out
    written = result.stat().st_mtime_ns
    again = dualavg(*command)
    assert again == (0, out, "")
    assert result.stat().st_mtime_ns == written
    assert [path.name for path in result.parent.iterdir() if not path.name.startswith(".")] == ["result.json"]


def test_run_takes_an_optimizer_that_the_recipe_has_no_grid_for(dualavg: Command, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, steps=20)
    code, out, err = dualavg("run", recipe, "--optimizer", "adamw", "--lr", "0.01", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "validation after 20 steps" in out


def test_other_data_are_another_study(dualavg: Command, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, steps=20)
    text = recipe.read_text().replace("train=Spirals(2000", "train=Spirals(int((folder / 'n').read_text())")
    recipe.write_text(text)
    for n in (1000, 1500):
        data = tmp_path / str(n)
        data.mkdir()
        (data / "n").write_text(str(n))
        dualavg("run", recipe, "--lr", "1", "--out", tmp_path / "out", "--data", data)
    assert len(list((tmp_path / "out").rglob("result.json"))) == 2


def test_run_says_that_it_diverged(dualavg: Command, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, steps=30)
    code, out, err = dualavg("run", recipe, "--optimizer", "sgd", "--lr", "1e9", "--out", tmp_path / "out")
    assert code == 0, err
    assert "diverged at step " in out
    assert "loss is" in out


def test_report_is_made_again_from_the_runs(dualavg: Command, finished: Path) -> None:
    code, out, err = dualavg("report", finished)
    assert code == 0, err
    assert out.strip() == str(finished / "report.html")
    assert "spirals" in (finished / "report.html").read_text()


def test_report_compares_studies_on_one_page(dualavg: Command, finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / finished.name
    other.mkdir(parents=True)
    summary = json.loads((finished / "summary.json").read_text())
    summary["runs"] = {name[::-1]: run for name, run in summary["runs"].items()}
    (other / "summary.json").write_text(json.dumps(summary))
    code, out, err = dualavg("report", "--compare", finished, other)
    assert code == 0, err
    assert out.strip() == str(finished / "compare.html")
    page = (finished / "compare.html").read_text()
    for folder in (finished, other):  # of one name: told apart by what they lie in
        assert f"spirals (quick), {folder.parent.name}/spirals-quick" in page


def test_report_does_not_compare_a_study_with_itself(dualavg: Command, finished: Path) -> None:
    code, _, err = dualavg("report", "--compare", finished, finished)
    assert code == 1
    assert err == "dualavg: spirals-quick and spirals-quick are the same study, run for run: name it once."


def test_a_summary_that_lacks_something_gets_a_sentence(
    dualavg: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualavg_bench.report._figures", lambda *_: {})  # drawing takes most of the time
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    file = folder / "summary.json"
    whole = json.loads(file.read_text())
    optional = {"format", "budget", "packages", "command"}  # of the figures, or not in older ones
    cases = [({"runs", "optimizers"}, {"format": 1})]
    cases += [({key}, {k: v for k, v in whole.items() if k != key}) for key in whole.keys() - optional]
    for keys, damaged in cases:
        file.write_text(json.dumps(damaged))
        for more in ([], ["--compare"]):
            code, _, err = dualavg("report", folder, *more)
            assert code == 1, keys
            assert err.startswith(f"dualavg: {file} is not whole, ")
            assert re.search(r"the page needs '(\w+)'\. The study's command, given again, ", err)[1] in keys


def announced(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the end of a study prints, up to the verdict."""
    from dualavg_bench import display, stats

    summary = stats.summarize(runs)
    display.announce(display.Finished(summary, runs, Path("report.html")))
    return capsys.readouterr().out.partition(summary["verdict"][:20])[0].splitlines()


def test_the_table_goes_from_best_to_worst_in_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualavg_bench.display.console._width", 80)
    long = "schedulefree.AdamWScheduleFree"
    names = {"mda": "z.Lion", "sgd": long, "adam": "adam"}
    runs = [
        {**run, "optimizer": names[run["optimizer"]], "schedule": "inverse_sqrt"}
        for run in study(confirm_diverges={("adam", 1003)})
    ]
    lines = announced(runs, capsys)
    assert max(map(len, lines)) <= 80
    rows = [re.split(r"  +", line.strip()) for line in lines if " ± " in line]
    assert rows[0] == ["optimizer", "mean ± s.e.", "n", "lr", "decay", "schedule", "remarks"]
    assert [row[0] for row in rows[1:]] == ["Lion", "AdamWScheduleFree", "adam"]
    scores = [row[1] for row in rows[1:]]
    assert len({len(part.partition(".")[2]) for score in scores for part in score.split(" ± ")}) == 1
    means = [float(score.split(" ± ")[0]) for score in scores]
    assert means == sorted(means, reverse=True)
    printed = " ".join(" ".join(lines).split())
    assert "step size on" in printed  # all of a remark, over as many lines as it takes
    assert "diverged" in printed


def test_the_table_has_remarks_only_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    calm = [run for run in study() if run["optimizer"] != "mda"]  # it is mda that ends on the edge
    assert "remarks" not in "".join(announced(calm, capsys))
    assert "remarks" in "".join(announced(study(), capsys))


def test_the_table_keeps_two_optimizers_of_one_name_apart(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"mda": "a.Lion", "sgd": "b.Lion", "adam": "adam"}
    lines = announced([{**run, "optimizer": names[run["optimizer"]]} for run in study()], capsys)
    assert {line.split()[0] for line in lines if " ± " in line} >= {"a.Lion", "b.Lion", "adam"}


# Mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nosuch"], 'Unknown command "nosuch"'),
        (["study"], "requires an argument"),
        (["study", "cifar10", "--nosuch", "1"], "Unknown option: --nosuch"),
        (["study", "cifar10", "--scale", "huge"], "Choose from"),
        (["study", "cifar10", "--workers", "two"], 'unable to convert "two" into int'),
        (["study", "cifar10", "--workers", "0"], "Must be >= 1"),
        (["study", "cifar10", "--optimizers", "lion"], "Recipe cifar10 has no grid for 'lion'"),
        (["study", "nosuch"], "There is no recipe called 'nosuch': `dualavg recipes` lists them"),
        (["study", "nosuch.py"], "There is no recipe at nosuch.py"),
        (["run", "cifar10"], "requires an argument"),
        (["run", "cifar10", "--lr", "high"], 'unable to convert "high" into float'),
        (["run", "cifar10", "--lr", "nan"], "--lr must be a number >= 0, got nan"),
        (["run", "cifar10", "--lr=-1"], "--lr must be a number >= 0, got -1.0"),
        (["run", "cifar10", "--lr", "1", "--weight-decay", "inf"], "--weight-decay must be a number >= 0"),
        (["run", "cifar10", "--lr", "1", "--optimizer", "lion"], "There is no optimizer called 'lion'"),
        (["run", "cifar10", "--lr", "1", "--optimizer", "no_pkg.Lion"], "install its package"),
        (["run", "TINY", "--lr", "1", "--schedule", "cosine"], "There is no schedule called 'cosine'"),
        (["run", "cifar10", "--lr", "1", "--scale", "mini", "--data", "nosuch"], "data_batch_1 is missing"),
        (["report"], "Name the folder of a study."),
        (["report", "nosuch"], "There is no summary of a study at nosuch/summary.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gets_a_sentence(
    arguments: list[str],
    sentence: str,
    dualavg: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path)
    code, _, err = dualavg(*[str(recipe) if word == "TINY" else word for word in arguments])
    assert code in (1, 2)
    assert sentence in err
    assert "Traceback" not in err


def test_a_mistake_of_ours_keeps_its_traceback(dualavg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr("dualavg_bench.display.list_recipes", broken)
    with pytest.raises(ArithmeticError, match="a bug"):
        dualavg("recipes")


def test_ctrl_c_is_answered_with_how_to_go_on(dualavg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dualavg_bench.display.list_recipes", interrupted)
    code, _, err = dualavg("recipes")
    assert code == 130  # the shell's number for it
    assert "The same command goes on from here." in err


# TensorBoard ----------------------------------------------------------------------------------------------

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
    monkeypatch.setattr("dualavg_bench.sinks.require_tensorboard", lambda: None)
    monkeypatch.setattr("dualavg_bench.display.run_study", lambda *_, **more: seen.append(more))
    monkeypatch.setattr("dualavg_bench.display.run_one", lambda *_, **more: seen.append(more))
    monkeypatch.setattr("dualavg_bench.display.announce", lambda _: None)
    more = ["--tensorboard"] if flag else []
    dualavg("study", "cifar10", *more)
    dualavg("run", "cifar10", "--lr", "1", *more)
    assert [call.get("tensorboard", False) for call in seen] == [flag, flag]


@with_tensorboard
def test_tensorboard_shows_every_curve_and_score_and_writes_them_once(finished: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from dualavg_bench.sinks import write_tensorboard

    runs = [json.loads(path.read_text()) for path in finished.rglob("result.json")]
    for _ in range(2):
        write_tensorboard(runs, tmp_path)
    folders = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert len(folders) == len(runs)
    assert "mda-lr0.3-wd0-linear-seed0" in folders
    diverged = 0
    for run in runs:
        name = f"{run['optimizer']}-lr{run['lr']:g}-wd0-linear-seed{run['seed']}"
        events = EventAccumulator(str(tmp_path / "tensorboard" / name)).Reload()
        for split in ("train", "valid"):
            points = events.Scalars(f"loss/{split}") if run[split]["step"] else []
            assert [point.step for point in points] == run[split]["step"]
            assert [point.value for point in points] == pytest.approx(run[split]["loss"], rel=1e-6)
        (said,) = events.Scalars("final/diverged")
        diverged += said.value
        assert said.value == (run["status"] == "diverged")
        if run["test"] is not None:
            (score,) = events.Scalars("final/test accuracy")
            assert score.value == pytest.approx(run["test"]["accuracy"], rel=1e-6)
    assert diverged == 1


@with_tensorboard
def test_a_strange_name_stays_in_the_folder(finished: Path, tmp_path: Path) -> None:
    from dualavg_bench.sinks import write_tensorboard

    run = json.loads(next(finished.rglob("result.json")).read_text())
    write_tensorboard([{**run, "optimizer": "../../evil name"}], tmp_path / "study")
    assert [path.name for path in tmp_path.iterdir()] == ["study"]
    (only,) = (tmp_path / "study" / "tensorboard").iterdir()
    assert only.name.startswith(".._.._evil_name-lr")
