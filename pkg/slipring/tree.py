"""The definition of a batch's tree: its containers, in bytes that any process can read back.

The encoder (_encode.pyx) writes definitions, this module reads them; docs/codec.md has the format. A definition
is read once and then found by its hash, so this is off the path of a batch.

A node is a tuple ``(kind, data, children)``:

=========  =====================================  ==============================
kind       data                                   children
=========  =====================================  ==============================
LEAF       None, numpy.dtype or torch dtype name  None
NONE       None                                   None
DICT       tuple of keys                          one per key
ODICT      tuple of keys (OrderedDict)            one per key
LIST       None                                   one per element
TUPLE      None                                   one per element
NAMED      the namedtuple's ``_make``             one per field
DATACLASS  (class, tuple of field names)          one per field
=========  =====================================  ==============================
"""

import ast
import dataclasses
import importlib
import struct
import sys

import numpy as np

LEAF, NONE, DICT, ODICT, LIST, TUPLE, NAMED, DATACLASS = range(8)

MAX_DEPTH = 100  # a definition from a broken worker must not exhaust the stack


class BadDefinition(ValueError):
    """The bytes are not a tree definition."""


def parse(data):
    """Read a definition.

    Parameters
    ----------
    data : bytes

    Returns
    -------
    node : tuple
    leaves : int
        How many leaf records it needs.

    Raises
    ------
    BadDefinition
    """
    reader = _Reader(data)
    node = reader.node(0)
    if reader.at != len(data):
        raise BadDefinition(f"{len(data) - reader.at} bytes left over after the tree")
    return node, reader.leaves


class _Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0
        self.leaves = 0

    def take(self, n):
        piece = self.data[self.at : self.at + n]
        if len(piece) != n:
            raise BadDefinition(f"{n} bytes wanted at {self.at} of {len(self.data)}")
        self.at += n
        return piece

    def count(self):
        n = struct.unpack("<I", self.take(4))[0]
        # Every element takes a byte at least: larger counts are nonsense, and would cost memory.
        if n > len(self.data) - self.at:
            raise BadDefinition(f"{n} elements announced, {len(self.data) - self.at} bytes left")
        return n

    def text(self):
        try:
            return self.take(self.count()).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise BadDefinition(str(error)) from None

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
        raise BadDefinition(f"{tag!r} is not a key")

    def node(self, depth):
        if depth > MAX_DEPTH:
            raise BadDefinition(f"deeper than {MAX_DEPTH}")
        tag = self.take(1)
        if tag in (b"L", b"D", b"T"):
            self.leaves += 1
            data = {b"L": lambda: None, b"D": lambda: read_dtype(self.text()), b"T": self.text}[tag]()
            return LEAF, data, None
        if tag == b"N":
            return NONE, None, None
        if tag in (b"d", b"o"):
            pairs = [(self.key(depth), self.node(depth + 1)) for _ in range(self.count())]
            kind = DICT if tag == b"d" else ODICT
            return kind, tuple(k for k, _ in pairs), tuple(v for _, v in pairs)
        if tag in (b"l", b"t"):
            kind = LIST if tag == b"l" else TUPLE
            return kind, None, tuple(self.node(depth + 1) for _ in range(self.count()))
        if tag == b"n":
            cls = find_class(self.text(), self.text())
            children = tuple(self.node(depth + 1) for _ in range(self.count()))
            if not is_namedtuple(cls) or len(cls._fields) != len(children):
                raise BadDefinition(f"{cls!r} is not a namedtuple of {len(children)} fields")
            return NAMED, cls._make, children
        if tag == b"c":
            cls = find_class(self.text(), self.text())
            if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
                raise BadDefinition(f"{cls!r} is not a dataclass")
            pairs = [(self.text(), self.node(depth + 1)) for _ in range(self.count())]
            return DATACLASS, (cls, tuple(k for k, _ in pairs)), tuple(v for _, v in pairs)
        raise BadDefinition(f"{tag!r} is not a node")


def is_namedtuple(cls):
    """Whether `cls` is a tuple class with named fields."""
    return (
        isinstance(cls, type) and issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)
    )


def find_class(module, qualname):
    """Return the class of that name; BadDefinition if there is none."""
    try:
        found = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadDefinition(f"class {module}.{qualname}: {error}") from None
    return found


def can_be_found(cls):
    """Whether another process finds `cls` by its name."""
    try:
        return find_class(cls.__module__, cls.__qualname__) is cls
    except BadDefinition:
        return False


def write_dtype(dtype):
    """Return a dtype as text (numpy's own array-file notation)."""
    return repr(np.lib.format.dtype_to_descr(dtype))


def read_dtype(text):
    """Return the dtype of a text that `write_dtype` made; BadDefinition if it is none, or holds objects."""
    try:
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, MemoryError, RecursionError) as error:
        raise BadDefinition(f"dtype {text!r}: {error}") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise BadDefinition(f"dtype {text!r} has no fixed-size bytes")
    return dtype
