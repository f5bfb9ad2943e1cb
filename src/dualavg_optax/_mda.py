"""Modernized Dual Averaging (Algorithm 2 of Jelassi and Defazio) for JAX."""

from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

# optax's words: the constant is not one of its public names.
_NO_PARAMS = (
    "You are using a transformation that requires the current value of parameters, but you are not passing "
    "`params` when calling `update`."
)
_LIMITS = {"learning_rate": 1e15, "momentum": 1.0, "weight_decay": 1e15}


class MDAState(NamedTuple):
    """State of `mda`.

    Attributes:
        count: steps taken, $k$.
        peak_lr: the largest step size so far.
        x0: the anchor $x_0$, a copy of the parameters that `init` was given.
        s: weighted sum of gradients; float32 for parameters in half precision.
    """

    count: jax.Array  # type: ignore[assignment]  # hides tuple.count, as in optax's own states
    peak_lr: jax.Array
    x0: Any
    s: Any


def mda(
    learning_rate: optax.ScalarOrSchedule = 1.0,
    momentum: optax.ScalarOrSchedule = 0.9,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    *,
    couple_momentum: bool = True,
) -> optax.GradientTransformationExtraArgs:
    r"""Modernized Dual Averaging.

    From the anchor $x_0$, the parameters that `init` is given, with $s_{-1} = 0$:

    $$\lambda_k = \eta_k \sqrt{k+1}, \quad \beta_k = \sqrt{k+1}$$

    $$s_k = s_{k-1} + \lambda_k (g_k + \text{weight decay} \cdot x_k)$$

    $$z_{k+1} = x_0 - s_k / \beta_k$$

    $$x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}$$

    with $\eta_k$ the learning rate and $c_{k+1} = 1 - \text{momentum}$. `update` returns $x_{k+1} - x_k$, for
    `optax.apply_updates`. The last iterate is the result: there is nothing to average at the end.

    Args:
        learning_rate: step size $\eta$, a number or a schedule. Start at `lr_sgd / (1 - momentum)`: 1.0 for
            SGD's usual 0.1 with momentum 0.9; up to 15 in language tasks. Adam's 1e-3 is far too small.
        momentum: as in SGD: 0.9 keeps nine tenths of the old iterate, so $c = 0.1$. A number or a schedule.
        weight_decay: L2 penalty, a number or a schedule. A lower value than for SGD or Adam is often best;
            try zero too.
        couple_momentum: raise $c$ in proportion as the step size is lowered,
            $c_{k+1} = \min(1, c \cdot \text{peak lr} / \eta_k)$, where `peak_lr` is the largest step size
            so far: a warm-up leaves $c$ alone, a decay ends without momentum.

    Returns:
        A transformation whose `update` needs `params`. In an `optax.chain` it comes last.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dualavg_optax import mda
        >>> def loss(x):
        ...     return jnp.sum((x - 1.0) ** 2)
        >>> params = jnp.zeros(3)
        >>> optimizer = mda(learning_rate=0.5)
        >>> state = optimizer.init(params)
        >>> for _ in range(100):
        ...     updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> bool(loss(params) < 1e-3)
        True

    Departures from the paper:
        One count for all parameters, from k = 0. In half precision, `s` and the arithmetic are float32; the
        update is rounded to nearest in the parameter's dtype, as optax requires. See the page "JAX" of the
        documentation.

    References:
        Jelassi and Defazio, "Dual Averaging is Surprisingly Effective for Deep Learning Optimization",
        2020, arXiv:2010.10502, Algorithm 2.
    """
    settings = {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
    for name, setting in settings.items():
        _validate_setting(name, setting)

    def init(params: Any) -> MDAState:
        return MDAState(
            count=jnp.zeros([], jnp.int32),
            peak_lr=jnp.zeros([], float),  # float64 if jax's x64 mode is on
            x0=jax.tree.map(_copy, params),
            s=jax.tree.map(_zero_sum, params),
        )

    def update(grads: Any, state: MDAState, params: Any = None, **extra_args: Any) -> tuple[Any, MDAState]:
        del extra_args
        if params is None:
            raise ValueError(_NO_PARAMS)
        lr, keep, decay = (_value_at(setting, state) for setting in settings.values())
        peak_lr = jnp.maximum(state.peak_lr, lr)
        # c_{k+1} = 1 - momentum, or min(1, c peak_lr / eta_k)
        c = _coupled(1 - keep, lr, peak_lr) if couple_momentum else 1 - keep
        # beta_k = sqrt(k+1), lambda_k = eta_k sqrt(k+1)
        beta = jnp.sqrt(state.count.astype(lr.dtype) + 1)

        def accumulate(grad: Any, x: Any, s: Any) -> Any:
            if grad is None:
                return s
            _validate_leaf(grad, x)
            lambda_k, decay_k = _scalars_like(s, lr * beta, decay)
            # s_k = s_{k-1} + lambda_k (g_k + weight_decay x_k)
            return s + lambda_k * (jnp.asarray(grad, s.dtype) + decay_k * jnp.asarray(x, s.dtype))

        def move(grad: Any, x: Any, x0: Any, s: Any) -> Any:
            if grad is None:
                return None
            beta_k, c_k = _scalars_like(s, beta, c)
            # z_{k+1} = x_0 - s_k / beta_k
            z = x0.astype(s.dtype) - s / beta_k
            # x_{k+1} - x_k = c_{k+1} (z_{k+1} - x_k)
            return (c_k * (z - jnp.asarray(x, s.dtype))).astype(x0.dtype)

        s = jax.tree.map(accumulate, grads, params, state.s, is_leaf=_is_none)
        updates = jax.tree.map(move, grads, params, state.x0, s, is_leaf=_is_none)
        return updates, MDAState(optax.safe_increment(state.count), peak_lr, state.x0, s)

    return optax.GradientTransformationExtraArgs(init, update)


def _value_at(setting: optax.ScalarOrSchedule, state: MDAState) -> jax.Array:
    """Return a setting at this step, in the precision of the state's scalars."""
    return jnp.asarray(setting(state.count) if callable(setting) else setting, state.peak_lr.dtype)


def _coupled(c: jax.Array, lr: jax.Array, peak_lr: jax.Array) -> jax.Array:
    """min(1, c peak_lr / eta_k)."""
    # lr = 0 gives c = 1 without a division by zero, in the derivative too.
    ratio = c * peak_lr / jnp.where(lr > 0, lr, 1)
    return jnp.where(lr > 0, jnp.minimum(ratio, 1), 1)


def _copy(x: Any) -> jax.Array:
    """Copy, so that a jitted step may donate the parameters and the state; never weakly typed."""
    return jnp.array(x, jnp.result_type(x))


def _zero_sum(x: Any) -> jax.Array:
    """s_{-1} = 0, in at least float32."""
    return jnp.zeros_like(x, jnp.promote_types(jnp.result_type(x), jnp.float32))


def _scalars_like(s: jax.Array, *scalars: jax.Array) -> list[jax.Array]:
    """Cast to the real dtype of s: in x64 mode, a float64 scalar would widen a float32 sum."""
    return [scalar.astype(s.real.dtype) for scalar in scalars]


def _is_none(node: Any) -> bool:
    return node is None


def _validate_setting(name: str, setting: Any) -> None:
    """Raise ValueError if a number is invalid; values of schedules and of arrays may not be known yet."""
    if callable(setting) or hasattr(setting, "dtype"):
        return
    if not isinstance(setting, Real) or not 0 <= float(setting) < _LIMITS[name]:
        interval = (
            "from 0 to below 1 (0.9 is usual)" if name == "momentum" else f"from 0 to {_LIMITS[name]:g}"
        )
        raise ValueError(f"{name} must be a schedule or a number {interval}, got {setting!r}.")


def _validate_leaf(grad: Any, x: Any) -> None:
    """Raise ValueError if a gradient does not fit its parameter, or if MDA cannot update the parameter."""
    if jnp.shape(grad) != jnp.shape(x):
        raise ValueError(f"A parameter has shape {jnp.shape(x)}, but its gradient has {jnp.shape(grad)}.")
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        raise ValueError(
            f"mda updates floating-point and complex parameters, got {jnp.result_type(x)}: leave it out, for "
            "example with optax.masked."
        )
