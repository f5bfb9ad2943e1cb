"""Time of one optimizer step: MDA's paths against torch.optim, as ratios inside one process.

    python benchmarks/step_time.py               # about a minute on two idle cores
    python benchmarks/step_time.py --rounds 100

The optimizers take turns, one step each, so that whatever else the machine does hits all of them; the figure
is the median over the rounds of the time divided by AdamW's time in the same round. Timings are noisy:
compare rows of one run, never of two.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

# Shapes of the parameters: many large ones, and a few small ones.
NETWORKS = {
    "small MLP (6 tensors, 12k)": [(64, 64), (64,), (100, 64), (100,), (10, 100), (10,)],
    "transformer block x 6 (72 tensors, 19M)": 6
    * [(1536, 512), (1536,), (512, 512), (512,), (2048, 512), (2048,), (512, 2048), (512,), *4 * [(512,)]],
}


def contenders() -> dict[str, Callable]:
    import torch

    from dualavg import MDA

    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    return {
        "AdamW": lambda ps: adamw(ps, lr=1e-3),
        "AdamW fused": lambda ps: adamw(ps, lr=1e-3, fused=True),
        "SGD+M": lambda ps: sgd(ps, lr=1e-3, momentum=0.9),
        "SGD+M fused": lambda ps: sgd(ps, lr=1e-3, momentum=0.9, fused=True),
        "MDA (default)": lambda ps: MDA(ps, lr=1e-2),
        "MDA foreach": lambda ps: MDA(ps, lr=1e-2, foreach=True),
        "MDA compiled": lambda ps: MDA(ps, lr=torch.tensor(1e-2)),
    }


def measure(shapes: list[tuple[int, ...]], rounds: int) -> list[dict]:
    import torch

    steps, states, first = {}, {}, {}
    for name, make in contenders().items():
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer = make(params)
        step = torch.compile(optimizer.step) if "compiled" in name else optimizer.step
        start = time.perf_counter()
        step()
        first[name] = time.perf_counter() - start
        steps[name] = step
        buffers = [v for state in optimizer.state.values() for v in state.values() if v.numel() > 1]
        states[name] = sum(v.numel() * v.element_size() for v in buffers) / sum(p.numel() for p in params)

    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return [
        {
            "optimizer": name,
            "median_ms": 1e3 * statistics.median(times[name]),
            "ratio_to_adamw": statistics.median(
                t / reference for t, reference in zip(times[name], times["AdamW"], strict=True)
            ),
            "state_bytes_per_parameter": states[name],
            "first_step_s": first[name],
            "n": rounds,
        }
        for name in steps
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="steps of each optimizer (default: 30)")
    parser.add_argument("--out", type=Path, default=Path("out/step_time.json"), help="where the figures go")
    arguments = parser.parse_args()

    import torch

    results = {"torch": torch.__version__, "threads": torch.get_num_threads(), "networks": {}}
    for network, shapes in NETWORKS.items():
        rows = results["networks"][network] = measure(shapes, arguments.rounds)
        print(f"\n{network}, n = {arguments.rounds} rounds, {torch.get_num_threads()} threads")
        print(f"{'optimizer':16}{'median':>12}{'/ AdamW':>10}{'state B/param':>16}{'first step':>12}")
        for row in rows:
            print(
                f"{row['optimizer']:16}{row['median_ms']:>9.3f} ms{row['ratio_to_adamw']:>10.2f}"
                f"{row['state_bytes_per_parameter']:>16.1f}{row['first_step_s']:>10.2f} s"
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nsaved: {arguments.out}")


if __name__ == "__main__":
    main()
