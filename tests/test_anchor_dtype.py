"""anchor_dtype=torch.bfloat16: another starting point, the same method, two bytes less a parameter."""

import io

import pytest
import torch
from cases import parameters, train

from dualavg import MDA

BF16 = torch.bfloat16


def rounded(params: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(p.detach().to(BF16).to(p.dtype)) for p in params]


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_mda_from_the_rounded_start_bit_for_bit(how: dict[str, bool], dtype: torch.dtype) -> None:
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


def test_half_and_complex_parameters_keep_their_own_anchor() -> None:
    for dtype in (torch.float16, BF16, torch.complex64):
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


def test_reset_anchor_starts_anew_with_a_rounded_start() -> None:
    (p,) = parameters((40,), dtype=torch.float32)
    optimizer = MDA([p], anchor_dtype=BF16)
    train(optimizer, range(3))
    optimizer.reset_anchor()
    assert torch.equal(p, p.to(BF16).float())
    assert torch.equal(optimizer.state[p]["x0"].float(), p)
    assert optimizer.state[p]["x0"].dtype == BF16
