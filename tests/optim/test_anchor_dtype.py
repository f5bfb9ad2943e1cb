"""anchor_dtype=torch.bfloat16: another starting point, the same method, two bytes less a parameter."""

import copy
import io

import pytest
import torch
from support.cases import parameters, train

from dualavg import MDA

BF16 = torch.bfloat16


def rounded(params: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(p.detach().to(BF16).to(p.dtype)) for p in params]


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_it_is_mda_from_the_rounded_start_bit_for_bit(how: dict[str, bool]) -> None:
    dtype = torch.float32
    mine, theirs = parameters((9,), (5, 3), dtype=dtype), rounded(parameters((9,), (5, 3), dtype=dtype))
    gradients = [[torch.randn(p.shape, dtype=dtype) for p in mine] for _ in range(20)]
    for params, more in ((mine, {"anchor_dtype": BF16}), (theirs, {})):
        optimizer = MDA(params, weight_decay=0.01, **how, **more)
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = g
            optimizer.step()
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(p, q)


def test_the_anchor_takes_two_bytes_and_is_exact() -> None:
    (p,) = parameters((1000,), dtype=torch.float32)
    start = p.detach().clone()
    optimizer = MDA([p], anchor_dtype=BF16)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    x0 = optimizer.state[p]["x0"]
    assert x0.dtype == BF16
    assert torch.equal(x0, start.to(BF16))
    assert torch.equal(p, start.to(BF16).float())  # a step of nothing changes nothing but that
    state = optimizer.state[p]
    assert sum(t.numel() * t.element_size() for t in state.values() if t.numel() > 1) == 6 * p.numel()


def test_off_by_default() -> None:
    (p,) = parameters((5,), dtype=torch.float32)
    start = p.detach().clone()
    optimizer = MDA([p])
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(p, start)
    assert optimizer.state[p]["x0"].dtype == torch.float32


def test_a_parameter_with_history_is_never_rounded() -> None:
    (p,) = parameters((50,), dtype=torch.float32)
    old = MDA([p])
    train(old, range(3))
    here = p.detach().clone()
    new = MDA([p], anchor_dtype=BF16)
    new.load_state_dict(old.state_dict())
    new.param_groups[0]["anchor_dtype"] = BF16  # a group that changes its mind in mid-training
    p.grad = torch.zeros_like(p)
    x0 = new.state[p]["x0"].clone()
    new.step()
    assert new.state[p]["x0"].dtype == torch.float32
    assert torch.equal(new.state[p]["x0"], x0)
    assert not torch.equal(here, here.to(BF16).float())


def test_parameters_of_other_dtypes_keep_their_own_anchor() -> None:
    for dtype in (torch.float16, BF16, torch.complex64, torch.float64):
        (p,) = parameters((7,), dtype=dtype)
        start = p.detach().clone()
        optimizer = MDA([p], anchor_dtype=BF16)
        p.grad = torch.zeros_like(p)
        optimizer.step()
        assert optimizer.state[p]["x0"].dtype == dtype
        assert torch.equal(p, start)


def test_resume_is_bitwise_and_keeps_the_two_bytes() -> None:
    (p,), (q,) = (parameters((40,), dtype=torch.float32) for _ in range(2))
    whole, first = MDA([p], anchor_dtype=BF16), MDA([q], anchor_dtype=BF16)
    train(whole, range(10))
    train(first, range(5))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = MDA([q])
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.param_groups[0]["anchor_dtype"] == BF16
    assert second.state[q]["x0"].dtype == BF16
    train(second, range(5, 10))
    assert torch.equal(p, q)


def test_reset_anchor_leaves_the_weights_and_keeps_them_exactly() -> None:
    (p,) = parameters((40,), dtype=torch.float32)
    optimizer = MDA([p], anchor_dtype=BF16)
    train(optimizer, range(3))
    here = p.detach().clone()
    optimizer.reset_anchor()
    assert torch.equal(p, here)
    assert torch.equal(optimizer.state[p]["x0"], here)
    train(optimizer, range(3, 5))
    assert torch.equal(optimizer.state[p]["x0"], here)


@pytest.mark.parametrize("fused", [None, True])
def test_a_first_step_at_lr_zero_rounds_nothing_and_the_next_one_does(fused: bool | None) -> None:
    (p,), (q,) = (parameters((40,), dtype=torch.float32) for _ in range(2))
    start = p.detach().clone()
    optimizer = MDA([p], lr=0.0, anchor_dtype=BF16, fused=fused)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.step()
    assert torch.equal(p, start)
    assert optimizer.state[p]["x0"].dtype == torch.float32
    optimizer.param_groups[0]["lr"] = 0.5
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.equal(optimizer.state[p]["x0"], start.to(BF16))
    q.data = start.to(BF16).float()
    plain = MDA([q], lr=0.0, foreach=False)
    for lr, grad in ((0.0, 0.0), (0.0, 0.0), (0.5, 1.0)):
        plain.param_groups[0]["lr"] = lr
        q.grad = torch.full_like(q, grad)
        plain.step()
    torch.testing.assert_close(p, q)


def test_weights_loaded_after_a_step_at_lr_zero_are_left_alone() -> None:
    """What torch.distributed.checkpoint does: a step of nothing, then the state, on trained weights."""
    (p,), (q,) = (parameters((40,), dtype=torch.float32) for _ in range(2))
    old = MDA([p], anchor_dtype=BF16)
    train(old, range(5))
    q.data = p.detach().clone()
    new = MDA([q], anchor_dtype=BF16)
    new.param_groups[0]["lr"], q.grad = 0.0, torch.zeros_like(q)
    new.step()
    assert torch.equal(p, q)
    new.load_state_dict(old.state_dict())
    for optimizer in (old, new):
        train(optimizer, range(5, 8))
    assert torch.equal(p, q)
    assert new.state[q]["x0"].dtype == BF16


def test_what_would_overflow_keeps_a_float32_anchor() -> None:
    p = torch.nn.Parameter(torch.tensor([1.1, 3.4e38]))
    start = p.detach().clone()
    optimizer = MDA([p], anchor_dtype=BF16)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(p, start)
    assert torch.equal(optimizer.state[p]["x0"], start)


def waiting() -> tuple[torch.nn.Parameter, MDA]:
    """A parameter that has had its first step at lr 0."""
    (p,) = parameters((40,), dtype=torch.float32)
    optimizer = MDA([p], lr=0.0, anchor_dtype=BF16)
    p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.5
    return p, optimizer


def test_weights_loaded_after_a_step_at_lr_zero_are_left_alone_by_reset_anchor_too() -> None:
    p, optimizer = waiting()
    trained = torch.randn(40)
    p.data.copy_(trained)
    optimizer.reset_anchor()
    for _ in range(2):
        p.grad = torch.zeros_like(p)
        optimizer.step()
        assert torch.equal(p, trained)
    assert optimizer.state[p]["x0"].dtype == torch.float32


def test_a_run_that_began_at_lr_zero_resumes_bitwise() -> None:
    p, whole = waiting()
    q, first = waiting()
    second = MDA([q], lr=0.5, anchor_dtype=BF16)
    second.load_state_dict(first.state_dict())
    third = copy.deepcopy(second)
    for optimizer in (whole, second, third):
        train(optimizer, range(3))
    (r,) = third.param_groups[0]["params"]
    assert torch.equal(p, q)
    assert torch.equal(p, r)
    assert second.state[q]["x0"].dtype == whole.state[p]["x0"].dtype == BF16


def test_a_refused_step_rounds_nothing() -> None:
    p, q = parameters((40,), (3,), dtype=torch.float32)
    optimizer = MDA([{"params": [p]}, {"params": [q]}], lr=0.0, anchor_dtype=BF16)
    p.grad, q.grad = torch.zeros_like(p), torch.zeros_like(q)
    optimizer.step()
    start = p.detach().clone()
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    q.grad.data = torch.ones(4)
    with pytest.raises(ValueError, match="its gradient has another one"):
        optimizer.step()
    assert torch.equal(p, start)
