"""A run's name covers the code its numbers come from."""

import sys

import pytest

from dualavg_bench import sources

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
    before = sources.digest(project / "recipe.py")
    assert sources.digest(project / "recipe.py") == before
    with (project / name).open("a") as file:
        file.write("# another\n")
    assert sources.digest(project / "recipe.py") != before


def test_what_a_recipe_does_not_import_changes_nothing(project):
    before = sources.digest(project / "recipe.py")
    (project / "my_project" / "unused.py").write_text("X = 1\n")
    assert sources.digest(project / "recipe.py") == before


def test_where_a_recipe_lies_changes_nothing(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "other_name.py"
    elsewhere.write_text(RECIPE)
    assert sources.digest(elsewhere) == sources.digest(project / "recipe.py")


def test_the_loop_the_optimizer_and_the_reader_are_covered(project, monkeypatch):
    followed = set()
    find = sources._find
    monkeypatch.setattr(sources, "_find", lambda name: followed.add(name) or find(name))
    sources.digest(project / "recipe.py")
    ours = {"dualavg._kernels", "dualavg.schedules", "dualavg_bench.optimizers", "dualavg_bench.data.cifar"}
    assert ours <= followed
    assert find("torch.nn") is None
    assert "my_project.layers" in followed


def test_nothing_is_executed(tmp_path):
    (tmp_path / "recipe.py").write_text("raise SystemExit\nimport torch\n")
    assert sources.digest(tmp_path / "recipe.py")
