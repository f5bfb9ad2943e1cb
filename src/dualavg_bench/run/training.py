"""Trains one run: seeds, loop, evaluation, checkpoint, resume.

A run is a pure function of its spec. Initialisation, data order, augmentation and dropout are drawn from
seeds made of (recipe, seed, purpose, step), never from a generator that lives on from step to step. So runs
of different optimizers pair up, and an interrupted run resumes bit for bit. The global generators of torch,
numpy and Python are seeded the same way, for recipes that draw from them.

Several processes (torchrun) can share a run. Its parts are spread over them, so that `accumulate` processes,
or a divisor of it, draw what one process draws. Only rank 0 reads, evaluates and writes; all ranks get what
it returns or raises.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
from dualavg_bench.run.history import History
from dualavg_bench.run.processes import any_of, from_rank_0, rank, world
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult, Sample

WINDOW = 10  # steps whose training losses are averaged into one point of the curve, and checked together


class Interrupted(Exception):  # noqa: N818 - not an error: the checkpoint is written
    """The run was asked to stop."""


def seed_for(recipe: str, seed: int, *purpose: object) -> int:
    """Return a seed for one purpose in a run. The optimizer never has a part in it."""
    text = repr((recipe, seed, *purpose))
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
    keep_network: bool = False,
) -> RunResult:
    """Return the result of a run. Without one on disk, train the run, from its checkpoint if there is one.

    Args:
        spec: of the run.
        recipe: of the spec.
        folder: of the run.
        data: the folder with the data set.
        checkpoint_seconds: time between two checkpoints.
        progress: called with the number of steps done and of all steps.
        should_stop: called after every window; True writes a checkpoint and raises `Interrupted`.
        keep_network: also write the weights of the last network.
    """
    with contextlib.ExitStack() as stack:
        from_rank_0(lambda: stack.enter_context(folder.locked()))
        finished = from_rank_0(folder.result)
        if finished is not None:
            return finished
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(recipe.threads)
        trained = _Run(spec, recipe, folder, data)
        result = trained.train(checkpoint_seconds, progress, should_stop)
        if keep_network:  # before the result, which says that all is there
            from_rank_0(lambda: folder.save_network(trained.model.state_dict()))
        from_rank_0(lambda: folder.finish(result))
        return from_rank_0(lambda: result)


class _Run:
    """A run in memory. A checkpoint holds step, history, best weights and the state dicts of `STATES`."""

    STATES = ("model", "optimizer", "schedule", "scaler")

    def __init__(self, spec: RunSpec, recipe: Recipe, folder: RunFolder, data: Path) -> None:
        machine.reset_peak_memory()
        self.spec, self.recipe, self.folder = spec, recipe, folder
        self.step, self.history = 0, History()
        self.best: dict[str, Tensor] = {}  # weights of the best validation score, if the run reads test
        self.device = machine.device()
        from_rank_0(lambda: self._load(data))  # first: it may have to write the data set
        if rank() > 0:
            self._load(data)
        machine.seed_all(self._seed("init"))
        self.model, self.parts = self._share(outputs.network(recipe, spec.optimizer).to(self.device))
        self.forward: torch.nn.Module = torch.compile(self.model) if recipe.compile else self.model  # type: ignore[assignment]
        if world() > 1:
            self.forward = DistributedDataParallel(self.forward)
        self.optimizer = registry.make(
            spec.optimizer, self.model.parameters(), spec.point, spec.optimizer_settings
        )
        with user_code(recipe.name, f"The schedule {spec.point.schedule}"):
            self.schedule = make_schedule(spec.point.schedule, recipe.schedules, self.optimizer, recipe.steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "float16")

    def _load(self, data: Path) -> None:
        self.splits = read(self.recipe, data)
        with user_code(self.recipe.name, "batch"):
            found = fingerprint(self.splits, test=self.spec.test)
        if found != self.spec.data:
            raise RecipeError(
                f"The data of recipe {self.recipe.name} at {data} changed since the study was started: "
                "start it again."
            )

    def _seed(self, *purpose: object) -> int:
        return seed_for(self.recipe.name, self.spec.seed, *purpose)

    def _share(self, model: torch.nn.Module) -> tuple[torch.nn.Module, int]:
        """Return the network as processes can share it, and the parts of a step over all of them."""
        recipe, processes, parts = self.recipe, world(), self.recipe.accumulate
        has_norms = processes > 1 and any(isinstance(layer, _BatchNorm) for layer in model.modules())
        if has_norms and self.device.type == "cpu":
            raise RecipeError(
                f"The network of recipe {recipe.name} has batch norm, whose statistics processes share on "
                f"GPUs only: run it in one process."
            )
        if has_norms:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        if parts % processes or has_norms:
            parts *= processes
        if recipe.batch_size % parts:
            raise RecipeError(
                f"batch_size {recipe.batch_size} of recipe {recipe.name} cannot be split into {parts} equal "
                f"parts (accumulate {recipe.accumulate}, {processes} processes)."
            )
        return model, parts

    def train(
        self,
        checkpoint_seconds: float,
        progress: Callable[[int, int], None],
        should_stop: Callable[[], bool],
    ) -> RunResult:
        recipe, history = self.recipe, self.history
        self._resume()
        started = saved = time.perf_counter()
        if self.step == 0 and not history.valid_curve["step"]:
            self._evaluate_untrained()
        losses: list[Tensor] = []
        reason = None  # for a divergence
        while self.step < recipe.steps and reason is None:
            reason = self._take_step(losses)
            at_end = self.step == recipe.steps
            if reason is None and (len(losses) == WINDOW or at_end):
                reason = self._close_window(losses)
                losses = []
                progress(self.step, recipe.steps)
            if reason is None and (at_end or self._is_evaluation(self.step)):
                reason = self._evaluate_valid()
                if reason is not None and losses:
                    reason = self._close_window(losses) or reason  # the earlier one
            now = time.perf_counter()
            if not losses and reason is None and not at_end:
                stop, save = any_of(should_stop(), now - saved > checkpoint_seconds)
                if stop or save:
                    history.seconds += now - started
                    started = saved = now
                    self._save()
                if stop:
                    raise Interrupted
        history.seconds += time.perf_counter() - started
        return self._result(reason)

    def _take_step(self, losses: list[Tensor]) -> str | None:
        """Take a step and add its loss; return the reason if the run has diverged."""
        try:
            with user_code(self.recipe.name, "A training step"):
                losses.append(self._train_step())
        except RecipeError:
            raise
        except Exception:  # a loss function may raise if the network is not finite
            if world() > 1 or evaluation.is_finite(self.model):
                raise
            reason = self._close_window(losses) if losses else None
            self.step += reason is None
            return reason or "the network's parameters are not finite"
        self.step += 1
        return None

    def _train_step(self) -> Tensor:
        """Take one optimizer step and return its training loss, without waiting for the device."""
        recipe, start = self.recipe, time.perf_counter()
        total = torch.zeros((), device=self.device)
        own_parts = range(rank(), self.parts, world())
        examples = self._indices(self.step).chunk(self.parts)
        for part in own_parts:
            machine.seed_all(self._seed("step", self.step, part))
            rng = torch.Generator().manual_seed(self._seed("augment", self.step, part))
            batch = machine.to(self.splits.train.batch(examples[part], rng), self.device)
            with self._gradient_exchange(last=part == own_parts[-1]):
                with self._autocast():
                    loss = outputs.loss(recipe, recipe.loss(self.forward, batch)) / len(own_parts)
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach().float()
        if recipe.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm)
        before = time.perf_counter()
        self.scaler.step(self.optimizer)
        self.history.optimizer_times.append(time.perf_counter() - before)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        self.history.step_times.append(time.perf_counter() - start)
        return total

    def _indices(self, step: int) -> Tensor:
        """Return the examples of a step: a pure function of (recipe, seed, step)."""
        n, size = len(self.splits.train), self.recipe.batch_size
        epoch, position = divmod(step, n // size)
        cached = getattr(self, "_epoch", None)
        if cached is None or cached[0] != epoch:
            rng = torch.Generator().manual_seed(self._seed("order", epoch))
            cached = self._epoch = (epoch, torch.randperm(n, generator=rng))
        order: Tensor = cached[1]
        return order[position * size : (position + 1) * size]

    def _autocast(self) -> Any:
        if self.recipe.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.recipe.precision))

    def _gradient_exchange(self, *, last: bool) -> Any:
        """Let processes exchange gradients once per step, with its last part."""
        if last or not isinstance(self.forward, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.forward.no_sync()

    def _close_window(self, losses: list[Tensor]) -> str | None:
        """Add a point to the training curve; return the reason if the run has diverged."""
        window = torch.stack(losses).double().cpu()
        if world() > 1:
            dist.all_reduce(window)
            window /= world()
        diverged = self.history.add_losses(self.recipe, self.spec.seed, self.step, window.tolist())
        if diverged is None:
            return None
        self.step, reason = diverged
        return reason

    def _is_evaluation(self, step: int) -> bool:
        interval = self.recipe.steps / self.recipe.evaluations
        return int(step / interval) > int((step - 1) / interval)

    def _evaluate_valid(self) -> str | None:
        """Add a point to the validation curve; return the reason if the run has diverged."""
        with self._evaluating():
            scores = self._scores(self.splits.valid, "validation")
            if isinstance(scores, str):
                return scores
            self.history.add_scores(self.recipe, self.step, scores)
            if self.spec.test and self.history.best_step(self.recipe) == self.step:
                weights = self.model.state_dict()
                self.best = {name: w.detach().to("cpu", copy=True) for name, w in weights.items()}
        return None

    def _evaluate_untrained(self) -> None:
        reason = self._evaluate_valid()
        if reason is None and self.spec.test:
            with self._evaluating():
                test = self._scores(self.splits.test, "test")
            reason, self.history.untrained_test = (test, None) if isinstance(test, str) else (None, test)
        if reason is not None:
            raise RecipeError(
                f"The untrained network of recipe {self.recipe.name} has no score with seed {self.spec.seed} "
                f"({reason}): a run that diverges gets the score of the untrained network, so evaluate must "
                "return a finite number for it, the worst there is."
            )

    def _samples(self) -> list[Sample]:
        """Return what the network makes of a few test examples."""
        show = self.recipe.samples
        if show is None:
            return []
        with user_code(self.recipe.name, "samples"):
            return from_rank_0(lambda: [samples.encode(s) for s in show(self.model, self.splits.test)])

    def _scores(self, source: Source, split: str) -> evaluation.Scores | str:
        """Return the scores on a split, or the reason why there are none."""
        machine.seed_all(self._seed("evaluate", self.step))
        return from_rank_0(
            lambda: evaluation.scores(self.recipe, self.model, lambda: self._batches(source), split)
        )

    @contextlib.contextmanager
    def _evaluating(self, weights: dict[str, Tensor] | None = None) -> Iterator[None]:
        """Evaluate in the block: the network as it is, or with `weights` at the end of a run."""
        registry.set_mode(self.optimizer, training=False)
        self.model.eval()
        if weights is not None:  # after the optimizer's switch, which may change the network
            self.model.load_state_dict(weights)
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
        states = {name: getattr(self, name).state_dict() for name in self.STATES}
        state = {"step": self.step, "history": vars(self.history), "best": self.best, **states}
        from_rank_0(lambda: self.folder.save_checkpoint(state))

    def _resume(self) -> None:
        self.model.train()
        registry.set_mode(self.optimizer, training=True)
        state = from_rank_0(self.folder.load_checkpoint)
        if state is not None:
            with self.folder.reading_checkpoint():
                self.step, self.best = state["step"], state["best"]
                for name in vars(self.history):
                    setattr(self.history, name, state["history"][name])
                for name in self.STATES:
                    getattr(self, name).load_state_dict(state[name])

    def _result(self, reason: str | None) -> RunResult:
        tested = self._test() if self.spec.test and reason is None else reason
        if not isinstance(tested, _Tested):  # diverged, or without test
            reason, untrained = tested, self.history.untrained_test
            tested = _Tested(untrained, untrained, [])
        diverged = None if reason is None else (self.step, reason)
        return self.history.result(self.spec, self.recipe, diverged, *tested, self.optimizer)

    def _test(self) -> "_Tested | str":
        """Test the last and the best network of the run; return the reason if one has no score."""
        best_step = self.history.best_step(self.recipe)
        networks: dict[int, dict[str, Tensor] | None] = {self.step: None}
        networks.setdefault(best_step, self.best)
        scores: dict[int, evaluation.Scores] = {}
        shown: list[Sample] = []
        for step, weights in networks.items():
            with self._evaluating(weights):
                found = self._scores(self.splits.test, "test")
                if isinstance(found, str):
                    return found
                scores[step] = found
                if step == (best_step if self.recipe.report == "best" else self.step):
                    shown = self._samples()
        return _Tested(scores[self.step], scores[best_step], shown)


class _Tested(NamedTuple):
    """The test scores of the last and the best network, and samples of the one that decides."""

    last: evaluation.Scores | None
    best: evaluation.Scores | None
    samples: list[Sample]
