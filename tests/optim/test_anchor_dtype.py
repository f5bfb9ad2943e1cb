"""anchor_dtype=torch.bfloat16: another starting point, the same method, two bytes less per parameter."""

import io

import pytest
import torch
from support.cases import parameters, train

from dualavg import MDA

BF16 = torch.bfloat16


def rounded(params: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(p.detach().to(BF16).to(p.dtype)) for p in params]


@pytest.mark.parametrize("kernel", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_it_is_mda_from_the_rounded_start_bit_for_bit(kernel: dict[str, bool]) -> None:
    dtype = torch.float32
    ours, theirs = parameters((9,), (5, 3), dtype=dtype), rounded(parameters((9,), (5, 3), dtype=dtype))
    gradients = [[torch.randn(p.shape, dtype=dtype) for p in ours] for _ in range(20)]
    for params, anchor in ((ours, {"anchor_dtype": BF16}), (theirs, {})):
        optimizer = MDA(params, weight_decay=0.01, **kernel, **anchor)
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = g
            optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
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
    uninterrupted, first = MDA([p], anchor_dtype=BF16), MDA([q], anchor_dtype=BF16)
    train(uninterrupted, range(10))
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
def test_a_first_step_at_lr_zero_keeps_a_float32_anchor(fused: bool | None) -> None:
    p, q = (parameters((40,), dtype=torch.float32)[0] for _ in range(2))
    start = p.detach().clone()
    optimizer = MDA([p], lr=0.0, anchor_dtype=BF16, fused=fused)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.equal(p, start)
    plain = MDA([q], lr=0.0, foreach=False, fused=False)
    q.grad = torch.ones_like(q)
    plain.step()
    for each in (optimizer, plain):
        each.param_groups[0]["lr"] = 0.5
        train(each, range(3))
    assert torch.equal(optimizer.state[p]["x0"], start)
    assert torch.equal(p, q)


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


def test_reset_anchor_after_a_step_at_lr_zero_leaves_loaded_weights_alone() -> None:
    (p,) = parameters((40,), dtype=torch.float32)
    optimizer = MDA([p], lr=0.0, anchor_dtype=BF16)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    trained = torch.randn(40)
    p.data.copy_(trained)
    optimizer.reset_anchor()
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert torch.equal(p, trained)
    assert optimizer.state[p]["x0"].dtype == torch.float32


def test_a_refused_step_rounds_nothing() -> None:
    p, q = parameters((40,), (3,), dtype=torch.float32)
    optimizer = MDA([{"params": [p]}, {"params": [q]}], anchor_dtype=BF16)
    start = p.detach().clone()
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    q.grad.data = torch.ones(4)
    with pytest.raises(ValueError, match=r"but its gradient has shape \(4,\)"):
        optimizer.step()
    assert torch.equal(p, start)
    assert not optimizer.state
