"""`dualavg_optax.mda` computes what the torch reference computes, step for step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from support.cases import shape_of_lr

from dualavg._reference import ReferenceMDA, coupled_c
from dualavg_optax import MDAState, mda

STEPS = 200
LRS = np.array([shape_of_lr(k) for k in range(STEPS)])  # rises, falls, and is zero once
TOLERANCE = {"rtol": 0.0, "atol": 1e-12}
SHAPES = {"scalar": (), "layer": {"bias": (7,), "weight": (5, 3)}, "kernels": [(2, 3, 4, 5)]}


def lr_at(k: Any) -> jax.Array:
    return jnp.asarray(LRS)[k]


def momentum_at(k: Any) -> jax.Array:
    return jnp.where(k < 100, 0.9, 0.72)


def decay_at(k: Any) -> jax.Array:
    return 0.01 / (k + 1)


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "no-momentum": {"momentum": 0.0},
    "decay": {"weight_decay": 0.01},
    "uncoupled": {"couple_momentum": False},
    "schedules": {"momentum": momentum_at, "weight_decay": decay_at},
}
every_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)


def parameters(dtype: Any = np.float64) -> Any:
    random = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(random.standard_normal(shape), dtype)  # noqa: E731
    return jax.tree.map(draw, SHAPES, is_leaf=lambda node: isinstance(node, tuple))


def gradients(params: Any, k: int) -> Any:
    """Noisy gradients of a smooth function. They depend on the parameters, so that errors feed back."""
    random = np.random.default_rng(1000 + k)
    return jax.tree.map(lambda x: 0.1 * jnp.sin(x) + 0.1 * random.standard_normal(x.shape), params)


class Reference:
    """The torch reference of every leaf, fed by gradients of jax."""

    def __init__(self, params: Any, settings: dict[str, Any]) -> None:
        self.settings = {"momentum": 0.9, "weight_decay": 0.0, "couple_momentum": True, **settings}
        self.leaves = [ReferenceMDA(_tensor(leaf)) for leaf in jax.tree.leaves(params)]
        self.peak = 0.0

    def step(self, grads: Any, k: int) -> None:
        lr = float(LRS[k])
        momentum, decay = (
            float(value(k) if callable(value) else value)
            for value in (self.settings["momentum"], self.settings["weight_decay"])
        )
        self.peak = max(self.peak, lr)
        c = coupled_c(1 - momentum, lr, self.peak) if self.settings["couple_momentum"] else 1 - momentum
        for leaf, grad in zip(self.leaves, jax.tree.leaves(grads), strict=True):
            leaf.step(_tensor(grad), lr, c, decay)

    def assert_equal(self, params: Any, state: MDAState) -> None:
        assert int(state.count) == len(self.leaves[0].s)
        assert float(state.peak_lr) == self.peak
        leaves = map(jax.tree.leaves, (params, state.s, state.x0))
        for leaf, x, s, x0 in zip(self.leaves, *leaves, strict=True):
            assert x.dtype == s.dtype == x0.dtype == np.float64
            np.testing.assert_allclose(x, leaf.x[-1], **TOLERANCE)
            np.testing.assert_allclose(s, leaf.s[-1], **TOLERANCE)
            np.testing.assert_array_equal(x0, leaf.x0)


def _tensor(leaf: jax.Array) -> torch.Tensor:
    return torch.from_numpy(np.array(leaf))


def compare(optimizer: Any, settings: dict[str, Any], wrap: Callable[[Any], Any] = lambda f: f) -> None:
    params = parameters()
    state = wrap(optimizer.init)(params)
    update = wrap(optimizer.update)
    reference = Reference(params, settings)
    for k in range(STEPS):
        grads = gradients(params, k)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        reference.step(grads, k)
        reference.assert_equal(params, optax.tree.get(state, "MDAState"))


@every_case
def test_equals_the_reference_at_every_step(settings: dict[str, Any], x64: None) -> None:
    compare(mda(lr_at, **settings), settings)


@every_case
def test_equals_the_reference_at_every_step_under_jit(settings: dict[str, Any], x64: None) -> None:
    compare(mda(lr_at, **settings), settings, jax.jit)


def test_equals_the_reference_with_injected_hyperparameters(x64: None) -> None:
    """optax rounds neither the schedule's values nor the numbers: hyperparameters get the params' dtype."""
    compare(optax.inject_hyperparams(mda)(lr_at, weight_decay=0.01), {"weight_decay": 0.01}, jax.jit)


def test_a_negated_gradient_maximizes_and_still_descends_the_penalty(x64: None) -> None:
    settings = {"weight_decay": 0.01}
    optimizer = optax.chain(optax.scale(-1.0), mda(1.0, **settings))
    params = parameters()
    state = optimizer.init(params)
    references = [ReferenceMDA(_tensor(leaf)) for leaf in jax.tree.leaves(params)]
    for k in range(20):
        grads = gradients(params, k)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for reference, grad, x in zip(references, *map(jax.tree.leaves, (grads, params)), strict=True):
            expected = reference.step(_tensor(grad), 1.0, 1 - 0.9, 0.01, maximize=True)
            np.testing.assert_allclose(x, expected, **TOLERANCE)


def test_a_complex_parameter_equals_two_real_ones(x64: None) -> None:
    """Given the conjugate of `jax.grad`'s result, as for any optimizer of optax."""

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cos(x.real) + jnp.sin(2 * x.imag))

    def loss_of_pair(pair: Any) -> jax.Array:
        return loss(pair[0] + 1j * pair[1])

    optimizer = mda(lr_at, weight_decay=0.01)
    x = jnp.array([1.0 + 2.0j, -0.5j, 0.3])
    pair = (x.real, x.imag)
    state, state_of_pair = optimizer.init(x), optimizer.init(pair)
    assert state.s.dtype == x.dtype == np.complex128
    for _ in range(50):
        updates, state = optimizer.update(jax.grad(loss)(x).conj(), state, x)
        x = optax.apply_updates(x, updates)
        updates, state_of_pair = optimizer.update(jax.grad(loss_of_pair)(pair), state_of_pair, pair)
        pair = optax.apply_updates(pair, updates)
        np.testing.assert_allclose(x, pair[0] + 1j * pair[1], **TOLERANCE)


def test_a_learning_rate_of_zero_moves_to_z(x64: None) -> None:
    """At lr 0, c is 1: x_{k+1} = z_{k+1} = x_0 - s / sqrt(k+1), also at the first step."""
    optimizer = mda(lambda k: jnp.where(k == 3, 0.0, 1.0))
    x0 = x = jnp.array([1.0, -2.0])
    state = optimizer.init(x)
    for _ in range(4):
        before = state
        updates, state = optimizer.update(jnp.sin(x), state, x)
        x = optax.apply_updates(x, updates)
    np.testing.assert_array_equal(state.s, before.s)
    np.testing.assert_allclose(x, x0 - state.s / 2, **TOLERANCE)

    at_rest = mda(0.0)
    updates, _ = at_rest.update(jnp.sin(x0), at_rest.init(x0), x0)
    np.testing.assert_array_equal(updates, 0.0)


def test_the_update_is_differentiable_in_the_learning_rate_at_zero(x64: None) -> None:
    def moved(lr: jax.Array) -> jax.Array:
        optimizer = mda(lr)
        x = jnp.ones(2)
        return jnp.sum(optimizer.update(jnp.ones(2), optimizer.init(x), x)[0])

    assert np.isfinite(jax.grad(moved)(0.0))


def test_schedules_are_called_with_the_count_of_steps_from_zero() -> None:
    seen: dict[str, list[int]] = {"lr": [], "momentum": [], "decay": []}

    def recorder(name: str, value: float) -> Callable[[Any], float]:
        def schedule(count: Any) -> float:
            seen[name].append(int(count))
            return value

        return schedule

    optimizer = mda(recorder("lr", 1.0), recorder("momentum", 0.9), recorder("decay", 0.0))
    params = jnp.ones(2)
    state = optimizer.init(params)
    for _ in range(3):
        _, state = optimizer.update(params, state, params)
    assert seen == {"lr": [0, 1, 2], "momentum": [0, 1, 2], "decay": [0, 1, 2]}


def test_equals_the_torch_optimizer_in_float32() -> None:
    """The two packages agree in single precision too, to a few roundings."""
    from dualavg import MDA

    x = jnp.asarray(np.random.default_rng(0).standard_normal(50), jnp.float32)
    p = torch.nn.Parameter(_tensor(x))
    theirs, ours = MDA([p], lr=1.0, weight_decay=0.01), mda(lr_at, weight_decay=0.01)
    state = ours.init(x)
    for k in range(STEPS):
        grad = gradients(x, k)
        updates, state = ours.update(grad, state, x)
        x = optax.apply_updates(x, updates)
        theirs.param_groups[0]["lr"] = float(LRS[k])
        p.grad = _tensor(grad).float()
        theirs.step()
    assert x.dtype == state.s.dtype == jnp.float32
    np.testing.assert_allclose(x, p.detach(), rtol=0, atol=1e-5)
