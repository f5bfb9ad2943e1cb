"""The conformance table must catch each of these mistakes; several were made in public copies of MDA."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dualavg

PACKAGE = Path(dualavg.__file__).parent
TESTS = Path(__file__).parent

# name: file, the code, the mistake
MUTANTS = {
    # state and step
    "x0 is the parameter itself": (
        "_base.py",
        '"x0": p.clone(memory_format=torch.preserve_format)',
        '"x0": p.detach()',
    ),
    "only the last group advances": (
        "_base.py",
        "            if not params:\n",
        "            if not params or group is not self.param_groups[-1]:\n",
    ),
    "the first step counts twice": (
        "_base.py",
        "                state.update(self._new_state(p, group))\n",
        "                state.update(self._new_state(p, group))\n                state['step'] += 1\n",
    ),
    "s in the dtype of a half-precision parameter": (
        "_base.py",
        "dtype=SUM_DTYPES.get(p.dtype, p.dtype)",
        "dtype=p.dtype",
    ),
    "s is cast to the dtype of the parameter on load": (
        "_base.py",
        "                self.state[p] = state\n",
        "                pass\n",
    ),
    "no group is validated before the first is updated": (
        "_base.py",
        "                self._validate_group(i, group)",
        "                i == 0 and self._validate_group(i, group)",
    ),
    # the numbers of a step
    "momentum means c": (
        "_scalars.py",
        'lr, c, peak = group["lr"], 1 - group["momentum"], group["peak_lr"]',
        'lr, c, peak = group["lr"], group["momentum"], group["peak_lr"]',
    ),
    "the peak is not saved": (
        "_scalars.py",
        "        peak_lr = lr\n        peak.fill_(lr)\n",
        "        peak_lr = lr\n",
    ),
    "k counts from one": (
        "_scalars.py",
        "list(map(math.sqrt, ks))",
        "[math.sqrt(k + 1) for k in ks]",
    ),
    "the step is not counted": (
        "_scalars.py",
        "torch._foreach_add_(steps, _ONE, alpha=1.0)",
        "torch._foreach_add_(steps, _ONE, alpha=0.0)",
    ),
    # numbers as tensors: compiled and capturable steps
    "compiled: k counts from zero": (
        "_scalars.py",
        "(step.double() if p.dtype in (torch.float64, torch.complex128) else step) + 1\n",
        "(step.double() if p.dtype in (torch.float64, torch.complex128) else step) + 2\n",
    ),
    "compiled: c is not coupled": (
        "_scalars.py",
        "torch.where(lr > 0, ratio.clamp(max=1.0), 1.0)",
        "torch.where(lr > 0, c, 1.0)",
    ),
    "compiled: a product in the dtype of the gradient": (
        "_update.py",
        "out.add_(t.to(out.dtype) * like(a, out))",
        "out.add_(t * like(a, t))",
    ),
    # the for-loop
    "for-loop: weight decay is written into p.grad": (
        "_update.py",
        "_add_scaled_(s, x.clone() if differentiable else x, lam * weight_decay)",
        "g.add_(x, alpha=weight_decay)",
    ),
    "for-loop: maximize turns weight decay too": (
        "_update.py",
        "_add_scaled_(s, x.clone() if differentiable else x, lam * weight_decay)",
        "_add_scaled_(s, x.clone() if differentiable else x, (1 - 2 * maximize) * lam * weight_decay)",
    ),
    "for-loop: mul and add instead of lerp": (
        "_update.py",
        "            x.lerp_(x0, like(c, x))\n",
        "            x.mul_(1 - like(c, x)).add_(x0 * like(c, x))\n",
    ),
    "for-loop: half precision without dither": (
        "_update.py",
        "            if _needs_dither(x, y, c):\n                rounded",
        "            if False:\n                rounded",
    ),
    # multi-tensor
    "multi-tensor: forgets weight decay": (
        "_update.py",
        "_foreach_add_scaled_(ss, xs, [lam * weight_decay for lam in lams])",
        "pass",
    ),
    "multi-tensor: forgets maximize": (
        "_update.py",
        "[-lam for lam in lams] if maximize else lams",
        "lams",
    ),
    "multi-tensor: beta of the first parameter for all": (
        "_update.py",
        "_foreach_add_scaled_(ys, ss, [-(c / beta) for beta in betas])",
        "_foreach_add_scaled_(ys, ss, [-(c / columns[6][0]) for beta in betas])",
    ),
    "multi-tensor: buckets of several ages": (
        "_update.py",
        "else (lam, beta)",
        "else 0",
    ),
    "multi-tensor: half precision without dither": (
        "_update.py",
        "            if _needs_dither(x, y, c):\n                round_(y, s, x.dtype, k, c)\n",
        "",
    ),
    # the fused operator
    "fused: forgets weight decay": (
        "csrc/mda.cpp",
        "if (DECAY) si = std::fma(decay, xi, si);",
        "",
    ),
    "fused: forgets maximize": (
        "csrc/mda.cpp",
        "row.lambda = maximize ? -lambdas[i] : lambdas[i];",
        "row.lambda = lambdas[i];",
    ),
    "fused: mul and add instead of lerp": (
        "csrc/mda.cpp",
        "NEAR ? std::fma(c, difference, xi) : std::fma(-keep, difference, anchor)",
        "keep * xi + c * anchor",
    ),
    "fused: half precision without dither": (
        "csrc/mda.cpp",
        "if constexpr (DITHER) y = dithered(y, si, k, scale);",
        "",
    ),
    "fused: the step is not counted": (
        "csrc/mda.cpp",
        "*row.step += 1;",
        "",
    ),
    "fused: beta of the first parameter for all": (
        "csrc/mda.cpp",
        "row.pull = -(c / betas[i])",
        "row.pull = -(c / betas[0])",
    ),
    # a step size that is found
    "found lr: the bound has the wrong sign": (
        "_update.py",
        "_sum(h * (x0_.to(s.dtype) - wide_x))",
        "_sum(h * (wide_x - x0_.to(s.dtype)))",
    ),
    "found lr: d may fall": (
        "_dadapt.py",
        "d = larger(d, where(found > most, most, found))",
        "d = where(found > most, most, found)",
    ),
    "found lr: the first gradient counts twice": (
        "_dadapt.py",
        "where(g_count > 0, g_squares, 0.0) + h_squares",
        "g_squares + h_squares",
    ),
    "found lr: groups of smaller steps count as much in s": (
        "_dadapt.py",
        "total[2] += inverse * ss",
        "total[2] += ss",
    ),
    "found lr: the penalty is not in r": (
        "_update.py",
        "h = h.add(wide_x, alpha=sign * weight_decay)",
        "pass",
    ),
    "found lr: groups do not share a loaded estimate": (
        "_dadapt.py",
        "        super().__setstate__(state)\n        self._share_estimate()\n",
        "        super().__setstate__(state)\n",
    ),
    "found lr: the estimate survives a reset": (
        "_dadapt.py",
        'self.param_groups[0]["estimate"].zero_()',
        "pass",
    ),
    "fused: the penalty is not in r": (
        "csrc/mda.cpp",
        "const S h = DECAY ? std::fma(weight_decay, xi, gi) : gi;",
        "const S h = gi;",
    ),
    "fused: r forgets maximize": (
        "csrc/mda.cpp",
        "sums[0] += maximize ? -found.hd : found.hd",
        "sums[0] += found.hd",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_the_code(name: str) -> None:
    """In the quick suite, so that a change of the code does not silently disable a mutant."""
    file, original, mistake = MUTANTS[name]
    assert (PACKAGE / file).read_text().count(original) == 1, f"is not in the code: {original}"
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
    print(done.stdout.splitlines()[-3:])  # noqa: T201 - the property that caught it, with pytest -rP


@pytest.mark.slow
def test_the_unchanged_code_passes_in_the_same_way(tmp_path: Path) -> None:
    """Otherwise something other than the mistake would make the table fail."""
    shutil.copytree(PACKAGE, tmp_path / "dualavg", ignore=shutil.ignore_patterns("__pycache__"))
    done = conformance(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check = [sys.executable, "-c", "import dualavg; print(dualavg.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    where = subprocess.run(check, env=environment, capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) in where
