"""Pre-activation residual networks for images of 32x32 pixels."""

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class FixedNorm(nn.BatchNorm2d):
    """Batch norm with the statistics that it was loaded with: training changes its weights, not these.

    For fine-tuning: statistics of the new data would replace those of the old, whatever the optimizer does.
    """

    def train(self, mode: bool = True) -> "FixedNorm":  # noqa: ARG002
        """Stay in evaluation mode."""
        return super().train(False)


Norm = type[nn.BatchNorm2d]


class Basic(nn.Module):
    """Two 3x3 convolutions, each after its norm and ReLU."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(inputs), _conv(inputs, width, 3, stride)
        self.norm2, self.conv2 = norm(width), _conv(width, width, 3)
        identity = stride == 1 and inputs == width
        self.shortcut = None if identity else _conv(inputs, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + F(x). A shortcut with a convolution starts after the first norm and ReLU."""
        y = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        return x + self.conv2(F.relu(self.norm2(y)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each after its norm and ReLU. The last has four times the channels."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.norm1, self.conv1 = norm(inputs), _conv(inputs, width, 1)
        self.norm2, self.conv2 = norm(width), _conv(width, width, 3, stride)
        self.norm3, self.conv3 = norm(width), _conv(width, outputs, 1)
        identity = stride == 1 and inputs == outputs
        self.shortcut = None if identity else _conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + F(x). A shortcut with a convolution starts after the first norm and ReLU."""
        y = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        return x + self.conv3(F.relu(self.norm3(y)))  # type: ignore[no-any-return]


class PreActResNet(nn.Module):
    """Pre-activation residual network: a 3x3 stem, stages of blocks, norm, ReLU, mean, linear layer.

    Args:
        block: `Basic` or `Bottleneck`.
        blocks: number of blocks in each stage.
        width: channels of the first stage; each later stage has twice as many at half the resolution.
        classes: number of outputs.
        stem_stride: 2 halves the resolution in the stem, for speed.
        norm: `FixedNorm` for fine-tuning.

    Examples:
        >>> import torch
        >>> PreActResNet(Basic, [1, 1], width=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    References:
        He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks", 2016, arXiv:1603.05027. The
        last norm and ReLU are from the paper; a popular PreAct ResNet for CIFAR omits them.
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        blocks: Sequence[int],
        width: int = 64,
        classes: int = 10,
        stem_stride: int = 1,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.stem = _conv(3, width, 3, stem_stride)
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                layers.append(block(channels, width * 2**stage, stride, norm))
                channels = block.expansion * width * 2**stage
        self.blocks = nn.Sequential(*layers)
        self.norm = norm(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the classes."""
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def preact_resnet152(classes: int = 10) -> PreActResNet:
    """Return the paper's network for CIFAR-10: 3, 8, 36 and 3 bottlenecks, about 58M parameters."""
    return PreActResNet(Bottleneck, [3, 8, 36, 3], classes=classes)
