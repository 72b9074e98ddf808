"""One input of the fuzzer: a payload, and its slot's result record."""

import dataclasses
import mmap
import os
import struct

HEADER = struct.Struct("<QIQIQQ")
LEAF = struct.Struct("<BBBBIQQ12qQ")  # csrc/layout.h, sr_leaf
SEGMENT = struct.Struct("<QIIIIQQQQQQQ")  # csrc/layout.h, the constant part of sr_header
SLOT_BYTES, RESULT_AT = 4160, 3 * 64  # csrc/layout.h, sr_slot
RESULT = struct.Struct("<QQQQIIHHI")  # csrc/layout.h, sr_result


@dataclasses.dataclass
class Case:
    table_off: int
    n_leaves: int
    def_off: int
    def_bytes: int
    bytes: int
    def_hash: int
    payload: bytearray

    def fields(self):
        return self.table_off, self.n_leaves, self.def_off, self.def_bytes, self.bytes, self.def_hash

    def write(self):
        """Return the case as the bytes of a corpus file."""
        return HEADER.pack(*self.fields()) + bytes(self.payload)

    @classmethod
    def read(cls, data):
        return cls(*HEADER.unpack_from(data), bytearray(data[HEADER.size :]))

    def copy(self):
        return dataclasses.replace(self, payload=bytearray(self.payload))


class Window:
    """A segment as a faulty worker sees it: it can read and write any byte."""

    def __init__(self, ring):
        self.map = mmap.mmap(ring.fd, os.fstat(ring.fd).st_size)
        fields = SEGMENT.unpack_from(self.map)
        self.slots_off, self.data_off, self.stride, self.task_capacity, self.capacity = fields[6:11]

    def payload_at(self, slot):
        return self.data_off + slot * self.stride + self.task_capacity

    def result_at(self, slot):
        return self.slots_off + slot * SLOT_BYTES + RESULT_AT

    def case(self, slot):
        """Return a slot's contents as a case."""
        fields = RESULT.unpack_from(self.map, self.result_at(slot))
        table_off, def_off, def_hash, used, n_leaves, def_bytes = fields[:6]
        at = self.payload_at(slot)
        return Case(table_off, n_leaves, def_off, def_bytes, used, def_hash, bytearray(self.map[at : at + used]))

    def poke(self, slot, case):
        """Write a case into a slot, over the published batch."""
        at = self.payload_at(slot)
        self.map[at : at + len(case.payload)] = bytes(case.payload)
        table_off, n_leaves, def_off, def_bytes, used, def_hash = case.fields()
        unchanged = RESULT.unpack_from(self.map, self.result_at(slot))[6:]
        changed = table_off, def_off, def_hash, used, n_leaves, def_bytes
        RESULT.pack_into(self.map, self.result_at(slot), *changed, *unchanged)

    def close(self):
        self.map.close()
