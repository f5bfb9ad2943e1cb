"""The variants of benchmarks/dadapt_choices.py change one thing each; without a change they are DAdaptMDA."""

import sys
from pathlib import Path

import pytest
import torch
from support.cases import gradient, parameters

from dualavg._dadapt import DAdaptMDA

ROOT = Path(__file__).parents[2]


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import dadapt_choices

    yield dadapt_choices
    sys.modules.pop("dadapt_choices")


def trajectory(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> torch.Tensor:
    for k in range(80):
        optimizer.param_groups[0]["lr"] = min(1.0, (k + 1) / 10, (80 - k) / 20)
        for p in params:
            p.grad = gradient(p, k)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in params])


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_unchanged_variant_is_dadapt_mda(choices, weight_decay: float) -> None:
    results = []
    for cls in (choices.Variant, DAdaptMDA):
        params = parameters((5, 3), (7,))
        results.append(trajectory(cls(params, d0=1e-3, weight_decay=weight_decay), params))
    assert torch.allclose(*results, rtol=0, atol=1e-12)


def test_every_choice_changes_the_result(choices) -> None:
    seen = []
    for settings in choices.CASES.values():
        params = parameters((5, 3), (7,))
        arguments = {**settings, "weight_decay": settings.get("decay", 0.0)}
        arguments.pop("decay", None)
        optimizer = choices.Variant(params, **arguments)
        lr = arguments.get("lr", 1.0)
        for k in range(300):
            optimizer.param_groups[0]["lr"] = lr * min(1.0, (k + 1) / 10)
            for p in params:
                p.grad = gradient(p, k)
            optimizer.step()
        result = torch.cat([p.detach().flatten() for p in params])
        assert not any(torch.equal(result, other) for other in seen)
        seen.append(result)


def test_a_finished_run_is_not_run_again_unless_its_code_changed(choices, tmp_path: Path) -> None:
    jobs = [choices.Job("quick", case, "cifar10", 0, tmp_path) for case in ("as it is", "lr 2")]
    study = choices._study(jobs[0], tmp_path)
    rows = [{"run": jobs[0].spec(study).hash}, {"run": "of other code"}]
    assert choices.missing(jobs, rows) == jobs[1:]
