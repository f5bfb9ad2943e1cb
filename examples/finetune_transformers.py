"""Fine-tune a Hugging Face language model with MDA, and see what it learnt and what it forgot.

    pip install -c constraints.txt -e ".[bench]" && python examples/finetune_transformers.py

It needs no download: `base_model` makes a tiny GPT-2 and trains it for a minute on docstrings of the standard
library, byte by byte. To fine-tune your own, change its last line but one, and use the model's tokenizer in
`blocks`. The rest stays as it is.
"""

import argparse
import collections
import copy
import pathlib
import pydoc

import torch
import transformers

from dualavg import MDA
from dualavg.schedules import WarmupLinearDecay

LENGTH, BATCH = 64, 8


def base_model(pretraining_steps=300):
    """Return the pretrained network."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    # With a network of your own: model = transformers.AutoModelForCausalLM.from_pretrained("gpt2")
    model = transformers.GPT2LMHeadModel(config)
    train(model, torch.optim.AdamW(model.parameters(), lr=3e-3), OLD, pretraining_steps)
    return model


def blocks(*documented):
    """Return text as blocks of tokens. Here a byte is a token."""
    text = "".join(pydoc.plain(pydoc.render_doc(each)) for each in documented).encode("ascii", "ignore")
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)


OLD, OLD_TEST = blocks(argparse, collections), blocks(pathlib)[:200]  # what the network knows
NEW, NEW_TEST = blocks(torch.nn.Conv2d, torch.nn.LSTM), blocks(torch.nn.GRU)[:200]  # what it is to learn


def train(model, optimizer, data, steps):
    """Take some steps with a warm-up and a linear decay."""
    schedule = WarmupLinearDecay(optimizer, warmup_steps=steps // 10, total_steps=steps)
    order = torch.Generator().manual_seed(1)
    model.train()
    for _ in range(steps):
        batch = data[torch.randint(len(data), (BATCH,), generator=order)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def loss(model, data):
    """Return the mean loss in nats."""
    return model.eval()(input_ids=data, labels=data).loss.item()


def main(pretraining_steps=300, steps=200):
    """Fine-tune the same network with MDA and with AdamW, at three step sizes each."""
    base = base_model(pretraining_steps)
    print(f"before             new text {loss(base, NEW_TEST):.3f}   old text {loss(base, OLD_TEST):.3f}")
    for name, make, lrs in (("MDA", MDA, (0.1, 0.3, 1.0)), ("AdamW", torch.optim.AdamW, (3e-4, 1e-3, 3e-3))):
        for lr in lrs:
            model = copy.deepcopy(base)
            optimizer = make(model.parameters(), lr=lr)  # after the weights are there: they are MDA's anchor
            train(model, optimizer, NEW, steps)
            new, old = loss(model, NEW_TEST), loss(model, OLD_TEST)
            print(f"{name:5} lr {lr:<9g} new text {new:.3f}   old text {old:.3f}")


if __name__ == "__main__":
    main()
