"""The arguments of a call by their names, also where a method passes on whatever it gets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def signatures_of(method: Callable[..., Any]) -> list[inspect.Signature]:
    """What arguments a method may have; where it takes whatever it gets, first what the one that it overrides takes."""
    own = inspect.signature(method)
    if not _takes_any(own):
        return [own]
    name = getattr(method, "__name__", "")
    overridden = [vars(kind)[name] for kind in type(getattr(method, "__self__", None)).__mro__ if name in vars(kind)]
    bound = [inspect.signature(functools.partial(one, None)) for one in overridden if inspect.isfunction(one)]
    return [*(signature for signature in bound if not _takes_any(signature)), own]


def named_arguments(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments of a call by their names, in the order of the parameters; defaults too."""
    bound.apply_defaults()
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name} {place}": one for place, one in enumerate(value)}
        else:
            named[name] = value
    return named


def _takes_any(signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return not kinds.isdisjoint((inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD))
