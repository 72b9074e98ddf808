"""Which edges of the decoder a case takes: of its C by the compiler's means, of its Python line by line."""

import contextlib
import ctypes
import sys
import zlib

PYTHON = ("/slipring/_core/pytree.py", "/slipring/_core/tensors.py", "/slipring/arrow/__init__.py")


class Edges:
    """The counters of edges.c, which must have been preloaded."""

    def __init__(self, library):
        self.library = library
        library.edges_place.argtypes = [ctypes.c_uint64]
        library.edges_place.restype = None
        self.codes = {}  # code object -> its file's number; None: it is not the decoder's

    @classmethod
    def preloaded(cls):
        """Return the counters, or None where nothing was compiled for them."""
        library = ctypes.CDLL(None)
        return cls(library) if hasattr(library, "edges_begin") else None

    @contextlib.contextmanager
    def counted(self, found):
        """Count what happens in the block; appends to `found` how many edges were new."""
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
        self.library.edges_place(self.codes[frame.f_code] + frame.f_lineno)
        return self._line

    @property
    def seen(self):
        """int: edges that were taken at all."""
        return self.library.edges_seen()

    def forget(self):
        """Begin anew: every edge is new again."""
        self.library.edges_forget()
