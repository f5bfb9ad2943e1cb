"""`dualavg_optax.mda` inside jax and optax: trees, masks, wrappers, dtypes, checkpoints, errors."""

import io
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dualavg_optax
from dualavg_optax import MDAState, mda

PARAMS = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([0.1, -0.2])}


def gradients(params: Any) -> Any:
    return jax.tree.map(lambda x: 0.1 * jnp.sin(3 * x), params)


def train(optimizer: Any, params: Any, steps: int, state: Any = None) -> tuple[Any, Any]:
    state = optimizer.init(params) if state is None else state
    for _ in range(steps):
        updates, state = optimizer.update(gradients(params), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_bitwise(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_importing_it_imports_neither_torch_nor_dualavg() -> None:
    code = (
        "import sys, dualavg_optax;"
        "print(*sorted({'torch', 'dualavg', 'dualavg_bench'} & {m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_public_names_are_those_of_the_package() -> None:
    assert dualavg_optax.__all__ == ["MDAState", "mda"]
    assert MDAState._fields == ("count", "peak_lr", "x0", "s")


def test_one_compilation_serves_all_steps() -> None:
    """Neither the state's dtypes nor their weakness changes, so that `scan` takes the step too."""
    optimizer = mda(optax.linear_schedule(1.0, 0.0, 50))
    traces = 0

    @jax.jit
    def step(params: Any, state: MDAState) -> tuple[Any, MDAState]:
        nonlocal traces
        traces += 1
        updates, state = optimizer.update(gradients(params), state, params)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(5):
        params, state = step(params, state)
    assert traces == 1

    def body(carry: Any, _: None) -> tuple[Any, None]:
        return step(*carry), None

    (scanned, _), _ = jax.lax.scan(body, (PARAMS, optimizer.init(PARAMS)), length=5)
    for name in PARAMS:
        np.testing.assert_allclose(scanned[name], params[name], rtol=1e-6)


@pytest.mark.parametrize(
    "init",
    [lambda optimizer: optimizer.init, lambda optimizer: jax.jit(optimizer.init)],
    ids=["eager", "jit"],
)
def test_parameters_and_state_can_be_donated(init: Any) -> None:
    """The anchor is a copy: a step may write the new parameters over the old ones."""
    optimizer = mda()
    params = jax.tree.map(jnp.copy, PARAMS)
    state = init(optimizer)(params)

    def step(params: Any, state: MDAState) -> tuple[Any, MDAState]:
        updates, state = optimizer.update(gradients(params), state, params)
        return optax.apply_updates(params, updates), state

    donating = jax.jit(step, donate_argnums=(0, 1))
    for _ in range(3):
        params, state = donating(params, state)
    expected, expected_state = train(optimizer, PARAMS, 3)
    assert_bitwise(state.x0, PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(params[name], expected[name], rtol=1e-6)
        np.testing.assert_allclose(state.s[name], expected_state.s[name], rtol=1e-6)


def test_a_chain_hands_on_the_changed_gradient() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(0.01), mda(0.5))
    _, (_, state) = train(optimizer, PARAMS, 1)
    np.testing.assert_allclose(optax.tree.norm(state.s), 0.5 * 0.01, rtol=1e-5)


def test_every_label_of_a_multi_transform_trains_on_its_own() -> None:
    """Two settings in one tree give what each gives alone."""
    both = optax.multi_transform({"w": mda(0.5), "b": mda(2.0, weight_decay=0.1)}, {"w": "w", "b": "b"})
    params, _ = train(both, PARAMS, 20)
    alone_w, _ = train(mda(0.5), {"w": PARAMS["w"]}, 20)
    alone_b, _ = train(mda(2.0, weight_decay=0.1), {"b": PARAMS["b"]}, 20)
    assert_bitwise(params, {**alone_w, **alone_b})


def test_a_frozen_label_stays_where_it_is() -> None:
    frozen = optax.multi_transform(
        {"train": mda(), "freeze": optax.set_to_zero()}, {"w": "train", "b": "freeze"}
    )
    params, state = train(frozen, PARAMS, 5)
    np.testing.assert_array_equal(params["b"], PARAMS["b"])
    assert isinstance(optax.tree.get(state, "MDAState").s["b"], optax.MaskedNode)


def test_masked_leaves_have_no_state_and_pass_through() -> None:
    masked = optax.masked(mda(), {"w": True, "b": False})
    state = masked.init(PARAMS)
    grads = gradients(PARAMS)
    updates, state = masked.update(grads, state, PARAMS)
    assert isinstance(state.inner_state.x0["b"], optax.MaskedNode)
    np.testing.assert_array_equal(updates["b"], grads["b"])
    alone, _ = mda().update({"w": grads["w"]}, mda().init({"w": PARAMS["w"]}), {"w": PARAMS["w"]})
    np.testing.assert_array_equal(updates["w"], alone["w"])


def test_leaves_that_are_none_stay_none() -> None:
    params = {"w": PARAMS["w"], "static": None}
    trained, state = train(mda(), params, 3)
    assert trained["static"] is state.x0["static"] is state.s["static"] is None
    alone, _ = train(mda(), {"w": PARAMS["w"]}, 3)
    np.testing.assert_array_equal(trained["w"], alone["w"])


def test_a_leaf_without_gradient_takes_no_step() -> None:
    """As from equinox: None where a parameter has no gradient, also where it is an integer."""
    params = {"w": PARAMS["w"], "frozen": PARAMS["b"], "seed": jnp.array(3)}
    optimizer = mda(weight_decay=0.1)
    updates, state = optimizer.update(
        {"w": PARAMS["w"], "frozen": None, "seed": None}, optimizer.init(params), params
    )
    assert updates["frozen"] is updates["seed"] is None
    np.testing.assert_array_equal(state.s["frozen"], 0.0)
    assert np.any(state.s["w"])


def test_an_empty_tree_is_no_error() -> None:
    assert train(mda(), {}, 2)[0] == {}


def test_injected_hyperparameters_can_be_changed_between_steps() -> None:
    injected = optax.inject_hyperparams(mda)(learning_rate=1.0)
    params, state = train(injected, PARAMS, 1)
    assert state.hyperparams.keys() == {"learning_rate", "momentum", "weight_decay"}
    state.hyperparams["learning_rate"] = jnp.asarray(0.25)
    params, state = train(injected, params, 1, state)
    expected, expected_state = train(mda(lambda k: jnp.where(k == 0, 1.0, 0.25)), PARAMS, 2)
    assert_bitwise(params, expected)
    assert_bitwise(state.inner_state, expected_state)


def test_accumulated_gradients_take_one_step_of_their_mean() -> None:
    optimizer = optax.MultiSteps(mda(), every_k_schedule=2)
    params, state = train(optimizer, PARAMS, 2)
    expected, expected_state = train(mda(), PARAMS, 1)
    assert_bitwise(params, expected)
    assert_bitwise(state.inner_opt_state, expected_state)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    optimizer = optax.apply_if_finite(mda(), max_consecutive_errors=3)
    params, state = train(optimizer, PARAMS, 2)
    bad = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    updates, after = optimizer.update(bad, state, params)
    np.testing.assert_array_equal(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(updates)]), 0.0)
    assert_bitwise(after.inner_state, state.inner_state)


@pytest.mark.parametrize("way", ["pickle", "npz"])
def test_resume_is_bitwise(way: str) -> None:
    """Through bytes: the state is arrays in a NamedTuple, with nothing else to save."""
    optimizer = mda(optax.linear_schedule(1.0, 0.0, 30), weight_decay=0.01)
    halfway = train(optimizer, PARAMS, 10)
    file = io.BytesIO()
    if way == "pickle":
        pickle.dump(jax.device_get(halfway), file)
        file.seek(0)
        restored = pickle.load(file)
    else:
        np.savez(file, *jax.tree.leaves(halfway))
        file.seek(0)
        structure = jax.tree.structure((PARAMS, optimizer.init(PARAMS)))
        restored = jax.tree.unflatten(structure, np.load(file).values())
    params, state = train(optimizer, restored[0], 20, jax.tree.map(jnp.asarray, restored[1]))
    assert_bitwise((params, state), train(optimizer, PARAMS, 30))


def test_the_state_of_each_parameter_can_be_mapped() -> None:
    """`optax.tree.map_params` finds x0 and s, so that both can be sharded like their parameter."""
    optimizer = mda()
    specs = optax.tree.map_params(
        optimizer,
        lambda _, spec: spec,
        optimizer.init(PARAMS),
        {"w": "spec of w", "b": "spec of b"},
        transform_non_params=lambda _: "replicated",
    )
    of_params = {"w": "spec of w", "b": "spec of b"}
    assert specs == MDAState("replicated", "replicated", of_params, of_params)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_follows_steps_below_its_resolution(dtype: Any) -> None:
    """s is float32, so that gradients too small to move a weight of SGD add up; x lags by 5 ulps at most.

    A step has c |z - x| below half an ulp at rest, which is |z - x| < 5 ulps at c = 0.1. The rounding of the
    update and the movement of z from one step to the next are allowed one ulp more.
    """
    optimizer = mda()
    x = jnp.ones(1, dtype)
    state = optimizer.init(x)
    assert state.x0.dtype == dtype
    assert state.s.dtype == jnp.float32
    ulp = float(jnp.finfo(dtype).eps)  # of numbers from 1 to 2; smaller ones have smaller ulps
    update = jax.jit(optimizer.update)
    for _ in range(1000):
        updates, state = update(jnp.full_like(x, 1e-4), state, x)
        assert updates.dtype == dtype
        x = optax.apply_updates(x, updates)
        z = state.x0.astype(jnp.float32) - state.s / jnp.sqrt(state.count)
        assert float(jnp.abs(z - x.astype(jnp.float32))[0]) <= 6 * ulp
    assert float(x[0]) < 1 - 0.02


def test_a_tree_of_several_dtypes_keeps_each_in_x64_mode(x64: None) -> None:
    dtypes = [jnp.bfloat16, jnp.float32, jnp.float64, jnp.complex64, jnp.complex128]
    params = [jnp.ones(2, dtype) for dtype in dtypes]
    trained, state = train(mda(weight_decay=0.1), params, 2)
    assert [x.dtype for x in trained] == [x0.dtype for x0 in state.x0] == dtypes
    assert [s.dtype for s in state.s] == [jnp.float32, *dtypes[1:]]


def test_an_update_without_params_raises_optax_own_error() -> None:
    from optax._src.base import NO_PARAMS_MSG

    state = mda().init(PARAMS)
    with pytest.raises(ValueError, match="not passing `params`") as raised:
        mda().update(PARAMS, state)
    assert str(raised.value) == NO_PARAMS_MSG


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be a schedule or a number from 0 to 1e+15, got -1.0."),
        ({"learning_rate": float("nan")}, "learning_rate must be"),
        ({"learning_rate": None}, "learning_rate must be"),
        ({"momentum": 1.0}, "momentum must be a schedule or a number from 0 to below 1 (0.9 is usual)"),
        ({"weight_decay": -1e-4}, "weight_decay must be"),
    ],
)
def test_an_invalid_setting_raises_an_error_that_names_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        mda(**settings)
    assert message in str(raised.value)


def test_a_gradient_that_does_not_fit_raises_an_error() -> None:
    state = mda().init(jnp.ones(3))
    with pytest.raises(ValueError, match=r"has shape \(3,\), but its gradient has \(1,\)"):
        mda().update(jnp.ones(1), state, jnp.ones(3))
    with pytest.raises(ValueError, match="got int32: leave it out"):
        mda().update(jnp.ones(3), mda().init(jnp.arange(3)), jnp.arange(3))
