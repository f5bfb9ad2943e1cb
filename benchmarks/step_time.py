"""Time of one optimizer step: MDA's kernels, torch.optim and other packages, as ratios within one process.

    python benchmarks/step_time.py                           # about two minutes on two idle cores
    python benchmarks/step_time.py --networks "small MLP" --rounds 200

The parameters have the shapes of well-known networks. The two optimizers of a goal's ratio take their steps
directly one after the other, round after round, in a random order, so that other load on the machine affects
both alike. A ratio is the median over the rounds, with its quartiles. Then every other optimizer alternates
with fused AdamW. "Stream" is a plain loop that reads and writes as many bytes as MDA must, with almost no
arithmetic: the limit that memory sets. The time that a cache line takes from one core to the other tells
whether two cores of a virtual machine share a chiplet, and with it their path to memory; a host may move them
at any time. Extra memory is the peak of what a step allocates, as a fraction of the parameters' bytes.
Timings are noisy: compare rows of one run only.
"""

import argparse
import ctypes
import gc
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

NETWORKS = ("ResNet-50", "PreAct ResNet-152", "RoBERTa base", "GPT-2 small", "small MLP")
REFERENCE, STREAM = "AdamW fused", "stream"
# Goals: the largest ratio of two rows, for large networks and for the small MLP.
TARGETS = {
    ("MDA fused", "AdamW fused"): (0.95, 0.7),
    ("MDA fused, bf16 anchor", "SGD+M fused"): (1.2, 1.2),
    ("MDA", "SGD+M"): (1.3, 1.3),
    ("DAdaptMDA fused", "MDA fused"): (1.1, 1.1),
    ("DAdaptMDA", "MDA"): (1.6, 1.6),
}
EXTRA_MEMORY = 0.01  # of the parameters' bytes
BYTES = 24  # per parameter: what MDA must read and write
NAMED = {name for pair in TARGETS for name in pair} | {STREAM}
# Of measuring, where it is not 7.
SECONDS = {"RoBERTa base": 14, "GPT-2 small": 10, "small MLP": 3}
TWO_CORES = 1 << 15  # parameters above which a second core takes part
MOST_COMPILED = 20  # tensors: compiling a step of hundreds takes minutes


def shapes_of(network: str) -> list[tuple[int, ...]]:
    """Return the shapes of a network's parameters without allocating them."""
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
    from dualavg._dadapt import DAdaptMDA

    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    # The optimizers share the parameters: step sizes and gradients are so small that these hardly change.
    return {
        REFERENCE: lambda ps: adamw(ps, lr=1e-9, fused=True),
        "AdamW": lambda ps: adamw(ps, lr=1e-9),
        "AdamW foreach": lambda ps: adamw(ps, lr=1e-9, foreach=True),
        "SGD+M fused": lambda ps: sgd(ps, lr=1e-9, momentum=0.9, fused=True),
        "SGD+M": lambda ps: sgd(ps, lr=1e-9, momentum=0.9),
        "SGD+M foreach": lambda ps: sgd(ps, lr=1e-9, momentum=0.9, foreach=True),
        "MDA fused": lambda ps: MDA(ps, lr=2e-3, fused=True),
        "MDA fused, bf16 anchor": lambda ps: MDA(ps, lr=2e-3, fused=True, anchor_dtype=torch.bfloat16),
        "MDA": lambda ps: MDA(ps, lr=2e-3),
        "MDA foreach": lambda ps: MDA(ps, lr=2e-3, foreach=True),
        "DAdaptMDA fused": lambda ps: DAdaptMDA(ps, lr=1e-9, fused=True),
        "DAdaptMDA": lambda ps: DAdaptMDA(ps, lr=1e-9),
        "DAdaptMDA foreach": lambda ps: DAdaptMDA(ps, lr=1e-9, foreach=True),
        "MDA compiled": lambda ps: MDA(ps, lr=torch.tensor(2e-3)),
        "madgrad": lambda ps: madgrad.MADGRAD(ps, lr=1e-9),
        "pytorch_optimizer MADGRAD": lambda ps: pytorch_optimizer.MADGRAD(ps, lr=1e-9),
        "schedule-free SGD": lambda ps: schedulefree.SGDScheduleFree(ps, lr=1e-9),
        "schedule-free AdamW": lambda ps: schedulefree.AdamWScheduleFree(ps, lr=1e-9),
    }


@contextmanager
def streaming(shapes: list[tuple[int, ...]]) -> Iterator[tuple[Callable[[], None], Callable[[], float]]]:
    """Build the plain loop over as many numbers, and the measurement of the time between two cores."""
    import torch

    from dualavg import _fused

    n = sum(torch.Size(shape).numel() for shape in shapes)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "stream.so"
        source = Path(__file__).with_name("stream.cpp")
        _fused.compile_library(_fused.find_compiler(), source, target, "-fopenmp")
        library = ctypes.CDLL(str(target))
        loop, library.between_cores.restype = library.stream, ctypes.c_double
        loop.argtypes = (*4 * [ctypes.c_void_p], ctypes.c_int64, ctypes.c_int)
        buffers = [torch.zeros(n) for _ in range(4)]
        pointers = [buffer.data_ptr() for buffer in buffers]
        yield lambda: loop(*pointers, n, torch.get_num_threads()), library.between_cores


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
    rows = {name: {} for name in makers}

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
        probe = between_cores if count > TWO_CORES and torch.get_num_threads() > 1 else None
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
            two = {REFERENCE: reference, name: begin(name)}
            turns = two, [(name, REFERENCE)], seconds / 20, rounds or 3
            others = take_turns(*turns, exactly=rounds is not None)
            fill(rows[name], others, name)
            rows[name]["of_stream"] = limit / statistics.median(others.of(name))
            gc.collect()
    n = rows[REFERENCE]["n"]
    sizes = {"parameters": count, "tensors": len(shapes), "n": n, "ns_between_cores": times.between_cores}
    spread = {f"{a} / {b}": times.quartiles(a, b) for a, b in pairs}
    return {**sizes, "rows": rows, "pairs": {pair: q[1] for pair, q in spread.items()}, "quartiles": spread}


def build_time() -> float:
    """Seconds to build the fused operator with an empty cache."""
    from dualavg import _fused

    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, DUALAVG_CACHE=folder):
        return clock(_fused._build)


def clock(step: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


class Times:
    """The seconds of the steps of each pair in each round, and the nanoseconds between two cores after it."""

    def __init__(
        self, rounds: list[dict[tuple[str, str], tuple[float, float]]], between_cores: list[float]
    ) -> None:
        self.rounds, self.between_cores = rounds, between_cores

    def of(self, name: str) -> list[float]:
        """Return one time per round: the mean over the pairs that it belongs to."""
        return [
            statistics.fmean(t for pair in taken for n, t in zip(pair, taken[pair], strict=True) if n == name)
            for taken in self.rounds
        ]

    def ratios(self, a: str, b: str) -> list[float]:
        """Return one ratio per round, from the steps of a pair if a and b are one."""
        if (a, b) in self.rounds[0]:
            return [taken[a, b][0] / taken[a, b][1] for taken in self.rounds]
        return [x / y for x, y in zip(self.of(a), self.of(b), strict=True)]

    def quartiles(self, a: str, b: str) -> list[float]:
        """Return the three quartiles; the second is the median."""
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
    """Time the two steps of every pair directly one after the other, round after round.

    The machine's speed changes from one second to the next, so what is compared must be adjacent. The order
    of the pairs, and within a pair, is random: the caches favour nobody. The first tenth of the rounds does
    not count, while caches and clocks settle.
    """
    rounds, between, order, generator = [], [], list(pairs), random.Random(0)
    start = time.perf_counter()
    if exactly:  # plus those that do not count
        least += 1 + least // 9
    while len(rounds) < least or (not exactly and time.perf_counter() - start < seconds):
        generator.shuffle(order)
        taken = {}
        for a, b in order:
            if generator.random() < 0.5:
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
    """Return the peak of the bytes that a step allocates, from the allocator's own record: views are free."""
    import torch

    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    return max(itertools.accumulate((size for _, size in changes), initial=0))


def judge(results: dict) -> list[tuple[str, str, float, list[float], str, bool]]:
    """Compare with the goals: network, quantity, measured value, its quartiles, goal, whether it is met."""
    judged = []
    for network, result in results.items():
        small = network == "small MLP"
        for (a, b), goals in TARGETS.items():
            value, goal = result["pairs"][f"{a} / {b}"], goals[small]
            spread = result["quartiles"][f"{a} / {b}"]
            judged.append((network, f"{a} / {b}", value, spread, f"<= {goal}", value <= goal))
        for name in ("MDA fused", "MDA"):
            extra = result["rows"][name]["extra_memory"]
            goal = f"< {EXTRA_MEMORY}"
            judged.append((network, f"extra memory, {name}", extra, [], goal, extra < EXTRA_MEMORY))
    return judged


def draw(results: dict, path: Path) -> None:
    """Draw the time of each optimizer as a ratio to fused AdamW's."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in contenders() if any(name in result["rows"] for result in results.values())]
    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    size = (3.1 * columns + 2, 3.5 * rows + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
    for panel in axes.flat[len(results) :]:
        panel.set_visible(False)
    background = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    for panel, (network, result) in zip(axes.flat, results.items(), strict=False):
        values = [result["rows"].get(name, {}).get("to_adamw_fused", 0.0) for name in names]
        colors = ["#0072b2" if name.startswith("MDA") else "#9aa3ad" for name in names]
        panel.axvline(1, color="#1b1f24", linewidth=0.8)
        panel.barh(names, [min(value, 5) for value in values], color=colors, zorder=2)
        for y, value in enumerate(values):
            text = f"{value:.2f}" if value else "not run"
            panel.text(min(value, 5) + 0.08, y, text, va="center", fontsize=7.5, bbox=background, zorder=3)
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
    print(f"memory: {moved:.0f} GB/s in the stream", end="")
    if cores := sorted(result["ns_between_cores"]):
        low, high = cores[len(cores) // 10], cores[-1 - len(cores) // 10]
        print(f"; from core to core: {low:.0f} to {high:.0f} ns (10th to 90th percentile)", end="")
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
    """Exit with a one-line error if an argument is invalid, before anything is measured."""
    from dualavg import _fused

    for network in networks:
        if network not in NETWORKS:
            parser.error(f"unknown network {network!r}: choose from {', '.join(NETWORKS)}")
    if arguments.rounds is not None and arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {arguments.rounds}")
    if arguments.seconds is not None and not 0 < arguments.seconds < float("inf"):
        parser.error(f"--seconds must be a number above 0, got {arguments.seconds}")
    if arguments.out.suffix != ".json" or arguments.out.is_dir():
        parser.error(f"--out must be a file that ends in .json, got {arguments.out}")
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: cannot create the folder {arguments.out.parent} ({error.strerror})")
    try:
        _fused.find_compiler()
    except OSError as error:
        parser.error(f"the stream loop must be compiled, and {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="comma-separated names (default: all five)"
    )
    parser.add_argument("--seconds", type=float, help="time per network (default: 3 to 14, by its size)")
    parser.add_argument(
        "--compiled", action="store_true", help="torch.compile(step) on large networks too: takes minutes"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds, instead of --seconds; at least 2")
    parser.add_argument(
        "--out", type=Path, default=Path("out/step_time.json"), help="where to write the results"
    )
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
    print(f"\n{'goal':20}{'':42}{'measured':>10}{'quartiles':>16}")
    for network, quantity, value, spread, goal, met in judge(results):
        quartiles = f"{spread[0]:.3f} to {spread[-1]:.3f}" if spread else ""
        verdict = "met" if met else "MISSED"
        print(f"{network:20}{quantity:42}{value:>10.3f}{quartiles:>16}{goal:>10}  {verdict}")
    built = build_time()
    print(f"\nthe fused operator is built in {built:.2f} s, once per machine")
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "load": os.getloadavg()}
    facts["kernel_build_s"] = built
    arguments.out.write_text(json.dumps({**facts, "networks": results}, indent=1) + "\n")
    draw(results, arguments.out.with_suffix(".png"))
    print(f"\nsaved: {arguments.out}, {arguments.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
