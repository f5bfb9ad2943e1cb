"""Byte-pair encoding (BPE) at byte level, learnt from a text: any text can be encoded and decoded again."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def learn(texts: Iterable[str], size: int, *, prefix_space: bool, special: Sequence[str] = ()) -> "Tokenizer":
    """Return an encoding of at most `size` tokens.

    Args:
        texts: the training text.
        size: number of tokens, including the 256 bytes and the special tokens.
        prefix_space: put a space before each text, so that its first word is encoded like any other.
        special: tokens that get the first numbers.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(texts, trainer)
    bpe.encode_special_tokens = True  # "</s>" in a text is four characters, not a special token
    return bpe
