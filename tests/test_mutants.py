"""The conformance table must catch each of these mistakes, most of them made in public copies of MDA."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dualavg

PACKAGE = Path(dualavg.__file__).parent
TESTS = Path(__file__).parent

# name: file, what stands there, what the mistake would be
MUTANTS = {
    "x0 is the parameter itself": (
        "_anchored.py",
        '"x0": p.clone(memory_format=torch.preserve_format)',
        '"x0": p.detach()',
    ),
    "only the last group advances": (
        "_anchored.py",
        "torch._foreach_add_(steps, 1)",
        "torch._foreach_add_(steps, int(group is self.param_groups[-1]))",
    ),
    "momentum means c": (
        "_anchored.py",
        'lr, c, peak = group["lr"], 1 - group["momentum"], group["peak_lr"]',
        'lr, c, peak = group["lr"], group["momentum"], group["peak_lr"]',
    ),
    "s is cast to the dtype of the parameter on load": (
        "_anchored.py",
        "                self.state[p] = state\n",
        "                pass\n",
    ),
    "weight decay is written into p.grad": (
        "_kernels.py",
        "_add_scaled_(s, x.clone() if differentiable else x, lam * weight_decay)",
        "g.add_(x, alpha=weight_decay)",
    ),
    "mul and add instead of lerp": (
        "_kernels.py",
        "y.lerp_(x0.to(dtype), like(c, y))",
        "y.mul_(1 - like(c, y)).add_(x0.to(dtype) * like(c, y))",
    ),
    "the first step counts twice": (
        "_anchored.py",
        "                state.update(self._new_state(p, group))\n",
        "                state.update(self._new_state(p, group))\n                state['step'] += 1\n",
    ),
    "s in the dtype of a half-precision parameter": (
        "_anchored.py",
        "dtype=_HALF.get(p.dtype, p.dtype)",
        "dtype=p.dtype",
    ),
    "k counts from one": (
        "_mda.py",
        "math.sqrt(k) for k in ks",
        "math.sqrt(k + 1) for k in ks",
    ),
    "the peak is not saved": (
        "_anchored.py",
        "    elif lr > peak.item():\n        peak.fill_(lr)\n",
        "    elif lr > peak.item():\n        peak = torch.full_like(peak, lr)\n",
    ),
}  # fmt: skip


def conformance(package_parent: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package_parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line"]
    return subprocess.run(
        [*command, TESTS / "test_conformance.py"],
        env=environment,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_conformance_table_catches(name: str, tmp_path: Path) -> None:
    file, original, mistake = MUTANTS[name]
    shutil.copytree(PACKAGE, tmp_path / "dualavg", ignore=shutil.ignore_patterns("__pycache__"))
    source = (tmp_path / "dualavg" / file).read_text()
    assert source.count(original) == 1, f"the mutant does not fit the code any more: {original}"
    (tmp_path / "dualavg" / file).write_text(source.replace(original, mistake))
    done = conformance(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    print(done.stdout.splitlines()[-3:])  # noqa: T201 - which property caught it: pytest -rP


@pytest.mark.slow
def test_the_unchanged_code_passes_in_the_same_way(tmp_path: Path) -> None:
    """Or the mutants above would be caught by something else than the table."""
    shutil.copytree(PACKAGE, tmp_path / "dualavg", ignore=shutil.ignore_patterns("__pycache__"))
    done = conformance(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check = [sys.executable, "-c", "import dualavg; print(dualavg.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    where = subprocess.run(check, env=environment, capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) in where
