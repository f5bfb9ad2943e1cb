"""Train a small transformer in bfloat16 alone, without float32 master weights: MDA beside SGD+M and AdamW.

    pip install -c constraints.txt -e '.[bench]'
    python examples/bf16_transformer.py --seeds 1 --steps 300     # a look, about three minutes on one core
    python examples/bf16_transformer.py                           # docs/half-precision.md's table, an hour
    python examples/bf16_transformer.py --decay --only MDA --lr 1.5

A word-level language model learns docstrings several times from the same start, on the same batches:

    float32      weights, gradients and arithmetic in float32
    bf16         `model.to(torch.bfloat16)` and an ordinary loop; nothing else is kept
    masters      the control: the network in bfloat16, the optimizer on float32 copies of its weights
    nearest      MDA only: as bf16, but every weight is rounded to nearest, without dither
    stochastic   MDA only: as bf16, but every weight is rounded up or down at random, without bias

The step size is constant after a warm-up (unless --decay), so that c stays at 0.1: the hard case. Rounded to
nearest, the average x may lag behind the exact average y of the same z by up to 1/(2c) = 5 units in the last
place. The score is the training loss over fixed blocks of the training text, in float32 arithmetic. Compare
modes of one optimizer at one lr. A run whose loss is NaN or above the untrained network's has diverged.
"""

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812

from dualavg import MDA

WORDS, LENGTH, BATCH, SCORED = 2000, 32, 16, 256
MODES = ("float32", "bf16", "masters", "nearest", "stochastic")
OURS = ("nearest", "stochastic")  # other roundings, for MDA only
OPTIMIZERS = {
    "MDA": (MDA, {}, (1.5, 5.0, 10.0)),
    "SGD+M": (torch.optim.SGD, {"momentum": 0.9}, (0.15, 0.5, 1.0)),
    "AdamW": (torch.optim.AdamW, {}, (0.001, 0.003, 0.01)),
}
# Bytes per parameter in bf16: weights, gradient, state; with masters 4 more, and float32 state.
BYTES = {"MDA": (10, 16), "SGD+M": (6, 12), "AdamW": (8, 16)}


def data(folder: Path):
    """Return the blocks of the training text."""
    from dualavg_bench.data import wikitext
    from dualavg_bench.data.embedded import docstrings

    written = docstrings.write(folder)
    return wikitext.load(written, written.name, length=LENGTH, vocabulary=WORDS).train


def network(seed: int) -> torch.nn.Module:
    """Return a network whose weights bfloat16 holds exactly, so that every mode starts alike."""
    from dualavg_bench.models.transformer_lm import transformer_lm

    torch.manual_seed(seed)
    model = transformer_lm(WORDS, LENGTH, width=64, layers=2, heads=4, dropout=0.0)
    return model.to(torch.bfloat16).float()


def loss_of(model: torch.nn.Module, blocks: torch.Tensor) -> torch.Tensor:
    logits = model(blocks[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), blocks[:, 1:].flatten())


def train(name: str, lr: float, mode: str, seed: int, steps: int, decay: bool, folder: Path) -> dict:
    """Return the training loss at the end of one run, and how far the rounded average lags."""
    torch.set_num_threads(1)
    blocks = data(folder)
    model = network(seed)
    scored = blocks.batch(torch.arange(0, len(blocks), len(blocks) // SCORED)[:SCORED], None)
    with torch.no_grad():
        untrained = loss_of(model.eval(), scored).item()
    model.train()
    if mode != "float32":
        model.to(torch.bfloat16)
    weights = list(model.parameters())
    copies = mode in ("masters", *OURS)
    owned = [torch.nn.Parameter(w.detach().float()) for w in weights] if copies else weights
    make, settings, _ = OPTIMIZERS[name]
    optimizer = make(owned, lr=lr, **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: factor(k, steps, decay=decay))
    order = torch.Generator().manual_seed(1000 + seed)
    chance = torch.Generator().manual_seed(2000 + seed)
    lags = name == "MDA" and mode in ("bf16", *OURS)
    exact = [w.detach().float() for w in weights] if lags else None
    for k in range(steps):
        batch = blocks.batch(torch.randint(len(blocks), (BATCH,), generator=order), None)
        loss_of(model, batch).backward()
        for p, w in zip(owned, weights, strict=True):
            p.grad = w.grad.to(p.dtype)
        optimizer.step()
        c = min(1.0, 0.1 * lr / optimizer.param_groups[0]["lr"]) if k > 0.1 * steps else 0.1
        schedule.step()
        for p, w in zip(owned, weights, strict=True):
            w.grad = None
            if mode in OURS:
                p.data.copy_(p.data.bfloat16() if mode == "nearest" else by_chance(p.data, chance))
            if copies:
                w.data.copy_(p.data)
        if exact:
            for y, p in zip(exact, owned, strict=True):
                y.lerp_(optimizer.state[p]["x0"].float() - optimizer.state[p]["s"] / (k + 1) ** 0.5, c)
    model.float().eval()
    with torch.no_grad():
        loss = loss_of(model, scored).item()
    diverged = not loss < untrained  # NaN too
    lag = lag_of(weights, exact) if exact and not diverged else None
    return {
        "optimizer": name,
        "lr": lr,
        "mode": mode,
        "seed": seed,
        "loss": loss,
        "lag": lag,
        "diverged": diverged,
    }


def factor(k: int, steps: int, *, decay: bool) -> float:
    """Up over the first tenth of the steps; then level, or down to a twentieth."""
    rise = min(1.0, (k + 1) / (0.1 * steps))
    return min(rise, max(0.05, (steps - k) / (0.9 * steps))) if decay else rise


def by_chance(x: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Round to bfloat16's numbers, up with the probability that makes it right on average."""
    bits = x.view(torch.int32) + torch.randint(1 << 16, x.shape, dtype=torch.int32, generator=chance)
    return (bits & ~0xFFFF).view(torch.float32)


def lag_of(weights: list[torch.Tensor], exact: list[torch.Tensor]) -> dict[str, float]:
    """How far x is from the same average without rounding, in units of bfloat16's last place at x."""
    found = []
    for w, y in zip(weights, exact, strict=True):
        x = w.detach().float()
        unit = torch.exp2(x.abs().clamp(min=1e-30).log2().floor() - 7)
        found.append(((x - y).abs() / unit)[x.abs() > 1e-3])  # below, units are too small to matter
    lags = torch.cat(found)
    return {"median": lags.median().item(), "p95": lags.kthvalue(int(0.95 * len(lags))).values.item()}


def summarize(results: list[dict]) -> list[dict]:
    """One row an optimizer and lr: differences between modes, paired by seed, where neither run diverged."""
    rows = []
    for name, (_, _, lrs) in OPTIMIZERS.items():
        for lr in lrs:
            runs = {(r["mode"], r["seed"]): r for r in results if (r["optimizer"], r["lr"]) == (name, lr)}
            if not runs:
                continue
            row = {"optimizer": name, "lr": lr, "float32": described(runs, "float32"), "gaps": {}}
            for mode in MODES[1:]:
                if any(m == mode for m, _ in runs):
                    row["gaps"][mode] = described(runs, mode, "float32")
            row["gaps"]["bf16 - masters"] = described(runs, "bf16", "masters")
            row["lag"] = {}
            for mode in ("bf16", *OURS):
                lags = [r["lag"] for (m, _), r in runs.items() if m == mode and r["lag"]]
                if lags:
                    row["lag"][mode] = {key: statistics.fmean(lag[key] for lag in lags) for key in lags[0]}
            rows.append(row)
    return rows


def described(runs: dict, mode: str, against: str | None = None) -> dict:
    """Mean and standard error of a mode's losses, or of their differences to another's, and what diverged."""
    seeds = sorted(seed for m, seed in runs if m == mode)
    good = [s for s in seeds if not any(runs[m, s]["diverged"] for m in (mode, against) if m)]
    values = [runs[mode, s]["loss"] - (runs[against, s]["loss"] if against else 0.0) for s in good]
    return {
        "mean": statistics.fmean(values) if values else None,
        "se": statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None,
        "n": len(values),
        "diverged": sum(runs[mode, s]["diverged"] for s in seeds),
        "of": len(seeds),
    }


def show(rows: list[dict]) -> None:
    columns = (*MODES[1:], "bf16 - masters")
    print(f"\n{'':8}{'lr':>7}{'float32':>18}" + "".join(f"{name:>23}" for name in columns))
    for row in rows:
        gaps = [said(row["gaps"].get(name), signed=True) for name in columns]
        line = f"{row['optimizer']:8}{row['lr']:>7g}{said(row['float32']):>18}"
        print(line + "".join(f"{gap:>23}" for gap in gaps))
    print("Losses: float32's, then each mode's minus it, paired by seed: mean ± standard error (n).")
    for row in rows:
        for mode, lag in row["lag"].items():
            lagging = f"{lag['median']:.2f} units (median), {lag['p95']:.2f} (95th percentile)"
            print(f"MDA {row['lr']:g}, {mode}: x lags behind the exact average by {lagging}")


def said(figure: dict | None, *, signed: bool = False) -> str:
    if figure is None:
        return ""
    if figure["mean"] is None:
        return "diverged"
    text = f"{figure['mean']:{'+' if signed else ''}.4f}"
    text += "" if figure["se"] is None else f" ± {figure['se']:.4f}"
    return text if figure["n"] == figure["of"] else f"{text} ({figure['n']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="of a run (default: 600)")
    parser.add_argument("--seeds", type=int, default=8, help="(default: 8)")
    parser.add_argument("--decay", action="store_true", help="let the step size fall after the warm-up")
    parser.add_argument("--only", choices=OPTIMIZERS, help="one optimizer (default: all)")
    parser.add_argument("--lr", type=float, help="one of the step sizes (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="runs at once (default: 2)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/bf16_transformer.json"), help="where figures go"
    )
    arguments = parser.parse_args()
    if arguments.lr and not any(arguments.lr in OPTIMIZERS[name][2] for name in OPTIMIZERS):
        parser.error(f"no optimizer has lr {arguments.lr:g}: see OPTIMIZERS")
    names = [arguments.only] if arguments.only else list(OPTIMIZERS)
    grid = [(name, lr) for name in names for lr in OPTIMIZERS[name][2] if arguments.lr in (None, lr)]
    jobs = [
        (*point, mode, seed)
        for seed, point, mode in product(range(arguments.seeds), grid, MODES)
        if mode not in OURS or point[0] == "MDA"
    ]
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(arguments.workers) as pool:
        data(Path(folder))  # written once, before all want it
        waiting = [pool.submit(train, *job, arguments.steps, arguments.decay, Path(folder)) for job in jobs]
        results = []
        for future in waiting:
            results.append(future.result())
            print(f"\r{len(results)} of {len(jobs)} runs", end="", flush=True)
    rows = summarize(results)
    show(rows)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "torch": torch.__version__,
        "steps": arguments.steps,
        "decay": arguments.decay,
        "rows": rows,
        "runs": results,
    }
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"saved: {arguments.out}")


if __name__ == "__main__":
    main()
