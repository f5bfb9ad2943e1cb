"""What a recipe's `samples` returns: a few test examples for the report to show."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Picture:
    """A picture for the report: the true one and the network's, (height, width) each."""

    title: str
    truth: Tensor
    made: Tensor


@dataclass(frozen=True)
class Passage:
    """A text for the report: the network's input, the true output and the network's output."""

    given: str
    truth: str
    made: str
