"""The command line: quick to answer, one line for every mistake, nothing done twice."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_study import TEMPLATE, Command, write_recipe

from dualavg_bench import cli
from dualavg_bench.__main__ import main

COMMANDS = ["study", "horizon", "demo", "reproduce", "run", "report", "recipes", "new"]
HEAVY = {"torch", "dask", "distributed", "pandas", "matplotlib", "scipy", "sklearn", "numpy", "pydantic"}


# Answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["--help"], ["study", "--help"], ["horizon", "--help"], ["--version"]], ids=" ".join
)
def test_help_answers_without_importing_anything_heavy(arguments: list[str]) -> None:
    script = f"""
import sys
from dualavg_bench import cli
from dualavg_bench.__main__ import main
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
    assert script.load() is main


def test_python_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dualavg_bench", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, importlib.metadata.version("dualavg"))


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [("cyclopts", ["--help"]), ("rich", ["--help"]), ("matplotlib", ["report", "."])],
)
def test_a_missing_package_of_the_extra_says_what_to_install(missing: str, arguments: list[str]) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None  # importing it raises ModuleNotFoundError
sys.argv = ["dualavg", *{arguments!r}]
from dualavg_bench.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    said = f"dualavg: the benchmark needs {missing}, which is missing: pip install 'dualavg[bench]'\n"
    assert done.stderr == said


def test_a_missing_module_of_our_own_is_a_traceback() -> None:
    script = (
        "import sys; sys.modules['dualavg_bench.cli'] = None; from dualavg_bench.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_recipes_lists_every_recipe_with_its_scales(dualavg: Command) -> None:
    from dualavg_bench.analysis import paper
    from dualavg_bench.recipes import builtin

    code, out, _ = dualavg("recipes")
    assert code == 0
    for name in builtin():
        assert name in out
    for scale in ("quick", "mini"):
        assert out.count(scale) >= len(builtin())
    assert len(re.findall(r"quick +embedded +[\d,]+ +[\d,]+( tokens)? +\d+ \w+", out)) == len(builtin())
    assert len(re.findall(r"paper +--data DIR +[\d,]+ +[\d,]+( tokens)? +not measured", out)) == len(
        paper.RECIPES
    )
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
    assert f"dualavg: {path} exists: choose another name." in err
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


def test_run_reports_a_divergence(dualavg: Command, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, steps=30)
    code, out, err = dualavg("run", recipe, "--optimizer", "sgd", "--lr", "1e9", "--out", tmp_path / "out")
    assert code == 0, err
    assert "diverged at step " in out
    assert "loss is" in out


# Mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], 'Unknown command "nosuch"'),
        (["study"], "requires an argument"),
        (["study", "cifar10", "--nosuch", "1"], "Unknown option: --nosuch"),
        (["study", "cifar10", "--scale", "huge"], "Choose from"),
        (["study", "cifar10", "--workers", "two"], 'unable to convert "two" into int'),
        (["study", "cifar10", "--workers", "0"], "Must be >= 1"),
        (["study", "cifar10", "--optimizers", "lion"], "Recipe cifar10 has no grid for 'lion'"),
        (["study", "nosuch"], "There is no recipe called 'nosuch': give a name that `dualavg recipes` lists"),
        (["study", "nosuch.py"], "There is no recipe at nosuch.py"),
        (["run", "cifar10"], "requires an argument"),
        (["run", "cifar10", "--lr", "high"], 'unable to convert "high" into float'),
        (["run", "cifar10", "--lr", "nan"], "--lr must be a number >= 0, got nan"),
        (["run", "cifar10", "--lr=-1"], "--lr must be a number >= 0, got -1.0"),
        (["run", "cifar10", "--lr", "1", "--weight-decay", "inf"], "--weight-decay must be a number >= 0"),
        (["run", "cifar10", "--lr", "1", "--optimizer", "lion"], "There is no optimizer called 'lion'"),
        (["run", "cifar10", "--lr", "1", "--optimizer", "no_pkg.Lion"], "install its package"),
        (["run", "TINY", "--lr", "1", "--schedule", "sine"], "There is no schedule called 'sine'"),
        (["run", "cifar10", "--lr", "1", "--scale", "mini", "--data", "nosuch"], "data_batch_1 is missing"),
        (["report"], "Name the folder of a study, or its summary."),
        (["report", "nosuch"], "There is no summary of a study at nosuch/summary.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_of_the_user_is_a_one_line_error(
    arguments: list[str],
    message: str,
    dualavg: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path)
    code, _, err = dualavg(*[str(recipe) if word == "TINY" else word for word in arguments])
    assert code in (1, 2)
    assert message in err
    assert "Traceback" not in err


def test_a_mistake_of_ours_keeps_its_traceback(dualavg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr("dualavg_bench.terminal.list_recipes", broken)
    with pytest.raises(ArithmeticError, match="a bug"):
        dualavg("recipes")


def test_ctrl_c_says_how_to_resume(dualavg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dualavg_bench.terminal.list_recipes", interrupted)
    code, _, err = dualavg("recipes")
    assert code == 130  # the shell's number for it
    assert "Run the command again to resume." in err
