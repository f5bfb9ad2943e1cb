"""Short texts in the formats of RoBERTa's data and of WikiText."""

import torch

from dualavg_bench.data import plain_text

LINES = [f"line {i} says {'word ' * (i % 7)}and no more" for i in range(200)]


def write_plain(folder, **texts):
    """Write the three files of plain text; `train="..."` replaces the text of train.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        text = texts.get(split, "\n".join(LINES) + "\n")
        (folder / f"{split}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def load_plain(folder, **settings):
    return plain_text.load(folder, "books-wiki", **{"length": 32, "vocabulary": 300, **settings})


def generator(seed):
    return torch.Generator().manual_seed(seed)


def write_wikitext(folder, **texts):
    """Write the three files of WikiText; `train="..."` replaces the training text."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(texts.get(split, " a b a c \n"), encoding="utf-8")
    return folder
