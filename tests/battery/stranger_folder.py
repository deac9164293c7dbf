"""A working folder of a stranger: files that Python, libraries or git would run if the folder were on their path.

Each kind of file leaves a mark of its own when it runs. `write` puts all kinds into one folder: where nothing runs,
none hides another.
"""

from __future__ import annotations

from pathlib import Path

MARK = "EXECUTED"

# Modules that libraries of a training, an evaluation and an export look for and do not find.
LOOKED_FOR = (
    *("accelerate", "chardet", "cutlass", "cython", "flint", "fx2trt_oss", "gmpy2", "ipywidgets", "isal", "lz4"),
    *("mistral_common", "mpi4py", "onnx_tf", "opt_einsum", "pycocotools", "pydot", "pynvml", "sentencepiece"),
    *("simplejson", "socks", "spmd_types", "tabulate", "tensorflow", "tensorrt", "torch_xla", "torchaudio"),
    *("torchcomms", "torchdistx", "tree", "trio", "xarray", "zstandard"),
)
# Called like what is installed, as modules and as packages.
SHADOWS = ("hydra", "numpy", "omegaconf", "pytorch_lightning", "rich", "timm", "torch", "torchmetrics", "yaml")
STANDARD = ("dataclasses", "json", "logging", "random", "typing")  # modules of Python itself
GROUPS = (
    *("torch.backends", "lightning.pytorch.callbacks_factory", "blockyard.components", "torch_dynamo_backends"),
    *("fsspec.specs", "networkx.plugins", "numba_extensions", "opentelemetry_tracer_provider", "triton.backends"),
)
STARTED = ("sitecustomize", "usercustomize", "conftest", "setup", "__main__", "evilbackend")

# Python puts the folder first on the path where it gets `-m` or `-c`, and imports its own modules and blockyard itself
# from there before blockyard can take it off: FOLDER_FIRST is for the installed command.
ALWAYS = (
    *("hydra_plugins", "hydra_plugins.package"),
    *(f"entry_points:{group}" for group in GROUPS),
    *(f"egg:{group}" for group in GROUPS[:3]),
    *(f"looked_for:{name}" for name in LOOKED_FOR),
    *(f"shadow:{name}" for name in SHADOWS),
    *(f"started:{name}" for name in STARTED),
    *("git", "matplotlibrc", "path_file"),
)
FOLDER_FIRST = ("shadow:blockyard", *(f"standard:{name}" for name in STANDARD))


def kinds(*, installed_command: bool) -> tuple[str, ...]:
    """The kinds of files that must not run; fewer for a Python that was told to start in the folder."""
    return (*ALWAYS, *FOLDER_FIRST) if installed_command else ALWAYS


def mark(root: Path, kind: str) -> Path:
    """The file that a kind leaves when it runs."""
    return root / f"{MARK}-{kind.replace(':', '-')}"


def write(root: Path, *, installed_command: bool) -> None:
    """Write all kinds into a folder."""
    for kind in kinds(installed_command=installed_command):
        how, _, name = kind.partition(":")
        for path, text in _files(how, name, mark(root, kind)).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    (root / ".git" / "objects").mkdir()
    (root / ".git" / "refs").mkdir()
    for name, text in PLAIN.items():
        (root / name).write_text(text, encoding="utf-8")


# Files that programs read without running them; they must change nothing.
PLAIN = {
    ".env": "PYTHONPATH=.\nPYTHONSTARTUP=evilbackend.py\nBLOCKYARD_PACKAGES={}\n",
    "blockyard.yaml": "allow: [evilbackend]\nconfig_dirs: [.]\n",  # the tests set BLOCKYARD_PROJECT=none
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n[build-system]\nrequires = ['x']\n",
    "pyvenv.cfg": "home = .\ninclude-system-site-packages = true\n",
    "setup.cfg": "[metadata]\nname = x\n",
    "tox.ini": "[pytest]\npython_files = *.py\n",
}


def _files(how: str, name: str, path: Path) -> dict[str, str]:
    """The files of a kind, by path."""
    code = f"open({str(path)!r}, 'a').close()\n"
    if how == "hydra_plugins":
        return {"hydra_plugins/plain.py": code}
    if how == "hydra_plugins.package":
        return {"hydra_plugins/inner/__init__.py": code, "hydra_plugins/inner/deeper.py": code}
    if how in ("entry_points", "egg"):
        module = f"{how}_of_{name.replace('.', '_')}"
        folder, metadata = (
            (f"{module}.dist-info", "METADATA") if how == "entry_points" else (f"{module}.egg-info", "PKG-INFO")
        )
        target = f"{module}.conf" if name == "blockyard.components" else f"{module}:load"
        return {
            f"{folder}/entry_points.txt": f"[{name}]\nx = {target}\n",
            f"{folder}/{metadata}": f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n",
            f"{module}/__init__.py": f"{code}def load(*_, **__):\n    return []\n",
            f"{module}/conf/norm/{how}.yaml": f"# A norm.\n_target_: {module}.norm.Norm\n",
        }
    if how == "shadow":
        return {f"{name}/__init__.py": code, f"{name}/__main__.py": code, f"{name}.py": code}
    if how == "git":  # `git status` and `git diff` run what core.fsmonitor names
        settings = f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = \"touch '{path}'; false\"\n"
        return {".git/HEAD": "ref: refs/heads/main\n", ".git/config": settings}
    if how == "matplotlibrc":
        return {"matplotlibrc": "backend: module://matplotlibrc_backend\n", "matplotlibrc_backend.py": code}
    if how == "path_file":
        return {"x.pth": f"import sys; {code}"}
    return {f"{name}.py": code}  # looked_for, standard, started
