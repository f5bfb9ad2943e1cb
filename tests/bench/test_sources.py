"""A run's name covers the code its numbers come from."""

import sys
from importlib.metadata import version

import pytest

from dualavg_bench.run import code as sources

RECIPE = "import os\nimport torch.nn\nfrom my_project import network\nfrom dualavg_bench.data import cifar\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A person's own package, which a recipe imports a module of, which imports another."""
    package = tmp_path / "my_project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "network.py").write_text("from . import layers\nfrom .blocks import Block\n")
    (package / "layers.py").write_text("WIDTH = 3\n")
    (package / "blocks.py").write_text("class Block: ...\n")
    (package / "unused.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "recipe.py").write_text(RECIPE)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_project")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["recipe.py", "my_project/network.py", "my_project/layers.py"])
def test_another_text_is_another_experiment(project, name):
    before = sources.trace(project / "recipe.py")
    assert sources.trace(project / "recipe.py") == before
    with (project / name).open("a") as file:
        file.write("# another\n")
    assert sources.trace(project / "recipe.py") != before


def test_what_a_recipe_does_not_import_changes_nothing(project):
    before = sources.trace(project / "recipe.py")
    (project / "my_project" / "unused.py").write_text("X = 1\n")
    assert sources.trace(project / "recipe.py") == before


def test_where_a_recipe_lies_changes_nothing(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "other_name.py"
    elsewhere.write_text(RECIPE)
    assert sources.trace(elsewhere) == sources.trace(project / "recipe.py")


def test_the_loop_the_optimizer_and_the_reader_are_covered(project, monkeypatch):
    followed = set()
    find = sources._find
    monkeypatch.setattr(sources, "_find", lambda name: followed.add(name) or find(name))
    packages = sources.trace(project / "recipe.py").packages
    ours = {
        "dualavg._kernels",
        "dualavg.schedules",
        "dualavg_bench.recipe.registry",
        "dualavg_bench.data.cifar",
    }
    assert ours <= followed
    assert find("torch.nn")[0] is None
    assert "my_project.layers" in followed
    assert packages["torch"] == version("torch")
    assert packages.keys() >= {"numpy"}
    assert not packages.keys() & {"os", "my_project", "dualavg"}


def test_an_optimizer_s_module_and_version_are_covered(project):
    path = project / "recipe.py"
    alone, own = sources.trace(path), sources.trace(path, ["my_project.unused"])
    assert own.digest != alone.digest
    foreign = sources.trace(path, ["madgrad"])
    assert foreign.packages == alone.packages | {"madgrad": version("madgrad")}


def test_nothing_is_executed(tmp_path):
    (tmp_path / "recipe.py").write_text("raise SystemExit\nimport torch\n")
    assert sources.trace(tmp_path / "recipe.py")


LOADED = [
    "importlib.util.spec_from_file_location('helper', Path(__file__).parent / 'helper.py')",
    "runpy.run_path(str(HERE / 'parts/helper.py'))",
    "exec(Path('helper.py').read_text())",
    "importlib.import_module('helper')",
    "__import__('helper')",
]


@pytest.mark.parametrize("line", LOADED)
def test_what_is_loaded_by_a_name_in_the_text_is_covered(line, project):
    folder = project / ("parts" if "parts/" in line else "")
    folder.mkdir(exist_ok=True)
    (folder / "helper.py").write_text("from my_project import blocks\nload('deeper.py')\n")
    (folder / "deeper.py").write_text("load('helper.py')\nWIDTH = 3\n")  # and back
    (project / "recipe.py").write_text(f"{line}\n")
    seen = [sources.trace(project / "recipe.py")]
    assert sources.trace(project / "recipe.py") == seen[0]
    for file in (folder / "helper.py", folder / "deeper.py", project / "my_project" / "blocks.py"):
        with file.open("a") as text:
            text.write("# another\n")
        seen.append(sources.trace(project / "recipe.py"))
    assert len({code.digest for code in seen}) == 4
