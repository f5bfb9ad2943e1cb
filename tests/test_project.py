"""What must hold of the project's own files."""

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINS = (ROOT / "constraints.txt").read_text()


def test_the_constraints_take_whichever_build_of_torch_is_at_hand_and_no_cuda_package() -> None:
    """`==2.13.0` matches 2.13.0+cpu; a local label in the pin would match nothing else."""
    assert re.search(r"^torch==[\d.]+$", PINS, re.MULTILINE)
    assert "+" not in re.sub(r"#.*", "", PINS)
    assert not re.search(r"^(nvidia|cuda|triton)", PINS, re.MULTILINE | re.IGNORECASE)


def test_the_constraints_leave_out_on_python_310_what_cannot_be_installed_there() -> None:
    pins = {}
    for line in re.findall(r"^[^#\n].*$", PINS, re.MULTILINE):
        pin = Requirement(line)
        pins[canonicalize_name(pin.name)] = pin.marker is None or pin.marker.evaluate(
            {"python_version": "3.10"}
        )
    assert {True, False} <= set(pins.values())
    for package in distributions():
        if pins.get(canonicalize_name(package.metadata["Name"])):
            needed = package.metadata.get("Requires-Python", "")
            assert SpecifierSet(needed).contains("3.10.13"), package.metadata["Name"]


def test_every_dependency_is_pinned() -> None:
    requirement = re.compile(r'^\s*"([A-Za-z0-9_-]+)(?:>=[\d.]+)?",', re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text().split("[tool.")[0]
    extras = project.split("[project.optional-dependencies]")[1]
    pinned = {line.split("==")[0].lower() for line in PINS.splitlines() if "==" in line}
    wanted = {name.lower() for name in requirement.findall(extras)}
    assert wanted, "no requirement found: the pattern does not fit pyproject.toml any more"
    assert wanted <= pinned


def test_the_library_needs_torch_alone() -> None:
    """In a process of its own: importing dualavg imports nothing but torch and what torch imports."""
    code = (
        "import sys, torch, torch.optim.lr_scheduler; before = set(sys.modules); import dualavg;"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["dualavg"]


def test_public_names_are_those_of_the_package() -> None:
    import dualavg

    assert dualavg.__all__ == ["MDA", "DualAveraging", "schedules", "theory"]
    assert (Path(dualavg.__file__).parent / "py.typed").exists()


def test_one_arrow_leads_from_the_benchmark_to_the_library() -> None:
    for file in (ROOT / "src" / "dualavg").glob("*.py"):
        assert "dualavg_bench" not in file.read_text(), file


def test_the_changelog_is_about_this_version() -> None:
    """A development version has no date; a released one has, and its tag is checked by release.yml."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    number, _, date = headings[1].partition(" - ")
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src" / "dualavg" / "__init__.py").read_text())
    assert version is not None
    released, _, development = version[1].partition(".dev")
    assert released == number
    assert re.fullmatch(r"not released yet" if development else r"\d{4}-\d\d-\d\d", date)


def test_the_sdist_has_no_data_and_no_environment() -> None:
    """It has what is listed, and always pyproject.toml, README.md and LICENSE."""
    section = (
        (ROOT / "pyproject.toml").read_text().split("[tool.hatch.build.targets.sdist]")[1].split("\n[")[0]
    )
    listed = [path for pattern in re.findall(r'"/(.+?)"', section) for path in ROOT.glob(pattern)]
    names = {path.relative_to(ROOT).parts[0] for path in listed}
    assert {"src", "tests", "docs", "Makefile", "CHANGELOG.md", "SECURITY.md"} <= names
    assert not names & {".venv", "out", "studies", "dist", "build", ".git"}
    assert ROOT / "results" / "mini" in listed
    assert not {ROOT / "results", ROOT / "results" / "unfinished"} & set(listed)


def test_classifiers_and_workflows_name_the_same_versions_of_python() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    classified = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    (tested,) = re.findall(
        r"Python \$\{\{ matrix.python \}\}, newest torch.*?python: \[(.*?)\]", workflow, re.DOTALL
    )
    assert re.findall(r"3\.\d+", tested) == classified
    assert f'requires-python = ">={classified[0]}"' in project
    oldest = re.search(r'"torch>=([\d.]+)"', project)
    assert oldest is not None
    assert f"torch=={oldest[1]}.0 " in workflow
