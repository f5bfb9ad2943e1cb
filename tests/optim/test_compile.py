"""torch.compile(optimizer.step): one graph, the numbers of eager mode, and no recompilation as lr moves."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.cases import gradient, parameters
from support.versions import newer_torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

from dualavg import MDA, DualAveraging, schedules
from dualavg._dadapt import DAdaptMDA
from dualavg._reference import ReferenceMDA

# torch's own, as it imports its compiler
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

SETTINGS = {
    "mda": (MDA, {}),
    "mda-tensor-lr": (MDA, {"lr": torch.tensor(1.0, dtype=torch.float64)}),
    "mda-foreach": (MDA, {"foreach": True}),
    "mda-capturable": (MDA, {"capturable": True}),
    "da": (DualAveraging, {}),
    "dadapt": (DAdaptMDA, {"d0": 1e-3}),
    "dadapt-capturable": (DAdaptMDA, {"d0": 1e-3, "capturable": True}),
    "da-nesterov": (DualAveraging, {"scaling": "nesterov", "momentum": 0.9}),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()
    yield
    torch._dynamo.reset()


def run(
    cls: type[torch.optim.Optimizer],
    settings: dict[str, Any],
    transform: Callable[[Callable[[], Any]], Callable[[], Any]],
) -> list[torch.Tensor]:
    """50 steps of two groups under a scheduler that moves lr at every step; all numbers at the end."""
    a, b, c = parameters((5, 3), (7,), (1,))
    settings = {**settings, "lr": settings["lr"].clone()} if "lr" in settings else settings
    groups = [{"params": [a, b]}, {"params": [c], "momentum": 0.5, "weight_decay": 0.1}]
    if "lr" in settings:
        groups[1]["lr"] = settings["lr"].clone()
    optimizer = cls(groups, **settings)
    scheduler = schedules.WarmupLinearDecay(optimizer, warmup_steps=10, total_steps=50)
    step = transform(optimizer.step)
    for k in range(50):
        for p in (a, b, c):
            p.grad = gradient(p, k)
        step()
        scheduler.step()
    state = [value for p in (a, b, c) for value in optimizer.state[p].values()]
    remembered = (g[key] for g in optimizer.param_groups for key in ("peak_lr", "estimate") if key in g)
    return [a.detach(), b.detach(), c.detach(), *state, *remembered]


@newer_torch  # of 2.6, a scheduler around step breaks the graph
@pytest.mark.parametrize("name", SETTINGS)
def test_a_compiled_step_equals_eager_and_is_not_recompiled_as_lr_moves(name: str) -> None:
    cls, settings = SETTINGS[name]
    eager = run(cls, settings, lambda step: step)
    counter = CompileCounterWithBackend("inductor")
    compiled = run(cls, settings, lambda step: torch.compile(step, backend=counter))
    for left, right in zip(eager, compiled, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)

    # It is one graph with all operations of the step; the only breaks are those of torch's wrapper of step().
    assert counter.op_count > 20
    assert all("torch._dynamo" in reason for reason in counters["graph_break"]), counters["graph_break"]
    compilations = [m for m in get_compilation_metrics() if m.co_name == "step"]
    recompilations = [m.recompile_reason for m in compilations if m.recompile_reason]
    assert len(compilations) - len(recompilations) == 1
    # A tensor lr recompiles nothing. A float lr does so once: when dynamo first sees it change, it makes it
    # an input of the graph, which the other 48 steps use.
    assert len(recompilations) == (0 if "lr" in settings else 1), recompilations


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_compiled_step_equals_the_reference(dtype: torch.dtype, foreach: bool) -> None:
    """Within four roundings per step, relative to the largest number so far, as in test_conformance.py."""
    (p,) = parameters((6, 5), dtype=dtype)
    reference = ReferenceMDA(p)
    optimizer = MDA([p], lr=torch.tensor(1.0, dtype=dtype), weight_decay=0.01, foreach=foreach)
    step = torch.compile(optimizer.step)
    for k in range(30):
        p.grad = gradient(reference.x[k].to(dtype), k)
        reference.step(p.grad, 1.0, 1 - 0.9, 0.01)
        step()
        size = max(t.abs().max() for t in (*reference.x, *reference.s))
        bound = 4 * (k + 1 + 10) * torch.finfo(dtype).eps * size
        assert (p.detach().double() - reference.x[k + 1]).abs().max() <= bound
        assert (optimizer.state[p]["s"].double() - reference.s[k]).abs().max() <= bound


@newer_torch
def test_a_compiled_step_of_a_fused_optimizer_is_one_graph() -> None:
    """Inductor fuses the for-loop's operations; the operator is for steps that are not compiled."""
    params, eager_params = (parameters((4, 3), (5,), dtype=torch.float32) for _ in range(2))
    compiled, eager = MDA(params, fused=True), MDA(eager_params, fused=True)
    step = torch.compile(compiled.step, backend="aot_eager")
    for k in range(3):
        for p, q in zip(params, eager_params, strict=True):
            p.grad = gradient(q, k)
            q.grad = p.grad.clone()
        step()
        eager.step()
    assert all("torch._dynamo" in reason for reason in counters["graph_break"]), counters["graph_break"]
    for p, q in zip(params, eager_params, strict=True):
        torch.testing.assert_close(p, q)
        assert compiled.state[p]["step"] == eager.state[q]["step"] == 3


def test_bf16_compiled_tracks_bf16_eager() -> None:
    ps, qs = (parameters((64, 8), dtype=torch.bfloat16) for _ in range(2))
    eager, compiled = MDA(ps), MDA(qs)
    step = torch.compile(compiled.step)
    for k in range(20):
        ps[0].grad = qs[0].grad = gradient(ps[0], k)
        eager.step()
        step()
    torch.testing.assert_close(ps[0], qs[0], rtol=2**-8, atol=0)
    assert compiled.state[qs[0]]["s"].dtype == torch.float32
    torch.testing.assert_close(eager.state[ps[0]]["s"], compiled.state[qs[0]]["s"])


def test_a_compiled_zero_first_step_changes_nothing() -> None:
    (p,) = parameters((10_000,), dtype=torch.float32)
    before = p.detach().clone()
    optimizer = MDA([p], lr=0.0, weight_decay=0.1)
    p.grad = torch.zeros_like(p)
    torch.compile(optimizer.step)()
    assert optimizer.state[p]["step"] == 1
    assert torch.equal(p, before)


def test_a_compiled_warm_up_from_lr_zero_keeps_its_anchor_in_float32() -> None:
    """As in eager mode: a first step at lr = 0 does not round."""
    p = torch.nn.Parameter(torch.tensor([1.0001, -2.3456]))
    start = p.detach().clone()
    optimizer = MDA([p], lr=torch.tensor(0.0), anchor_dtype=torch.bfloat16)
    step = torch.compile(optimizer.step, backend="eager")
    for lr in (0.0, 0.0, 1.0, 1.0):
        p.grad = torch.ones_like(p)
        optimizer.param_groups[0]["lr"].fill_(lr)
        step()
        assert torch.equal(optimizer.state[p]["x0"], start)
    assert not torch.equal(p, start)
