"""Bugs to plant in the core and in the guards: the passage, the one that replaces it, and the tests that fail then."""

from __future__ import annotations

from typing import NamedTuple

CHECKPOINT = "tests/runs/test_checkpoint.py"
REPAIR = "tests/runs/test_checkpoint_repair.py"
ENDINGS = "tests/engine/faults/test_endings.py"
FAILURES = "tests/engine/faults/test_failures.py"
RESUME = "tests/engine/test_resume.py"
SAFETY = "tests/config/test_safety.py"
FOLDERS = "tests/config/test_user_folders.py"
BOUNDS = "tests/config/test_bounds.py"
FOLDER = "tests/runs/test_folder.py"
SECRETS = "tests/runs/test_secrets.py"
ONE_PROCESS = "tests/runs/test_one_process.py"
BOARD = "tests/report/test_board.py"
PAGE = "tests/report/test_page.py"
CSV = "tests/report/test_csv.py"
PROJECT = "tests/config/test_project_file.py"
STRANGER = "tests/battery/test_stranger_folder.py"
HOSTILE = "tests/battery/test_hostile_files.py"
IMAGES = "tests/components/data/test_image_formats.py"
SHARDS = "tests/components/data/test_webdataset.py"
NATIVE = "tests/components/data/test_native_check.py"
SIZES = "tests/weights/test_declared_sizes.py"
TYPES = "tests/weights/test_number_types.py"


class Bug(NamedTuple):
    """A bug: `sound` occurs once in `file` (below src/blockyard) and becomes `broken`; `tests` catch it."""

    name: str
    file: str
    sound: str
    broken: str
    tests: tuple[str, ...]


def _bug(name: str, file: str, sound: str, broken: str, *tests: str) -> Bug:
    return Bug(name, file, sound, broken, tests)


_FILE, _FIX = "runs/checkpoint.py", "runs/checkpoint_io.py"
_IO, _REPLACE, _CSV = "runs/checkpoint_io.py", "atomic_files/replace.py", "atomic_files/csv_text.py"
_LOOP, _ACTIONS = "engine/callbacks/loop.py", "engine/callbacks/loop.py"
_JOB, _END, _RUN = "engine/job.py", "engine/faults/ending.py", "engine/run.py"
_SIZES, _TIMM = "weights/convert/declared_sizes.py", "weights/convert/timm_models.py"
_READER = "data/files/native_check.py"
_MERGE, _YAML = "config/merge.py", "atomic_files/strict_yaml.py"

# In what is computed: statistics, attention, order and splits of the data, losses, optimizers, identities.
CORE = (
    _bug(
        "levels-unweighted",
        "report/stats/importance.py",
        "squares.append(len(at_level) * (",
        "squares.append(1 * (",
        "tests/report/test_importance.py",
    ),
    _bug(
        "steps-unscaled",
        "config/model_size.py",
        "trainer[name] = max(1, round(value * ratio))",
        "trainer[name] = max(1, round(value))",
        "tests/config/test_model_size.py",
    ),
    _bug(
        "typed-value-chosen",
        "config/recipes.py",
        "tuple(value for value in proposed if value.key not in typed_keys)",
        "tuple(proposed)",
        "tests/config/test_recipes.py",
    ),
    _bug(
        "searched-size-keeps-steps",
        "sweep/search/trial_config.py",
        'for key in ("max_steps", "eval_every"):',
        'for key in ("eval_every",):',
        "tests/sweep/test_planner.py",
    ),
    _bug(
        "interruption-untold",
        "report/home/on_end.py",
        '"interrupted" if exit_code in _INTERRUPTED else "failed"',
        '"failed"',
        "tests/report/test_on_end.py",
    ),
    _bug(
        "largest-activation",
        "engine/callbacks/layer_stats.py",
        ".float().norm(dim=-1).mean()",
        ".float().norm(dim=-1).amax()",
        "tests/engine/callbacks/test_layer_stats.py",
    ),
    _bug(
        "peak-of-one-device",
        "engine/setup.py",
        'peak_flops = peak["flops"] * data.layout.world',
        'peak_flops = peak["flops"]',
        "tests/engine/callbacks/test_device_stats.py",
    ),
    _bug(
        "share-since-the-start",
        "engine/callbacks/device_stats.py",
        "(samples - self._last[1]) * state.flops_per_sample",
        "samples * state.flops_per_sample",
        "tests/engine/callbacks/test_device_stats.py",
    ),
    _bug(
        "deviation-of-one-run",
        "ask/choose.py",
        "deviation = math.sqrt(2 * squares",
        "deviation = math.sqrt(squares",
        "tests/ask/test_choose.py",
    ),
    _bug(
        "deviation-of-all",
        "report/stats/paired.py",
        "gaps.std(ddof=1)",
        "gaps.std(ddof=0)",
        "tests/report/test_statistics.py",
    ),
    _bug(
        "flips-uncounted",
        "report/stats/paired.py",
        "(as_extreme + 1) / (SAMPLED + 1)",
        "as_extreme / SAMPLED",
        "tests/report/test_statistics.py",
    ),
    _bug(
        "one-ahead-is-seen",
        "ops/mask.py",
        "(k_index <= q_index) if",
        "(k_index <= q_index + 1) if",
        "tests/components/reference/test_attention.py",
    ),
    _bug(
        "window-of-one-more",
        "ops/mask.py",
        "(distance < visibility.window)",
        "(distance <= visibility.window)",
        "tests/ops/test_attend_windows.py",
    ),
    _bug(
        "segments-see-each-other",
        "ops/mask.py",
        "(k_row < num_prefix) | (q_segment == k_segment)",
        "(k_row >= 0) | (q_segment == k_segment)",
        "tests/ops/test_attend_windows.py",
    ),
    _bug(
        "every-epoch-alike",
        "data/splits/order.py",
        'mix("order", seed, epoch))\n    return torch.randperm',
        'mix("order", seed, 0))\n    return torch.randperm',
        "tests/components/data/test_order.py",
    ),
    _bug(
        "gate-and-value-swapped",
        "channel_mixer/glu.py",
        "gate, value = h.chunk(2, dim=-1)",
        "value, gate = h.chunk(2, dim=-1)",
        "tests/components/reference/test_channels.py",
    ),
    _bug(
        "gain-without-one",
        "norm/rms.py",
        "return 1 + self.weight\n",
        "return self.weight + 0\n",
        "tests/components/reference/test_channels.py",
    ),
    _bug(
        "documents-run-on",
        "objective/next_token.py",
        "segment[:, 1:] != segment[:, :-1]",
        "segment[:, 1:] != segment[:, 1:]",
        "tests/components/objective/test_objective.py",
    ),
    _bug(
        "top-p-short",
        "generate/sampling.py",
        "preceding = ordered.cumsum(0) - ordered",
        "preceding = ordered.cumsum(0)",
        "tests/generate/test_decoding.py",
    ),
    _bug(
        "decay-in-a-line",
        "schedule/wsd.py",
        "p = math.sqrt(p)",
        "p = abs(p)",
        "tests/components/optimizer/test_schedule.py",
    ),
    _bug(
        "yarn-gain",
        "position/rope.py",
        "0.1 * math.log(scale) + 1",
        "0.2 * math.log(scale) + 1",
        "tests/components/reference/test_rotary.py",
    ),
    _bug(
        "seed-in-the-identity",
        "runs/identity.py",
        "for key, value in config.items() if key not in INCIDENTAL",
        "for key, value in config.items()",
        "tests/runs/test_identity.py",
    ),
    _bug(
        "average-without-warm-up",
        "engine/callbacks/ema.py",
        "if self.warmup:",
        "if 0:",
        "tests/engine/callbacks/test_ema.py",
    ),
    _bug(
        "padding-is-read",
        "ops/mask.py",
        "sees = sees & k_valid",
        "sees = sees & (k_valid | True)",
        "tests/ops/test_attend.py",
    ),
    _bug(
        "duplicates-in-two-splits",
        "data/splits/row_splits.py",
        "return (own if repeated else None), repeated",
        "return None, repeated",
        "tests/components/data/test_table_kinds.py",
    ),
    _bug(
        "smoothing-forgotten",
        "objective/_classes.py",
        "return cross_entropy(prediction, target, label_smoothing=self.label_smoothing,",
        "return cross_entropy(prediction, target, label_smoothing=0.0,",
        "tests/components/objective/test_objective.py",
    ),
    _bug(
        "decay-of-every-weight",
        "optimizer/_decay.py",
        'group["weight_decay"] /= group["lr"]',
        'group["weight_decay"] *= 1.0',
        "tests/components/optimizer/test_optimizer_rules.py",
    ),
    _bug(
        "draws-alike-every-step",
        "data/splits/order.py",
        'mix("draw", seed, epoch, step)',
        'mix("draw", seed, epoch)',
        "tests/components/objective/test_masked.py",
    ),
    _bug(
        "cache-without-prefix",
        "ops/cache.py",
        "num_prefix=past.num_prefix,\n        position=new.position",
        "num_prefix=0,\n        position=new.position",
        "tests/ops/test_attend_windows.py",
    ),
)

GUARDS = (
    _bug("pickles-run", _FILE, "weights_only=True", "weights_only=False", CHECKPOINT),
    _bug("checksums-ignored", _FILE, "if broken is not None:", "if broken == 0:", CHECKPOINT),
    _bug("other-runs-load", _FILE, "checked.identity != identity", "checked.identity == ''", CHECKPOINT),
    _bug("other-seeds-load", _FILE, "checked.seed != seed", "checked.seed == ''", CHECKPOINT),
    _bug("formats-ignored", _FILE, 'stamp.get("format") != FORMAT', 'stamp.get("format") == ""', CHECKPOINT),
    _bug("pipes-opened", _FILE, "if not stat.S_ISREG(status.st_mode):", "if status is None:", REPAIR),
    _bug("no-previous", _IO, "if path.name == LAST and is_regular(path):", "if path is None:", CHECKPOINT),
    _bug("leftover-link", _IO, "if os.path.samestat(source.stat(), target.lstat()):", "if source is None:", REPAIR),
    _bug("torn-writes", _REPLACE, "    os.replace(temporary, path)", "    path.write_bytes(b'')", FOLDER, CHECKPOINT),
    _bug("sums-unread", _REPLACE, "value.pop(CHECKSUM) != _checksum(value)", "value.pop(CHECKSUM) is None", REPAIR),
    _bug("old-last-stays", _FIX, "if newest.path.name != LAST:", "if newest is None:", REPAIR),
    _bug("best-not-restored", _FIX, "steps.get(BEST) != best_step", "steps is None", REPAIR),
    _bug("refused-files-stay", _FIX, "if os.path.lexists(bad.path):", "if bad is None:", REPAIR),
    _bug("done-too-early", _JOB, "if not state.finished:", "if state is None:", ENDINGS),
    _bug("pause-forgotten", _JOB, "if state.pause:", "if state is None:", "tests/sweep/test_pruning.py"),
    _bug("failure-is-0", _END, 'return Ending("failed", 1, reason', 'return Ending("failed", 0, reason', FAILURES),
    _bug("exits-interrupt", _END, "isinstance(error, Interrupted):", "isinstance(error, SystemExit):", ENDINGS),
    _bug("metrics-stay", _RUN, "folder.metrics.truncate_after(job.start_step)", "pass", RESUME),
    _bug("raw-reasons", "runs/status.py", "printable(redact_text(line.strip()))", "line.strip()", ENDINGS),
    _bug(
        "streams-differ",
        _LOOP,
        'self.intervals.seed, "train", self._batches',
        'self.intervals.seed, "train", 0',
        RESUME,
    ),
    _bug("evaluated-forgotten", _ACTIONS, '"evaluated": self.evaluated_step', '"evaluated": 0', RESUME),
    _bug(
        "nan-is-taken",
        "engine/faults/nan_guard.py",
        "if not self.tolerant and not math.isfinite(norm.item()):",
        "if self.tolerant and not math.isfinite(norm.item()):",
        FAILURES,
    ),
    _bug(
        "nan-is-saved",
        "engine/faults/nan_guard.py",
        "if not torch.isfinite(local.detach()).all():",
        "if 0:",
        ENDINGS,
    ),
    _bug("folder-imports", "cli.py", "        os.getcwd()\n", "        sys.path.append(os.getcwd())\n", STRANGER),
    _bug("links-followed", "config/project_file.py", "raise _unsafe(step,", "print(step,", PROJECT),
    _bug(
        "owners-ignored",
        "config/project_file.py",
        "if status.st_uid not in (os.getuid(), 0) or",
        "if",
        PROJECT,
    ),
    _bug(
        "any-target", "config/untrusted/targets.py", "return package in TRUSTED_PACKAGES or", "return True or", SAFETY
    ),
    _bug(
        "functions-build",
        "config/untrusted/targets.py",
        "if not inspect.isclass(located):",
        "if located is None:",
        SAFETY,
    ),
    _bug("hydra-uncompared", _MERGE, "    if present == own:", "    if own:", FOLDERS),
    _bug("files-allow", _MERGE, "not in ([], None):", "in (0,):", SAFETY, FOLDERS),
    _bug("hydra-visible", "config/hydra_sources.py", 'parts[0] != "hydra" and (', "(", FOLDERS),
    _bug("alias-bombs", _YAML, "if self.aliases > self.limits.aliases:", "if self.aliases < 0:", SAFETY),
    _bug(
        "bounds-ignored", "config/schema.py", "if type(bound) is Le and number > bound.le:", "if not metadata:", BOUNDS
    ),
    _bug("cores-ignored", "config/schema.py", "number > bound.count * cpu_cores()", "number < 0", BOUNDS),
    _bug("memory-ignored", "config/trial_build.py", "need.total <= capacity", "need.total >= 0", BOUNDS),
    _bug("any-image-format", "data/files/images.py", "(stream, formats=FORMATS)", "(stream)", IMAGES),
    _bug(
        "integers-are-weights",
        "weights/number_types.py",
        "if dtype not in _floating():",
        "if dtype is None:",
        TYPES,
    ),
    _bug("sizes-unbounded", _SIZES, "if value > LARGEST[kind]:", "if value is None:", SIZES),
    _bug("timm-opens-files", _TIMM, "value is None and key in (*_FLAGS", "key in (key, *_FLAGS", SIZES),
    _bug("reader-unwatched", _READER, "if child.returncode or", "if not child or", NATIVE),
    _bug("answers-uncounted", _READER, " or len(answers) < len(paths):", ":", NATIVE),
    _bug(
        "pixels-unbounded", "data/files/images.py", "if width * height <= MAX_RESIZED:", "if width * height:", HOSTILE
    ),
    _bug("formulas-stay", _CSV, "value.lstrip().startswith(_COMPUTED)", "value is None", CSV),
    _bug("sizes-of-members", "data/files/tar_shard.py", "if info.size < 0 or", "if not info and", SHARDS),
    _bug("page-unescaped", "report/page/document.py", "title=html.escape(title)", "title=title", PAGE),
    _bug("secrets-stay", "runs/redact.py", "return bool(_KEY.search(key))", "return False", SECRETS),
    _bug(
        "addresses-pass",
        "config/untrusted/local_path.py",
        "    if url is None:",
        "    if text:",
        "tests/commands/test_addresses.py",
    ),
    _bug("locks-shared", "runs/lock.py", "_try_lock(handle, fcntl.LOCK_EX) and _same_file", "_same_file", ONE_PROCESS),
    _bug(
        "loggers-stop-runs",
        "engine/loggers/run_log.py",
        "if not plain and threading",
        "if threading",
        "tests/engine/loggers/test_loggers.py",
    ),
    _bug(
        "peers-unnamed", "engine/faults/peers.py", "if self.world > 1 else None", "if self.world > 9 else None", ENDINGS
    ),
    _bug(
        "handlers-replaced",
        "engine/faults/interrupts.py",
        "if signal.getsignal(number) is signal.SIG_DFL]",
        "if number]",
        ENDINGS,
    ),
    _bug(
        "weights-unchecked",
        _FILE,
        "for name in both if expected[name].shape != weights[name].shape",
        "for name in ()",
        CHECKPOINT,
    ),
    _bug(
        "rows-uncounted",
        "runs/metrics.py",
        "def lost_rows(",
        "def lost_rows(*_):\n    return None\n\n\ndef _unused(",
        REPAIR,
    ),
)

BUGS = (*CORE, *GUARDS)
