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
        '"x0": anchor.clone(memory_format=torch.preserve_format) if anchor is p else anchor',
        '"x0": anchor.detach()',
    ),
    "only the last group advances": (
        "_anchored.py",
        "ks = next_step_numbers(group, params, steps)\n",
        ("ks = next_step_numbers(group, params, steps)\n"
        "            if group is not self.param_groups[-1]:\n"
        "                [step.sub_(1) for step in steps]\n"),
    ),
    "momentum means c": (
        "_numbers.py",
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
        "y.lerp_(x0 if x0.dtype == dtype else x0.to(dtype), like(c, y))",
        "y.mul_(1 - like(c, y)).add_(x0.to(dtype) * like(c, y))",
    ),
    "the first step counts twice": (
        "_anchored.py",
        "                state.update(self._new_state(p, group))\n",
        "                state.update(self._new_state(p, group))\n                state['step'] += 1\n",
    ),
    "s in the dtype of a half-precision parameter": (
        "_anchored.py",
        "dtype=HALF.get(p.dtype, p.dtype)",
        "dtype=p.dtype",
    ),
    "k counts from one": (
        "_mda.py",
        "list(map(math.sqrt, ks))",
        "[math.sqrt(k + 1) for k in ks]",
    ),
    "the peak is not saved": (
        "_numbers.py",
        "        highest = lr\n        peak.fill_(lr)\n",
        "        highest = lr\n",
    ),
    "the fused kernel forgets weight decay": (
        "_fused.cpp",
        "if (DECAY) si = fma_(step.decayed, xi, si);",
        "",
    ),
    "the fused kernel multiplies and adds instead of lerp": (
        "_fused.cpp",
        "NEAR ? fma_(step.c, way, xi) : fma_(-rest, way, a)",
        "rest * xi + step.c * a",
    ),
    "half precision is rounded to the nearest": (
        "_kernels.py",
        "x.dtype in DIGITS and y.dtype == torch.float32",
        "False",
    ),
    "the fused kernel rounds to the nearest": (
        "_fused.cpp",
        "if constexpr (TURNS) y = in_turns(y, si, step.k, step.scale);",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_the_code(name: str) -> None:
    """In the quick suite, or a change of the code would leave the slow one behind."""
    file, original, mistake = MUTANTS[name]
    assert (PACKAGE / file).read_text().count(original) == 1, f"does not fit any more: {original}"
    assert original != mistake


def conformance(package_parent: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package_parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line"]
    return subprocess.run(
        [*command, TESTS / "test_conformance.py"],
        env=environment,
        cwd=TESTS.parents[1],
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
