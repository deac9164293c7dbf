"""Checks that a value override names an existing option, or suggests the nearest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.config import habits, lightning, tree
from blockyard.config.choices import catalog
from blockyard.config.placed_nodes import options_of
from blockyard.config.schema import RESERVED, Root, options
from blockyard.config.tree import Node
from blockyard.contracts import Issue
from blockyard.errors import did_you_mean, fold, near

# Option -> its names in other projects, for messages with the option that was probably meant. Spelling tells that
# `roep` is rope; only a table tells that `rotary` is. Names of choices are in their YAMLs (`Choice.aliases`).
# `tests/config/test_synonyms.py` holds every entry to a choice or an option that exists.
OPTIONS = {
    "trainer.max_epochs": "epochs num_epochs n_epochs num_train_epochs",
    "trainer.max_steps": "steps num_steps iterations iters max_iters updates",
    "trainer.max_seconds": "time_limit max_time time_budget seconds",
    "trainer.max_flops": "flops_budget compute_budget max_compute",
    "trainer.peak_flops": "peak_tflops available_flops flops_promised",
    "trainer.devices": "gpus num_gpus n_gpus ngpu gpu",
    "trainer.gradient_clip": "clip grad_clip clip_grad max_grad_norm gradient_clip_val",
    "trainer.accumulate": "accumulate_grad_batches gradient_accumulation_steps grad_accum accumulation",
    "trainer.checkpoint_blocks": "gradient_checkpointing grad_checkpointing activation_checkpointing checkpointing",
    "trainer.attention": "attn flash flash_attn flash_attention attn_implementation attention_kernel",
    "trainer.precision": "amp fp16 bf16 dtype mixed_precision",
    "trainer.eval_every": "val_check_interval eval_interval eval_steps",
    "trainer.log_every": "log_every_n_steps log_interval logging_steps",
    "optimizer.lr": "lr learning_rate",
    "optimizer.weight_decay": "wd decay",
    "optimizer.layer_decay": "llrd layer_lr_decay layerwise_lr_decay",
    "optimizer.rates": "param_groups group_overrides lr_mult lr_scale",
    "schedule.warmup": "warmup_steps num_warmup_steps warmup_epochs warmup_ratio",
    "data.batch_size": "batch bs train_batch_size per_device_train_batch_size",
    "data.context": "seq_len seqlen max_len max_length sequence_length block_size context_length n_positions",
    "model.dim": "d_model hidden_size hidden_dim n_embd embed_dim width emb_dim",
    "model.depth": "num_layers n_layer n_layers num_hidden_layers blocks",
    "model.heads": "n_head n_heads num_heads nhead num_attention_heads",
    "channel_mixer.expansion": "mlp_ratio ffn_dim intermediate_size d_ff",
    "tokenizer.size": "patch_size",
    "token_mixer.num_kv_heads": "kv_heads n_kv_heads num_key_value_heads",
    "token_mixer.state": "d_state state_size ssm_state_size",
    "token_mixer.conv": "conv_size d_conv conv_kernel conv_l_cache short_conv use_short_conv linear_conv_kernel_dim",
    "token_mixer.negative": "allow_neg_eigval negative_eigenvalues",
    "token_mixer.kv_every": "num_kv_shared_layers share_kv kv_sharing cla reuse_kv_layer_idx kv_source_layers",
    "token_mixer.value_residual": "add_value_residual learned_value_residual_mix resformer",
    "token_mixer.value_embedding": "value_embeds value_embeddings",
    "token_mixer.softcap": "attn_logit_softcapping softclamp_logits attention_logits_soft_cap logit_cap",
    "token_mixer.sink": "attention_sink attention_sinks sinks head_learned_sink softmax_off_by_one off_by_one",
    "token_mixer.score_scale": "query_pre_attn_scalar attn_scale softmax_scale ssmax qk_scale",
    "token_mixer.exclusive": "xsa exclusive_self_attention",
    "token_mixer.tied_kv": "attention_k_eq_v k_eq_v shared_kv",
    "token_mixer.chunked": "chunked_attention attention_chunk_size block_local",
    "token_mixer.gate": "attn_output_gate gate_values gated_attention",
    "position.jitter": "pos_embed_jitter pos_embed_rope_jitter_coords",
    "position.shift": "pos_embed_shift pos_embed_rope_shift_coords",
    "position.rescale": "pos_embed_rescale pos_embed_rope_rescale_coords",
    "model.smear": "smear_gate smear_lambda",
    "model.backout": "backout_lambda backout_layer",
    "token_mixer.qk_norm": "qk_layernorm qk_layer_norm use_qk_norm attn_qk_norm normalize_qk",
}

# Family -> its names in other projects.
FAMILIES = {
    "schedule": "scheduler lr_scheduler lr_schedule sched",
    "optimizer": "optim opt optimiser",
    "data": "dataset datamodule dataloader",
    "callbacks": "callback",
    "logger": "loggers logging",
    "objective": "loss criterion task",
    "token_mixer": "mixer attention_type",
    "channel_mixer": "feedforward_type ffn_type",
    "position": "positional_encoding pos pos_encoding position_embedding",
    "norm": "normalization norm_layer norm_type",
    "experiment": "exp",
}

# Mechanisms that are a choice with options of its own, by their names: the choice alone is not the mechanism.
COMPOSED = {
    "hyena": "token_mixer=long_conv token_mixer.gated=true token_mixer.conv=3",
    "based": "token_mixer=linear_attention token_mixer.feature=taylor",
    "performer": "token_mixer=linear_attention token_mixer.feature=random",
    "flash_attention": "token_mixer=attention trainer.attention=auto",
    "flash_attn": "token_mixer=attention trainer.attention=auto",
    "hedgehog": "token_mixer=linear_attention token_mixer.feature=hedgehog",
}


def absent(name: str, family: str = "") -> str | None:
    """Return a message for a mechanism that is no choice, with its options or related choices; None for other names.

    family: its choices are named first
    """
    if _plain(name) in COMPOSED:
        return f"{name} is {COMPOSED[_plain(name)]}"
    related = [key for key, choice in _all_choices() if _plain(name) in choice.related]
    related = sorted(related, key=lambda key: not key.startswith(f"{family}="))
    if not related:
        return None
    return f"blockyard has no {name} (related, not the same: {', '.join(related)})"


def _all_choices() -> Iterator[tuple[str, catalog.Choice]]:
    for family in catalog.groups():
        for name, choice in catalog.choices(family).items():
            yield f"{family}={name}", choice


def family_for(name: str) -> str | None:
    """Return the family that has this name elsewhere."""
    return next((family for family, names in FAMILIES.items() if _plain(name) in names.split()), None)


def choices_for(name: str, family: str | None = None) -> list[str]:
    """Return the choices, `family=choice`, that have this name elsewhere; of one family, if one is given."""
    matches = [key for key, choice in _all_choices() if _plain(name) in choice.aliases]
    return [key for key in matches if family is None or key.startswith(f"{family}=")]


def options_for(name: str, family: str | None = None) -> list[str]:
    """Return the options, `family.option`, that have this name elsewhere; of one family, if one is given."""
    matches = [option for option, names in OPTIONS.items() if _plain(name) in names.split()]
    return [option for option in matches if family is None or option.startswith(f"{family}.")]


def meant(name: str, groups: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the choices, `family=choice`, that a bare name may mean: of that name, or known by it elsewhere.

    groups: each family with the names of its choices
    """
    return [f"{family}={name}" for family, names in groups if name in names] or choices_for(name)


def _plain(name: str) -> str:
    return str(name).lower().replace("-", "_")


@dataclass(frozen=True)
class KnownKeys:
    """The keys that overrides of one config may set.

    config: composed of choices alone; choices: the name chosen in each family
    allow: the packages that the command line allows; folders: the user's own config folders
    """

    config: Node
    choices: dict[str, str | None]
    allow: list[str]
    folders: tuple[Path, ...] = ()

    def issue(self, key: str, value: str) -> Issue | None:
        """Return the issue of `key=value`, or None where the key is an option."""
        issue = self._issue(key, value)
        answer = habits.key_answer(key)
        if issue is None or answer is None:
            return issue
        return Issue(key, f"unknown config key; {answer}", unknown=True)

    def _issue(self, key: str, value: str) -> Issue | None:
        family, *rest = key.split(".")
        if family in catalog.OUTSIDE_RUN:
            return Issue(key, "is not part of a run; `blockyard sweep` takes it")
        if key == "resume":
            return Issue(
                key,
                "names a run for `blockyard train` of the command line alone; in Python the call that began a run "
                "continues it: blockyard.train with the same overrides",
            )
        if not rest:
            if key in options(Root):
                return None
            return self._unknown_root_key(key, value)
        if family == catalog.MATCH:
            allowed_keys = [f"{catalog.MATCH}.{name}" for name in catalog.MATCH_OPTIONS]
            if key in allowed_keys:
                return None
            return Issue(key, "unknown config key", allowed_keys)
        if family not in catalog.run_keys():
            other = family_for(family)
            hint = f"; did you mean {other}?" if other else did_you_mean(family, catalog.run_keys())
            text = f"unknown config key; {family!r} is not a family{hint}"
            return Issue(key, text, see="`blockyard list`", unknown=True)
        return self._option_issue([family, *rest], value)

    def _unknown_root_key(self, key: str, value: str) -> Issue:
        hints = self._elsewhere(key) or self._chosen(key, value)
        missing = absent(key)
        if missing and not hints:
            return Issue(key, f"unknown config key; {missing}", unknown=True)
        hints = hints or near(key, [*options(Root), *catalog.run_keys()])
        if hints:
            return Issue(key, "unknown config key", hints, unknown=True)
        text = "unknown config key; a config has no keys and groups beside its families"
        return Issue(key, text, see="`blockyard list`", unknown=True)

    def _chosen(self, key: str, value: str) -> list[str]:
        """Return overrides for a family's name elsewhere, `scheduler=cosine`, or a choice as a switch, `wandb=true`."""
        family = family_for(key)
        if family:
            if value in catalog.choices(family, self.folders):
                return [f"{family}={value}"]
            return choices_for(value, family) or [f"{family}=NAME"]
        return meant(key, [(family, list(catalog.choices(family, self.folders))) for family in catalog.groups()])

    def _option_issue(self, path: list[str], value: str) -> Issue | None:
        key, family = ".".join(path), path[0]
        depth, node = tree.deepest_node(self.config, path)
        if node is None:
            return Issue(key, f"{family} has no such part", self._dot_hint(path, value) or self._parts(family))
        rest = path[depth:]
        if rest == ["_target_"]:
            return None  # checked with the whole config
        if not rest or rest[0] in RESERVED:
            return Issue(key, "cannot be overridden")
        declared = self._options(node)
        if rest[0] in declared or "${" in str(node["_target_"]):  # `check` knows the class that a text stands for
            return None
        prefix = ".".join(path[:depth])
        synonymous = [option for option in options_for(rest[0], prefix) if option.rpartition(".")[2] in declared]
        spelling = [f"{prefix}.{name}" for name in near(rest[0], declared)]
        if prefix == "trainer" and rest[0] in lightning.PASSED_ON:
            spelling += [f"trainer.extra.{rest[0]}"]
        hint = self._dot_hint(path, value) or synonymous or spelling or self._elsewhere(rest[0])
        has = f"it has {fold(declared)}" if declared else "it has none"
        text = f"{prefix} ({node['_target_'].rsplit('.', 1)[-1]}) has no option {rest[0]!r}; {has}"
        see = self._explain(family) if declared and depth == 1 else ""
        return Issue(key, text, hint, see=see, unknown=depth == 1 and not self._exists(family, rest[0]))

    def _elsewhere(self, option: str) -> list[str]:
        """Return options of this name in other parts of the config, or options with this name elsewhere."""
        options_here = []
        for name, node in tree.nodes(self.config):
            if option in self._options(node):
                options_here.append(f"{name}.{option}")
        return options_here or options_for(option)

    def _exists(self, family: str, option: str) -> bool:
        """Return whether any choice of a family has such an option."""
        for choice in catalog.choices(family, self.folders).values():
            if choice.target and option in self._options({"_target_": choice.target}):
                return True
        return False

    def _explain(self, family: str) -> str:
        choice = self.choices.get(family)
        if choice:
            return f"`blockyard explain {family}={choice}`"
        return ""

    def _options(self, node: Node) -> list[str]:
        return list(options_of(node, self.allow))

    def _parts(self, family: str) -> list[str]:
        node = self.config.get(family)
        if isinstance(node, dict):
            return [f"{family}.{name}" for name in node]
        return []

    def _dot_hint(self, path: list[str], value: str) -> list[str]:
        """Return the choice that `position.rope=...` or `block.name=...` means: a dot written for a `=`."""
        family, name = path[:2]
        names = catalog.choices(family, self.folders)
        choice = next((text for text in (value, name) if text in names), None)
        if choice:
            return [f"{family}={choice}"]
        if name in catalog.run_keys() and value in catalog.choices(name, self.folders):
            return [f"{name}={value}"]
        if name not in ("name", "type"):
            return []
        return [f"{family}={other}" for other in near(value, names)]
