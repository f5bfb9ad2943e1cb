"""Two sentence pairs per split."""

FILES = [f"{split}.{language}" for split in ("train", "valid", "test") for language in ("de", "en")]
LOAD = {"name": "somewhere", "pieces": (300, 300), "tokens": 64}


def write_pairs(folder, **texts):
    """Write the six files; `train_de="..."` replaces the text of train.de."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        text = texts.get(name.replace(".", "_"), "ein Haus\nzwei Häuser\n")
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return folder
