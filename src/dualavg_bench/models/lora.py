"""Low-rank adapters (LoRA) from the package peft."""

from torch import nn


def with_lora(model: nn.Module, *, layers: list[str], rank: int) -> nn.Module:
    """Return the network with a trainable low-rank matrix beside each of some frozen linear layers.

    All other parameters are frozen. The adapters add zero at first, so the network's outputs do not change.

    Args:
        model: the network, which is changed.
        layers: the last parts of the names of the linear layers.
        rank: of each adapter; its output is scaled by 2 (`lora_alpha` is twice the rank).

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, arXiv:2106.09685.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=layers)
    adapted: nn.Module = inject_adapter_in_model(config, model)
    return adapted
