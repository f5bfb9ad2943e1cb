"""The reference takes the steps it should, and every form of MDA is the reference."""

import math
from itertools import accumulate

import pytest
import torch

from dualavg import theory
from dualavg._reference import ReferenceDualAveraging, ReferenceMDA, coupled_c

STEPS = 300
SEEDS = (0, 1, 2)


# --- What the equivalences are tried on -----------------------------------------------------------


def problem(seed, dim=7):
    """Smooth, non-convex, coupled across coordinates, with noise: A' sin(A x + b) + xi_k."""
    gen = torch.Generator().manual_seed(seed)
    a, b, x0, noise = (
        torch.randn(*shape, generator=gen, dtype=torch.float64)
        for shape in ((dim, dim), (dim,), (dim,), (STEPS, dim))
    )
    a = a / torch.linalg.matrix_norm(a, 2)
    return (lambda x, k: a.T @ torch.sin(a @ x + b) + 0.3 * noise[k]), x0


def warmup_then_decay(peak=1.5, warmup=40):
    """Step sizes that rise from just above zero and fall to nearly zero."""
    rise = [peak * (k + 1) / warmup for k in range(warmup)]
    return rise + [peak * (STEPS - k) / (STEPS - warmup) for k in range(warmup, STEPS)]


def with_peak(lrs):
    return zip(lrs, accumulate(lrs, max), strict=True)


def uniform(seed, low, high):
    gen = torch.Generator().manual_seed(1000 + seed)
    return (low + (high - low) * torch.rand(STEPS, generator=gen, dtype=torch.float64)).tolist()


LRS = {
    "constant": lambda seed: [0.7] * STEPS,
    "warm-up, decay": lambda seed: warmup_then_decay(),
    "random": lambda seed: uniform(seed, 0.05, 1.5),
}
CS = {
    "none": lambda seed: [1.0] * STEPS,
    "constant": lambda seed: [0.1] * STEPS,
    "coupled": lambda seed: [coupled_c(0.1, lr, peak) for lr, peak in with_peak(warmup_then_decay())],
    "random": lambda seed: uniform(seed + 500, 0.02, 1.0),
}
every_seed = pytest.mark.parametrize("seed", SEEDS)
every_lr = pytest.mark.parametrize("lr", LRS)
every_c = pytest.mark.parametrize("c", CS)


def run(method, grad, lrs, cs):
    for k, (lr, c) in enumerate(zip(lrs, cs, strict=True)):
        method.step(grad(method.x[-1], k), lr, c)
    return method


def assert_same(actual, expected):
    """Every iterate agrees to 1e-12; iterates here are of order one."""
    assert len(actual) == len(expected) == STEPS + 1
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), rtol=0, atol=1e-12)


# --- The reference itself -------------------------------------------------------------------------


def test_reference_takes_the_first_steps_one_takes_by_hand():
    mda = ReferenceMDA(torch.tensor([3.0]))
    mda.step(torch.tensor([2.0]), lr=0.5, c=0.25)
    mda.step(torch.tensor([4.0]), lr=0.1, c=0.5)
    # s_0 = 0.5 * 2, s_1 = 1 + 0.1 sqrt(2) * 4; z_1 = 3 - 1, z_2 = 3 - s_1/sqrt(2)
    root = math.sqrt(2)
    z2 = 3 - (1 + 0.4 * root) / root
    assert mda.lam == [0.5, 0.1 * root]
    assert mda.beta == [1.0, root]
    assert [s.item() for s in mda.s] == pytest.approx([1.0, 1 + 0.4 * root], abs=1e-15)
    assert [z.item() for z in mda.z] == pytest.approx([3.0, 2.0, z2], abs=1e-15)
    assert [x.item() for x in mda.x] == pytest.approx([3.0, 2.75, 1.375 + z2 / 2], abs=1e-15)


@pytest.mark.parametrize("maximize", [False, True])
def test_reference_descends_the_penalty_and_climbs_the_objective_only_if_asked(maximize):
    (grad, x0), sign = problem(0), -1 if maximize else 1
    mda, plain = ReferenceMDA(x0), ReferenceMDA(x0)
    for k in range(20):
        mda.step(grad(mda.x[-1], k), 0.3, 0.4, weight_decay=0.1, maximize=maximize)
        plain.step(sign * grad(plain.x[-1], k) + 0.1 * plain.x[-1], 0.3, 0.4)
    torch.testing.assert_close(torch.stack(mda.x), torch.stack(plain.x), rtol=0, atol=1e-14)


def test_reference_treats_a_complex_number_as_two_real_ones():
    gen = torch.Generator().manual_seed(0)
    x0 = torch.randn(5, 2, generator=gen)
    pairs, complexes = ReferenceMDA(x0), ReferenceMDA(torch.view_as_complex(x0))
    for k in range(20):
        g = torch.randn(5, 2, generator=gen)
        pairs.step(g, 0.3 / (k + 1), 0.4, weight_decay=0.1)
        complexes.step(torch.view_as_complex(g), 0.3 / (k + 1), 0.4, weight_decay=0.1)
    assert complexes.x[-1].dtype == torch.complex128
    torch.testing.assert_close(torch.view_as_real(complexes.x[-1]), pairs.x[-1], rtol=0, atol=1e-14)


def test_nesterov_scaling_is_the_recursion_and_grows_like_a_square_root():
    method = ReferenceDualAveraging(torch.zeros(1), scaling="nesterov")
    run(method, lambda x, k: x, [1.0] * 1000, [1.0] * 1000)
    assert method.beta[:4] == [1.0, 2.0, 2.5, 2.9]
    assert method.lam == [1.0] * 1000
    assert method.beta[-1] == pytest.approx(math.sqrt(2 * 1000), rel=0.01)


def test_average_is_of_the_points_where_gradients_were_taken():
    method = run(ReferenceDualAveraging(torch.ones(3)), lambda x, k: x, [0.5] * 9, [1.0] * 9)
    torch.testing.assert_close(method.average(), sum(method.x[:9]) / 9, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("lr", "expected"), [(2.0, 0.1), (1.0, 0.2), (0.2, 1.0), (0.1, 1.0), (0.0, 1.0)])
def test_c_rises_as_the_step_size_falls_up_to_one(lr, expected):
    assert coupled_c(0.1, lr, peak_lr=2.0) == pytest.approx(expected, abs=1e-15)


# --- The five equivalences ------------------------------------------------------------------------


@every_seed
@every_lr
@every_c
def test_recursive_form_is_mda(seed, lr, c):
    (grad, x0), lrs, cs = problem(seed), LRS[lr](seed), CS[c](seed)
    mda = run(ReferenceMDA(x0), grad, lrs, cs)
    assert_same(theory.recursive_form(grad, x0, lrs, cs), mda.x)


@every_seed
@every_lr
def test_mda_without_momentum_is_sgd_on_the_regularized_objective(seed, lr):
    (grad, x0), lrs = problem(seed), LRS[lr](seed)
    mda = run(ReferenceMDA(x0), grad, lrs, CS["none"](seed))
    assert_same(theory.regularized_sgd(grad, x0, lrs), mda.x)


@every_seed
@every_lr
@pytest.mark.parametrize("weighting", ["constant", "sqrt"])
@pytest.mark.parametrize("scaling", ["sqrt", "nesterov", "constant"])
def test_any_dual_averaging_is_sgd_on_a_regularized_objective(seed, lr, weighting, scaling):
    (grad, x0), lrs = problem(seed), LRS[lr](seed)
    if (weighting, scaling) == ("sqrt", "constant"):
        lrs = [eta / math.sqrt(k + 1) for k, eta in enumerate(lrs)]  # or its steps grow with sqrt(k)
    method = ReferenceDualAveraging(x0, weighting, scaling)
    run(method, grad, lrs, CS["none"](seed))
    etas = [lam / beta for lam, beta in zip(method.lam, method.beta, strict=True)]
    before = [0.0, *method.beta[:-1]]
    triples = zip(method.beta, before, method.lam, strict=True)
    alphas = [(beta - beta_before) / lam for beta, beta_before, lam in triples]
    assert_same(theory.regularized_sgd(grad, x0, etas, alphas), method.x)


@every_seed
def test_the_index_of_section_2_is_not_the_algorithm(seed):
    (grad, x0), lrs = problem(seed), LRS["constant"](seed)
    alphas = [theory.alpha_section2(k, lr) for k, lr in enumerate(lrs)]
    mda = run(ReferenceMDA(x0), grad, lrs, CS["none"](seed))
    others = theory.regularized_sgd(grad, x0, lrs, alphas)
    assert (others[2] - mda.x[2]).norm() > 1e-2


@every_seed
@every_lr
def test_dual_averaging_with_unit_scaling_is_sgd(seed, lr):
    (grad, x0), lrs = problem(seed), LRS[lr](seed)
    method = ReferenceDualAveraging(x0, weighting="constant", scaling="constant")
    run(method, grad, lrs, CS["none"](seed))
    assert_same(theory.sgd(grad, x0, lrs), method.x)


@every_seed
@every_lr
@every_c
@pytest.mark.parametrize("form", [theory.primal_averaging, theory.heavy_ball])
def test_unit_scaling_with_momentum_is_primal_averaging_and_heavy_ball(seed, lr, c, form):
    (grad, x0), lrs, cs = problem(seed), LRS[lr](seed), CS[c](seed)
    method = ReferenceDualAveraging(x0, weighting="constant", scaling="constant")
    run(method, grad, lrs, cs)
    assert_same(form(grad, x0, lrs, cs), method.x)


def torch_sgd(grad, x0, lrs, momenta):
    x = x0.clone().requires_grad_()
    optimizer = torch.optim.SGD([x], lr=1.0, momentum=0.5)
    xs = [x0]
    for k, (lr, momentum) in enumerate(zip(lrs, momenta, strict=True)):
        optimizer.param_groups[0].update(lr=lr, momentum=momentum)
        x.grad = grad(x.detach(), k)
        optimizer.step()
        xs.append(x.detach().clone())
    return xs


@every_seed
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("form", [theory.primal_averaging, theory.heavy_ball])
def test_primal_averaging_and_heavy_ball_are_torch_sgd(seed, momentum, form):
    (grad, x0), sgd_lr = problem(seed), 0.1
    eta = theory.mda_lr(sgd_lr, momentum)
    actual = form(grad, x0, [eta] * STEPS, [1 - momentum] * STEPS)
    assert_same(actual, torch_sgd(grad, x0, [sgd_lr] * STEPS, [momentum] * STEPS))


@every_seed
@every_lr
@every_c
def test_torch_sgd_follows_a_changing_step_if_its_momentum_makes_up_for_it(seed, lr, c):
    (grad, x0), etas, cs = problem(seed), LRS[lr](seed), CS[c](seed)
    sgd_lrs = [c_next * eta for c_next, eta in zip(cs, etas, strict=True)]
    # torch's first buffer is the first gradient, whatever the momentum, unless that is zero
    momenta = [0.5] + [(1 - cs[k - 1]) * etas[k - 1] / etas[k] for k in range(1, STEPS)]
    assert_same(theory.heavy_ball(grad, x0, etas, cs), torch_sgd(grad, x0, sgd_lrs, momenta))


@every_seed
@every_lr
@every_c
def test_mda_is_primal_averaging_with_a_pull(seed, lr, c):
    (grad, x0), lrs, cs = problem(seed), LRS[lr](seed), CS[c](seed)
    mda = run(ReferenceMDA(x0), grad, lrs, cs)
    assert_same(theory.primal_averaging(grad, x0, lrs, cs, pull=True), mda.x)


@pytest.mark.parametrize("form", ["recursive", "pull"])
def test_the_pull_goes_on_while_the_step_size_is_zero(form):
    (grad, x0), cs = problem(0), CS["constant"](0)
    lrs = [0.0 if 100 <= k < 200 else 0.5 for k in range(STEPS)]
    mda = run(ReferenceMDA(x0), grad, lrs, cs)
    if form == "recursive":
        assert_same(theory.recursive_form(grad, x0, lrs, cs), mda.x)
    else:
        assert_same(theory.primal_averaging(grad, x0, lrs, cs, pull=True), mda.x)
    # z_{k+1} - x_0 = sqrt(k/(k+1)) (z_k - x_0) as long as nothing is added to the sum
    back = math.sqrt(100 / 200)
    torch.testing.assert_close(mda.z[200] - x0, back * (mda.z[100] - x0), rtol=0, atol=1e-13)


@every_seed
def test_mda_goes_two_thirds_as_far_as_sgd_under_a_constant_gradient(seed):
    (_, x0), lrs = problem(seed), [0.01] * STEPS
    slope = torch.linspace(-1, 1, len(x0), dtype=torch.float64)
    mda = theory.regularized_sgd(lambda x, k: slope, x0, lrs)[-1] - x0
    sgd = theory.sgd(lambda x, k: slope, x0, lrs)[-1] - x0
    torch.testing.assert_close(mda, 2 / 3 * sgd, rtol=1.5 / STEPS, atol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_step_sizes_convert_both_ways(momentum):
    assert theory.mda_lr(0.1, momentum) == 0.1 / (1 - momentum)
    assert theory.sgd_lr(theory.mda_lr(0.1, momentum), momentum) == pytest.approx(0.1, rel=1e-15)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_momentum_outside_its_range_has_no_conversion(momentum):
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\)"):
        theory.mda_lr(0.1, momentum)
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\)"):
        theory.sgd_lr(0.1, momentum)


@pytest.mark.parametrize("form", [theory.recursive_form, theory.heavy_ball, theory.primal_averaging])
def test_forms_refuse_sequences_of_different_lengths(form):
    with pytest.raises(ValueError, match="zip"):
        form(lambda x, k: x, torch.ones(1), [0.1] * 3, [0.1] * 2)
