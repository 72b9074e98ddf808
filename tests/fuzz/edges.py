"""The edges of the decoder that a case takes: of C by the compiler's counters, of Python by lines."""

import contextlib
import ctypes
import sys
import zlib

PYTHON = ("/slipring/_core/codec/pytree.py", "/slipring/_core/codec/tensors.py", "/slipring/arrow/__init__.py")


class Edges:
    """The counters of edges.c, which must have been preloaded."""

    def __init__(self, library):
        self.library = library
        library.edges_line.argtypes = [ctypes.c_uint64]
        library.edges_line.restype = None
        self.codes = {}  # code object -> its file's number; None: not the decoder's code

    @classmethod
    def preloaded(cls):
        """Return the counters, or None if no module was compiled for them."""
        library = ctypes.CDLL(None)
        return cls(library) if hasattr(library, "edges_begin") else None

    @contextlib.contextmanager
    def counted(self, found):
        """Count the edges of the block; append the number of new edges to `found`."""
        self.library.edges_begin()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            found.append(self.library.edges_end())

    def _call(self, frame, event, _):
        code = frame.f_code
        if code not in self.codes:
            ours = code.co_filename.endswith(PYTHON)
            self.codes[code] = zlib.crc32(code.co_filename.encode()) << 20 if ours else None
        return None if self.codes[code] is None else self._line

    def _line(self, frame, event, _):
        self.library.edges_line(self.codes[frame.f_code] + frame.f_lineno)
        return self._line

    @property
    def seen(self):
        """int: the number of edges taken so far."""
        return self.library.edges_seen()

    def forget(self):
        """Reset the counters: every edge is new again."""
        self.library.edges_forget()
