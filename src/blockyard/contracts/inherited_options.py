"""Constructors that take the options of a base class beside their own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, get_type_hints

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def with_options_of(
    base: type, *, without: Collection[str] = (), only: Collection[str] | None = None
) -> Callable[[Constructor], Constructor]:
    """Give a constructor the keyword options of the constructor of `base`, behind its own.

    The constructor names its own options, takes the others as `**options`, and passes these on to the constructor of
    the base. Its signature and its type hints then list all of them, so that an unknown option is refused as in any
    other class. An option that both name is the subclass's, with its default.

        @with_options_of(Attention, without=("output_dim",))
        def __init__(self, ctx: Context, *, window: Length = 8, **options: Any) -> None:
            super().__init__(ctx, **options)

    without: options of the base that the subclass does not offer
    only: the options of the base that the subclass offers; None for all
    """

    def is_inherited(name: str) -> bool:
        return name not in without and (only is None or name in only)

    def with_options(constructor: Constructor) -> Constructor:
        own = inspect.signature(constructor)
        parameters = [entry for entry in own.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        named = {entry.name for entry in parameters}
        hints = get_type_hints(base.__init__, include_extras=True)  # type: ignore[misc]
        annotations = dict(constructor.__annotations__)
        for entry in inspect.signature(base.__init__).parameters.values():  # type: ignore[misc]
            if entry.kind is not inspect.Parameter.KEYWORD_ONLY or entry.name in named:
                continue
            if is_inherited(entry.name):
                parameters.append(entry.replace(annotation=hints[entry.name]))
                annotations[entry.name] = hints[entry.name]
        for name in own.parameters.keys() - {entry.name for entry in parameters}:  # `**options`
            del annotations[name]
        names = {entry.name for entry in parameters}

        @functools.wraps(constructor)
        def checked(self: Any, *arguments: Any, **options: Any) -> None:
            for name in options:
                if name not in names:  # the base's constructor would take one of those that are left out
                    raise TypeError(f"{type(self).__name__} has no option {name!r}")
            constructor(self, *arguments, **options)

        checked.__annotations__ = annotations
        checked.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return with_options
