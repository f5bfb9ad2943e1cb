"""What the tests of the optax transformation share."""

from collections.abc import Iterator

import jax
import jax.experimental
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision. An older jax, the last one for Python 3.10 among them, has its switch elsewhere."""
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with switch(True):
        yield
