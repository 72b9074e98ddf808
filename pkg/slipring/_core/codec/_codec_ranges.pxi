# Part of _codec.pyx: batches that several workers make, one range of rows each. It ends a range, and records the errors
# for the worker that publishes the slot.

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from slipring._core.ring._segment cimport SR_ERROR, SR_WHOLE, sr_result
from slipring._core.ring._slot cimport Fill

from slipring.errors import CorruptBatch


def range_done(Fill fill not None, uint64_t begun, uint64_t fetched):
    """End a range whose rows lie in place; return True if this worker must finish the slot."""
    fill.note(begun, fetched)
    return fill.range_done(NULL) == 1


def range_lost(Fill fill not None, uint32_t why, uint64_t needed, uint64_t free):
    """End a range whose error has no room in the slot: keep three numbers. Return the same as `range_done`."""
    cdef sr_result result
    memset(&result, 0, sizeof(result))
    result.kind, result.pickled, result.table_off, result.def_off = SR_ERROR, why, needed, free
    return fill.range_done(&result) == 1


def lost(Fill fill not None, which):
    """Return the numbers that `range_lost` kept; None for any other range."""
    cdef sr_result result = fill.result_of(which)[0]
    if result.kind != SR_ERROR or result.def_bytes:
        return None
    return result.pickled, result.table_off, result.def_off


def view(Fill fill not None, which=None):
    """Return (kind, value) that a range has staged, or of the settled layout (`which` None), as views."""
    cdef sr_result result = fill.result_of(SR_WHOLE if which is None else which)[0]
    if result.kind == 0:
        return 0, None
    return result.kind, decode(fill.payload, fill.limit(), &result, fill.holder(), False)


def layout(Fill fill not None):
    """Return (value, codes) of the layout that `Encoder.settle_direct` recorded; the value consists of views."""
    cdef sr_result result = fill.result_of(SR_WHOLE)[0]
    cdef uint64_t at = result.bytes, limit = fill.limit()
    cdef uint32_t length
    if at + 4 > limit:
        raise CorruptBatch("a worker sent a layout without its codes")
    memcpy(&length, fill.payload + at, 4)
    if length > limit - at - 4:
        raise CorruptBatch(f"a worker sent {length} codes of a layout, for which there is no room in the slot")
    return view(fill)[1], fill.payload[at + 4:at + 4 + length]


def publish_range(Fill fill not None, which=None):
    """Publish the error that a range has staged, or the settled layout (`which` None), as the slot's batch."""
    cdef sr_result result = fill.result_of(SR_WHOLE if which is None else which)[0]
    fill.publish(&result)
