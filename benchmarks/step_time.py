"""Time of one optimizer step: MDA's paths against torch.optim and others, as ratios inside one process.

    python benchmarks/step_time.py                           # about two minutes on two idle cores
    python benchmarks/step_time.py --networks "small MLP" --rounds 200

The parameters have the shapes of well-known networks. Of the optimizers that a target names, the two of a
ratio take their steps one right after the other, round after round, in an order drawn anew, so that
whatever else the machine does hits both; a ratio is the median over the rounds, with its quartiles. Then
every other optimizer takes turns with fused AdamW. "Stream" is a plain loop that reads and writes what MDA
must, and does next to nothing with it: the limit that memory sets. How long a cache line takes from one core
to the other says whether they share a chiplet, and with it the way to memory, which a host of virtual cores
may change while they run. Timings are noisy: compare rows of one run only.
"""

import argparse
import ctypes
import gc
import json
import os
import random
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
BYTES = 24  # a parameter: what MDA reads and writes at the least
NAMED = {name for pair in TARGETS for name in pair} | {STREAM}
# Of rounds, which take longer or less; else 7.
SECONDS = {"RoBERTa base": 14, "GPT-2 small": 10, "small MLP": 3}
SHARED = 1 << 15  # parameters from which on a second core takes part
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
    # Step sizes so small that next to nothing happens to the shared parameters; MDA's step does not grow with
    # lr alone, and gradients are small.
    return {
        REFERENCE: lambda ps: adamw(ps, lr=1e-9, fused=True),
        "AdamW": lambda ps: adamw(ps, lr=1e-9),
        "AdamW foreach": lambda ps: adamw(ps, lr=1e-9, foreach=True),
        "SGD+M fused": lambda ps: sgd(ps, lr=1e-9, momentum=0.9, fused=True),
        "SGD+M": lambda ps: sgd(ps, lr=1e-9, momentum=0.9),
        "SGD+M foreach": lambda ps: sgd(ps, lr=1e-9, momentum=0.9, foreach=True),
        "MDA fused": lambda ps: MDA(ps, lr=1e-3, fused=True),
        "MDA fused, bf16 anchor": lambda ps: MDA(ps, lr=1e-3, fused=True, anchor_dtype=torch.bfloat16),
        "MDA": lambda ps: MDA(ps, lr=1e-3),
        "MDA foreach": lambda ps: MDA(ps, lr=1e-3, foreach=True),
        "MDA compiled": lambda ps: MDA(ps, lr=torch.tensor(1e-3)),
        "madgrad": lambda ps: madgrad.MADGRAD(ps, lr=1e-9),
        "pytorch_optimizer MADGRAD": lambda ps: pytorch_optimizer.MADGRAD(ps, lr=1e-9),
        "schedule-free SGD": lambda ps: schedulefree.SGDScheduleFree(ps, lr=1e-9),
        "schedule-free AdamW": lambda ps: schedulefree.AdamWScheduleFree(ps, lr=1e-9),
    }


@contextmanager
def streaming(shapes: list[tuple[int, ...]]) -> Iterator[tuple[Callable[[], None], Callable[[], float]]]:
    """A loop over as many numbers, in one piece: what memory allows. And nanoseconds between two cores."""
    import torch

    from dualavg import _compiler

    n = sum(torch.Size(shape).numel() for shape in shapes)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "stream.so"
        source = Path(__file__).with_name("stream.cpp")
        _compiler.compile_library(_compiler.find_compiler(), [source], target)
        built = ctypes.CDLL(str(target))
        loop, built.between_cores.restype = built.stream, ctypes.c_double
        loop.argtypes = (*4 * [ctypes.c_void_p], ctypes.c_int64, ctypes.c_int)
        buffers = [torch.zeros(n) for _ in range(4)]
        pointers = [buffer.data_ptr() for buffer in buffers]
        yield lambda: loop(*pointers, n, torch.get_num_threads()), built.between_cores


def measure(shapes: list[tuple[int, ...]], seconds: float, rounds: int | None, *, compiled: bool) -> dict:
    import torch

    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p).mul_(1e-6)
    count = sum(p.numel() for p in params)
    makers = contenders()
    if len(params) > MOST_COMPILED and not compiled:
        makers = {name: make for name, make in makers.items() if "compiled" not in name}
    rows = {name: {} for name in makers}  # in their order

    def begin(name: str) -> Callable[[], None]:
        optimizer = makers[name](params)
        if hasattr(optimizer, "train"):
            optimizer.train()
        step = torch.compile(optimizer.step) if "compiled" in name else optimizer.step
        rows[name]["first_step_s"] = clock(step)
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        buffers = [v for state in states for v in state.values() if torch.is_tensor(v)]
        rows[name]["state_bytes"] = sum(v.nbytes for v in buffers if v.numel() > 1) / count
        if name.startswith("MDA") and "compiled" not in name:
            rows[name]["extra_memory"] = extra_memory(step) / (4 * count)
        return step

    steps = {name: begin(name) for name in makers if name in NAMED}
    pairs = [*TARGETS, (STREAM, "MDA fused")]
    with streaming(shapes) as (loop, between_cores):
        turns = {**steps, STREAM: loop}, pairs, seconds, rounds or 6
        shared = count > SHARED and torch.get_num_threads() > 1
        probe = between_cores if shared else None
        times = take_turns(*turns, exactly=rounds is not None, probe=probe)
    reference = steps[REFERENCE]
    rows[STREAM] = {}
    limit = statistics.median(times.of(STREAM))
    for name in (*steps, STREAM):
        fill(rows[name], times, name)
        rows[name]["of_stream"] = statistics.median(times.ratios(STREAM, name))
    del steps
    gc.collect()
    for name in makers:
        if name not in NAMED:
            mine = {REFERENCE: reference, name: begin(name)}
            turns = mine, [(name, REFERENCE)], seconds / 20, rounds or 3
            others = take_turns(*turns, exactly=rounds is not None)
            fill(rows[name], others, name)
            rows[name]["of_stream"] = limit / statistics.median(others.of(name))
            gc.collect()
    n = rows[REFERENCE]["n"]
    sizes = {"parameters": count, "tensors": len(shapes), "n": n, "ns_between_cores": times.between_cores}
    spread = {f"{a} / {b}": times.quartiles(a, b) for a, b in pairs}
    return {**sizes, "rows": rows, "pairs": {pair: q[1] for pair, q in spread.items()}, "quartiles": spread}


def build_time() -> float:
    """Seconds to build the C++ kernel where it is not in the cache yet."""
    from dualavg import _compiler

    before = os.environ.get("DUALAVG_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DUALAVG_CACHE"] = folder
        try:
            return clock(_compiler._build)
        finally:
            os.environ.pop("DUALAVG_CACHE")
            if before is not None:
                os.environ["DUALAVG_CACHE"] = before


def clock(step: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


class Times:
    """Seconds of steps, round by round, and of which pairs one was taken right after the other.

    And after each round the nanoseconds between two cores, if that was asked for and could be measured.
    """

    def __init__(
        self, rounds: list[dict[tuple[str, str], tuple[float, float]]], between_cores: list[float]
    ) -> None:
        self.rounds, self.between_cores = rounds, between_cores

    def of(self, name: str) -> list[float]:
        """One time a round: the mean of those it was taken for a pair."""
        return [
            statistics.fmean(t for pair in taken for n, t in zip(pair, taken[pair], strict=True) if n == name)
            for taken in self.rounds
        ]

    def ratios(self, a: str, b: str) -> list[float]:
        """One time over another: of a pair, if they are one, or else of the round."""
        if (a, b) in self.rounds[0]:
            return [taken[a, b][0] / taken[a, b][1] for taken in self.rounds]
        return [x / y for x, y in zip(self.of(a), self.of(b), strict=True)]

    def quartiles(self, a: str, b: str) -> list[float]:
        """The middle one is the median."""
        return statistics.quantiles(self.ratios(a, b), n=4, method="inclusive")


def take_turns(
    steps: dict,
    pairs: list[tuple[str, str]],
    seconds: float,
    least: int,
    *,
    exactly: bool = False,
    probe: Callable[[], float] | None = None,
) -> Times:
    """Time the two of every pair one right after the other, round after round.

    The machine changes its speed from one second to the next: who is to be compared is next to each other.
    Every round draws the order of the pairs, and who goes first: what a step leaves in the caches is in
    nobody's favour. The first rounds do not count, in which caches and clocks settle.
    """
    rounds, between, order, chance = [], [], list(pairs), random.Random(0)
    begun = time.perf_counter()
    if exactly:  # besides those that do not count
        least += 1 + least // 9
    while len(rounds) < least or (not exactly and time.perf_counter() - begun < seconds):
        chance.shuffle(order)
        taken = {}
        for a, b in order:
            if chance.random() < 0.5:
                first = clock(steps[a])
                taken[a, b] = (first, clock(steps[b]))
            else:
                second = clock(steps[b])
                taken[a, b] = (clock(steps[a]), second)
        rounds.append(taken)
        if probe:
            between.append(probe())
    first = 1 + len(rounds) // 10
    return Times(rounds[first:], [ns for ns in between[first:] if ns])


def fill(row: dict, times: Times, name: str) -> None:
    seconds = times.of(name)
    row["n"] = len(seconds)
    row["median_ms"] = 1e3 * statistics.median(seconds)
    row["to_adamw_fused"] = statistics.median(times.ratios(name, REFERENCE))


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


def judge(results: dict) -> list[tuple[str, str, float, list[float], str, bool]]:
    """Every target: network, what, measured, its quartiles, target, met."""
    judged = []
    for network, result in results.items():
        small = network == "small MLP"
        for (a, b), targets in TARGETS.items():
            value, target = result["pairs"][f"{a} / {b}"], targets[small]
            spread = result["quartiles"][f"{a} / {b}"]
            judged.append((network, f"{a} / {b}", value, spread, f"<= {target}", value <= target))
        fused = result["rows"]["MDA fused"]
        if not small:
            part, extra = fused["of_stream"], fused["extra_memory"]
            spread = result["quartiles"][f"{STREAM} / MDA fused"]
            of_stream = (part, spread, f">= {STREAMING}", part >= STREAMING)
            judged.append((network, "fraction of the streaming limit", *of_stream))
            judged.append(
                (network, "extra memory of a step", extra, [], f"< {EXTRA_MEMORY}", extra < EXTRA_MEMORY)
            )
    return judged


def draw(results: dict, path: Path) -> None:
    """Bars: time as a ratio to fused AdamW's."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in contenders() if any(name in result["rows"] for result in results.values())]
    across = min(3, len(results))
    down = -(-len(results) // across)
    size = (3.1 * across + 2, 3.5 * down + 0.5)
    figure, axes = plt.subplots(down, across, figsize=size, sharey=True, squeeze=False)
    for panel in axes.flat[len(results) :]:
        panel.set_visible(False)
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    for panel, (network, result) in zip(axes.flat, results.items(), strict=False):
        values = [result["rows"].get(name, {}).get("to_adamw_fused", 0.0) for name in names]
        colors = ["#0072b2" if name.startswith("MDA") else "#9aa3ad" for name in names]
        panel.axvline(1, color="#1b1f24", linewidth=0.8)
        panel.barh(names, [min(value, 5) for value in values], color=colors, zorder=2)
        for y, value in enumerate(values):
            text = f"{value:.2f}" if value else "not run"
            panel.text(min(value, 5) + 0.08, y, text, va="center", fontsize=7.5, bbox=behind, zorder=3)
        panel.set_xlim(0, 6)
        panel.tick_params(labelsize=8)
        panel.set_title(f"{network}: {result['parameters']:,} parameters\nn = {result['n']}", fontsize=8.5)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.supxlabel("time of a step / fused AdamW's (bars end at 5)", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def show(network: str, result: dict) -> None:
    ns = [row["n"] for row in result["rows"].values()]
    others = f", others {min(ns)} to {max(ns)}" if min(ns) < result["n"] else ""
    sizes = f"{result['parameters']:,} parameters, {result['tensors']} tensors"
    print(f"\n{network}: {sizes}, n = {result['n']}{others}")
    moved = BYTES * result["parameters"] / (1e6 * result["rows"][STREAM]["median_ms"])
    print(f"the stream moves {moved:.0f} GB/s", end="")
    if cores := sorted(result["ns_between_cores"]):
        low, high = cores[len(cores) // 10], cores[-1 - len(cores) // 10]
        print(f", a cache line goes from core to core in {low:.0f} to {high:.0f} ns", end="")
    print()
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


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace, networks: list[str]) -> None:
    """End with a sentence if something is wrong, before two minutes have gone by."""
    from dualavg import _compiler

    for network in networks:
        if network not in NETWORKS:
            parser.error(f"there is no network called {network!r}: give some of {', '.join(NETWORKS)}")
    if arguments.rounds is not None and arguments.rounds < 2:
        parser.error(f"--rounds must be two at least, got {arguments.rounds}")
    if arguments.seconds is not None and not 0 < arguments.seconds < float("inf"):
        parser.error(f"--seconds must be a number above 0, got {arguments.seconds}")
    if arguments.out.suffix != ".json" or arguments.out.is_dir():
        parser.error(f"--out must be a file that ends in .json, got {arguments.out}")
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: there can be no folder {arguments.out.parent} ({error.strerror})")
    try:
        _compiler.find_compiler()
    except OSError as error:
        parser.error(f"the plain loop that is the limit has to be compiled, and {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="names with commas between; all five if not said"
    )
    parser.add_argument("--seconds", type=float, help="of a network's rounds (default: 3 to 14, by its size)")
    parser.add_argument(
        "--compiled", action="store_true", help="torch.compile(step) on large networks too: minutes"
    )
    parser.add_argument("--rounds", type=int, help="so many instead, two at least")
    parser.add_argument("--out", type=Path, default=Path("out/step_time.json"), help="where the figures go")
    arguments = parser.parse_args()
    networks = [name.strip() for name in arguments.networks.split(",")]
    check(parser, arguments, networks)

    import torch

    torch._dynamo.config.cache_size_limit = 1000
    results = {}
    for network in networks:
        seconds = SECONDS.get(network, 7) if arguments.seconds is None else arguments.seconds
        results[network] = measure(shapes_of(network), seconds, arguments.rounds, compiled=arguments.compiled)
        torch._dynamo.reset()
        gc.collect()
        show(network, results[network])
    print(f"\n{'target':20}{'':42}{'measured':>10}{'quartiles':>16}")
    for network, what, value, spread, target, met in judge(results):
        around = f"{spread[0]:.3f} to {spread[-1]:.3f}" if spread else ""
        print(f"{network:20}{what:42}{value:>10.3f}{around:>16}{target:>10}  {'met' if met else 'MISSED'}")
    built = build_time()
    print(f"\nthe fused kernel is built in {built:.2f} s, once a machine")
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "load": os.getloadavg()}
    facts["kernel_build_s"] = built
    arguments.out.write_text(json.dumps({**facts, "networks": results}, indent=1) + "\n")
    draw(results, arguments.out.with_suffix(".png"))
    print(f"\nsaved: {arguments.out}, {arguments.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
