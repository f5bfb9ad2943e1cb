"""What must hold of the project's own files."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINS = (ROOT / "constraints.txt").read_text()


def test_the_constraints_take_whichever_build_of_torch_is_at_hand_and_no_cuda_package() -> None:
    """`==2.13.0` matches 2.13.0+cpu; a local label in the pin would match nothing else."""
    assert re.search(r"^torch==[\d.]+$", PINS, re.MULTILINE)
    assert "+" not in re.sub(r"#.*", "", PINS)
    assert not re.search(r"^(nvidia|cuda|triton)", PINS, re.MULTILINE | re.IGNORECASE)


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
