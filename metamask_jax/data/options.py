"""Options of a dataset as they come from a configuration or a caller, checked against the types of their dataclass."""

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from metamask_jax.errors import DataError, shown

T = TypeVar("T")

_WORDS = {int: "a whole number", float: "a number", str: "text", type(None): "None"}


def build(options: type[T], values: Mapping[str, Any]) -> T:
    """Makes the dataclass of a set's options.

    Args:
      options: the dataclass.
      values: by name; lists are taken for tuples.

    Raises:
      DataError: naming the option and the type it has.

    Example:
      >>> import dataclasses
      >>> build(dataclasses.make_dataclass("Options", [("size", int)]), {"size": "3"})
      Traceback (most recent call last):
      metamask_jax.errors.DataError: size='3'; expected a whole number (config.data.options.size)
    """
    hints = typing.get_type_hints(options)
    checked = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    for name, value in checked.items():
        if not _fits(value, hints[name]):
            raise DataError(f"{name}={shown(value)}; expected {_described(hints[name])} (config.data.options.{name})")
    return options(**checked)


def _fits(value: Any, hint: Any) -> bool:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if typing.get_origin(hint) is tuple:
        inner = arguments[:1] * len(value) if isinstance(value, tuple) and arguments[-1] is Ellipsis else arguments
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, value, inner))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, hint) and not isinstance(value, bool)


def _described(hint: Any) -> str:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_described, arguments))
    if typing.get_origin(hint) is tuple:
        count = "any number of entries" if arguments[-1] is Ellipsis else f"{len(arguments)} entries"
        return f"a tuple of {count}, each {_described(arguments[0])}"
    return _WORDS[hint]
