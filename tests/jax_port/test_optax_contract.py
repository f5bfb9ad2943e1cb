"""optax's own tests of its optimizers, which its wheel contains, run on `mda`."""

import os
import subprocess
import sys
import unittest
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from optax import contrib
from optax._src import alias, alias_test
from optax.contrib import _common_test

from dualavg_optax import mda

SETTINGS = {"learning_rate": 1e-2}  # that of optax's sgd in its table, 1e-3, divided by 1 - momentum
COMMON = {"opt_name": "mda", "opt_kwargs": SETTINGS}
CONTRIB = {**COMMON, "wrapper_name": None, "wrapper_kwargs": None}

PARABOLA, ROSENBROCK = _common_test._setup_parabola, _common_test._setup_rosenbrock
MATRIX, MIXED = _common_test._setup_matrix_parabola, _common_test._setup_mixed_tensor_target
CONTRIB_TESTS: list[tuple[str, dict[str, Any]]] = [
    ("test_optimizers_accept_extra_args", {"wrap": False}),
    *(("test_optimizers", {"target": t, "dtype": "float32"}) for t in (PARABOLA, ROSENBROCK, MATRIX, MIXED)),
    ("test_optimizers_can_be_wrapped_in_inject_hyperparams", {}),
    *(("test_preserve_dtype", {"dtype": dtype}) for dtype in ("bfloat16", "float32")),
    *(("test_gradient_accumulation", {"dtype": dtype}) for dtype in ("bfloat16", "float32")),
    *(
        ("test_state_shape_dtype_shard_stability", {"dtype": dtype})
        for dtype in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)
    ),
    ("test_optimizers_accept_learning_rate_schedule_if_type_annotated_as_such", {}),
]
ALIAS_TESTS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("test_optimization", {"target": target, "dtype": dtype})
        for target in (alias_test._setup_parabola, alias_test._setup_rosenbrock)
        for dtype in (jnp.float32, jnp.complex64)
    ),
    *(
        ("test_state_shape_dtype_shard_stability", {"dtype": dtype})
        for dtype in (jnp.complex64, jnp.complex128)
    ),
]


def run(test_class: type, name: str, **arguments: Any) -> None:
    """Call the function below optax's table of optimizers: each row of the table is a wrapper of it."""
    row = f"{name}0"
    try:
        getattr(test_class, row).__wrapped__(test_class(row), **arguments)
    except unittest.SkipTest as skipped:
        pytest.fail(f"optax skipped the test: {skipped}")


def row_id(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-".join(getattr(setting, "__name__", str(setting)) for setting in value.values())


@pytest.mark.parametrize(("name", "arguments"), CONTRIB_TESTS, ids=row_id)
def test_passes_the_tests_of_contributed_optimizers(
    name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contrib, "mda", mda, raising=False)
    run(_common_test.ContribTest, name, **CONTRIB, **arguments)


@pytest.mark.parametrize(("name", "arguments"), ALIAS_TESTS, ids=row_id)
def test_passes_the_tests_of_core_optimizers(
    name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alias, "mda", mda, raising=False)
    run(alias_test.AliasTest, name, **COMMON, **arguments)


SHARDING = """
from optax._src import sharding_test
from dualavg_optax import mda
sharding_test.jax.__version__ = "0.9"  # compared as text: 0.10 would be skipped as older than 0.7.2
for name in ("test_state_sharding_type_init_match_update", "test_state_sharding_type_preserved_with_jit"):
    row = getattr(sharding_test.ShardingTest, name + "_adam")
    row.__wrapped__(sharding_test.ShardingTest(name + "_adam"), mda(1.0))
print("passed")
"""


@pytest.mark.skipif(not hasattr(jax, "P"), reason="optax's tests of sharding need a newer jax")
def test_passes_the_tests_of_sharded_states() -> None:
    """In a process of its own, which has eight devices."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDING], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout.split() == ["passed"], done.stderr
