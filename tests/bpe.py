"""A real tokenizer for tests: byte-level BPE, trained in memory."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def trained(sentences: Sequence[str], vocab_size: int, marks: Sequence[str]) -> Tokenizer:
    """All bytes, merges learnt from these sentences, and these special tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(marks), initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(sentences, trainer)
    return made
