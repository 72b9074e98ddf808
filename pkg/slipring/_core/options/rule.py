"""`Rule` describes an option; `declares` gives a constructor the options that `slipring.options` declares."""

import dataclasses
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from slipring._core.options.checks import did_you_mean, flag, one_of
from slipring.errors import shown

_Declared = TypeVar("_Declared", bound=Callable[..., Any])
_Group = TypeVar("_Group", bound="Group")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Default, documentation and check of an option.

    Parameters
    ----------
    default : object
    doc : str
        For the documentation of each loader.
    check : callable, optional
        Of (name, value): raises a TypeError or ValueError that names the option, its value and the rule, and may return
        the value as Python's own type. Without a check, the type decides: a bool or one of the words of a Literal.
    hint : str
        Follows the text for a word that is not allowed.
    """

    default: Any
    doc: str
    check: Callable[[str, Any], Any] | None = None
    hint: str = ""


def option(default: Any, doc: str, check: Callable[[str, Any], Any] | None = None, hint: str = "") -> Any:
    """Return the dataclass field for an option of a `Group`; the parameters are those of `Rule`."""
    return dataclasses.field(default=default, metadata={"rule": Rule(default, doc, check, hint)})


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


def documented(group: type[_Group]) -> type[_Group]:
    """Complete the documentation of a `Group`, and make its constructor suggest a known option for an unknown one."""
    signature = inspect.signature(group.__init__)
    group.__doc__ = _documented(group.__doc__, signature.parameters, rules(group))
    init = suggesting(signature)(group.__init__)
    init.__qualname__ = f"{group.__qualname__}.__init__"
    group.__init__ = init  # type: ignore[method-assign]
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


def declares(
    options: Mapping[str, tuple[Any, Rule]],
    *,
    defaults: Mapping[str, Any] | None = None,
    refused: Iterable[str] = (),
    **known: str,
) -> Callable[[_Declared], _Declared]:
    """Give a class's constructor, or a function, declared options (see `rules`) in place of its ``**options``.

    They appear in its signature, with this loader's own `defaults`. Their documentation replaces ``{options}`` in its
    own, except for the `refused` ones (see `refuse`). An unknown argument raises a TypeError that suggests a known one;
    `known` maps other loaders' names to ours.
    """
    values = {**{name: rule.default for name, (_, rule) in options.items()}, **(defaults or {})}
    given = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=values[name], annotation=kind)
        for name, (kind, _) in options.items()
    ]
    allowed = {name: one for name, one in options.items() if name not in refused}

    def decorate(made):
        init = made.__init__ if isinstance(made, type) else made
        own = [p for p in inspect.signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = inspect.signature(init).replace(parameters=[*own, *given])
        checked = suggesting(signature, **known)(init)
        checked.__signature__ = signature
        made.__doc__ = _documented(made.__doc__, signature.parameters, allowed)
        if not isinstance(made, type):
            checked.__doc__ = made.__doc__
            return checked
        made.__init__ = checked
        return made

    return decorate


def _documented(text, given, options):
    """Return a numpydoc docstring with the options' documentation in place of the line ``{options}``."""
    found = re.search(r"^( *)\{options\}$", text or "", re.M)  # python -OO has none
    if found is None:
        return text
    lines = []
    for name, (kind, rule) in options.items():
        default = given[name].default
        lines += [f"{name} : {_named(kind)}" + ("" if default is inspect.Parameter.empty else f", default {default!r}")]
        text_of = textwrap.wrap(" ".join(rule.doc.split()), 108, break_on_hyphens=False)
        lines += [f"    {line}" for line in text_of]
    return text.replace(found[0], textwrap.indent("\n".join(lines), found[1]))


def _named(kind):
    """Return a type's name for documentation."""
    if words := _words(kind):
        rest = [_named(part) for part in get_args(kind) if part is int or get_origin(part) is tuple]
        return " or ".join([*rest, f"{{{', '.join(map(repr, words))}}}"])
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_named(part) for part in get_args(kind))
    if isinstance(kind, (str, ForwardRef)):
        return (kind if isinstance(kind, str) else kind.__forward_arg__).replace(" | ", " or ")
    if get_origin(kind) is tuple:
        return f"({', '.join(_named(part) for part in get_args(kind))})"
    if kind is type(None):
        return "None"
    origin = get_origin(kind) or kind
    return {"Callable": "callable", "Iterable": "iterable", "PathLike": "path"}.get(origin.__name__, origin.__name__)


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
