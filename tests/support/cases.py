"""The table of optimizers that the conformance tests run through every property."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dualavg import MDA, DualAveraging
from dualavg._dadapt import DAdaptMDA
from dualavg._reference import ReferenceDAdaptMDA, ReferenceDualAveraging, coupled_c


@dataclass(frozen=True)
class Case:
    """An optimizer class with its settings, and those of its reference."""

    name: str
    cls: type[torch.optim.Optimizer] = MDA
    settings: dict[str, Any] = field(default_factory=dict)
    weighting: str = "sqrt"
    scaling: str = "sqrt"

    def make(self, params: Any, **changes: Any) -> torch.optim.Optimizer:
        settings = {**self.settings, **changes}
        if settings.pop("tensor_lr", False):
            settings["lr"] = torch.tensor(settings.get("lr", 1.0), dtype=torch.float64)
        return self.cls(params, **settings)

    @property
    def finds_lr(self) -> bool:
        return self.cls is DAdaptMDA

    def references(self, optimizer: torch.optim.Optimizer) -> "References":
        return FoundLrReferences(optimizer) if self.finds_lr else References(optimizer, self)

    def __str__(self) -> str:
        return self.name


def _cases() -> Iterator[Case]:
    for case in _unfused_cases():
        yield case
        if "foreach" not in case.settings:  # foreach and fused exclude each other
            fused = {**case.settings, "fused": True}
            yield replace(case, name=f"{case.name}-fused", settings=fused)


def _unfused_cases() -> Iterator[Case]:
    yield Case("mda")
    yield Case("mda-plain", settings={"momentum": 0.0})
    yield Case("mda-decay", settings={"weight_decay": 0.01})
    yield Case("mda-maximize", settings={"maximize": True, "weight_decay": 0.01})
    yield Case("mda-uncoupled", settings={"couple_momentum": False})
    yield Case("mda-tensor-lr", settings={"tensor_lr": True})
    yield Case("mda-foreach", settings={"foreach": True, "weight_decay": 0.01})
    yield Case("mda-foreach-maximize", settings={"foreach": True, "maximize": True})
    yield Case("mda-capturable", settings={"capturable": True, "weight_decay": 0.01})
    yield Case("mda-capturable-tensor-lr", settings={"capturable": True, "tensor_lr": True})
    yield Case("mda-capturable-foreach", settings={"capturable": True, "foreach": True, "tensor_lr": True})
    yield Case("da", DualAveraging, {}, "constant")
    yield Case("da-momentum", DualAveraging, {"momentum": 0.9}, "constant")
    yield Case("da-momentum-foreach", DualAveraging, {"momentum": 0.9, "foreach": True}, "constant")
    yield Case("da-last-iterate", DualAveraging, {"average": False, "momentum": 0.9}, "constant")
    yield Case("da-momentum-sqrt", DualAveraging, {"momentum": 0.9, "weighting": "sqrt"})
    yield Case("da-nesterov", DualAveraging, {"scaling": "nesterov"}, "constant", "nesterov")
    yield Case(
        "da-nesterov-capturable",
        DualAveraging,
        {"scaling": "nesterov", "weighting": "sqrt", "capturable": True},
        "sqrt",
        "nesterov",
    )
    # A large d0, so that d grows from the first steps on.
    yield Case("dadapt", DAdaptMDA, {"d0": 1e-3})
    slowly = {"d0": 1e-3, "growth_rate": 1.02}
    yield Case("dadapt-maximize", DAdaptMDA, {**slowly, "weight_decay": 0.01, "maximize": True})
    yield Case("dadapt-foreach", DAdaptMDA, {"d0": 1e-3, "weight_decay": 0.01, "foreach": True})
    yield Case("dadapt-capturable", DAdaptMDA, {**slowly, "capturable": True, "tensor_lr": True})


CASES = list(_cases())


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=wide).to(dtype)) for shape in shapes
    ]


def gradient(x: Tensor, k: int) -> Tensor:
    """A noisy gradient of a smooth function. It depends on x, so that errors feed back."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1000 + k), dtype=torch.float64)
    return (0.1 * torch.sin(x.detach().to(_wide(x))) + 0.1 * noise).to(x.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.complex128 if x.is_complex() else torch.float64


def train(
    optimizer: torch.optim.Optimizer,
    steps: range,
    *,
    gradient: Callable[[Tensor, int], Tensor] = gradient,
    before_step: Callable[[int], None] = lambda _: None,
) -> None:
    """Set every gradient and take the steps, with a step size that rises and falls."""
    base = [float(group["lr"]) for group in optimizer.param_groups]
    for k in steps:
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            _set_lr(group, lr * shape_of_lr(k))
            for p in group["params"]:
                p.grad = gradient(p, k)
        before_step(k)
        optimizer.step()
    for group, lr in zip(optimizer.param_groups, base, strict=True):
        _set_lr(group, lr)


def _set_lr(group: dict[str, Any], lr: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def shape_of_lr(k: int) -> float:
    """Warm-up over 20 steps, flat to 60, then down as 1/k; zero once, at step 150."""
    if k == 150:
        return 0.0
    return min(1.0, (k + 1) / 20, 60 / (k + 1))


class References:
    """The references of all parameters, by parameter, with the settings and the coupling of their groups."""

    def __init__(self, optimizer: torch.optim.Optimizer, case: Case) -> None:
        self.groups = optimizer.param_groups
        self.peaks = [0.0] * len(self.groups)
        self.of = {p: ReferenceDualAveraging(p, case.weighting, case.scaling) for p in all_params(optimizer)}

    def __getitem__(self, p: Tensor) -> ReferenceDualAveraging:
        return self.of[p]

    def step(self, gradient: Callable[[Tensor], Tensor]) -> None:
        """Take a step with the gradient of each parameter."""
        for p, group, lr, c in self.settings():
            self.of[p].step(gradient(p), lr, c, group["weight_decay"], group["maximize"])

    def settings(self) -> Iterator[tuple[Tensor, dict[str, Any], float, float]]:
        for i, group in enumerate(self.groups):
            lr, c = float(group["lr"]), 1 - group["momentum"]
            self.peaks[i] = max(self.peaks[i], lr)
            if group["couple_momentum"]:
                c = coupled_c(c, lr, self.peaks[i])
            yield from ((p, group, lr, c) for p in group["params"])


class FoundLrReferences(References):
    """The same, with the step sizes of D-Adaptation."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups = optimizer.param_groups
        self.peaks = [0.0] * len(self.groups)
        params, settings = all_params(optimizer), self.groups[0]
        self.dadapt = ReferenceDAdaptMDA(params, settings["d0"], settings["growth_rate"])
        self.of = dict(zip(params, self.dadapt.mda, strict=True))

    def step(self, gradient: Callable[[Tensor], Tensor]) -> None:
        params, groups, lr, c = map(list, zip(*self.settings(), strict=True))
        decay = [group["weight_decay"] for group in groups]
        self.dadapt.step([gradient(p) for p in params], lr, c, decay, self.groups[0]["maximize"])


def all_params(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def snapshot(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Copies of all parameters, state and what groups remember."""
    tensors = [p.detach().clone() for p in all_params(optimizer)]
    for p in all_params(optimizer):
        tensors += [value.clone() for value in optimizer.state.get(p, {}).values()]
    remembered = ("peak_lr", "estimate")
    return tensors + [g[key].clone() for g in optimizer.param_groups for key in remembered if key in g]


def assert_bitwise(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
