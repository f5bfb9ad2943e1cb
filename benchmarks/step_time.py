"""Time of one optimizer step: MDA's paths against torch.optim and others, as ratios inside one process.

    python benchmarks/step_time.py                           # about two minutes on two idle cores
    python benchmarks/step_time.py --networks "small MLP" --rounds 200

The parameters have the shapes of well-known networks. The optimizers take turns, one step each, so that
whatever else the machine does hits all of them; a ratio is the median over the rounds of an optimizer's time
divided by fused AdamW's in the same round. "Stream" is a plain loop that reads and writes what MDA must, and
does next to nothing with it: the limit that memory sets. Timings are noisy: compare rows of one run only.
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NETWORKS = ("ResNet-50", "PreAct ResNet-152", "RoBERTa base", "GPT-2 small", "small MLP")
REFERENCE, STREAM = "AdamW fused", "stream"
# Ratio of two rows, and its target: large networks, small MLP.
TARGETS = {
    ("MDA fused", "AdamW fused"): (0.88, 1.0),
    ("MDA fused, bf16 anchor", "SGD+M fused"): (1.15, 1.1),
    ("MDA", "SGD+M"): (1.2, 1.2),
}
STREAMING, EXTRA_MEMORY = 0.85, 0.01
MOST_COMPILED = 20  # tensors: to compile a step over hundreds takes minutes


def shapes_of(network: str) -> list[tuple[int, ...]]:
    """Shapes of a network's parameters, none of which is made."""
    import torch

    with torch.device("meta"):
        if network == "ResNet-50":
            from dualavg_bench.models.resnet import resnet50 as make
        elif network == "PreAct ResNet-152":
            from dualavg_bench.models.preact_resnet import preact_resnet152 as make
        elif network == "RoBERTa base":
            from functools import partial

            from dualavg_bench.models.masked_lm import MaskedLM

            make = partial(MaskedLM, 50_265, 512)
        elif network == "GPT-2 small":
            from transformers import GPT2Config, GPT2LMHeadModel

            def make():
                return GPT2LMHeadModel(GPT2Config())
        else:
            return [(64, 64), (64,), (100, 64), (100,), (10, 100), (10,)]
        return [tuple(p.shape) for p in make().parameters()]


def contenders() -> dict[str, Callable]:
    import madgrad
    import pytorch_optimizer
    import schedulefree
    import torch

    from dualavg import MDA

    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    # Step sizes so small that nothing happens to the shared parameters.
    return {
        REFERENCE: lambda ps: adamw(ps, lr=1e-9, fused=True),
        "AdamW": lambda ps: adamw(ps, lr=1e-9),
        "AdamW foreach": lambda ps: adamw(ps, lr=1e-9, foreach=True),
        "SGD+M fused": lambda ps: sgd(ps, lr=1e-9, momentum=0.9, fused=True),
        "SGD+M": lambda ps: sgd(ps, lr=1e-9, momentum=0.9),
        "SGD+M foreach": lambda ps: sgd(ps, lr=1e-9, momentum=0.9, foreach=True),
        "MDA fused": lambda ps: MDA(ps, lr=1e-9, fused=True),
        "MDA fused, bf16 anchor": lambda ps: MDA(ps, lr=1e-9, fused=True, anchor_dtype=torch.bfloat16),
        "MDA": lambda ps: MDA(ps, lr=1e-9),
        "MDA foreach": lambda ps: MDA(ps, lr=1e-9, foreach=True),
        "MDA compiled": lambda ps: MDA(ps, lr=torch.tensor(1e-9)),
        "madgrad": lambda ps: madgrad.MADGRAD(ps, lr=1e-9),
        "pytorch_optimizer MADGRAD": lambda ps: pytorch_optimizer.MADGRAD(ps, lr=1e-9),
        "schedule-free SGD": lambda ps: schedulefree.SGDScheduleFree(ps, lr=1e-9),
        "schedule-free AdamW": lambda ps: schedulefree.AdamWScheduleFree(ps, lr=1e-9),
    }


@contextmanager
def streaming(shapes: list[tuple[int, ...]]) -> Iterator[Callable[[], None]]:
    """A loop over as many numbers, in one piece: what memory allows."""
    import torch

    from dualavg import _fused

    n = sum(torch.Size(shape).numel() for shape in shapes)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "stream.so"
        source = Path(__file__).with_name("stream.cpp")
        compiler = os.environ.get("CXX", "c++")
        _fused.compile_library(compiler, source, target)
        loop = ctypes.CDLL(str(target)).stream
        loop.argtypes = (*4 * [ctypes.c_void_p], ctypes.c_int64, ctypes.c_int)
        buffers = [torch.zeros(n) for _ in range(4)]
        pointers = [buffer.data_ptr() for buffer in buffers]
        yield lambda: loop(*pointers, n, torch.get_num_threads())


def measure(shapes: list[tuple[int, ...]], seconds: float, rounds: int | None, *, compiled: bool) -> dict:
    import torch

    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    count = sum(p.numel() for p in params)
    steps, rows = {}, {}
    for name, make in contenders().items():
        if "compiled" in name and len(params) > MOST_COMPILED and not compiled:
            continue
        optimizer = make(params)
        if hasattr(optimizer, "train"):
            optimizer.train()
        step = torch.compile(optimizer.step) if "compiled" in name else optimizer.step
        start = time.perf_counter()
        step()
        first = time.perf_counter() - start
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        buffers = [v for state in states for v in state.values() if torch.is_tensor(v)]
        size = sum(v.numel() * v.element_size() for v in buffers if v.numel() > 1)
        rows[name] = {"first_step_s": first, "state_bytes": size / count}
        if name.startswith("MDA") and "compiled" not in name:
            rows[name]["extra_memory"] = extra_memory(step) / (4 * count)
        steps[name] = step
    with streaming(shapes) as loop:
        steps[STREAM] = loop
        times: dict[str, list[float]] = {name: [] for name in steps}
        begun = time.perf_counter()
        while len(times[STREAM]) < (rounds or 5) or (
            rounds is None and time.perf_counter() - begun < seconds
        ):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - start)
    skipped = 1 + len(times[STREAM]) // 10  # caches and clocks settle
    times = {name: values[skipped:] for name, values in times.items()}
    rows[STREAM] = {}
    for name, row in rows.items():
        row["median_ms"] = 1e3 * statistics.median(times[name])
        row["to_adamw_fused"] = ratio(times, name, REFERENCE)
        row["of_stream"] = ratio(times, STREAM, name)
    pairs = {f"{a} / {b}": ratio(times, a, b) for a, b in TARGETS}
    return {
        "parameters": count,
        "tensors": len(shapes),
        "n": len(times[STREAM]),
        "rows": rows,
        "pairs": pairs,
    }


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))


def extra_memory(step: Callable) -> int:
    """Bytes of all tensors that a step makes, which bounds the peak of what it holds besides its state."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Made(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            given = {leaf.data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            fresh = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
            self.total += sum(leaf.nbytes for leaf in fresh if leaf.data_ptr() not in given)
            return made

    with Made() as made:
        step()
    return made.total


def judge(results: dict) -> list[tuple[str, str, float, str, bool]]:
    """Every target: network, what, measured, target, met."""
    judged = []
    for network, result in results.items():
        small = network == "small MLP"
        for (a, b), targets in TARGETS.items():
            value, target = result["pairs"][f"{a} / {b}"], targets[small]
            judged.append((network, f"{a} / {b}", value, f"<= {target}", value <= target))
        fused = result["rows"]["MDA fused"]
        if not small:
            part, extra = fused["of_stream"], fused["extra_memory"]
            judged.append(
                (network, "fraction of the streaming limit", part, f">= {STREAMING}", part >= STREAMING)
            )
            judged.append(
                (network, "extra memory of a step", extra, f"< {EXTRA_MEMORY}", extra < EXTRA_MEMORY)
            )
    return judged


def draw(results: dict, path: Path) -> None:
    """Bars: time as a ratio to fused AdamW's."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in contenders() if any(name in result["rows"] for result in results.values())]
    figure, axes = plt.subplots(
        1, len(results), figsize=(3.2 * len(results) + 1.6, 4.6), sharey=True, squeeze=False
    )
    for column, (network, result) in zip(axes[0], results.items(), strict=True):
        values = [result["rows"].get(name, {}).get("to_adamw_fused", 0.0) for name in names]
        colors = ["#0072b2" if name.startswith("MDA") else "#9aa3ad" for name in names]
        column.barh(names, [min(value, 5) for value in values], color=colors)
        for y, value in enumerate(values):
            column.text(
                min(value, 5) + 0.06, y, f"{value:.2f}" if value else "not run", va="center", fontsize=8
            )
        column.axvline(1, color="#1b1f24", linewidth=0.8)
        column.set_xlim(0, 6)
        column.set_title(f"{network}\n{result['parameters'] / 1e6:.3g}M, n = {result['n']}", fontsize=9)
        column.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.supxlabel("time of a step / AdamW fused's (bars end at 5)", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def show(network: str, result: dict) -> None:
    print(f"\n{network}: {result['parameters']:,} parameters, {result['tensors']} tensors, n = {result['n']}")
    print(
        f"{'':28}{'median':>12}{'/ AdamW fused':>15}{'of stream':>11}{'state B/param':>15}{'first step':>12}"
    )
    for name, row in result["rows"].items():
        state = f"{row['state_bytes']:.1f}" if "state_bytes" in row else ""
        first = f"{row['first_step_s']:.2f} s" if "first_step_s" in row else ""
        print(
            f"{name:28}{row['median_ms']:>9.3f} ms{row['to_adamw_fused']:>15.2f}{row['of_stream']:>11.2f}"
            f"{state:>15}{first:>12}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="names with commas between; all five if not said"
    )
    parser.add_argument("--seconds", type=float, default=14, help="of a network's rounds (default: 14)")
    parser.add_argument(
        "--compiled", action="store_true", help="torch.compile(step) on large networks too: minutes"
    )
    parser.add_argument("--rounds", type=int, help="so many instead")
    parser.add_argument("--out", type=Path, default=Path("out/step_time.json"), help="where the figures go")
    arguments = parser.parse_args()

    import torch

    torch._dynamo.config.cache_size_limit = 1000
    results = {}
    for network in (name.strip() for name in arguments.networks.split(",")):
        if network not in NETWORKS:
            parser.error(f"there is no network called {network!r}: give some of {', '.join(NETWORKS)}")
        results[network] = measure(
            shapes_of(network), arguments.seconds, arguments.rounds, compiled=arguments.compiled
        )
        torch._dynamo.reset()
        gc.collect()
        show(network, results[network])
    print(f"\n{'target':20}{'':42}{'measured':>10}{'':>10}")
    for network, what, value, target, met in judge(results):
        print(f"{network:20}{what:42}{value:>10.3f}{target:>10}  {'met' if met else 'MISSED'}")
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "load": os.getloadavg()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({**facts, "networks": results}, indent=1) + "\n")
    draw(results, arguments.out.with_suffix(".png"))
    print(f"\nsaved: {arguments.out}, {arguments.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
