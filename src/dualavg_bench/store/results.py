"""The result of one run: the schema of `result.json`, and the hash that names the run."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, PositiveInt, model_validator

from dualavg_bench.recipe.settings import AXES, Report
from dualavg_bench.scales import Scale
from dualavg_bench.store.documents import Count, Document, Hash, Model, Setting

Phase = Literal["tune", "confirm"]
Status = Literal["finished", "diverged"]


def spec_hash(spec: Mapping[str, JsonValue]) -> Hash:
    """Return the name of the run that a spec describes."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Curve(Model):
    """Values against the step. In JSON, each series stands beside `step` under its own name.

    Examples:
        >>> curve = Curve.model_validate({"step": [10, 20], "loss": [2.5, 0.5]})
        >>> curve.step, curve["loss"], curve.names
        ([10, 20], [2.5, 0.5], ['loss'])
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[float]] = Field(init=False)

    step: list[Count]

    @property
    def names(self) -> list[str]:
        """The names of the series."""
        return list(self.__pydantic_extra__)

    def __getitem__(self, name: str) -> list[float]:
        """Return a series."""
        return self.__pydantic_extra__[name]

    @model_validator(mode="after")
    def _check_lengths(self) -> "Curve":
        for name, series in self.__pydantic_extra__.items():
            if len(series) != len(self.step):
                raise ValueError(f"{name} has {len(series)} values for {len(self.step)} steps")
        return self


class PictureSample(Model):
    """A picture of a test example: the true one and the network's, as base64 of 8-bit pixels."""

    kind: Literal["picture"] = "picture"
    title: str
    shape: tuple[PositiveInt, PositiveInt]  # height, width
    truth: str
    made: str

    @model_validator(mode="after")
    def _check_pixels(self) -> "PictureSample":
        for name in ("truth", "made"):
            try:
                pixels = base64.b64decode(getattr(self, name), validate=True)
            except binascii.Error:
                raise ValueError(f"{name} is not base64") from None
            if len(pixels) != self.shape[0] * self.shape[1]:
                raise ValueError(f"{name} has {len(pixels)} pixels, shape says {self.shape}")
        return self


class PassageSample(Model):
    """A text of a test example: the network's input, the true output and the network's output."""

    kind: Literal["passage"] = "passage"
    given: str
    truth: str
    made: str


Sample = Annotated[PictureSample | PassageSample, Field(discriminator="kind")]


class SecondScore(Model):
    """A score that is measured beside the metric and takes no part in any choice."""

    name: str
    higher_is_better: bool
    unit: str


class RunTime(Model):
    """The time of a run, and the medians over its steps."""

    seconds: float
    step_ms: float
    optimizer_ms: float


class Machine(Model):
    """The machine and the versions that a run was executed with."""

    cpu: str
    cores: PositiveInt | None
    gpu: str | None
    system: str
    python: str
    torch: str
    dualavg: str


class RunResult(Document, Setting):
    """Everything that is known of a run that finished or diverged."""

    NAME: ClassVar[str] = "result of a run"
    REMEDY: ClassVar[str] = "delete it, and run the command again to redo the run"

    hash: Hash
    recipe: str
    scale: Scale
    optimizer: str
    seed: Count
    phase: Phase
    metric: str
    higher_is_better: bool
    unit: str
    also: SecondScore | None = None
    steps: Count
    status: Status
    diverged_at: Count | None
    why: str | None  # the reason for the divergence
    spec: dict[str, JsonValue]  # `RunSpec.to_json()`
    train: Curve
    valid: Curve
    test: dict[str, float] | None  # of the last network
    test_best: dict[str, float] | None  # of the network with the best validation score
    report: Report  # which of the two decides
    samples: list[Sample]
    time: RunTime
    peak_mb: float | None
    state_bytes: Count | None = None  # of the optimizer's tensors at the end; None in older files
    parameters: Count | None = None  # of the network that are trained
    packages: dict[str, str]
    machine: Machine

    @property
    def diverged(self) -> bool:
        """Whether the run diverged."""
        return self.status == "diverged"

    @property
    def best_valid(self) -> float:
        """The best validation score of the run."""
        return (max if self.higher_is_better else min)(self.valid[self.metric])

    @model_validator(mode="after")
    def _check_spec(self) -> "RunResult":
        if spec_hash(self.spec) != self.hash:
            raise ValueError("spec is the spec of another run")
        in_spec = [self.spec.get(name) for name in ("optimizer", "point", "seed")]
        if in_spec != [self.optimizer, [getattr(self, axis) for axis in AXES], self.seed]:
            raise ValueError("optimizer, setting or seed are not those of spec")
        settings = self.spec.get("settings")
        names = ("name", "scale", "steps", "report", "metric")
        expected = [settings.get(name) for name in names] if isinstance(settings, dict) else None
        metric: JsonValue = [self.metric, self.higher_is_better]
        if expected != [self.recipe, self.scale, self.steps, self.report, metric]:
            raise ValueError("recipe, scale, steps, report or metric are not those of spec")
        also = None if self.also is None else [self.also.name, self.also.higher_is_better]
        if isinstance(settings, dict) and settings.get("also") != also:
            raise ValueError("also is not that of spec")
        return self

    @model_validator(mode="after")
    def _check_scores(self) -> "RunResult":
        if self.metric not in self.valid.names or not self.valid.step:
            raise ValueError(f"valid has no {self.metric}")
        if "loss" not in self.train.names or not (self.train.step or self.diverged):
            raise ValueError("train has no loss")
        for name, scores in (("test", self.test), ("test_best", self.test_best)):
            if self.phase == "confirm" and self.metric not in (scores or {}):
                raise ValueError(f"{name} has no {self.metric}")
            if self.phase == "tune" and scores is not None:
                raise ValueError(f"{name} has scores, but tuning never reads the test split")
        if self.diverged != (self.diverged_at is not None):
            raise ValueError(f"status is {self.status}, but diverged_at is {self.diverged_at}")
        return self
