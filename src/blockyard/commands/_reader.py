"""Reads the command line of a function that is a command: flags, `key=value`, and arguments without a `=`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from blockyard.commands._signature import Function, Parameter, functions_of
from blockyard.commands._types import CONFIG_DIRS, REPEATED, TYPED, FlagForm, Keys
from blockyard.config import habits
from blockyard.config.choices import catalog
from blockyard.config.option_text import Reader, boolean, read_option
from blockyard.errors import UserError, did_you_mean, near


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Raises UserError for a command line that it does not take."""
    function, positional, keywords = read(name, arguments)
    code = function.call(*positional, **keywords)
    return code or 0


def read(name: str, arguments: Sequence[str]) -> tuple[Function, list[Any], dict[str, Any]]:
    """Return the function that a command line asks for, and its arguments. Raises UserError."""
    functions = functions_of(name)
    flags, config_dirs, texts = Parser(name, functions).read(arguments)
    function, texts = _chosen(name, functions, texts)
    title = f"{name} {function.subcommand}".strip()
    for flag in flags:
        if flag not in [parameter.name for parameter in function.flags]:
            calls = []
            for other in functions:
                if flag in [parameter.name for parameter in other.flags]:
                    call = f"blockyard {name} {other.subcommand}".rstrip()
                    calls.append(f"`{call}`")
            raise UserError(f"--{flag.removesuffix('_').replace('_', '-')} is for {' and '.join(calls)}")
    keyed, texts = _taken(function, texts)
    positional, texts = _placed(title, function, texts)
    _check_rest(title, functions, function, texts)
    values: dict[str, Any] = dict(flags)
    for parameter in function.parameters:
        if TYPED in parameter.metadata:
            values[parameter.name] = list(arguments)
        elif CONFIG_DIRS in parameter.metadata:
            values[parameter.name] = config_dirs
        elif parameter.name in keyed:
            values[parameter.name] = _read_value(parameter, keyed[parameter.name])
        elif parameter.required and parameter.is_keyword:
            needed = [keyword.typed for keyword in function.keywords if keyword.required]
            earlier = needed[: needed.index(parameter.typed)]
            beside = ""
            if earlier:
                beside = f" beside {' '.join(earlier)}"
            raise UserError(f"{title} needs {parameter.typed} ({parameter.help}){beside}")
    keywords: dict[str, Any] = {}
    fields: dict[str, dict[str, Any]] = {group: {} for group in function.groups}
    for parameter in function.parameters:
        if parameter.name in values and parameter.group:
            fields[parameter.group][parameter.name] = values[parameter.name]
        elif parameter.name in values:
            keywords[parameter.name] = values[parameter.name]
    for group, kind in function.groups.items():
        keywords[group] = kind(**fields[group])
    return function, [*positional, *texts], keywords


def _chosen(name: str, functions: list[Function], texts: list[str]) -> tuple[Function, list[str]]:
    """Return the function that a subcommand or a key chooses, and the arguments without the subcommand."""
    subcommands = {function.subcommand: function for function in functions if function.subcommand}
    if subcommands:
        default = functions[0]
        candidates = [text for text in texts if "=" not in text]
        if not default.subcommand:  # only the first argument can be one; later ones are the default function's
            candidates = texts[:1]
        if candidates and candidates[0] in subcommands:
            index = texts.index(candidates[0])
            return subcommands[candidates[0]], texts[:index] + texts[index + 1 :]
        if not default.subcommand:
            return default, texts
        problem = ""
        if candidates:
            problem = f", not {' '.join(candidates)}"
        raise UserError(f"{name} needs what to do: {' or '.join(subcommands)}{problem}")
    chosen = []
    for function in functions[1:]:
        values = [text.partition("=")[2] for text in texts if text.startswith(f"{function.key}=")]
        if values and function.chosen_by.endswith("=true") and not read_option(function.key, values[-1], boolean):
            texts = [text for text in texts if not text.startswith(f"{function.key}=")]
        elif values:
            chosen.append(function)
    if len(chosen) > 1:
        keys = " and ".join(function.chosen_by for function in chosen)
        raise UserError(f"{keys} exclude each other; leave all but one out")
    if chosen:
        return chosen[0], texts
    return functions[0], texts


def _taken(function: Function, texts: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the arguments of each parameter that is read from `key=value`, and the other arguments."""
    keyed: dict[str, list[str]] = {}
    others = []
    for text in texts:
        key, equals, _ = text.partition("=")
        takers = [parameter for parameter in function.keywords if equals and parameter.takes(key)]
        if takers:
            keyed.setdefault(takers[0].name, []).append(text)
        else:
            others.append(text)
    return keyed, others


def _read_value(parameter: Parameter, texts: list[str]) -> Any:
    """Return the value of a parameter; of a key that is given several times the last one counts."""
    pairs = [text.partition("=")[::2] for text in texts]
    keys: Keys | None = parameter.meta(Keys)
    if keys is not None:
        return {key.removeprefix(keys.prefix): read_option(key, text, keys.read) for key, text in pairs}
    values = [read_option(key, text, parameter.reader) for key, text in pairs]
    if REPEATED in parameter.metadata:
        return values
    return values[-1]


def _placed(title: str, function: Function, texts: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without a `=` for the parameters before the star, with their defaults, and the others."""
    if not function.positional:
        return [], texts
    names = [text for text in texts if "=" not in text]
    count = len(function.positional)
    left_out = function.positional[len(names) :]
    takes_more = function.rest is not None and not function.rest.value.everything
    if len(names) <= count and not any(parameter.required for parameter in left_out):
        defaults = [parameter.default for parameter in left_out]
        return [*names, *defaults], [text for text in texts if "=" in text]
    if len(names) > count and takes_more:
        return names[:count], [text for text in texts if "=" in text] + names[count:]
    nouns = []
    for parameter in function.positional:
        nouns.append(parameter.value.metavar.replace("_", " ").replace("|", " or ").lower())
    problem = ""
    if count == 1 and names:
        problem = f", not {len(names)} ({', '.join(names)})"
    elif count == 1:
        problem = ", and none is named"
    raise UserError(f"{title} takes one {' and one '.join(nouns)}{problem}; for example `{function.example}`")


def _check_rest(title: str, functions: list[Function], function: Function, texts: list[str]) -> None:
    """Raise UserError for an argument that the function does not take."""
    rest = function.rest
    keys: list[str] = []
    for other in functions:
        for parameter in other.keywords:
            keys += [key for key in parameter.keys if key not in keys]
    listed = f"(options: {', '.join(keys)})"
    for text in texts:
        key, equals, _ = text.partition("=")
        others = [other for other in functions if other is not function and other.key and other.takes(key)]
        if equals and others:
            raise UserError(f"{text} has an effect with {others[0].chosen_by} only; add it, or leave {key} out")
        if equals and function.key and functions[0].takes(key):
            raise UserError(f"{function.chosen_by} and {key}= exclude each other; leave one of them out")
        if equals and (answer := habits.OPTIONS.get(f"{title} {key}")):
            raise UserError(f"{text}: unknown option of {title}; {answer}")
        if rest is not None and rest.value.everything == "overrides":
            continue
        if rest is not None and rest.value.everything == "inputs":
            if re.fullmatch(r"[a-z]+=\S*", text) and near(key, keys):
                raise UserError(f"{text}: unknown option of {title}{did_you_mean(key, keys)} {listed}")
            continue
        if not equals and rest is not None:
            continue
        if not equals and "run" in keys:
            raise UserError(f"{text}: {title} takes no names; did you mean run={text}? {listed}")
        raise UserError(f"{text}: unknown option of {title}{did_you_mean(key, keys)} {listed}")


class Parser(argparse.ArgumentParser):
    """Takes the flags of a command out of its arguments. Raises UserError."""

    def __init__(self, name: str, functions: Sequence[Function]) -> None:
        super().__init__(prog=f"blockyard {name}", add_help=False, allow_abbrev=False)
        self.command = name
        self.parameters: dict[str, Parameter] = {}  # the flags, by their long form
        self.known: list[str] = []  # keys of the command
        for function in functions:
            self.parameters |= {parameter.key: parameter for parameter in function.flags}
            for parameter in function.keywords:
                self.known += parameter.keys
        self.add_argument("texts", nargs="*")
        self.add_argument("--config-dir", "-cd", dest="config_dirs", action="append", default=[], metavar="DIR")
        for key, parameter in self.parameters.items():
            names = [key]
            if parameter.flag and parameter.flag.short:
                names.append(parameter.flag.short)
            options: dict[str, Any] = {"dest": parameter.name, "default": argparse.SUPPRESS}
            if parameter.reader is boolean:
                options["action"] = "store_true"
            else:
                options["type"] = _flag_type(parameter)
            self.add_argument(*names, **options)

    def read(self, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return the flags that are given, the folders of --config-dir, and the other arguments in order."""
        for text in arguments:
            answer = habits.FLAGS.get(f"{self.command} {text}")
            if answer:
                raise UserError(f"{text}: unknown flag; {answer}")
        namespace, unknown = self.parse_known_intermixed_args(self._joined(arguments))
        flag = next((text.partition("=")[0] for text in unknown if text.startswith("-")), None)
        if flag is not None:
            name = flag.lstrip("-").replace("-", "_")
            if name.partition(".")[0] in (*catalog.run_keys(), "resume", "run", *self.known):
                value = _value_of(flag, arguments)
                raise UserError(f"{flag}: not a flag; families and options are written {name}={value}")
            if flag == "--config-name":
                raise UserError(f"{flag}: there is one root config; choose experiment=NAME, from --config-dir DIR too")
            flags = self.flags()
            raise UserError(f"{flag}: unknown flag{did_you_mean(flag, flags)} (flags: {', '.join(flags)})")
        values = vars(namespace)
        texts, config_dirs = values.pop("texts"), values.pop("config_dirs")
        return values, config_dirs, texts

    def flags(self) -> list[str]:
        """Return the flags in their long form."""
        return ["--config-dir", *self.parameters, "--help"]

    def error(self, message: str) -> NoReturn:
        """Raise UserError in place of printing the usage and exiting."""
        named = re.fullmatch(r"argument ([^:\s/]+)(?:[\s/][^:]*)?: (.*)", message)
        flag, text = named.groups() if named else ("command line", message)
        if text == "expected one argument":
            text = "a value is missing"
            if flag in self.parameters and self.parameters[flag].choices:
                text += f", one of {', '.join(self.parameters[flag].choices)}"
        elif text.startswith("ignored explicit argument"):
            text = "takes no value"
        raise UserError(f"{flag}: {text}")

    def _joined(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with the value of each flag that may stand alone joined to it (`--csv=runs.csv`)."""
        forms: dict[str, tuple[str, FlagForm]] = {}
        for key, parameter in self.parameters.items():
            if parameter.flag and parameter.flag.bare is not None:
                forms |= {key: (key, parameter.flag), parameter.flag.short: (key, parameter.flag)}
        joined = []
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            if argument in forms:
                key, form = forms[argument]
                value = form.bare
                if rest and form.follows(rest[0]):
                    value = rest.pop(0)
                argument = f"{key}={value}"
            joined.append(argument)
        return joined


def _flag_type(parameter: Parameter) -> Reader:
    """Return the reader of a flag's value, with the error that argparse shows."""

    def read(text: str) -> Any:
        try:
            return parameter.reader(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, not {text!r}") from None

    return read


def _value_of(flag: str, arguments: Sequence[str]) -> str:
    """Return the value of an unknown flag, `last` of `--resume last`; VALUE where no value follows."""
    for text, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = text.partition("=")
        if name == flag:
            if not equals:
                value = following
            if value and not value.startswith("-") and ("=" not in value or equals):
                return value
            return "VALUE"
    return "VALUE"
