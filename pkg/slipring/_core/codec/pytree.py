"""The treedef of a batch: its pytree's containers, in bytes that any process can read.

The encoder (_encode.pyx) writes treedefs, and this module reads them; docs/protocol.md has the format. A process
reads each treedef once and then finds it by its hash, so this module is seldom called.

A node is a tuple ``(kind, data, children)``:

=========  =====================================  ==============================
kind       data                                   children
=========  =====================================  ==============================
LEAF       None, numpy.dtype or torch dtype name  None
NONE       None                                   None
DICT       tuple of keys                          one per key
ODICT      tuple of keys (an OrderedDict's)       one per key
LIST       None                                   one per element
TUPLE      None                                   one per element
NAMED      the namedtuple's class                 one per field
DATACLASS  (class, tuple of field names)          one per field
SAME       the number of an earlier leaf          None
=========  =====================================  ==============================
"""

import ast
import copyreg
import dataclasses
import functools
import importlib
import inspect
import struct
import sys
import types
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

LEAF, NONE, DICT, ODICT, LIST, TUPLE, NAMED, DATACLASS, SAME = range(9)

MAX_DEPTH = 100  # a treedef from a broken worker must not exhaust the stack


class BadTreeDef(ValueError):
    """Bytes that are not a treedef."""


def parse(data):
    """Read a treedef; return (node, number of leaf records that it needs, whether a leaf occurs more than once).

    If the bytes are not a treedef, raise `BadTreeDef`.
    """
    reader = _Reader(data)
    node = reader.node(0)
    if reader.at != len(data):
        raise BadTreeDef(f"{len(data) - reader.at} bytes left over after the tree")
    return node, reader.leaves, reader.repeats


class _Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0
        self.leaves = 0
        self.repeats = False

    def take(self, n):
        piece = self.data[self.at : self.at + n]
        if len(piece) != n:
            raise BadTreeDef(f"{n} bytes wanted at {self.at} of {len(self.data)}")
        self.at += n
        return piece

    def count(self):
        n = struct.unpack("<I", self.take(4))[0]
        # Every element takes a byte at least: larger counts are nonsense, and would cost memory.
        if n > len(self.data) - self.at:
            raise BadTreeDef(f"{n} elements announced, {len(self.data) - self.at} bytes left")
        return n

    def text(self):
        try:
            return self.take(self.count()).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise BadTreeDef(str(error)) from None

    def key(self, depth):
        tag = self.take(1)
        if tag == b"s":
            return self.text()
        if tag == b"b":
            return self.take(self.count())
        if tag == b"i":
            return struct.unpack("<q", self.take(8))[0]
        if tag == b"f":
            return struct.unpack("<d", self.take(8))[0]
        if tag in (b"0", b"1", b"2"):
            return {b"0": None, b"1": True, b"2": False}[tag]
        if tag == b"(" and depth < MAX_DEPTH:
            return tuple(self.key(depth + 1) for _ in range(self.count()))
        raise BadTreeDef(f"{tag!r} is not a key")

    def node(self, depth):
        if depth > MAX_DEPTH:
            raise BadTreeDef(f"deeper than {MAX_DEPTH}")
        tag = self.take(1)
        if tag in _LEAVES:
            self.leaves += 1
            return LEAF, _LEAVES[tag](self), None
        if tag == b"S":
            number = struct.unpack("<I", self.take(4))[0]
            if number >= self.leaves:
                raise BadTreeDef(f"leaf {number} is repeated, and only {self.leaves} came before")
            self.repeats = True
            return SAME, number, None
        if tag == b"N":
            return NONE, None, None
        if tag in (b"d", b"o"):
            n = self.count()
            keys = tuple(self.key(depth) for _ in range(n))
            return DICT if tag == b"d" else ODICT, keys, self.children(n, depth)
        if tag in (b"l", b"t"):
            return LIST if tag == b"l" else TUPLE, None, self.children(self.count(), depth)
        if tag == b"n":
            module, name = self.text(), self.text()
            cls = find_class(module, name)
            n = self.count()
            if not is_plain_namedtuple(cls) or len(cls._fields) != n:
                raise BadTreeDef(f"{module}.{name} is not a namedtuple of {n} fields")
            return NAMED, cls, self.children(n, depth)
        if tag == b"c":
            module, name = self.text(), self.text()
            cls = find_class(module, name)
            n = self.count()
            names = tuple(self.text() for _ in range(n))
            if not is_plain_dataclass(cls) or names != field_names(cls):
                raise BadTreeDef(f"{module}.{name} is not a dataclass of the fields {names}")
            return DATACLASS, (cls, names), self.children(n, depth)
        raise BadTreeDef(f"{tag!r} is not a node")

    def children(self, n, depth):
        return tuple(self.node(depth + 1) for _ in range(n))


# Readers of the data after each tag of a leaf.
_LEAVES = {
    b"L": lambda reader: None,
    b"D": lambda reader: read_dtype(reader.text()),
    b"E": lambda reader: find_extension_dtype(reader.text(), reader.text()),
    b"T": _Reader.text,
}


def is_namedtuple(cls):
    """Return whether `cls` is a tuple class with named fields."""
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and isinstance(getattr(cls, "_fields", None), tuple)
        and hasattr(cls, "_make")
    )


def is_plain_namedtuple(cls):
    """Return whether pickle would store nothing but the elements of a namedtuple."""
    return is_namedtuple(cls) and is_pickled_as_usual(cls)


def is_plain_dataclass(cls):
    """Return whether a dataclass's objects can consist of their fields alone, so that the fields become leaves.

    Pickle handles a class that derives from a builtin or customises its pickling. It also handles one whose slots hold
    more than the fields, or go with a ``__dict__``, and one with a property in place of a field.
    """
    if not (
        isinstance(cls, type)
        and dataclasses.is_dataclass(cls)
        and cls.__new__ is object.__new__
        and is_pickled_as_usual(cls)
    ):
        return False
    names, slots = field_names(cls), slots_of(cls)
    # Values lie either in the dictionary or in slots. If a class has both, a value may lie in either.
    if slots if cls.__dictoffset__ else not set(slots) <= set(names):
        return False
    return not any(_is_guarded(inspect.getattr_static(cls, name, None)) for name in names)


def is_pickled_as_usual(cls):
    """Return whether neither a class nor copyreg customises how its objects are pickled."""
    return (
        cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and getattr(cls, "__getstate__", None) in _GETSTATES
        and getattr(cls, "__setstate__", None) in _SETSTATES
        and cls not in copyreg.dispatch_table
    )


def _is_guarded(attribute):
    """Return whether a write to a class's attribute runs code of its own, such as a property's."""
    return hasattr(type(attribute), "__set__") and not isinstance(attribute, types.MemberDescriptorType)


# The methods that `dataclasses` itself adds with frozen=True and slots=True.
_GETSTATES = (None, getattr(object, "__getstate__", None), getattr(dataclasses, "_dataclass_getstate", None))
_SETSTATES = (None, getattr(dataclasses, "_dataclass_setstate", None))


def field_names(cls):
    """Return the names of a dataclass's fields."""
    return tuple(f.name for f in dataclasses.fields(cls))


def contents(value):
    """Return the values of a plain dataclass's fields in order; None if the object has more, or fewer, attributes."""
    names = field_names(type(value))
    attributes = getattr(value, "__dict__", None)
    if attributes is not None:
        if len(attributes) == len(names) and all(name in attributes for name in names):
            return [attributes[name] for name in names]
        return None
    try:
        return [getattr(value, name) for name in names]
    except AttributeError:
        return None


@functools.lru_cache(maxsize=1024)
def slots_of(cls):
    """Return the names that a class and its bases have slots for, without ``__dict__`` and ``__weakref__``."""
    names = [getattr(base, "__slots__", ()) for base in cls.__mro__]
    every = [name for one in names for name in ((one,) if isinstance(one, str) else one)]
    return tuple(name for name in every if name not in ("__dict__", "__weakref__"))


def find_class(module, qualname):
    """Return the class of that name; raise `BadTreeDef` if there is none."""
    try:
        found = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception as error:  # an import runs code, which can raise anything
        raise BadTreeDef(f"class {module}.{qualname}: {_repr(error)}") from None
    return found


def _repr(error):
    try:
        return repr(error)
    except Exception:  # an exception of the user's; its type is enough
        return f"a {type(error).__name__}, whose repr raises"


def can_be_found(cls):
    """Return whether another process finds `cls` by its name."""
    try:
        return find_class(cls.__module__, cls.__qualname__) is cls
    except BadTreeDef:
        return False


def is_plain_dtype(dtype):
    """Return whether a dtype's text describes it completely: dtypes are equal even if their metadata differ."""
    return (
        dtype.metadata is None
        and (dtype.kind != "V" or dtype.type is np.void)  # records are another kind of void
        and (dtype.subdtype is None or is_plain_dtype(dtype.subdtype[0]))
        and all(is_plain_dtype(field[0]) for field in (dtype.fields or {}).values())
    )


@functools.lru_cache(maxsize=1024)
def write_dtype(dtype):
    """Return a dtype as text, in the notation of numpy's array files; None if that does not describe it."""
    try:
        text = repr(dtype.descr if dtype.names is not None else dtype.str)
        return text if read_dtype(text) == dtype else None
    except ValueError:  # overlapping or reordered fields; not read back
        return None


def read_dtype(text):
    """Return the dtype of a text from `write_dtype`; raise `BadTreeDef` if there is none, or if it holds objects."""
    try:
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
    except Exception as error:  # numpy raises many kinds
        raise BadTreeDef(f"dtype {text!r}: {error!r}") from None
    if dtype.hasobject or dtype.itemsize == 0 or dtype.kind not in "biufcmMSUV" or dtype.subdtype is not None:
        raise BadTreeDef(f"dtype {text!r} has no fixed-size bytes")
    return dtype


@functools.lru_cache(maxsize=1024)
def extension_name(dtype):
    """Return (module, qualified name) of an extension dtype's scalar type; None if they do not find the dtype."""
    module, name = dtype.type.__module__, dtype.type.__qualname__
    try:
        return (module, name) if find_extension_dtype(module, name) == dtype else None
    except BadTreeDef:
        return None


def find_extension_dtype(module, name):
    """Return the dtype that another package has registered for a scalar type; raise `BadTreeDef` if there is none.

    Its type number cannot be used: it depends on the order in which a process has imported packages.
    """
    cls = find_class(module, name)
    dtype = np.dtype(cls) if isinstance(cls, type) and issubclass(cls, np.generic) else None
    if dtype is None or dtype.isbuiltin != EXTENSION or dtype.type is not cls:
        raise BadTreeDef(f"{module}.{name} is not the scalar type of an extension dtype")
    return dtype


EXTENSION = 2  # numpy.dtype.isbuiltin


def map_leaves(value, function):
    """Return the same dicts, lists, tuples and namedtuples, with `function` applied to their leaves.

    Other mappings become dicts.
    """
    if isinstance(value, Mapping):
        made = {key: map_leaves(item, function) for key, item in value.items()}
        return OrderedDict(made) if type(value) is OrderedDict else made
    if isinstance(value, (list, tuple)):
        made = [map_leaves(item, function) for item in value]
        if is_namedtuple(type(value)):
            return type(value)._make(made)
        return tuple(made) if isinstance(value, tuple) else made
    return function(value)


def leaves_of(value):
    """Return the leaves of `map_leaves`, in its order."""
    found = []
    map_leaves(value, found.append)
    return found
