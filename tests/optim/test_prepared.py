"""The kernel looks at tensors itself: it takes what is in order, and leaves the rest alone."""

import copy
import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import gradient, parameters, train
from torch import Tensor

from dualavg import MDA, DualAveraging, _anchored, _compiler, _fused


@pytest.fixture(autouse=True)
def kernel() -> None:
    """Every test here is about the kernel: on a machine without a compiler there is nothing to test."""
    if _fused.library() is None:
        pytest.skip("there is no C++ compiler here")


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step of a group could be prepared."""
    seen: list[bool] = []

    def spy(*args: Any) -> Any:
        found = _fused.prepare(*args)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(_anchored, "prepare", spy)
    return seen


class Named(torch.nn.Parameter):
    """A parameter of somebody's own class."""


def ordinary() -> list[Tensor]:
    return parameters((), (3,), (0, 2), (4, 5), (1, 7, 1), dtype=torch.float32)


@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        (torch.float32, {}),
        (torch.float32, {"anchor_dtype": torch.bfloat16}),
        (torch.float32, {"lr": torch.tensor(0.5)}),
        (torch.bfloat16, {}),
        (torch.float64, {}),
    ],
    ids=str,
)
def test_what_is_in_order_is_prepared_from_the_second_step(
    dtype: torch.dtype, how: Any, prepared: list[bool]
) -> None:
    params = parameters((), (3,), (0, 2), (4, 5), (1, 7, 1), dtype=dtype)
    train(MDA(params, fused=True, **how), range(3))
    assert prepared == [False, True, True]  # the first one makes the state


def test_so_is_plain_dual_averaging(prepared: list[bool]) -> None:
    train(DualAveraging(ordinary(), fused=True, average=False), range(2))
    assert prepared == [False, True]


def test_an_average_is_kept_the_other_way(prepared: list[bool]) -> None:
    train(DualAveraging(ordinary(), fused=True), range(2))
    assert prepared == []


def test_a_gap_in_the_gradients_is_no_hindrance(prepared: list[bool]) -> None:
    fast, slow = ordinary(), ordinary()
    a, b = MDA(fast, fused=True), MDA(slow, foreach=False)
    for k in range(4):
        for params, optimizer in ((fast, a), (slow, b)):
            for i, p in enumerate(params):
                p.grad = None if k == 2 and i % 2 else gradient(p.detach(), k)
            optimizer.step()
    assert prepared == [False, True, True, True]
    for p, q in zip(fast, slow, strict=True):
        assert torch.equal(p, q)
        assert a.state[p]["step"] == b.state[q]["step"]


def strided(p: Tensor, optimizer: MDA) -> None:
    p.data = torch.randn(5, 4).t()


def strided_gradient(p: Tensor, optimizer: MDA) -> None:
    p.grad = torch.ones(5, 4).t()


def sparse(p: Tensor, optimizer: MDA) -> None:
    p.grad = torch.eye(4, 5).to_sparse()


def strided_sum(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["s"] = torch.ones(5, 4).t()


def wide_counter(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["step"] = optimizer.state[p]["step"].double()


def wide_sum(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["s"] = optimizer.state[p]["s"].double()


def half_anchor(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["x0"] = optimizer.state[p]["x0"].half()


@pytest.mark.parametrize(
    "change", [strided, strided_gradient, sparse, strided_sum, wide_counter, wide_sum, half_anchor]
)
def test_what_is_out_of_order_goes_the_other_way(change: Any, prepared: list[bool]) -> None:
    torch.manual_seed(0)
    results = []
    for how in ({"fused": True}, {"foreach": False}):
        params = ordinary()
        optimizer = MDA(params, **how)
        train(optimizer, range(2))
        torch.manual_seed(1)
        for p in params:
            p.grad = torch.ones_like(p)
        change(params[3], optimizer)
        optimizer.step()
        results.append((params, optimizer))
    assert prepared == [False, True, False]
    (fast, a), (slow, b) = results
    for p, q in zip(fast, slow, strict=True):
        torch.testing.assert_close(p, q)
        assert a.state[p]["step"].item() == b.state[q]["step"].item() == 3


def test_somebody_s_own_class_goes_the_other_way(prepared: list[bool]) -> None:
    train(MDA([Named(torch.ones(3))], fused=True), range(3))
    assert prepared == [False] * 3


def test_dtypes_that_differ_go_the_other_way(prepared: list[bool]) -> None:
    params = [*parameters((3,), dtype=torch.float32), *parameters((3,), dtype=torch.float64)]
    train(MDA(params, fused=True), range(2))
    assert prepared == [False, False]


@pytest.mark.parametrize("wrong", ["gradient", "parameter", "sum"])
def test_what_is_wrong_is_said_and_nothing_changes(wrong: str) -> None:
    params = parameters((3,), (4,), dtype=torch.float32)
    optimizer = MDA([{"params": params[:1]}, {"params": params[1:]}], fused=True)
    train(optimizer, range(2))
    for p in params:
        p.grad = torch.ones_like(p)
    if wrong == "gradient":
        params[1].grad.data = torch.ones(5)
    elif wrong == "parameter":
        params[1].data = torch.ones(5)
    else:
        optimizer.state[params[1]]["s"] = torch.zeros(5)
    before = params[0].detach().clone(), copy.deepcopy(optimizer.state[params[0]])
    with pytest.raises(ValueError, match=r"0 of group 1"):
        optimizer.step()
    assert torch.equal(params[0], before[0])
    assert all(torch.equal(optimizer.state[params[0]][key], value) for key, value in before[1].items())


class Impostor:
    """Looks like a tensor to who asks for its insides only."""

    _cdata = 8


@pytest.mark.parametrize("how", [{"fused": True}, {}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("other", [Impostor(), torch.ones(5).untyped_storage(), np.ones((4, 5)), 1.0, None])
@pytest.mark.parametrize("key", ["x0", "s", "step"])
def test_a_state_that_is_no_tensor_is_said_and_nothing_changes(key: str, other: Any, how: Any) -> None:
    params = ordinary()
    optimizer = MDA(params, **how)
    train(optimizer, range(2))
    optimizer.state[params[3]][key] = other
    before = [p.detach().clone() for p in params]
    with pytest.raises(ValueError, match=rf"Parameter 3 of group 0 keeps a '{key}' that must be a tensor"):
        train(optimizer, range(2, 3))
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert optimizer.state[params[0]]["step"] == 2


@pytest.mark.parametrize("how", [{"fused": True}, {}, {"foreach": True}], ids=str)
def test_so_is_a_state_that_is_none(how: Any) -> None:
    params = ordinary()
    optimizer = MDA(params, **how)
    train(optimizer, range(2))
    optimizer.state[params[3]] = Impostor()
    with pytest.raises(ValueError, match=r"Parameter 3 of group 0 keeps an object of .*Impostor"):
        train(optimizer, range(2, 3))
    assert optimizer.state[params[0]]["step"] == 2


@pytest.mark.parametrize("functions", ["_LOOKS", "_OF_PYTHON"])
def test_a_torch_or_a_python_that_cannot_be_looked_into(
    functions: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Then Python does the looking, and the numbers are the same."""
    monkeypatch.setenv("DUALAVG_CACHE", str(tmp_path))
    monkeypatch.setattr(_compiler, functions, ("no_such_thing",))
    blind = _compiler._load(_compiler._build())
    fast, slow = ordinary(), ordinary()
    monkeypatch.setattr(_fused, "library", lambda: blind)
    train(MDA(fast, fused=True, weight_decay=0.1), range(5))
    train(MDA(slow, foreach=False, weight_decay=0.1), range(5))
    for p, q in zip(fast, slow, strict=True):
        assert torch.equal(p, q)


def test_numbers_that_numpy_made_are_taken_as_floats() -> None:
    results = []
    for how in ({"fused": True}, {"foreach": False, "fused": False}):
        params = ordinary()
        optimizer = MDA(params, weight_decay=0.1, **how)
        train(optimizer, range(2))
        optimizer.param_groups[0].update(weight_decay=np.float32(0.013), momentum=np.float32(0.8))
        train(optimizer, range(2, 4))
        assert type(optimizer.param_groups[0]["weight_decay"]) is float
        results.append(params)
    for p, q in zip(*results, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("ordinary_sum", [True, False])
def test_nothing_is_held_any_longer_than_the_look_takes(ordinary_sum: bool) -> None:
    params = ordinary()
    optimizer = MDA(params, fused=True)
    train(optimizer, range(2))
    for p in params:
        p.grad = torch.ones_like(p)
    if not ordinary_sum:
        strided_sum(params[3], optimizer)

    def references() -> list[int]:
        held = [x for p in params for x in (p, p.grad, optimizer.state[p], *optimizer.state[p].values())]
        return [sys.getrefcount(x) for x in held]

    before = references()
    for _ in range(10):
        assert (_fused.prepare(params, optimizer.state) is not None) == ordinary_sum
    assert references() == before


def hash_calls(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Let `what` run whenever a tensor is asked for its hash, which is Python's to answer."""

    def hashed(self: Tensor) -> int:
        what(self)
        return id(self)

    monkeypatch.setattr(Tensor, "__hash__", hashed)


def test_code_that_runs_while_the_kernel_looks_takes_nothing_away_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer = MDA(parameters(*50 * [(5,)], dtype=torch.float32), fused=True)
    train(optimizer, range(2))
    params, states = optimizer.param_groups[0]["params"], optimizer.state

    def rob(_: Tensor) -> None:
        params.clear()
        states.clear()
        gc.collect()

    hash_calls(monkeypatch, rob)
    _fused.prepare(params, states)
    assert not params


def test_what_was_looked_at_is_there_until_the_step_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large tensor's memory goes back to the system with its last owner: to write there is fatal."""
    first, second = (torch.nn.Parameter(torch.zeros(1 << 22)) for _ in range(2))
    optimizer = MDA([{"params": [first]}, {"params": [second]}], fused=True)
    for p in (first, second):
        p.grad = torch.ones_like(p)
    optimizer.step()

    def rob(p: Tensor) -> None:
        if p is second:
            for key in ("x0", "s", "step"):
                optimizer.state[first].pop(key, None)

    state = optimizer.state[first]
    monkeypatch.setattr(optimizer, "state", {first: state, second: optimizer.state[second]})
    hash_calls(monkeypatch, rob)
    optimizer.step()
    assert not state
    assert first.detach().unique().numel() == 1


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": False}], ids=str)
def test_an_interruption_while_the_kernel_looks_is_one(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    params = ordinary()
    optimizer = MDA(params, **how)
    train(optimizer, range(2))
    before = [p.detach().clone() for p in params]

    asked: list[Tensor] = []

    def interrupt(p: Tensor) -> None:
        asked.append(p)
        if len(asked) == 3:  # once: who swallows it goes on
            raise KeyboardInterrupt

    hash_calls(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))


def test_under_a_mode_of_torch_s_the_tensors_are_not_looked_into(prepared: list[bool]) -> None:
    """It may answer for them, and run anything while it does."""
    optimizer = MDA(ordinary(), fused=True)
    train(optimizer, range(2))
    with torch.device("cpu"):
        train(optimizer, range(2, 3))
    assert prepared == [False, True, False]


@pytest.mark.parametrize("key", ["x0", "s"])
def test_a_state_that_is_a_negative_view_is_none_of_the_kernel_s_business(key: str) -> None:
    optimizer = MDA(ordinary(), fused=True)
    train(optimizer, range(2))
    state = optimizer.state[optimizer.param_groups[0]["params"][3]]
    state[key] = torch._neg_view(state[key])
    assert _fused.prepare(optimizer.param_groups[0]["params"], optimizer.state) is None


def test_decay_at_lr_0_counts_as_in_the_for_loop() -> None:
    """Nothing times what is not finite is not a number."""
    sums = []
    for how in ({"fused": True}, {"foreach": False, "fused": False}):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = MDA([p], weight_decay=0.1, **how)
        p.grad = torch.ones(3)
        optimizer.step()
        with torch.no_grad():
            p[0] = torch.nan
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()
        sums.append(optimizer.state[p]["s"])
    torch.testing.assert_close(sums[0], sums[1], rtol=0, atol=0, equal_nan=True)
