"""Copies of a simulated mesh, made where schedules part, so that each can be followed.

Works on any graph of plain objects, so it knows no roles. All copies share objects that never change: frozen structs
and dataclasses, functions, and arrays, since deltas and parameters are not changed in place. Values that are under way
are the one exception: their receiver may merge into them (`pair_aggregate`), so each copy has its own. An object that
changes others in place has a method `part_ways`, called on the copy: it gives the copy its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, NoneType
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from mdl.protocol.machine import Received

T = TypeVar("T")
# id of an object -> its copy: one object stays one.
_Made: TypeAlias = dict[int, Any]
_Copier: TypeAlias = Callable[[Any, _Made], Any]


def copy_graph(root: T) -> T:
    """Copy `root` and all that it refers to. Raises TypeError for a kind of object that it cannot copy."""
    copy: T = _copy(root, {})
    return copy


def _copy(item: Any, made: _Made) -> Any:
    copier = _COPIERS.get(item.__class__) or _learn(item.__class__)
    if copier is _share:
        return item
    known = made.get(id(item))
    return copier(item, made) if known is None else known


def _share(item: Any, made: _Made) -> Any:
    return item


def _copy_object(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = object.__new__(item.__class__)
    fields = copy.__dict__
    for name, value in item.__dict__.items():
        fields[name] = value if _COPIERS.get(value.__class__) is _share else _copy(value, made)
    return copy


def _copy_parting(item: Any, made: _Made) -> Any:
    copy = _copy_object(item, made)
    copy.part_ways()
    return copy


def _copy_dict(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = item.__class__()
    for key, value in item.items():
        copy[_copy(key, made)] = value if _COPIERS.get(value.__class__) is _share else _copy(value, made)
    return copy


def _copy_list(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = []
    copy += [_copy(each, made) for each in item]
    return copy


def _copy_set(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = {_copy(each, made) for each in item}
    return copy


def _copy_deque(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = deque((_copy(each, made) for each in item), item.maxlen)
    return copy


def _copy_tuple(item: Any, made: _Made) -> Any:
    if all(_COPIERS.get(each.__class__) is _share for each in item):
        return item
    return tuple([_copy(each, made) for each in item])


def _copy_method(item: Any, made: _Made) -> Any:
    return MethodType(item.__func__, _copy(item.__self__, made))


def _copy_partial(item: Any, made: _Made) -> Any:
    return partial(_copy(item.func, made), *[_copy(each, made) for each in item.args])


def _copy_received(item: Any, made: _Made) -> Any:
    return item if item.values is None else msgspec.structs.replace(item, values=item.values.copy())


# A method wrapper is the network's next random number: these meshes draw none, since they leave nothing to chance.
_SHARED = (
    int, float, str, bytes, bool, range, NoneType, frozenset, FunctionType, BuiltinFunctionType, MethodWrapperType,
)  # fmt: skip
_COPIERS: dict[type, _Copier] = {
    **dict.fromkeys(_SHARED, _share),
    np.ndarray: _share,
    dict: _copy_dict,
    Counter: _copy_dict,
    list: _copy_list,
    set: _copy_set,
    deque: _copy_deque,
    tuple: _copy_tuple,
    partial: _copy_partial,
    MethodType: _copy_method,
    Received: _copy_received,
}


def _learn(kind: type) -> _Copier:
    if not (_is_frozen(kind) or _is_plain(kind)):
        raise TypeError(f"cannot tell how a {kind.__name__} is copied")
    plain = _copy_parting if hasattr(kind, "part_ways") else _copy_object
    _COPIERS[kind] = copier = _share if _is_frozen(kind) else plain
    return copier


def _is_frozen(kind: type) -> bool:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    parameters = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, Enum | type | np.random.Generator) or bool(parameters and parameters.frozen)


def _is_plain(kind: type) -> bool:
    """Return True if the fields of this kind are its whole state."""
    return kind.__dictoffset__ != 0 and all(base.__module__ != "builtins" for base in kind.__mro__[:-1])
