"""Keep secrets out of everything that is written: configs, command lines, reasons.

Secrets belong in environment variables (WANDB_API_KEY, HF_TOKEN) or in the netrc file, where libraries look for them.
A secret that is given as an option is used in this process but never written: files hold `<redacted>` instead, and a
warning names the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"

# "token" alone is a secret, "class_token" and "max_tokens" are not.
_KEY = re.compile(
    r"""(?ix)
    api[_-]?key | apikey | passw(or)?d | passphrase | (^|[_.-])pwd$ | (^|[_.-])secrets?($|[_.-])
    | credentials? | (private|access|secret|signing|encryption|license|ssh)[_-]?key
    | (^|[_.-]) (access|auth|api|hf|hub|huggingface|wandb|bearer|refresh|secret|github|gh|gitlab|session|
                 personal|id|security|login|user|service|sas|slack|bot)[_-]?token$
    | ^token$ | (^|[_.-]) (authorization|auth|bearer|netrc|cookie)$ | connection[_-]?string
    """
)
_VALUE = re.compile(
    r"""(?x)
    \b(?: hf_[A-Za-z0-9]{20,} | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[\w-]{16,}
    | sk-[A-Za-z0-9_-]{20,} | wandb_v\d_[A-Za-z0-9_-]{16,} | xox[abpr]-[A-Za-z0-9-]{10,} | AKIA[0-9A-Z]{16}
    | AIza[\w-]{30,} | eyJ[\w-]{10,}[\w.-]* | local-[0-9a-f]{40} )
    """
)
# The user part of a URL may be a secret, except the user `git`. Passwords may have an @, and a / behind a colon that
# begins no port. Each part has a bound: every letter of a long text may begin an address.
_URL = re.compile(
    r"""(?x) (?P<scheme>\b[a-zA-Z][\w+.-]{0,60}://) (?!git@)
    (?: [^/\s:@?\#]{1,4000} : (?!\d{0,9}/) [^\s?\#'"]{0,4000} | [^/\s?\#'"]{0,4000} ) @ """
)
_QUERY = re.compile(
    r"""(?ix) (?P<name> [?&] (?: [\w-]*token | sig | signature | [\w-]*key | [\w-]*secret | passw(or)?d | auth
    | x-(?:amz|goog)-(?:signature|credential|security-token) ) =) [^&\s\#'"]+ """
)
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{12,}")
_ENVIRONMENT = re.compile(r"(?i)(api_?key|token|secret|passw(or)?d|credential|access_?key|private_?key)")


# Secrets that were given as options, kept in memory to redact them from error messages.
_REMEMBERED: set[str] = set()
_NOT_SECRET = frozenset({"auto", "none", "null", "true", "false", "default", "disabled"})
_ENTRY = re.compile(
    r"""(?x) (?P<key>['"]? (?<![\w.-]) (?P<name>[\w.-]+) ['"]?) (?P<colon>\s*:\s*)
    (?: '[^']*' | "[^"]*" | [^,{}\[\]]+ ) """
)


def is_secret_key(key: str) -> bool:
    """Return whether an option of this name must not be written."""
    return bool(_KEY.search(key))


def redact_text(text: str) -> str:
    """Return a text without secrets, also of environment variables and of options that were passed to `remember`."""
    return _without(_known_secrets(), text)


def _without(secrets: Sequence[str], text: str) -> str:
    text = _URL.sub(rf"\g<scheme>{REDACTED}@", text)
    text = _QUERY.sub(rf"\g<name>{REDACTED}", text)
    text = _HEADER.sub(REDACTED, text)
    text = _VALUE.sub(REDACTED, text)
    for value in secrets:
        if value in text:
            text = text.replace(value, REDACTED)
    return text


def redact(value: Any, *, secret_keys: list[str] | None = None, environment: bool = True) -> Any:
    """Return a copy of plain nested data without secrets.

    secret_keys: collects the dotted keys that held one
    environment: also replace the values of secret environment variables and of options passed to `remember`
    """
    secrets = _known_secrets() if environment else []
    return _redacted(value, secret_keys, "", secrets)


def _redacted(value: Any, secret_keys: list[str] | None, path: str, secrets: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        clean_mapping = {}
        for key, item in value.items():
            dotted = _join(path, key)
            if not (is_secret_key(str(key)) and _can_hide(item)):
                clean_mapping[key] = _redacted(item, secret_keys, dotted, secrets)
                continue
            clean_mapping[key] = REDACTED
            if secret_keys is not None:
                secret_keys.append(dotted)
        return clean_mapping
    if isinstance(value, list | tuple):
        return [_redacted(item, secret_keys, _join(path, index), secrets) for index, item in enumerate(value)]
    if isinstance(value, str):
        clean = _without(secrets, value)
        if clean != value and secret_keys is not None:
            secret_keys.append(path)
        return clean
    return value


def remember(config: Mapping[str, Any]) -> None:
    """Register the values of options with a secret's name, so that `redact_text` replaces them."""
    for key, item in config.items():
        if is_secret_key(str(key)) and _can_hide(item):
            _REMEMBERED.update(text for text in _leaves(item) if len(text) >= 4 and text.lower() not in _NOT_SECRET)
        elif isinstance(item, Mapping):
            remember(item)
        elif isinstance(item, list | tuple):
            remember({str(index): part for index, part in enumerate(item)})


def redact_command(argv: Sequence[str]) -> list[str]:
    """Return a command line without secrets: `key=value`, `--key=value`, `--key value` and inline dicts."""
    clean = []
    hide_next = False
    for arg in map(str, argv):
        if hide_next and not arg.startswith("-"):
            clean.append(REDACTED)
            hide_next = False
            continue
        hide_next = False
        key, equals, value = arg.partition("=")
        name = key.lstrip("+~-").replace("/", ".").rsplit(".", 1)[-1]
        if equals and is_secret_key(name) and not re.fullmatch(r"\d{0,3}", value):
            clean.append(f"{key}={REDACTED}")
        elif equals:
            clean.append(f"{redact_text(key)}={_redact_inline(redact_text(value))}")
        else:
            hide_next = arg.startswith("-") and is_secret_key(name)
            clean.append(redact_text(arg))
    return clean


def _redact_inline(value: str) -> str:
    # Hydra takes whole dicts as one value: logger={api_key:abc,mode:online}.
    if "{" not in value:
        return value

    def hide(match: re.Match[str]) -> str:
        if not is_secret_key(match["name"]):
            return match[0]
        return f"{match['key']}{match['colon']}{REDACTED}"

    return _ENTRY.sub(hide, value)


def _can_hide(value: Any) -> bool:
    # Booleans, empty values and small numbers reveal nothing: data.token=2 is a column. A mapping under a secret's name
    # is hidden as a whole.
    if isinstance(value, int) and abs(value) < 1_000:
        return False
    return value is not None and value not in ("", REDACTED)


def _leaves(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if value is None or isinstance(value, bool) or value == REDACTED:
        return []
    return [str(value)]


def _known_secrets() -> list[str]:
    values = {value for name, value in os.environ.items() if _ENVIRONMENT.search(name) and _random_looking(value)}
    values |= _REMEMBERED
    # Longest first, so that a secret that contains another is replaced as a whole.
    return sorted(values, key=len, reverse=True)


def _random_looking(value: str) -> bool:
    # Excludes paths, switches and names of packages, which configs legitimately hold.
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return len(value) >= 12 and mixed and "/" not in value and " " not in value


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
