"""Two optimizers that pull parameters to where they started, as is done by hand in fine-tuning.

They are torch's own, in the coordinates x - x_0: there, weight decay pulls to the start instead of zero. The
start is a parameter's value before its first step. `weight_decay` is the strength of the pull.
"""

from collections.abc import Callable
from typing import Any

import torch


class _AroundStart(torch.optim.Optimizer):
    """Takes the steps of the optimizer it is mixed into around the start of each parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        starts = {p: self.state[p].get("start", p.clone()) for p in moved}
        for p, start in starts.items():
            p.sub_(start)
        super().step()
        for p, start in starts.items():
            p.add_(start)
            self.state[p]["start"] = start  # now: torch creates its own state where there is none at all
        return loss


class SGDTowardsStart(_AroundStart, torch.optim.SGD):
    """SGD with momentum and L2-SP: the penalty strength/2 ||x - x_0||^2, in place of strength/2 ||x||^2.

    References:
        Li, Grandvalet and Davoine, "Explicit Inductive Bias for Transfer Learning with Convolutional
        Networks", ICML 2018, arXiv:1802.01483.
    """


class AdamWTowardsStart(_AroundStart, torch.optim.AdamW):
    """AdamW whose decoupled weight decay pulls to the start instead of zero.

    References:
        Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, arXiv:1711.05101,
        Algorithm 2, with x - x_0 in place of x in the decay.
    """
