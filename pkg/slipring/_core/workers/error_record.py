"""Carry an exception from a worker to the consumer: as a record in the slot of its batch."""

import array
import contextlib
import pickle
import traceback

from slipring._core.ring import process
from slipring._core.ring._check import LIMITS
from slipring._core.ring.text import batch_too_large, segment_full
from slipring.errors import BatchTooLarge, DescriptorClosed, SegmentFull, WorkerError, brief, shown, text_of
from slipring.redaction import redacted

_TOO_LARGE, _UNKNOWN = 1000, 1001  # in addition to the ring's kinds of limits
NO_MEMORY = (SegmentFull, BatchTooLarge, DescriptorClosed)  # errors after which not even an error's record has memory
# Exceptions with a meaning for the caller of next(): raising them there would end the loop silently.
SIGNALS = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit)


def record(error, worker, seq, indices, clear=True, culprit=(None, None)):
    """Return a dict that describes an exception in values that any slot can carry.

    `culprit` is (index, row) of the sample that raised it, if there is one. The "class" is None if it cannot be found
    by its name, else bytes; the "pickle" is None if the exception cannot be rebuilt, else bytes.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if clear:  # local variables of the failed frames may be arrays inside the slot
        traceback.clear_frames(error.__traceback__)
    return {
        "worker": worker,
        "pid": process.pid(),
        "seq": seq,
        "indices": _plain(indices),
        "index": None if culprit[1] is None else _plain(culprit[:1])[0],
        "row": culprit[1],
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "text": redacted(text_of(error)),
        "traceback": redacted(text),
        "class": _class(error),
        "pickle": _pickle(error),
    }


def shortened(described):
    """Return the record cut to the committed 8 KiB of any slot: the traceback's end, and only a small pickle."""
    indices, data = described["indices"], described["pickle"]
    if indices and all(type(i) is int and -(1 << 63) <= i < 1 << 63 for i in indices[:128]):
        indices = array.array("q", indices[:128]).tobytes()  # one leaf: as a list, each is one
    elif indices:
        indices = [_cut(i, 0, 48) if type(i) is str else i for i in indices[:8]]
    return {
        **described,
        "indices": indices,
        "index": _cut(described["index"], 0, 200) if type(described["index"]) is str else described["index"],
        "type": _cut(described["type"], 0, 200),
        "text": _cut(described["text"], 0, 800),
        "traceback": _cut(described["traceback"], -1500, None),
        "class": described["class"] if len(described["class"] or b"") <= 400 else None,
        "pickle": data if data is not None and len(data) <= 1600 else None,
    }


def allocation_error(error):
    """Return three numbers that describe a lack of memory, for a slot without room for a shortened record."""
    if isinstance(error, SegmentFull):
        kinds = [kind for kind, text in LIMITS.items() if text == error.limit]
        return kinds[0] if kinds else 0, error.needed, error.free
    if isinstance(error, BatchTooLarge):
        return _TOO_LARGE, error.needed, error.limit
    return _UNKNOWN, 0, 0


def from_allocation_error(kind, needed, free, rows, ring):
    """Return the exception for the numbers of `allocation_error`; `rows` is (first, end) of the range."""
    if kind == _TOO_LARGE:
        return batch_too_large(needed, free, ring.info["limited_by"])
    if kind == _UNKNOWN:
        return WorkerError(
            f"a worker failed over rows {rows[0]} to {rows[1] - 1} of a batch, and its slot had no room left "
            "to say why: raise slot_bytes, or see that there is memory"
        )
    return segment_full(needed, free, LIMITS.get(kind, "the system"), ring.n_slots)


def _cut(text, first, end):
    """Return those bytes of a text."""
    return text.encode("utf-8", "surrogatepass")[first:end].decode("utf-8", "ignore")


def _plain(indices):
    """Return the indices in types that every slot can carry."""
    if indices is None:
        return None
    return [i if type(i) in (int, str, float, bool) else shown(i) for i in indices]


def _pickle(error):
    """Return the exception as bytes; None if unpickling does not return the same type."""
    found = None
    for form in (lambda e: e, _Bare):
        with contextlib.suppress(Exception):
            data = pickle.dumps(form(error), pickle.HIGHEST_PROTOCOL)
            made = pickle.loads(data)
            if type(made) is type(error):
                if text_of(made) == text_of(error):
                    return data
                # The constructor has formatted a text that was formatted already.
                found = found or data
    return found


class _Bare:
    """A wrapper that pickles an exception so that its class's own constructor is not called again."""

    def __init__(self, error):
        kind, args, *state = error.__reduce__()
        if kind is not type(error) or len(state) > 1:
            raise TypeError(f"{kind} has its own way to be pickled")
        self.parts = kind, args, *state

    def __reduce__(self):
        return _without_constructor, self.parts


def _without_constructor(kind, args, state=None):
    """Make an exception as Python itself would if its class had no constructor of its own."""
    python_made = 1 << 9  # Py_TPFLAGS_HEAPTYPE
    builtin = next(c for c in kind.__mro__ if not c.__flags__ & python_made)
    made = builtin.__new__(kind, *args)
    builtin.__init__(made, *args)
    if state:
        made.__setstate__(state)
    return made


def _class(error):
    """Return the exception's class as bytes; None if it cannot be pickled."""
    try:
        return pickle.dumps(type(error), pickle.HIGHEST_PROTOCOL)
    except Exception:
        return None


def caught(described):
    """Return the text of torch's DataLoader, for which users search: the exception, its worker and its traceback."""
    kind = described["type"].rpartition(".")[2]
    who = f"DataLoader worker process {described['worker']}"
    return f"Caught {kind} in {who}.\nOriginal {described['traceback']}"


def where(described, who):
    """Return a text that says where the error of a record was raised, and which indices were requested."""
    indices = described["indices"]
    asked = "a stream" if indices is None else f"indices {brief(_integers(indices))}"
    at_fault = f": index {described['index']!r} (row {described['row']} of batch {described['seq']})"
    return f"{who}, batch {described['seq']}, {asked}{'' if described['row'] is None else at_fault}"


def worker_error(text, described):
    """Return a `WorkerError` with this text and the fields of an error's record."""
    return WorkerError(
        text,
        worker=described["worker"],
        seq=described["seq"],
        indices=_integers(described["indices"]),
        index=described["index"],
        row=described["row"],
        traceback=described["traceback"],
    )


def _integers(indices):
    return memoryview(indices).cast("q").tolist() if isinstance(indices, bytes) else indices


def rebuild(described, original=None):
    """Return the exception to raise in the consumer.

    This is the original exception if it can be rebuilt. A `WorkerError` with the worker's traceback is then its cause.
    Otherwise it is the `WorkerError` itself. `described` is the result of `record`. `original` is the exception itself
    if this process raised it.
    """
    if original is None:
        who = f"worker {described['worker']} (pid {described['pid']})"
        cause = worker_error(f"in {where(described, who)}\n\n{described['traceback'].rstrip()}", described)
    else:
        cause = worker_error(f"in {where(described, 'this process')}", described)
        # The exception's own context stays in the chain.
        cause.__context__ = original.__context__
        if original.__suppress_context__:
            cause.__cause__ = original.__cause__
    if original is None and described["pickle"] is not None:
        try:
            original = pickle.loads(described["pickle"])
        except Exception as error:
            cause.args = (f"{cause.args[0]}\n(it cannot be rebuilt in this process: {shown(error)})",)
    if not isinstance(original, BaseException) or isinstance(original, SIGNALS):
        cause.args = (f"{described['type']}: {described['text']}\n{cause.args[0]}",)
        cause.__cause__ = original
        return cause
    original.__cause__ = cause
    return original
