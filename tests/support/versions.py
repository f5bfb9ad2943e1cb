"""Tests of what an older torch lacks; the oldest one that the library supports is 2.6."""

import pytest
import torch

newer_torch = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10), reason="torch 2.10 or later is needed"
)
