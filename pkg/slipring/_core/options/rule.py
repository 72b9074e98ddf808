"""`Rule` describes an option, a `Group` has several, and `suggesting` names a known option for an unknown one."""

import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from slipring._core.options.checks import did_you_mean, flag, one_of
from slipring.errors import shown

_Declared = TypeVar("_Declared", bound=Callable[..., Any])
_Group = TypeVar("_Group", bound="Group")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Default and check of an option.

    Parameters
    ----------
    default : object
    check : callable, optional
        Of (name, value): raises a TypeError or ValueError that names the option, its value and the rule, and may return
        the value as Python's own type. Without a check, the type decides: a bool or one of the words of a Literal.
    hint : str
        Follows the text for a word that is not allowed.
    """

    default: Any
    check: Callable[[str, Any], Any] | None = None
    hint: str = ""


def option(default: Any, check: Callable[[str, Any], Any] | None = None, hint: str = "") -> Any:
    """Return the dataclass field for an option of a `Group`; the parameters are those of `Rule`."""
    return dataclasses.field(default=default, metadata={"rule": Rule(default, check, hint)})


class Group:
    """Base class of frozen dataclasses of options. Checks each field, and prints those that are not the default."""

    def __post_init__(self) -> None:
        for name, (kind, rule) in rules(type(self)).items():
            object.__setattr__(self, name, check(name, kind, rule, getattr(self, name)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._given().items())})"

    def _given(self) -> dict[str, Any]:
        """Return the options that are not the default."""
        values = {name: (getattr(self, name), rule.default) for name, (_, rule) in rules(type(self)).items()}
        return {name: value for name, (value, default) in values.items() if value != default}


def rules(declared: type) -> dict[str, tuple[Any, Rule]]:
    """Return (type, `Rule`) of each option of a `Group` or a TypedDict."""
    if issubclass(declared, Group):
        return {field.name: (field.type, field.metadata["rule"]) for field in dataclasses.fields(declared)}  # type: ignore[arg-type]
    return {name: get_args(given) for name, given in declared.__annotations__.items()}


def suggesting_group(group: type[_Group]) -> type[_Group]:
    """Make the constructor of a `Group` suggest a known option for an unknown one."""
    group.__init__ = suggesting(inspect.signature(group.__init__))(group.__init__)  # type: ignore[method-assign]
    return group


def check(name: str, kind: Any, rule: Rule, value: Any) -> Any:
    """Return the value of an option, as Python's own type, or raise an error with its name, its value and the rule."""
    if rule.check is not None:
        checked = rule.check(name, value)
        return value if checked is None else checked
    if kind is bool:
        flag(name, value)
    elif words := _words(kind):
        one_of(name, value, words, rule.hint)
    return value


def _words(kind):
    """Return the words that a type allows: those of a Literal, after None if it may be None."""
    if get_origin(kind) not in (Union, types.UnionType):
        return get_args(kind) if get_origin(kind) is Literal else ()
    words = tuple(word for part in get_args(kind) for word in _words(part))
    return (None, *words) if words and type(None) in get_args(kind) else words


def refuse(given: Mapping[str, Any], refused: Mapping[str, str], loader: str) -> None:
    """Raise ValueError for an option in `given` that `loader` cannot have.

    `refused` has the reasons, by the name of the option or "group.option".
    """
    for name, why in refused.items():
        group, _, field = name.rpartition(".")
        holder = given.get(group or name)
        if not group and holder is not None:
            raise ValueError(f"{name}={shown(holder)} cannot be given to {loader}: {why}")
        if isinstance(holder, Group) and field in holder._given():
            value = f"{type(holder).__name__}({field}={shown(getattr(holder, field))})"
            raise ValueError(f"{value} cannot be given to {loader}: {why}")


def advice(name: str, names: Iterable[str], known: Mapping[str, str]) -> str:
    """Return the advice for an argument that is not in `names`; `known` maps names of other loaders to ours."""
    meant = known.get(name, "")
    if meant in names:
        return f". Did you mean {meant!r}?"
    if " " in meant:
        return f". {meant}"
    return did_you_mean(name, names)


def entries(declared: type) -> dict[str, str]:
    """Return {option: its entry} of the docstring of a class; it is empty with python -OO."""
    found = re.findall(r"^((\w+) : .*(?:\n    .+)+)", inspect.cleandoc(declared.__doc__ or ""), re.M)
    return {name: entry for entry, name in found}


def suggesting(signature: inspect.Signature, **known: str) -> Callable[[_Declared], _Declared]:
    """Make a constructor suggest a known argument when it is given an unknown one."""
    names = signature.parameters
    positional = [name for name, p in names.items() if p.kind is p.POSITIONAL_OR_KEYWORD]

    def decorate(init):
        @functools.wraps(init)
        def checked(*args, **kwargs):
            for name in kwargs:
                if name not in names:
                    raise TypeError(
                        f"{init.__qualname__}() got an unexpected keyword argument {name!r}{advice(name, names, known)}"
                    )
            if len(args) > len(positional):
                named = ", ".join(name for name in positional if name != "self")
                rule = f"takes {named} by position, and all other arguments" if named else "takes its arguments"
                raise TypeError(f"{init.__qualname__}() {rule} by name")
            return init(*args, **kwargs)

        return checked

    return decorate
