"""Trains one run: seeds, loop, evaluation, checkpoint, resume.

A run is a pure function of its spec. Initialisation, data order, augmentation and dropout are drawn from
seeds made of (recipe, seed, what for, step), never from a generator that is carried along: so runs of
different optimizers pair up, and a run that was cut off anywhere goes on bit for bit. The global generators
of torch, numpy and Python are seeded with them, for recipes that draw from these.

Several processes (torchrun) share a run: its parts are spread over them, so that as many processes as
`accumulate` says, or a divisor of it, draw what one process draws. Rank 0 alone reads, evaluates and writes;
what it finds, or raises, all ranks get.
"""

import contextlib
import dataclasses
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from dualavg_bench.recipe import Batch, Recipe, RecipeError, Source, registry
from dualavg_bench.recipe.schedules import make_schedule
from dualavg_bench.recipe.user_code import user_code
from dualavg_bench.run import evaluation, machine, outputs, samples
from dualavg_bench.run.data import fingerprint, read
from dualavg_bench.run.processes import any_of, from_rank_0, rank, world
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import Curve, RunResult, RunTime, Sample

WINDOW = 10  # steps whose training losses are averaged into one point of the curve, and checked together
SMALLEST_FIRST_LOSS = 0.1  # that a blow-up is measured by: many times almost nothing is still little


class Interrupted(Exception):  # noqa: N818 - not an error: the checkpoint is written, and another goes on
    """The run was asked to stop."""


def seed_for(recipe: str, seed: int, *what: object) -> int:
    """Make a seed out of words and numbers; the optimizer is never among them."""
    text = repr((recipe, seed, *what))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def run(
    spec: RunSpec,
    recipe: Recipe,
    folder: RunFolder,
    data: Path,
    *,
    checkpoint_seconds: float = 30.0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Return the result of a run: what is on disk, or else trained to its end, from its checkpoint on.

    Args:
        spec: what to run.
        recipe: the recipe of the spec.
        folder: where the run lives.
        data: the folder that the recipe reads its data from.
        checkpoint_seconds: how often the state is saved.
        progress: called with the steps done and the steps in all.
        should_stop: asked after every window; True writes a checkpoint and raises `Interrupted`.
    """
    with contextlib.ExitStack() as stack:
        from_rank_0(lambda: stack.enter_context(folder.locked()))
        finished = from_rank_0(folder.result)
        if finished is not None:
            return finished
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(recipe.threads)
        result = _Run(spec, recipe, folder, data).train(checkpoint_seconds, progress, should_stop)
        from_rank_0(lambda: folder.finish(result))
        return from_rank_0(lambda: result)


class _Run:
    """A run in memory. A checkpoint holds the values of the first names and the state dicts of the others."""

    VALUES = (
        *("step", "seconds", "first_loss", "untrained_test"),
        *("train_curve", "valid_curve", "step_times", "optimizer_times"),
    )
    STATES = ("model", "optimizer", "schedule", "scaler")

    def __init__(self, spec: RunSpec, recipe: Recipe, folder: RunFolder, data: Path) -> None:
        machine.reset_peak_memory()
        self.spec, self.recipe, self.folder = spec, recipe, folder
        self.device = machine.device()
        from_rank_0(lambda: self._load(data))  # before the others: it may write the data set
        if rank() > 0:
            self._load(data)
        machine.seed_all(self._seed("init"))
        self.model, self.parts = self._share(outputs.network(recipe).to(self.device))
        self.forward: torch.nn.Module = torch.compile(self.model) if recipe.compile else self.model  # type: ignore[assignment]
        if world() > 1:
            self.forward = DistributedDataParallel(self.forward)
        self.optimizer = registry.make(
            spec.optimizer, self.model.parameters(), spec.point, spec.optimizer_settings
        )
        with user_code(recipe.name, f"The schedule {spec.point.schedule}"):
            self.schedule = make_schedule(spec.point.schedule, recipe.schedules, self.optimizer, recipe.steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "float16")
        self.step, self.seconds = 0, 0.0
        self.first_loss: float | None = None
        self.train_curve: dict[str, list[float]] = {"step": [], "loss": []}
        self.valid_curve: dict[str, list[float | None]] = {"step": []}
        self.untrained_test: evaluation.Scores | None = None
        self.step_times: list[float] = []
        self.optimizer_times: list[float] = []

    def _load(self, data: Path) -> None:
        self.splits = read(self.recipe, data)
        if fingerprint(self.splits, test=self.spec.test) != self.spec.data:
            raise RecipeError(
                f"The data of recipe {self.recipe.name} at {data} are not those the study was started with: "
                "start it again."
            )

    def _seed(self, *what: object) -> int:
        return seed_for(self.recipe.name, self.spec.seed, *what)

    def _share(self, model: torch.nn.Module) -> tuple[torch.nn.Module, int]:
        """Return the network as processes can share it, and how many parts a step has over all of them."""
        recipe, processes, parts = self.recipe, world(), self.recipe.accumulate
        with_norms = processes > 1 and any(isinstance(layer, _BatchNorm) for layer in model.modules())
        if with_norms and self.device.type == "cpu":
            raise RecipeError(
                f"The network of recipe {recipe.name} has batch norm, whose statistics processes share on "
                f"GPUs only: run it in one process."
            )
        if with_norms:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        if parts % processes or with_norms:
            parts *= processes
        if recipe.batch_size % parts:
            raise RecipeError(
                f"batch_size {recipe.batch_size} of recipe {recipe.name} does not divide into {parts} parts "
                f"(accumulate {recipe.accumulate}, {processes} processes)."
            )
        return model, parts

    def train(
        self,
        checkpoint_seconds: float,
        progress: Callable[[int, int], None],
        should_stop: Callable[[], bool],
    ) -> RunResult:
        recipe = self.recipe
        self._resume()
        started = saved = time.perf_counter()
        if self.step == 0 and not self.valid_curve["step"]:
            self._evaluate_untrained()
        losses: list[Tensor] = []
        why = None
        while self.step < recipe.steps and why is None:
            why = self._take_step(losses)
            at_end = self.step == recipe.steps
            if why is None and (len(losses) == WINDOW or at_end):
                why = self._close_window(losses)
                losses = []
                progress(self.step, recipe.steps)
            if why is None and (at_end or self._is_evaluation(self.step)):
                why = self._evaluate_valid()
                if why is not None and losses:
                    why = self._close_window(losses) or why  # what came first
            now = time.perf_counter()
            if not losses and why is None and not at_end:
                stop, save = any_of(should_stop(), now - saved > checkpoint_seconds)
                if stop or save:
                    self.seconds += now - started
                    started = saved = now
                    self._save()
                if stop:
                    raise Interrupted
        self.seconds += time.perf_counter() - started
        return self._result(why)

    def _take_step(self, losses: list[Tensor]) -> str | None:
        """Take a step and keep its loss; return why the run has diverged, if the step cannot be taken."""
        try:
            with user_code(self.recipe.name, "A training step"):
                losses.append(self._train_step())
        except RecipeError:
            raise
        except Exception:  # a loss may refuse what is not finite
            if world() > 1 or evaluation.is_finite(self.model):
                raise
            why = self._close_window(losses) if losses else None
            self.step += why is None
            return why or "the network's parameters are not finite"
        self.step += 1
        return None

    def _train_step(self) -> Tensor:
        """Take one optimizer step and return its training loss, without waiting for the device."""
        recipe, start = self.recipe, time.perf_counter()
        total = torch.zeros((), device=self.device)
        mine = range(rank(), self.parts, world())
        examples = self._indices(self.step).chunk(self.parts)
        for part in mine:
            machine.seed_all(self._seed("step", self.step, part))
            rng = torch.Generator().manual_seed(self._seed("augment", self.step, part))
            batch = machine.to(self.splits.train.batch(examples[part], rng), self.device)
            with self._exchange(last=part == mine[-1]):
                with self._autocast():
                    loss = outputs.loss(recipe, recipe.loss(self.forward, batch)) / len(mine)
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach().float()
        if recipe.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm)
        before = time.perf_counter()
        self.scaler.step(self.optimizer)
        self.optimizer_times.append(time.perf_counter() - before)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        self.step_times.append(time.perf_counter() - start)
        return total

    def _indices(self, step: int) -> Tensor:
        """Examples of a step: a pure function of (recipe, seed, step)."""
        n, size = len(self.splits.train), self.recipe.batch_size
        epoch, place = divmod(step, n // size)
        cached = getattr(self, "_epoch", None)
        if cached is None or cached[0] != epoch:
            rng = torch.Generator().manual_seed(self._seed("order", epoch))
            cached = self._epoch = (epoch, torch.randperm(n, generator=rng))
        order: Tensor = cached[1]
        return order[place * size : (place + 1) * size]

    def _autocast(self) -> Any:
        if self.recipe.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.recipe.precision))

    def _exchange(self, *, last: bool) -> Any:
        """Processes exchange gradients once a step, with its last part."""
        if last or not isinstance(self.forward, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.forward.no_sync()

    def _close_window(self, losses: list[Tensor]) -> str | None:
        """Add a point to the curve; return why the run has diverged, if it has."""
        window = torch.stack(losses).double().cpu()
        if world() > 1:
            dist.all_reduce(window)
            window /= world()
        values = window.tolist()
        if self.first_loss is None:
            if not math.isfinite(values[0]):
                raise RecipeError(
                    f"The first training loss of recipe {self.recipe.name}, with seed {self.spec.seed}, is "
                    f"{values[0]}: the network was not trained yet, so look at data, model and loss."
                )
            self.first_loss = values[0]
        bad = [i for i, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            self.step -= len(values) - bad[0] - 1
            return f"the training loss is {values[bad[0]]}"
        mean = statistics.fmean(values)
        self.train_curve["step"].append(self.step)
        self.train_curve["loss"].append(mean)
        limit = self.recipe.diverged_above * max(abs(self.first_loss), SMALLEST_FIRST_LOSS)
        return (
            f"the training loss is {mean:.3g}, from {self.first_loss:.3g} at first" if mean > limit else None
        )

    def _is_evaluation(self, step: int) -> bool:
        every = self.recipe.steps / self.recipe.evaluations
        return int(step / every) > int((step - 1) / every)

    def _evaluate_valid(self) -> str | None:
        """Add a point to the validation curve; return why the run has diverged, if it has."""
        values = self._evaluate(self.splits.valid, "validation")
        if isinstance(values, str):
            return values
        names = self.valid_curve.keys() - {"step"}
        if names and names != values.keys():
            raise RecipeError(
                f"evaluate of recipe {self.recipe.name} must return the same names every time, got "
                f"{', '.join(sorted(values))} at step {self.step} and {', '.join(sorted(names))} before."
            )
        self.valid_curve["step"].append(self.step)
        for name, value in values.items():
            self.valid_curve.setdefault(name, []).append(value)
        return None

    def _evaluate_untrained(self) -> None:
        why = self._evaluate_valid()
        if why is None and self.spec.test:
            test = self._evaluate(self.splits.test, "test")
            why, self.untrained_test = (test, None) if isinstance(test, str) else (None, test)
        if why is not None:
            raise RecipeError(
                f"The untrained network of recipe {self.recipe.name} has no score with seed {self.spec.seed} "
                f"({why}): a run that diverges is scored as the untrained network, so let evaluate return a "
                "finite number there, the worst there is."
            )

    def _samples(self, show: Callable[..., Any]) -> list[Sample]:
        """Return what the trained network makes of a few test examples."""
        with self._evaluating(), user_code(self.recipe.name, "samples"):
            return from_rank_0(lambda: [samples.encode(s) for s in show(self.model, self.splits.test)])

    def _evaluate(self, source: Source, split: str) -> evaluation.Scores | str:
        """Return the scores on a split, or why there are none."""
        machine.seed_all(self._seed("evaluate", self.step))
        with self._evaluating():
            return from_rank_0(
                lambda: evaluation.scores(self.recipe, self.model, lambda: self._batches(source), split)
            )

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        registry.set_mode(self.optimizer, training=False)
        self.model.eval()
        with torch.no_grad():
            yield
        self.model.train()
        registry.set_mode(self.optimizer, training=True)

    def _batches(self, source: Source) -> Iterator[Batch]:
        size = self.recipe.eval_batch_size or self.recipe.batch_size
        for start in range(0, len(source), size):
            indices = torch.arange(start, min(start + size, len(source)))
            yield machine.to(source.batch(indices, None), self.device)

    def _save(self) -> None:
        values = {name: getattr(self, name) for name in self.VALUES}
        states = {name: getattr(self, name).state_dict() for name in self.STATES}
        from_rank_0(lambda: self.folder.save_checkpoint({**values, **states}))

    def _resume(self) -> None:
        self.model.train()
        registry.set_mode(self.optimizer, training=True)
        state = from_rank_0(self.folder.load_checkpoint)
        if state is not None:
            with self.folder.reading_checkpoint():
                for name in self.VALUES:
                    setattr(self, name, state[name])
                for name in self.STATES:
                    getattr(self, name).load_state_dict(state[name])

    def _result(self, why: str | None) -> RunResult:
        recipe, spec = self.recipe, self.spec
        test = self.untrained_test
        if spec.test and why is None:
            tested = self._evaluate(self.splits.test, "test")
            why, test = (tested, test) if isinstance(tested, str) else (None, tested)
        shown = self._samples(recipe.samples) if spec.test and not why and recipe.samples else []
        valid = {name: values for name, values in self.valid_curve.items() if None not in values}
        return RunResult(
            hash=spec.hash,
            recipe=recipe.name,
            scale=recipe.scale,
            optimizer=spec.optimizer,
            **dataclasses.asdict(spec.point),
            seed=spec.seed,
            phase="confirm" if spec.test else "tune",
            metric=recipe.metric.name,
            higher_is_better=recipe.metric.higher_is_better,
            unit=recipe.metric.unit,
            steps=recipe.steps,
            status="diverged" if why else "finished",
            diverged_at=self.step if why else None,
            why=why,
            spec=spec.to_json(),
            train=Curve.model_validate(self.train_curve),
            valid=Curve.model_validate(valid),
            test=None if test is None else {name: v for name, v in test.items() if v is not None},
            samples=shown,
            time=RunTime(
                seconds=self.seconds,
                step_ms=1e3 * statistics.median(self.step_times or [0.0]),
                optimizer_ms=1e3 * statistics.median(self.optimizer_times or [0.0]),
            ),
            peak_mb=machine.peak_memory(),
            packages={k: v for k, v in spec.versions.items() if k not in ("torch", "dualavg")},
            machine=machine.describe(),
        )
