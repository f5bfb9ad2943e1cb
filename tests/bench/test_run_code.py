"""The code names a run: by what it does, not by its words, its layout or the place where it lies."""

import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import dualavg
from dualavg_bench.recipe import registry
from dualavg_bench.recipe.loading import load
from dualavg_bench.run.code import trace

RECIPE = '''"""A recipe."""

import os
import torch.nn
from my_project import network
from my_project.layers import WIDTH
from dualavg_bench.data import cifar

def width(factor=2):
    """Return a width."""
    return factor * WIDTH  # times three
'''

LAYERS = '''"""Layers."""
WIDTH = 3
"""Of a layer."""


def layer(width: int = WIDTH) -> dict:
    # A layer.
    return {"width": width, "name": "a layer", }
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's own package, of which a recipe imports a module, which imports another."""
    package = tmp_path / "my_project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "network.py").write_text("from . import layers\nfrom .blocks import Block\n")
    (package / "layers.py").write_text(LAYERS)
    (package / "blocks.py").write_text("class Block: ...\n")
    (package / "unused.py").write_text("UNUSED = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "recipe.py").write_text(RECIPE)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_project")]:
        del sys.modules[name]


def test_a_new_name_in_the_table_of_optimizers_keeps_the_names_of_runs() -> None:
    """The table fills in the spec, which a test of the study holds; its own text does not count."""
    _, path = load("cifar10", "quick")
    assert "dualavg_bench.recipe.optimizers" not in trace(path, [registry.module_of("mda")]).modules


def digest(project):
    return trace(project / "recipe.py").digest


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


SAME = {
    "comment of the recipe": ("recipe.py", "# times three", "# times WIDTH"),
    "docstring of a function": ("recipe.py", "Return a width.", "Width, doubled."),
    "docstring of a module": ("my_project/layers.py", '"""Layers."""\n', ""),
    "docstring of a constant": ("my_project/layers.py", "Of a layer.", "Three."),
    "comment of a module": ("my_project/layers.py", "# A layer.", "# One layer."),
    "format": ("my_project/layers.py", '"name": "a layer", }', '"name": "a layer"\n    }'),
    "quotes": ("my_project/layers.py", '"a layer"', "'a ' 'layer'"),
    "order of imports": ("recipe.py", "import os\nimport torch.nn\n", "import torch.nn\nimport os\n"),
    "a module that is not imported": ("my_project/unused.py", "UNUSED = 1", "UNUSED = 2"),
}


@pytest.mark.parametrize("change", SAME)
def test_words_and_layout_do_not_name_a_run(project, change):
    before = digest(project)
    assert digest(project) == before
    replace(project / SAME[change][0], *SAME[change][1:])
    assert digest(project) == before


OTHER = {
    "constant": ("my_project/layers.py", "WIDTH = 3", "WIDTH = 4"),
    "default": ("recipe.py", "factor=2", "factor=3"),
    "body": ("recipe.py", "factor * WIDTH", "factor + WIDTH"),
    "text": ("my_project/layers.py", '"a layer"', '"one layer"'),
    "imported name": ("my_project/network.py", "import Block", "import Block as B"),
    "imported package": ("recipe.py", "import torch.nn", "import torch.optim"),
    "a statement more": ("my_project/blocks.py", "class Block: ...", "class Block: ...\nX = 1"),
    "a syntax error": ("my_project/blocks.py", "class Block: ...", "class Block"),
}


@pytest.mark.parametrize("change", OTHER)
def test_other_code_is_another_run(project, change):
    before = digest(project)
    replace(project / OTHER[change][0], *OTHER[change][1:])
    assert digest(project) != before


def test_a_moved_module_changes_nothing(project):
    package = project / "my_project"
    (package / "__init__.py").write_text("NAME = 'mine'\n")
    before = digest(project)
    (package / "parts").mkdir()
    (package / "parts" / "__init__.py").write_text('"""Parts."""\n')
    shutil.move(package / "layers.py", package / "parts" / "layers.py")
    shutil.move(package / "blocks.py", package / "parts" / "towers.py")
    (package / "network.py").write_text("from .parts import layers\nfrom .parts.towers import Block\n")
    replace(project / "recipe.py", "my_project.layers", "my_project.parts.layers")
    assert digest(project) == before


def test_two_modules_that_change_places_are_another_run(project):
    package = project / "my_project"
    (package / "layers.py").write_text("SIZE = 3\n")
    (package / "blocks.py").write_text("SIZE = 4\n")
    (project / "recipe.py").write_text(
        "from my_project.layers import SIZE as wide\nfrom my_project.blocks import SIZE as deep\n"
    )
    before = digest(project)
    (package / "layers.py").write_text("SIZE = 4\n")
    (package / "blocks.py").write_text("SIZE = 3\n")
    assert digest(project) != before


def test_where_a_recipe_lies_changes_nothing(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "other_name.py"
    elsewhere.write_text(RECIPE)
    assert trace(elsewhere) == trace(project / "recipe.py")


def test_the_packages_around_a_users_module_count(project):
    before = digest(project)
    (project / "my_project" / "__init__.py").write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
    )
    assert digest(project) != before


RUN = {
    *(
        "run.data",
        "run.evaluation",
        "run.history",
        "run.machine",
        "run.outputs",
        "run.pretraining",
        "run.processes",
        "run.samples",
    ),
    *("run.spec", "run.training", "scales", "recipe", "recipe.data", "recipe.recipe", "recipe.registry"),
    *("recipe.samples", "recipe.schedules", "recipe.settings", "recipe.user_code"),
}
CIFAR10 = {"data.cifar", "data.embedded", "data.embedded.digits", "data.reading", "models.preact_resnet"}


def test_what_names_a_run_of_a_built_in_recipe_is_short_and_known():
    path = load("cifar10", "quick")[1]
    baseline = trace(path, [registry.module_of("sgd")])
    bench = {name.removeprefix("dualavg_bench.") for name in baseline.modules if "dualavg_bench" in name}
    assert bench == RUN | CIFAR10
    library = {"dualavg.schedules", "dualavg._schedule"}
    assert {*baseline.modules} - {f"dualavg_bench.{name}" for name in bench} == library
    assert baseline.packages.keys() == {"numpy", "scikit-learn", "torch"}


def test_a_run_of_mda_is_named_by_the_library_and_its_kernels_too():
    path = load("cifar10", "quick")[1]
    baseline, mda = (trace(path, [registry.module_of(name)]) for name in ("sgd", "mda"))
    further = {*mda.modules} - {*baseline.modules}
    assert {"dualavg._mda", "dualavg._fused"} <= further
    kernels = [*Path(dualavg.__file__).parent.rglob("*.cpp")]
    assert kernels
    assert {str(kernel) for kernel in kernels} <= further
    assert not {"dualavg", "dualavg._reference"} & further
    assert mda.packages == baseline.packages


def test_what_names_a_run_of_a_users_file_is_its_own_and_the_loop(project):
    found = trace(project / "recipe.py")
    bench = {name.removeprefix("dualavg_bench.") for name in found.modules if "dualavg_bench" in name}
    assert bench == RUN | {"data.cifar", "data.reading"}
    own = {"my_project", "my_project.network", "my_project.layers", "my_project.blocks"}
    assert {name for name in found.modules if "my_project" in name} == own
    assert found.packages["torch"] == version("torch")
    assert not found.packages.keys() & {"os", "my_project", "dualavg"}


def test_how_results_are_written_does_not_name_a_run(project):
    before = digest(project)
    (project / "recipe.py").write_text(f"{RECIPE}from dualavg_bench.store.files import StoreError\n")
    other = digest(project)
    assert other != before
    replace(project / "recipe.py", "dualavg_bench.store.files", "dualavg_bench.store.results")
    assert digest(project) == other
    assert not any(".store" in name for name in trace(project / "recipe.py").modules)


def test_an_optimizers_module_and_version_count(project):
    path = project / "recipe.py"
    alone, own = trace(path), trace(path, ["my_project.unused"])
    assert own.digest != alone.digest
    foreign = trace(path, [registry.module_of("madgrad.MADGRAD")])
    assert foreign.packages == alone.packages | {"madgrad": version("madgrad")}


def test_nothing_is_executed(project):
    (project / "my_project" / "__init__.py").write_text("raise SystemExit\n")
    (project / "recipe.py").write_text("raise SystemExit\nfrom my_project.layers import WIDTH\n")
    assert "my_project.layers" in trace(project / "recipe.py").modules
    assert "my_project" not in sys.modules


LOADED = [
    "importlib.util.spec_from_file_location('helper', Path(__file__).parent / 'helper.py')",
    "runpy.run_path(str(HERE / 'parts/helper.py'))",
    "exec(Path('helper.py').read_text())",
    "importlib.import_module('helper')",
    "__import__('helper')",
]


@pytest.mark.parametrize("line", LOADED)
def test_what_is_loaded_by_a_name_in_the_text_counts(line, project):
    folder = project / ("parts" if "parts/" in line else "")
    folder.mkdir(exist_ok=True)
    (folder / "helper.py").write_text("from my_project import blocks\nload('deeper.py')\n")
    (folder / "deeper.py").write_text("load('helper.py')\nWIDTH = 3\n")  # and back
    (project / "recipe.py").write_text(f"{line}\n")
    seen = [digest(project)]
    assert digest(project) == seen[0]
    for file in (folder / "helper.py", folder / "deeper.py", project / "my_project" / "blocks.py"):
        with file.open("a") as text:
            text.write("MORE = 1\n")
        seen.append(digest(project))
    assert len(set(seen)) == 4


def test_a_kernel_counts_without_its_comments(project):
    (project / "recipe.py").write_text("load('kernel.cpp')\n")
    kernel = project / "kernel.cpp"
    kernel.write_text('// Adds.\nint f() { return 1; }  /* one\n */ char *url = "http://x";\n')
    before = digest(project)
    kernel.write_text('int f() {\n  return 1; // the one\n}\nchar *url = "http://x";\n')
    assert digest(project) == before
    for old, new in {"return 1": "return 2", "http://x": "http://y"}.items():
        text = kernel.read_text()
        replace(kernel, old, new)
        assert digest(project) != before
        kernel.write_text(text)
