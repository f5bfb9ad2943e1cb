"""CASES x properties: what every optimizer of the family must do, with every kernel."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from support.cases import (
    CASES,
    Case,
    all_params,
    assert_bitwise,
    gradient,
    parameters,
    snapshot,
    train,
)
from torch import Tensor

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_case_with_given_lr = pytest.mark.parametrize("case", [c for c in CASES if not c.finds_lr], ids=str)
TOLERANCE = {"rtol": 0.0, "atol": 1e-12}
pytestmark = pytest.mark.usefixtures("one_thread")


def two_groups(case: Case, dtype: torch.dtype = torch.float64, **changes: Any) -> torch.optim.Optimizer:
    """Two groups of different settings, with parameters of 0, 1, 2 and 4 dimensions."""
    a, b, c, d = parameters((), (7,), (5, 3), (2, 3, 4, 5), dtype=dtype)
    other = {"lr": torch.tensor(0.5, dtype=torch.float64) if "tensor_lr" in case.settings else 0.5}
    return case.make([{"params": [a, b]}, {"params": [c, d], "momentum": 0.7, **other}], **changes)


@every_case_with_given_lr
def test_equals_the_reference_at_every_step_in_float32(case: Case) -> None:
    """Within the rounding of float32: both get the same gradients, so that only the step's own errors count.

    A step rounds s at most four times (decay, gradient, and their weights), relative to the largest s so far.
    These errors add up over the steps, and x follows s / beta_k. A step rounds x at most four times too. Such
    an error decays by 1 - c per step, which adds up to 1 / c <= 10 of them.
    """
    optimizer = two_groups(case, torch.float32)
    references = case.references(optimizer)
    eps = torch.finfo(torch.float32).eps
    largest = dict.fromkeys(
        all_params(optimizer), (0.0, 0.0, 0.0)
    )  # |s|, (k+1) |s| / beta, |x| or |z| so far

    def shared_gradient(p: Tensor, k: int) -> Tensor:
        return gradient(references[p].x[k].float(), k)

    def feed_the_references(_: int) -> None:
        references.step(lambda p: p.grad)

    for k in range(100):
        train(optimizer, range(k, k + 1), gradient=shared_gradient, before_step=feed_the_references)
        for p in all_params(optimizer):
            reference = references[p]
            s, z, x = (t[-1].abs().max().item() for t in (reference.s, reference.z, reference.x))
            sizes = s, (k + 1) * s / reference.beta[k], max(x, z)
            largest[p] = s_size, z_size, x_size = tuple(map(max, largest[p], sizes))
            error_of_s = (optimizer.state[p]["s"].double() - reference.s[k]).abs().max()
            error_of_x = (p.detach().double() - reference.x[k + 1]).abs().max()
            assert error_of_s <= 4 * (k + 1) * eps * s_size
            assert error_of_x <= 4 * eps * z_size + 4 / 0.1 * eps * x_size


@every_case
def test_equals_the_reference_at_every_step(case: Case) -> None:
    optimizer = two_groups(case)
    references = case.references(optimizer)

    def compare_then_feed(k: int) -> None:
        for group in optimizer.param_groups:
            if k == 100:
                group["momentum"] *= 0.8
            for p in group["params"]:
                reference = references[p]
                torch.testing.assert_close(p.detach(), reference.x[k], **TOLERANCE)
                if k > 0:
                    state = optimizer.state[p]
                    torch.testing.assert_close(state["s"], reference.s[k - 1], **TOLERANCE)
                    torch.testing.assert_close(state["x0"], reference.x0, rtol=0, atol=0)
                    assert state["step"] == k
                    if "average" in state:
                        torch.testing.assert_close(state["average"], reference.average(), **TOLERANCE)
        references.step(lambda p: gradient(references[p].x[k], k))

    train(optimizer, range(200), before_step=compare_then_feed)
    for p in all_params(optimizer):
        torch.testing.assert_close(p.detach(), references[p].x[200], **TOLERANCE)


@every_case
def test_the_anchor_is_a_copy_that_never_changes(case: Case) -> None:
    optimizer = two_groups(case)
    start = [p.detach().clone() for p in all_params(optimizer)]
    train(optimizer, range(10))
    for p, x0 in zip(all_params(optimizer), start, strict=True):
        anchor = optimizer.state[p]["x0"]
        assert torch.equal(anchor, x0)
        assert anchor.untyped_storage().data_ptr() != p.untyped_storage().data_ptr()
        assert not torch.equal(p, x0)


@every_case
def test_every_group_advances(case: Case) -> None:
    optimizer = two_groups(case)
    train(optimizer, range(3))
    assert [optimizer.state[p]["step"].item() for p in all_params(optimizer)] == [3.0] * 4


@every_case
def test_grad_is_untouched(case: Case) -> None:
    optimizer = two_groups(case, weight_decay=0.1)
    train(optimizer, range(2))
    before = [(p.grad, p.grad._version, p.grad.clone()) for p in all_params(optimizer)]
    optimizer.step()
    for p, (grad, version, value) in zip(all_params(optimizer), before, strict=True):
        assert p.grad is grad
        assert grad._version == version
        assert torch.equal(grad, value)


@every_case
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_zero_first_step_changes_nothing(case: Case, weight_decay: float, dtype: torch.dtype) -> None:
    """As torch.distributed.checkpoint takes it: zero gradient, lr 0. And with lr > 0."""
    for lr_is_zero in (True, False):
        (p,) = parameters((10_000,), dtype=dtype)
        optimizer = case.make([p], weight_decay=weight_decay if lr_is_zero else 0.0)
        if lr_is_zero:
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros(()) if isinstance(group["lr"], Tensor) else 0.0
        before = p.detach().clone()
        p.grad = torch.zeros_like(p)
        optimizer.step()
        assert torch.equal(p, before)
        assert not optimizer.state[p]["s"].any()


@every_case
def test_state_is_tensors_keyed_by_parameters(case: Case) -> None:
    optimizer = two_groups(case)
    train(optimizer, range(2))
    assert set(optimizer.state) == set(all_params(optimizer))
    for state in optimizer.state.values():
        assert {"step", "x0", "s"} <= set(state)
        assert all(isinstance(value, Tensor) for value in state.values())


@every_case
def test_resume_is_bitwise(case: Case) -> None:
    """Through a file, safely loaded, in mid-run."""
    uninterrupted, first = two_groups(case), two_groups(case)
    train(uninterrupted, range(60))
    train(first, range(40))
    file = io.BytesIO()
    torch.save({"params": all_params(first), "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = two_groups(case)
    for p, value in zip(all_params(second), saved["params"], strict=True):
        p.data.copy_(value)
    second.load_state_dict(saved["optimizer"])
    train(second, range(40, 60))
    assert_bitwise(snapshot(second), snapshot(uninterrupted))


@every_case
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_is_independent_and_bitwise(case: Case, copied: Any) -> None:
    original = two_groups(case)
    train(original, range(30))
    twin = copied(original)
    frozen = snapshot(original)
    train(twin, range(30, 50))
    assert_bitwise(snapshot(original), frozen)
    train(original, range(30, 50))
    assert_bitwise(snapshot(twin), snapshot(original))


@every_case
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.float64)],
    ids=str,
)
def test_loading_onto_another_dtype_keeps_the_state(
    case: Case, saved: torch.dtype, loaded: torch.dtype
) -> None:
    old, new = two_groups(case, saved), two_groups(case, loaded)
    train(old, range(20))
    new.load_state_dict(old.state_dict())
    for p, q in zip(all_params(old), all_params(new), strict=True):
        for key, value in old.state[p].items():
            assert new.state[q][key].dtype == value.dtype
            assert torch.equal(new.state[q][key], value)
        assert new.state[q]["x0"].dtype == saved
        assert new.state[q]["s"].dtype == torch.float32
    train(new, range(20, 25))
    assert all(p.isfinite().all() for p in all_params(new))


@every_case
def test_half_precision_keeps_the_sum_in_float32_and_rounds_once(case: Case) -> None:
    # To one of the two neighbours of the exact x; test_rounding.py says to which.
    for half in (torch.bfloat16, torch.float16):
        (p,) = parameters((1000,), dtype=half)
        q = torch.nn.Parameter(p.detach().float())
        low, high = case.make([p]), case.make([q])
        for k in range(5):
            grad = gradient(p, k)
            p.grad, q.grad = grad, grad.float()
            q.data.copy_(p)  # so that both start the step at the same point
            low.step()
            high.step()
            unit = torch.finfo(half).eps * torch.exp2(torch.frexp(q.detach()).exponent - 1)
            assert ((p.detach() - q.detach()).abs() <= 1.001 * unit).all()
            assert torch.equal(low.state[p]["s"], high.state[q]["s"])
        assert low.state[p]["x0"].dtype == half
        assert low.state[p]["s"].dtype == torch.float32


@every_case_with_given_lr  # of any small gradient, a step size that is found makes large steps
def test_half_precision_follows_steps_below_its_resolution(case: Case) -> None:
    # Rounded to nearest, an average with c = 0.1 would stop up to 5 ulps away from its target.
    for half in (torch.bfloat16, torch.float16):
        eps = torch.finfo(half).eps
        p = torch.nn.Parameter(torch.linspace(1.25, 1.75, 65).to(half))
        q = torch.nn.Parameter(p.detach().float())
        low, high = case.make([p]), case.make([q])
        for _ in range(200):
            for x in (p, q):
                x.grad = torch.full_like(x, 0.03 * eps * (1 if case.weighting == "sqrt" else 10))
            low.step()
            high.step()
        assert (p.detach() - q.detach()).abs().max() < 1.5 * eps
        assert (q.detach().float() - low.state[p]["x0"].float()).abs().max() > eps


@every_case_with_given_lr  # the other parameters have a part in a step size that is found
def test_a_parameter_with_a_late_first_gradient_starts_its_own_count_and_anchor(case: Case) -> None:
    early, late = parameters((4,), (4,))
    optimizer = case.make([early, late])
    lone = case.make([alone := torch.nn.Parameter(late.detach().clone())])
    for k in range(20):
        early.grad = gradient(early, k)
        late.grad = gradient(late, k) if k >= 10 else None
        alone.grad = gradient(alone, k)
        optimizer.step()
        if k < 10:
            assert late not in optimizer.state
            late.data += 0.1  # its anchor is its value at its first step
            alone.data += 0.1
        else:
            lone.step()
    assert optimizer.state[early]["step"] == 20
    assert optimizer.state[late]["step"] == 10
    torch.testing.assert_close(late, alone, **TOLERANCE)


@every_case
def test_a_group_added_in_mid_training_starts_its_own_count_and_anchor(case: Case) -> None:
    first, second = parameters((4,), (3, 2))
    optimizer = case.make([first])
    train(optimizer, range(10))
    lr = case.make([second]).param_groups[0]["lr"]
    optimizer.add_param_group({"params": [second], "momentum": 0.5, "lr": lr})
    start = second.detach().clone()
    train(optimizer, range(5))
    assert optimizer.state[first]["step"] == 15
    assert optimizer.state[second]["step"] == 5
    assert torch.equal(optimizer.state[second]["x0"], start)
    assert optimizer.param_groups[0]["peak_lr"] is not optimizer.param_groups[1]["peak_lr"]


@every_case
def test_no_gradient_no_step(case: Case) -> None:
    first, second = parameters((4,), (3,))
    optimizer = case.make([first, second])
    train(optimizer, range(3))
    before = snapshot(optimizer)
    first.grad = second.grad = None
    optimizer.step()
    assert_bitwise(snapshot(optimizer), before)


@every_case
def test_an_empty_group_is_skipped(case: Case) -> None:
    (p,) = parameters((4,))
    optimizer = case.make([{"params": []}, {"params": [p]}])
    train(optimizer, range(2))
    assert optimizer.state[p]["step"] == 2


@every_case
def test_the_closure_runs_with_gradients_and_its_loss_is_returned(case: Case) -> None:
    (p,) = parameters((4,))
    optimizer = case.make([p])
    before = p.detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure) == before.square().sum()
    assert not torch.equal(p, before)


@every_case
def test_a_sparse_gradient_equals_a_dense_one(case: Case) -> None:
    for dtype in (torch.float64, torch.complex128, torch.bfloat16):
        dense, sparse = (parameters((6, 3), dtype=dtype)[0] for _ in range(2))
        optimizers = case.make([dense], weight_decay=0.1), case.make([sparse], weight_decay=0.1)
        for k in range(10):
            rows = torch.tensor([[0, 4, 4]])  # a row twice: not coalesced
            values = gradient(dense[:3], k)
            sparse.grad = torch.sparse_coo_tensor(rows, values, (6, 3), check_invariants=True)
            dense.grad = sparse.grad.to_dense()
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(sparse.detach(), dense.detach())


@every_case
def test_a_complex_parameter_equals_two_real_ones(case: Case) -> None:
    (z,) = parameters((5, 2), dtype=torch.complex128)
    real, imag = torch.nn.Parameter(z.real.detach().clone()), torch.nn.Parameter(z.imag.detach().clone())
    optimizers = case.make([z]), case.make([real, imag])
    for k in range(20):
        z.grad = gradient(z, k)
        real.grad, imag.grad = z.grad.real.clone(), z.grad.imag.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(z.detach(), torch.complex(real, imag).detach(), **TOLERANCE)
    assert optimizers[0].state[z]["s"].dtype == torch.complex128


@every_case
def test_memory_layout_has_no_effect(case: Case) -> None:
    plain = parameters((2, 3, 4, 5), (6, 7))
    strided = [
        torch.nn.Parameter(plain[0].detach().clone(memory_format=torch.channels_last)),
        torch.nn.Parameter(plain[1].detach().t().contiguous().t()),
    ]
    optimizers = case.make(plain), case.make(strided)
    for optimizer in optimizers:
        train(optimizer, range(20))
    for p, q in zip(plain, strided, strict=True):
        # A step size that is found contains sums, which follow the order of the elements in memory.
        torch.testing.assert_close(q, p, rtol=0, atol=1e-12 if case.finds_lr else 0)
        assert q.stride() == optimizers[1].state[q]["s"].stride() == optimizers[1].state[q]["x0"].stride()


@every_case
def test_named_parameters_are_kept_by_name(case: Case) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = case.make(model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


@every_case
def test_a_step_that_the_grad_scaler_skips_leaves_everything_untouched(case: Case) -> None:
    (p,) = parameters((4,), dtype=torch.float32)
    optimizer = case.make([p])
    train(optimizer, range(3))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for poison in (0.0, float("inf"), float("nan"), 0.0):
        before = snapshot(optimizer)
        optimizer.zero_grad()
        scaler.scale((p * (1 + poison)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if poison == 0.0:
            assert not torch.equal(p, before[0])
        else:
            assert_bitwise(snapshot(optimizer), before)


@every_case
def test_reset_anchor_restarts_at_the_current_point(case: Case) -> None:
    optimizer = two_groups(case)
    train(optimizer, range(10))
    buffers = [value.data_ptr() for p in all_params(optimizer) for value in optimizer.state[p].values()]
    optimizer.reset_anchor()
    fresh = two_groups(case)
    for p, q in zip(all_params(optimizer), all_params(fresh), strict=True):
        assert torch.equal(optimizer.state[p]["x0"], p)
        q.data.copy_(p)
    for each in (optimizer, fresh):
        train(each, range(10))
    assert_bitwise(snapshot(optimizer), snapshot(fresh))
    assert buffers == [v.data_ptr() for p in all_params(optimizer) for v in optimizer.state[p].values()]


@every_case
def test_a_bad_gradient_or_setting_in_the_last_group_leaves_the_first_untouched(case: Case) -> None:
    first, second = parameters((4,), (3, 3))
    optimizer = case.make([{"params": [first]}, {"params": [second]}])
    train(optimizer, range(3))
    before = snapshot(optimizer)

    second.data, second.grad = second.data[:2].clone(), None
    second.grad = torch.ones_like(second)
    with pytest.raises(ValueError, match=r"Parameter 0 of group 1 was \(3, 3\) on cpu .* is \(2, 3\)"):
        optimizer.step()
    second.data, second.grad = before[1].clone(), None
    assert_bitwise(snapshot(optimizer), before)

    second.grad = torch.zeros_like(second)
    optimizer.param_groups[1]["lr"] = float("nan")
    with pytest.raises(ValueError, match=r"lr must be a number from 0 to 1e\+15, got nan"):
        optimizer.step()
    assert_bitwise(snapshot(optimizer), before)


@every_case
def test_a_sparse_parameter_raises_before_anything_changes(case: Case) -> None:
    (dense,) = parameters((4,))
    sparse = torch.eye(3).to_sparse().requires_grad_()
    optimizer = case.make([("dense", dense), ("table", sparse)])
    before = dense.detach().clone()
    dense.grad, sparse.grad = gradient(dense, 0), sparse.detach().clone()
    with pytest.raises(ValueError, match=r"Parameter 'table' has layout torch\.sparse_coo"):
        optimizer.step()
    assert torch.equal(dense, before)
    assert not optimizer.state
