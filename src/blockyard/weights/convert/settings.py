"""A library's config, read key by key: a key that nothing of ours expresses is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blockyard.errors import UserError, quoted
from blockyard.weights.convert.declared_sizes import Stored, flag, mapping, real_number, whole_number

# The config of a class of transformers or timm, or a part of it, under the keys that the library gives them.
LibraryConfig = dict[str, Any]
ABSENT: Any = object()  # the default of a key that must be there
_LONGEST = 64  # numbers in a list
# Keys that do not change what a model computes in evaluation: bookkeeping, token ids, generation, initialisation.
_HARMLESS = """
    _attn_implementation _label_trainable_num_channels _name_or_path _num_labels architectures attn_implementation
    bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward cls_token_id ctc_loss_reduction
    ctc_zero_infinity decoder_start_token_id directionality diversity_penalty do_sample dtype early_stopping
    eos_token_id finetuning_task forced_bos_token_id forced_decoder_ids forced_eos_token_id gradient_checkpointing
    id2label init_std initializer_factor initializer_range is_encoder_decoder keys_to_ignore_at_inference label2id
    length_penalty mask_token_id max_length min_length model_type n_ctx no_repeat_ngram_size num_beams
    num_return_sequences output_attentions output_hidden_states pad_token_id pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type predict_special_tokens prefix
    pretraining_tp problem_type repetition_penalty return_dict return_dict_in_generate sep_token_id
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tokenizer_class top_k top_p torch_dtype torchscript transformers_version
    typical_p unk_token_id use_bfloat16 use_cache xla_device
"""
HARMLESS = frozenset(_HARMLESS.split())
# Dropout affects training only, for which our own options count.
_TRAINING = ("dropout", "_pdrop", "dropout_prob", "dropout_rate", "layerdrop")
# Keys that may be absent, and must otherwise have one of these values.
PLAIN: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": (None, {}),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
}


class LibrarySettings:
    """The keys of a config, each taken once; `finish` refuses keys that are left.

    values: plain data; name: of the config in messages, such as the path of the file
    stored: the bounds from the file of weights; None without a file
    has_own_head: the file's output layer differs from its table, so that they are not tied whatever the config declares
    """

    def __init__(
        self, values: Mapping[str, Any], name: str, stored: Stored | None = None, *, has_own_head: bool = False
    ) -> None:
        self.values, self.name, self.stored, self.has_own_head = dict(values), name, stored, has_own_head
        self.problems: list[str] = []
        self.taken: set[str] = set()

    def take(self, key: str, default: Any = ABSENT) -> Any:
        """Return the value of a key. Raises UserError if it is absent and has no default."""
        self.taken.add(key)
        if key in self.values:
            return self.values[key]
        if default is ABSENT:
            raise UserError(f"{self.name} has no {key}")
        return default

    def integer(self, key: str, default: Any = ABSENT, *, least: int = 1, is_dimension: bool = True) -> int:
        """Return a whole number within its bounds. Raises UserError for anything else.

        is_dimension: whether a weight has this dimension, or a larger one
        """
        stored = self.stored if key in self.values else None  # a default is the library's and needs no check
        value = self.take(key, default)
        return whole_number(self.name, key, value, least=least, stored=stored, is_dimension=is_dimension)

    def optional_integer(self, key: str, default: int | None = None, *, is_dimension: bool = True) -> int | None:
        """Return a whole number; None if the value is null or 0: the size is absent, or follows from another key."""
        value = self.take(key, default)
        if value is None or (value == 0 and isinstance(value, int)):
            return None
        return self.integer(key, default, is_dimension=is_dimension)

    def integers(self, key: str, default: list[int]) -> list[int]:
        """Return a list of 1 to 64 positive whole numbers. Raises UserError for anything else."""
        value = self.take(key, default)
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= _LONGEST:
            raise UserError(f"{self.name}: {key}={quoted(value)} is not a list of 1 to {_LONGEST} whole numbers")
        return [whole_number(self.name, key, number, is_dimension=False) for number in value]

    def number(self, key: str, default: Any = ABSENT, *, above: float = -math.inf) -> float:
        """Return a finite number above a bound; an epsilon is above 0 and at most 1. Raises UserError otherwise."""
        value = real_number(self.name, key, self.take(key, default))
        if "eps" in key and not 0 < value <= 1:
            raise UserError(f"{self.name}: {key}={value}: expected a number above 0, at most 1")
        if value <= above:
            raise UserError(f"{self.name}: {key}={value}: expected a number above {above:g}")
        return value

    def flag(self, key: str, default: Any = ABSENT) -> bool:
        """Return true or false. Raises UserError for anything else."""
        return flag(self.name, key, self.take(key, default))

    def is_tied(self, default: bool) -> bool:
        """Return whether the output layer is the table of token ids. Raises UserError for a value of another type."""
        return self.flag("tie_word_embeddings", default) and not self.has_own_head

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a mapping; empty if the key is absent or null. Raises UserError for anything else."""
        value = self.take(key, None)
        if value is None:
            return {}
        return mapping(self.name, key, value)

    def must(self, key: str, *allowed: Any, default: Any = ABSENT, why: str = "") -> None:
        """Note a problem if a value is none of the allowed values.

        default: the value of an absent key; without it the first allowed value
        """
        value = self.take(key, allowed[0] if default is ABSENT else default)
        if value not in allowed:
            expected = " or ".join(map(repr, allowed))
            reason = f" ({why})" if why else ""
            self.problems.append(f"{key}={quoted(value)}{reason}: expected {expected}")

    def one_of(self, key: str, names: Mapping[str, str], default: str) -> str:
        """Return our name of a library's value; a value without a name is noted as a problem. names: library -> ours"""
        value = self.take(key, default)
        if not isinstance(value, str) or value not in names:
            self.problems.append(f"{key}={quoted(value)}: expected {' or '.join(names)}")
            return names[default]
        return names[value]

    def finish(self, preset: str) -> None:
        """Raise UserError for every value that the preset cannot express, and for every key that is unknown."""
        for key, allowed in PLAIN.items():
            if key not in self.taken:
                self.must(key, *allowed)
        problems = list(self.problems)
        for key, value in self.values.items():
            if key not in self.taken and key not in HARMLESS and not key.endswith(_TRAINING):
                problems.append(f"{key}={quoted(value)}: unknown")
        if problems:
            raise UserError(f"{self.name}: preset={preset} cannot express {'; '.join(problems)}")


def inverse(names: Mapping[str, str]) -> dict[str, str]:
    """Return the library's name of each of our values; the first of several. names: library -> ours"""
    return {model_name: library_name for library_name, model_name in reversed(list(names.items()))}
