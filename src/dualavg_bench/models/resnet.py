"""Residual networks for ImageNet, from transformers; layers and initialisation are torchvision's."""

from collections.abc import Sequence

from torch import Tensor, nn


class ResNet(nn.Module):
    """Residual network that returns logits: a 7x7 stem, max pooling, stages of blocks, mean, linear layer.

    A bottleneck halves the resolution in its 3x3 convolution ("v1.5", as torchvision does).

    Args:
        layers: "basic", two 3x3 convolutions, or "bottleneck", 1x1, 3x3 and 1x1.
        depths: number of blocks in each stage.
        widths: output channels of each stage. The first stage works at a quarter of the resolution, each
            later one at half of the previous.
        stem: output channels of the stem.
        classes: number of outputs.

    Examples:
        >>> import torch
        >>> ResNet("basic", [1, 1], [8, 16], stem=8, classes=10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    References:
        He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2015, arXiv:1512.03385.
    """

    def __init__(
        self, layers: str, depths: Sequence[int], widths: Sequence[int], stem: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        from transformers import ResNetConfig, ResNetForImageClassification

        config = ResNetConfig(
            layer_type=layers,
            depths=list(depths),
            hidden_sizes=list(widths),
            embedding_size=stem,
            num_labels=classes,  # type: ignore[call-arg]
            downsample_in_bottleneck=False,
        )
        self.network = ResNetForImageClassification(config)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes."""
        return self.network(pixel_values=images).logits  # type: ignore[no-any-return]


def resnet50(classes: int = 1000) -> ResNet:
    """Return the paper's network for ImageNet: 3, 4, 6 and 3 bottlenecks, 25,557,032 parameters."""
    return ResNet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], classes=classes)
