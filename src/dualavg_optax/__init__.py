"""Modernized Dual Averaging for JAX, as an optax transformation."""

from dualavg_optax._mda import MDAState, mda

__all__ = ["MDAState", "mda"]
