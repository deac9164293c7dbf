"""The limit of a process's address space, `ulimit -v`: whether the libraries fit, and its part of messages.

Libraries in C and C++ do not report that it is used up: they abort, or end the process. So with a limit, a separate
process loads them first. PyTorch maps a few gigabytes, and never touches most of them.
"""

from __future__ import annotations

import resource
import subprocess
import sys

# What `blockyard check` maps beyond the libraries, in bytes; a run with more tensors than a few finds out itself.
_RESERVE = 1 << 27
_SECONDS = 300.0  # a thread whose stack finds no room can wait forever
_FULL = 77  # exit code of the process that loads
_TORCH = "import numpy, torch; numpy.ones((64, 64)) @ numpy.ones((64, 64))"
_TRAINING = f"{_TORCH}; import torchmetrics, pytorch_lightning, scipy.linalg, sklearn.linear_model"
# By command; the others load no library that is large.
_LIBRARIES = {
    **dict.fromkeys(("check", "explain", "sweep", "inspect", "import", "export", "tokenize", "compare"), _TORCH),
    **dict.fromkeys(
        ("train", "_cell", "eval", "predict", "embed", "generate", "forecast", "bench", "verify"),
        _TRAINING,
    ),
}
# An error that is not about memory is left to the process that needs the library.
_LOAD = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
    {imports}
except (ImportError, SystemError, MemoryError, OSError, RuntimeError) as error:
    text = str(error).lower()
    native = isinstance(error, (SystemError, MemoryError)) or any(part in text for part in {parts})
    sys.exit({full} if native else 0)
except Exception:  # not about memory: the command itself meets it and reports it
    sys.exit(0)
"""
_UNMAPPED = ("failed to map segment", "cannot allocate memory", "can't allocate memory")
_NO_THREAD = "can't start new thread"  # for which a limit of processes may be the reason too


def limit() -> int | None:
    """Return the largest address space of this process in bytes, or None without a limit."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def remedy() -> str:
    """Return `; ulimit -v allows ...` for a message about too little memory, empty without a limit."""
    bound = limit()
    if bound is None:
        return ""
    return f"; `ulimit -v` allows {bound / 1e9:.1f} GB of address space: set a larger one"


def is_used_up(error: BaseException) -> bool:
    """Return whether an error says that memory could not be reserved."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, SystemError):  # of a module in C that has not noticed it
        return limit() is not None
    if not isinstance(error, ImportError | OSError | RuntimeError):
        return False
    text = str(error).lower()
    return any(part in text for part in _UNMAPPED) or (_NO_THREAD in text and limit() is not None)


def problem_of(command: str) -> str | None:
    """Return a message if the libraries of a command do not fit into the address space, or None.

    Costs nothing without a limit, or if they are loaded already.
    """
    bound = limit()
    imports = _LIBRARIES.get(command)
    if bound is None or imports is None or "torch" in sys.modules:
        return None
    code = _LOAD.format(limit=max(bound - _RESERVE, 0), imports=imports, parts=(*_UNMAPPED, _NO_THREAD), full=_FULL)
    try:
        command_line = [sys.executable, "-P", "-c", code]
        ended = subprocess.run(
            command_line, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        ended = _FULL
    if ended == 0:
        return None
    return f"out of memory: the libraries of `blockyard {command}` do not fit{remedy()}"
