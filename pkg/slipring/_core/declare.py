"""`Rule` describes an option; `declares` gives a constructor the options that `slipring.options` declares."""

import dataclasses
import difflib
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from slipring._core.arguments import flag, one_of
from slipring.errors import shown

_Declared = TypeVar("_Declared", bound=Callable[..., Any])


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
        the value as Python's own type. Without it the type decides: a bool or one of the words of a Literal.
    hint : str
        Follows the text for a word that is not allowed.
    """

    default: Any
    doc: str
    check: Callable[[str, Any], Any] | None = None
    hint: str = ""


def rules(declared: type, last: Sequence[type] = ()) -> dict[str, tuple[Any, Rule]]:
    """Return (type, `Rule`) of each option of a TypedDict; those that it has from the types in `last` come last."""
    found = {name: get_args(given) for name, given in declared.__annotations__.items()}

    def place(name):
        return max((1 + at for at, base in enumerate(last) if name in base.__annotations__), default=0)

    return {name: found[name] for name in sorted(found, key=place)}


def check(name: str, kind: Any, rule: Rule, value: Any) -> Any:
    """Return the value of an option, as Python's own type.

    Raises
    ------
    TypeError, ValueError
        Naming the option, its value and the rule.
    """
    if rule.check is not None:
        checked = rule.check(name, value)
        return value if checked is None else checked
    if kind is bool:
        flag(name, value)
    elif words := _words(kind):
        one_of(name, value, words, rule.hint)
    return value


def _words(kind):
    """The words that a type allows: of a Literal, with None first where it may be None."""
    if get_origin(kind) not in (Union, types.UnionType):
        return get_args(kind) if get_origin(kind) is Literal else ()
    words = tuple(word for part in get_args(kind) for word in _words(part))
    return (None, *words) if words and type(None) in get_args(kind) else words


def refuse(given: Mapping[str, Any], refused: Mapping[str, str], loader: str) -> None:
    """Raise ValueError for an option that a loader cannot have; `refused` has the reason for each such option."""
    for name, why in refused.items():
        if given.get(name) is not None:
            raise ValueError(f"{name}={shown(given[name])} cannot be given to {loader}: {why}")


# The names of tf.data, Keras and Grain -> ours, or what to do in their place.
_ELSEWHERE = {
    "worker_count": "num_workers",
    "workers": "num_workers",
    "num_parallel_calls": "num_workers",
    "use_multiprocessing": "start_method",
    "num_threads": "fetch_threads",
    "drop_remainder": "drop_last",
    "max_queue_size": "prefetch_factor",
    "worker_buffer_size": "prefetch_factor",
    "buffer_size": "shuffle_buffer",
    "shuffle": "shuffle_buffer",
    "deterministic": "in_order",
    "num_epochs": "Iterate the loader once for each epoch",
    "repeat": "Iterate the loader once for each epoch",
    "transforms": "Transform samples in the dataset, or batches in collate_fn",
    "operations": "Transform samples in the dataset, or batches in collate_fn",
    "shard_options": "Give batch_sampler=slipring.BatchSampler(..., rank=, world_size=)",
}


def advice(name: str, names: Iterable[str], known: Mapping[str, str]) -> str:
    """Return what to say of an argument that is none of `names`; `known` tells of the names of other loaders."""
    for meant in (known.get(name, ""), _ELSEWHERE.get(name, "")):
        if meant in names:
            return f". Did you mean {meant!r}?"
        if " " in meant:
            return f". {meant}"
    near = difflib.get_close_matches(name, names, 1)
    return f". Did you mean {near[0]!r}?" if near else ""


def declares(
    options: Mapping[str, tuple[Any, Rule]], *, defaults: Mapping[str, Any] | None = None, **known: str
) -> Callable[[_Declared], _Declared]:
    """Give a class's constructor, or a function, declared options in the place of its ``**options``.

    They appear in its signature. ``{options}`` in its documentation becomes theirs. An unknown
    argument raises a TypeError that suggests a known one.

    Parameters
    ----------
    options : mapping
        As `rules` returns them.
    defaults : mapping, optional
        Defaults of this loader that differ.
    **known : str
        Other loaders' name for an argument -> ours.
    """

    def decorate(made):
        init = made.__init__ if isinstance(made, type) else made
        signature = inspect.signature(init)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        given = {
            name: inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=(defaults or {}).get(name, rule.default),
                annotation=kind,
            )
            for name, (kind, rule) in options.items()
        }
        signature = signature.replace(parameters=[*own, *given.values()])
        checked = suggesting(signature, **known)(init)
        checked.__signature__ = signature
        if made.__doc__:
            made.__doc__ = _documented(made.__doc__, given, options)
            checked.__doc__ = init.__doc__ if isinstance(made, type) else made.__doc__
        if not isinstance(made, type):
            return checked
        made.__init__ = checked
        return made

    return decorate


def _documented(text, given, options):
    """A docstring in numpydoc's form whose line ``{options}`` has become the options' documentation."""
    found = re.search(r"^( *)\{options\}$", text, re.M)
    if found is None:
        return text
    lines = []
    for name, (kind, rule) in options.items():
        lines += [f"{name} : {_named(kind)}, default {given[name].default!r}"]
        text_of = textwrap.wrap(" ".join(rule.doc.split()), 108, break_on_hyphens=False)
        lines += [f"    {line}" for line in text_of]
    return text.replace(found[0], textwrap.indent("\n".join(lines), found[1]))


def _named(kind):
    """A type as documentation names it."""
    if words := _words(kind):
        rest = [part for part in get_args(kind) if part is int]  # a number, or a word
        return f"{'int or ' if rest else ''}{{{', '.join(map(repr, words))}}}"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_named(part) for part in get_args(kind))
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__.replace(" | ", " or ")
    if kind is type(None):
        return "None"
    origin = get_origin(kind) or kind
    return {"Callable": "callable", "Iterable": "iterable", "PathLike": "path"}.get(
        origin.__name__, origin.__name__
    )


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
                        f"{init.__qualname__}() got an unexpected keyword argument {name!r}"
                        f"{advice(name, names, known)}"
                    )
            if len(args) > len(positional):
                named = [name for name in positional if name != "self"]
                raise TypeError(
                    f"{init.__qualname__}() takes {', '.join(named)} by position, and all other arguments by name"
                )
            return init(*args, **kwargs)

        return checked

    return decorate
