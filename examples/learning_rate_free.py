"""Two different networks, one line for both: `DAdaptMDA(model.parameters())`. No step size is given.

    python examples/learning_rate_free.py

A convolutional network reads handwritten digits. A recurrent network adds up numbers. Their best step sizes
differ widely. DAdaptMDA estimates one while it trains, which the last column shows. About ten seconds.
"""

from collections.abc import Callable, Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dualavg._dadapt import DAdaptMDA

STEPS = 600
Batch = tuple[Tensor, Tensor]


def digits(batch: int = 64) -> Iterator[Batch]:
    """Yield images of digits and their labels."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    while True:
        chosen = torch.randint(len(x), (batch,))
        yield x[chosen], y[chosen]


def sums(batch: int = 64, length: int = 10) -> Iterator[Batch]:
    """Yield sequences of numbers and their sums."""
    while True:
        numbers = torch.randn(batch, length, 1)
        yield numbers, numbers.sum(dim=1)


class Adder(nn.Module):
    """A recurrent network that reads a sequence and returns one number."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Read the sequence."""
        result: Tensor = self.out(self.cells(x)[0][:, -1])
        return result


def train(
    name: str, model: nn.Module, batches: Iterator[Batch], loss_of: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Train, and print what came out."""
    optimizer = DAdaptMDA(model.parameters())
    losses = []
    for x, y in (next(batches) for _ in range(STEPS)):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    group = optimizer.param_groups[0]
    last = sum(losses[-20:]) / 20
    found = f"d {group['d']:5.2f}   step size {group['eta']:5.2f}"
    print(f"{name:10}  loss {losses[0]:6.3f} -> {last:6.3f}   {found}")


def main() -> None:
    torch.manual_seed(0)
    convolutions = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
    )
    train("digits", convolutions, digits(), nn.functional.cross_entropy)
    train("additions", Adder(), sums(), nn.functional.mse_loss)


if __name__ == "__main__":
    main()
