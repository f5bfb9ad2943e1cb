"""The fused operator: the for-loop's bits in one pass over memory; what does not fit it falls back."""

import copy
import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import all_params, assert_bitwise, parameters, snapshot, train
from support.layouts import SETTINGS, layouts
from support.versions import newer_torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dualavg import MDA, _fused, _update

FOR_LOOP = {"foreach": False, "fused": False}
needs_compiler = pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
pytestmark = [needs_compiler, newer_torch]


@pytest.fixture
def only_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_single_tensor", "_multi_tensor"):
        monkeypatch.setattr(_update, name, lambda *_, **__: pytest.fail("not the operator"))


@pytest.fixture
def for_loop_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parameters each call of the for-loop gets."""
    sizes: list[int] = []
    for_loop = _update._single_tensor

    def spy(rows: Any, **settings: Any) -> None:
        sizes.append(len(rows[0]))
        for_loop(rows, **settings)

    monkeypatch.setattr(_update, "_single_tensor", spy)
    return sizes


@settings(max_examples=60)
@given(n=st.integers(1, 70_000), **SETTINGS)
def test_it_equals_the_for_loop_bit_for_bit(
    layout: str, n: int, other_strides: bool, dtype: torch.dtype, seed: int, **group: Any
) -> None:
    if layout not in ("plain", "unaligned"):
        n = 1 + n % 300
    torch.manual_seed(seed)
    start = layouts()[layout](n).to(dtype)
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [
        MDA([p], lr=0.5, **kernel, **group)
        for p, kernel in zip(params, ({"fused": True}, FOR_LOOP), strict=True)
    ]
    for _ in range(3):
        grad = torch.randn(start.shape).to(dtype)
        if other_strides and grad.ndim > 1:
            grad = grad.transpose(0, -1).contiguous().transpose(0, -1)
        for p, optimizer in zip(params, optimizers, strict=True):
            p.grad = grad.clone(memory_format=torch.preserve_format)
            optimizer.step()
        assert_bitwise(*map(snapshot, optimizers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("anchor", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_many_steps_equal_the_for_loop_s_bit_for_bit(
    dtype: torch.dtype, anchor: torch.dtype | None, threads: int
) -> None:
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        optimizers = []
        for kernel in ({"fused": True}, FOR_LOOP):
            params = parameters((), (3,), (0, 2), (40_001,), (64, 9), dtype=dtype)
            optimizers.append(MDA(params, lr=0.3, weight_decay=0.01, anchor_dtype=anchor, **kernel))
            train(optimizers[-1], range(200 if threads == 1 else 10))
    finally:
        torch.set_num_threads(threads_before)
    assert_bitwise(*map(snapshot, optimizers))


@pytest.mark.usefixtures("only_the_operator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("anchor", [None, torch.bfloat16], ids=str)
def test_the_operator_takes_dense_real_tensors(dtype: torch.dtype, anchor: torch.dtype | None) -> None:
    params = parameters((), (5,), (0, 2), (3, 2), (4, 3, 2, 2), dtype=dtype)
    params[4].data = params[4].data.to(memory_format=torch.channels_last)
    optimizer = MDA(params, fused=True, anchor_dtype=anchor, lr=torch.tensor(0.5))
    train(optimizer, range(3))
    assert [optimizer.state[p]["step"].item() for p in params] == [3] * len(params)


@pytest.mark.usefixtures("only_the_operator")
def test_parameters_of_several_dtypes_and_ages_share_a_call() -> None:
    params = [parameters((4,), dtype=dtype)[0] for dtype in (torch.float32, torch.bfloat16, torch.float64)]
    optimizer = MDA(params, fused=True)
    for k in range(3):
        for age, p in enumerate(params):
            p.grad = torch.ones_like(p) if k >= age else None
        optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in params] == [3, 2, 1]


def strided(p: Tensor, _: MDA) -> None:
    p.data = torch.randn(5, 4).t()


def strided_gradient(p: Tensor, _: MDA) -> None:
    p.grad = torch.ones(5, 4).t()


def sparse_gradient(p: Tensor, _: MDA) -> None:
    p.grad = torch.eye(4, 5).to_sparse()


def strided_sum(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["s"] = torch.ones(5, 4).t()


def float64_step(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["step"] = optimizer.state[p]["step"].double()


def float64_sum(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["s"] = optimizer.state[p]["s"].double()


def float16_anchor(p: Tensor, optimizer: MDA) -> None:
    optimizer.state[p]["x0"] = optimizer.state[p]["x0"].half()


def float16(p: Tensor, optimizer: MDA) -> None:
    p.data, p.grad = p.data.half(), torch.ones(4, 5).half()


@pytest.mark.parametrize(
    "change",
    [
        strided,
        strided_gradient,
        sparse_gradient,
        strided_sum,
        float64_step,
        float64_sum,
        float16_anchor,
        float16,
    ],
)
def test_a_parameter_that_does_not_fit_falls_back_alone(
    change: Callable[[Tensor, MDA], None], for_loop_sizes: list[int]
) -> None:
    optimizers = []
    for kernel in ({"fused": True}, FOR_LOOP):
        params = parameters((), (3,), (4, 5), (1, 7), dtype=torch.float32)
        optimizer = MDA(params, **kernel)
        train(optimizer, range(2))
        torch.manual_seed(1)
        for p in params:
            p.grad = torch.ones_like(p)
        change(params[2], optimizer)
        for_loop_sizes.clear()
        optimizer.step()
        assert for_loop_sizes == ([1] if kernel != FOR_LOOP else [4])
        optimizers.append(optimizer)
    assert_bitwise(*map(snapshot, optimizers))


def test_tensor_subclasses_fall_back(for_loop_sizes: list[int]) -> None:
    class Refusing(Tensor):
        """Knows no operators but torch's own, like DTensor."""

        @staticmethod
        def __new__(cls, inner: Tensor) -> Tensor:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: Tensor) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            if func.namespace != "aten":
                return NotImplemented
            unwrap = lambda t: t.inner if isinstance(t, Refusing) else t  # noqa: E731
            out = func(*torch.utils._pytree.tree_map(unwrap, args), **(kwargs or {}))
            if isinstance(args[0], Refusing) and out is args[0].inner:
                return args[0]
            return Refusing(out) if isinstance(out, Tensor) else out

    start = torch.randn(5)
    p, q = Refusing(start.clone()), torch.nn.Parameter(start.clone())
    fused, loop = MDA([p], fused=True), MDA([q], **FOR_LOOP)
    for x, optimizer in ((p, fused), (q, loop)):
        for _ in range(2):
            x.grad = Refusing(torch.ones(5)) if x is p else torch.ones(5)
            optimizer.step()
    assert torch.equal(p.inner, q)
    assert for_loop_sizes == [1, 1, 1, 1]


def test_other_devices_get_a_warning_and_the_default_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer_module = sys.modules["torch.optim.optimizer"]  # torch.optim hides the attribute
    monkeypatch.setattr(optimizer_module, "_get_foreach_kernels_supported_devices", lambda: ["meta"])
    called: list[int] = []
    multi_tensor = _update._multi_tensor

    def spy(*args: Any, **more: Any) -> None:
        called.append(1)
        multi_tensor(*args, **more)

    monkeypatch.setattr(_update, "_multi_tensor", spy)
    _fused._warn_once.cache_clear()
    p = torch.nn.Parameter(torch.ones(3, device="meta"))
    optimizer = MDA([p], fused=True)
    p.grad = torch.ones(3, device="meta")
    with pytest.warns(UserWarning, match=r"no fused operator for meta; use torch\.compile") as caught:
        optimizer.step()
    assert caught[0].filename == __file__
    optimizer.step()  # without a warning, which would be an error
    assert called == [1, 1]


def test_a_step_allocates_no_memory() -> None:
    params = parameters((500_000,), (1000, 100), dtype=torch.float32)
    optimizer = MDA(params, fused=True, weight_decay=0.01)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    assert sum(max(0, event.cpu_memory_usage) for event in profile.events()) < 100


def operator_arguments() -> tuple[Any, ...]:
    xs = [p.detach() for p in parameters((4,), (3, 2), dtype=torch.float32)]
    steps = [torch.zeros(()) for _ in xs]
    grads, x0s, sums = ([torch.randn_like(x) for x in xs] for _ in range(3))
    return xs, grads, x0s, sums, steps, [0.5, 0.3], [2.0, 3.0], [4.0, 9.0], 0.1, 0.01, False


@pytest.fixture
def operator() -> Any:
    train(MDA(parameters((2,)), fused=True), range(1))
    return torch.ops.dualavg.step_.default


def test_the_operator_is_registered_correctly(operator: Any) -> None:
    """torch's own checks: what it mutates, its fake kernel, and that torch.compile can trace it."""
    torch.library.opcheck(operator, operator_arguments())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_function_contains_the_operator_without_a_graph_break(operator: Any) -> None:
    eager, compiled = operator_arguments(), copy.deepcopy(operator_arguments())
    for column, original in zip(compiled[:5], eager[:5], strict=True):
        for t, o in zip(column, original, strict=True):
            t.copy_(o)
    operator(*eager)
    torch._dynamo.reset()
    torch.compile(operator, fullgraph=True, backend="aot_eager")(*compiled)
    for left, right in zip(eager[:5], compiled[:5], strict=True):
        assert_bitwise(left, right)


def test_autograd_s_version_counters_rise() -> None:
    (p,) = parameters((4,), dtype=torch.float32)
    optimizer = MDA([p], fused=True)
    train(optimizer, range(1))
    tensors = [p, optimizer.state[p]["s"], optimizer.state[p]["step"]]
    before = [t._version for t in tensors]
    optimizer.step()
    assert all(t._version > version for t, version in zip(tensors, before, strict=True))


def test_fake_tensors_stay_fake() -> None:
    with FakeTensorMode():
        p = torch.nn.Parameter(torch.randn(8))
        p.grad = torch.randn(8)
    optimizer = MDA([p], fused=True)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[p]["s"].shape == (8,)


def test_a_dispatch_mode_sees_the_operator() -> None:
    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    optimizer = MDA(parameters((3,), dtype=torch.float32), fused=True)
    train(optimizer, range(1))
    with Recorder():
        optimizer.step()
    assert "dualavg.step_.default" in seen


def test_the_operator_refuses_what_does_not_fit_before_it_changes_anything(operator: Any) -> None:
    arguments = operator_arguments()
    arguments[3][1] = arguments[3][1].double()
    before = copy.deepcopy(arguments[:5])
    with pytest.raises(RuntimeError, match="does not support these tensors"):
        operator(*arguments)
    for column, old in zip(arguments[:5], before, strict=True):
        assert_bitwise(column, old)
    assert torch.ops.dualavg.misfits(*arguments[:5]) == [1]
    with pytest.raises(RuntimeError, match="one lambda, beta and k per tensor"):
        operator(*operator_arguments()[:5], [1.0], [1.0], [1.0], 0.1, 0.0, False)
    with pytest.raises(RuntimeError, match="must have the same length"):
        operator(
            *[column[: 2 - (i == 1)] for i, column in enumerate(operator_arguments()[:5])], *arguments[5:]
        )


@pytest.mark.parametrize("nbytes", [0, 28], ids=["freed", "cut short"])
@pytest.mark.parametrize("index", range(5), ids=["x", "g", "x0", "s", "step"])
def test_the_operator_refuses_tensors_whose_storage_is_too_small(
    nbytes: int, index: int, operator: Any
) -> None:
    """torch's own operators raise, or crash."""
    tensors = [torch.ones(8), torch.ones(8), torch.ones(8), torch.ones(8), torch.ones(())]
    if index == 4:
        nbytes = 0
    tensors[index].untyped_storage().resize_(nbytes)
    assert torch.ops.dualavg.misfits(*([t] for t in tensors)) == [0]


def test_the_default_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "_operator", lambda: pytest.fail("compiled"))
    train(MDA(parameters((3,))), range(2))


def test_weight_decay_at_lr_zero_multiplies_as_in_the_for_loop() -> None:
    """0 times NaN is NaN."""
    sums = []
    for kernel in ({"fused": True}, FOR_LOOP):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = MDA([p], weight_decay=0.1, **kernel)
        p.grad = torch.ones(3)
        optimizer.step()
        p.data[0] = torch.nan
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()
        sums.append(optimizer.state[p]["s"])
    torch.testing.assert_close(sums[0], sums[1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fused": True, "foreach": True}, "exclude each other"),
        ({"fused": True, "differentiable": True}, "fused=True is not differentiable"),
        ({"anchor_dtype": torch.float16}, "anchor_dtype must be None or torch.bfloat16"),
        ({"anchor_dtype": torch.bfloat16, "differentiable": True}, "anchor_dtype rounds parameters"),
    ],
)
def test_settings_that_exclude_each_other_raise(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MDA(parameters((2,)), **settings)


def test_a_step_in_inference_mode() -> None:
    optimizers = []
    for kernel in ({"fused": True}, FOR_LOOP):
        optimizer = MDA(parameters((4,), dtype=torch.float32), **kernel)
        train(optimizer, range(2))
        with torch.inference_mode(), warnings.catch_warnings():
            optimizer.step()
        train(optimizer, range(2))
        assert all(p.isfinite().all() for p in all_params(optimizer))
        optimizers.append(optimizer)
    assert_bitwise(*map(snapshot, optimizers))
