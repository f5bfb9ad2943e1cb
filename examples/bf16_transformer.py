"""Train a small transformer in bfloat16 alone, without float32 master weights: MDA beside SGD+M and AdamW.

    pip install -c constraints.txt -e '.[bench]'
    python examples/bf16_transformer.py --seeds 1 --steps 300     # a look, about three minutes on one core
    python examples/bf16_transformer.py                           # what docs/half-precision.md states

A word-level language model learns docstrings three times from the same start, on the same batches:

    float32    weights, gradients and arithmetic in float32
    bf16       `model.to(torch.bfloat16)` and an ordinary loop; nothing else is kept
    masters    the control: the network in bfloat16, the optimizer on float32 copies of its weights

The step size is constant after a warm-up, so that c stays at 0.1 and the rounded average x may lag behind
its target z by up to 1/(2c) = 5 units in the last place: the hard case. The score is the training loss over
fixed blocks of the training text, in float32 arithmetic. Compare modes of one optimizer at one lr.
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
MODES = ("float32", "bf16", "masters")
OPTIMIZERS = {
    "MDA": (MDA, {}, (1.5, 5.0, 8.0)),
    "SGD+M": (torch.optim.SGD, {"momentum": 0.9}, (0.15, 0.5, 0.8)),
    "AdamW": (torch.optim.AdamW, {}, (0.003, 0.01)),
}
# Bytes a parameter in bf16: weights, gradient, state; with masters 4 more, and float32 state.
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


def train(name: str, lr: float, mode: str, seed: int, steps: int, folder: Path) -> dict:
    """Return the training loss at the end of one run, and how far x lags behind z."""
    torch.set_num_threads(1)
    blocks = data(folder)
    model = network(seed)
    if mode != "float32":
        model.to(torch.bfloat16)
    weights = list(model.parameters())
    owned = [torch.nn.Parameter(w.detach().float()) for w in weights] if mode == "masters" else weights
    make, settings, _ = OPTIMIZERS[name]
    optimizer = make(owned, lr=lr, **settings)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / (0.1 * steps)))
    order = torch.Generator().manual_seed(1000 + seed)
    for _ in range(steps):
        batch = blocks.batch(torch.randint(len(blocks), (BATCH,), generator=order), None)
        loss_of(model, batch).backward()
        for p, w in zip(owned, weights, strict=True):
            p.grad = w.grad.to(p.dtype)
        optimizer.step()
        warmup.step()
        for p, w in zip(owned, weights, strict=True):
            w.grad = None
            if mode == "masters":
                w.data.copy_(p.data)
    model.float().eval()
    with torch.no_grad():
        scored = blocks.batch(torch.arange(0, len(blocks), len(blocks) // SCORED)[:SCORED], None)
        score = loss_of(model, scored).item()
    return {"optimizer": name, "lr": lr, "mode": mode, "seed": seed, "loss": score, "lag_ulp": lag(optimizer)}


def lag(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the median of |x - z| in units of bfloat16's last place at x, for MDA."""
    if not isinstance(optimizer, MDA):
        return None
    found = []
    for x, state in optimizer.state.items():
        z = state["x0"].float() - state["s"] / state["step"].sqrt()
        unit = torch.exp2(x.detach().float().abs().clamp(min=1e-30).log2().floor() - 7)
        found.append(((x.detach().float() - z).abs() / unit).flatten())
    return torch.cat(found).median().item()


def summarize(results: list[dict], seeds: int) -> list[dict]:
    """One row an optimizer and lr: differences between modes, paired by seed."""
    rows = []
    for name, (_, _, lrs) in OPTIMIZERS.items():
        for lr in lrs:
            runs = {(r["mode"], r["seed"]): r for r in results if (r["optimizer"], r["lr"]) == (name, lr)}
            plain = [runs["float32", seed]["loss"] for seed in range(seeds)]
            row = {"optimizer": name, "lr": lr, "n": seeds, "float32": statistics.fmean(plain)}
            for mode in MODES[1:]:
                gaps = [runs[mode, seed]["loss"] - p for seed, p in enumerate(plain)]
                spread = statistics.stdev(gaps) / seeds**0.5 if seeds > 1 else None
                row[mode] = {"mean": statistics.fmean(gaps), "se": spread, "worst": max(gaps)}
            lags = [runs["bf16", seed]["lag_ulp"] for seed in range(seeds)]
            row["lag_ulp"] = None if lags[0] is None else statistics.fmean(lags)
            rows.append(row)
    return rows


def show(rows: list[dict]) -> None:
    print(
        f"\n{'':8}{'lr':>7}{'float32':>9}{'bf16 - float32':>20}{'masters - float32':>20}{'lag':>9}"
        f"{'bytes':>10}"
    )
    for row in rows:
        gaps = []
        for mode in MODES[1:]:
            error = "" if row[mode]["se"] is None else f" ± {row[mode]['se']:.4f}"
            gaps.append(f"{row[mode]['mean']:+.4f}{error}")
        lagging = "" if row["lag_ulp"] is None else f"{row['lag_ulp']:.1f} ulp"
        size = "{} / {}".format(*BYTES[row["optimizer"]])
        print(
            f"{row['optimizer']:8}{row['lr']:>7g}{row['float32']:>9.4f}{gaps[0]:>20}{gaps[1]:>20}{lagging:>9}"
            f"{size:>10}"
        )
    print(f"n = {rows[0]['n']} seeds, paired; mean ± standard error. bytes a parameter: bf16 / masters.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="of a run (default: 600)")
    parser.add_argument("--seeds", type=int, default=4, help="(default: 4)")
    parser.add_argument("--workers", type=int, default=2, help="runs at once (default: 2)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/bf16_transformer.json"), help="where figures go"
    )
    arguments = parser.parse_args()
    grid = [(name, lr) for name, (_, _, lrs) in OPTIMIZERS.items() for lr in lrs]
    jobs = [(*point, mode, seed) for seed, point, mode in product(range(arguments.seeds), grid, MODES)]
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(arguments.workers) as pool:
        data(Path(folder))  # written once, before all want it
        waiting = [pool.submit(train, *job, arguments.steps, Path(folder)) for job in jobs]
        results = []
        for future in waiting:
            results.append(future.result())
            print(f"\r{len(results)} of {len(jobs)} runs", end="", flush=True)
    rows = summarize(results, arguments.seeds)
    show(rows)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"torch": torch.__version__, "steps": arguments.steps, "rows": rows, "runs": results}
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"saved: {arguments.out}")


if __name__ == "__main__":
    main()
