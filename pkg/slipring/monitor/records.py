"""The history of batches as one table: the flight recorder's records, and the batches that lie in the slots."""

import numpy as np

from slipring._core._cache import NO_INDEX, RECORD, STATES

STATE_MASK = np.uint64(0xF)
ENDED = 3  # `kind` of a stream's end, which is no batch


def states(slots):
    """Return the names of the states of an array of `SLOT`."""
    return [state_name(word) for word in slots["state"]]


def state_name(word):
    """Return the name of the state in a slot's state word; "damaged" if a damaged file has no such state."""
    number = int(word & STATE_MASK)
    return STATES[number] if number < len(STATES) else "damaged"


def batches(watch, since=0):
    """Return all visible batches, published or not, as an array of `RECORD` in the order of their dispatch.

    `since` is the number of the first record to read. A batch that still lies in a slot has the number 0.
    """
    slots = watch.slots()["batch"]  # first: what is used again meanwhile is among the records
    kept = watch.records(since)
    lying = slots[(slots["dispatched_at"] > 0) & (slots["kind"] != ENDED) | (slots["published_at"] > 0)]
    lying = lying[lying["kind"] != ENDED]
    known = set(zip(kept["run"].tolist(), kept["seq"].tolist()))
    new = [key not in known for key in zip(lying["run"].tolist(), lying["seq"].tolist())]
    if not any(new):
        return kept
    both = np.concatenate([kept, lying[np.array(new)]])
    return both[np.lexsort((both["seq"], both["run"]))]


def published(table):
    """Return the complete batches of a table."""
    return table[(table["published_at"] > 0) & (table["kind"] == 1)]


def taken(table):
    """Return the batches that the consumer has received, in that order."""
    got = table[(table["taken_at"] > 0) & (table["kind"] == 1)]
    return got[np.argsort(got["taken_at"], kind="stable")]


def index_text(index):
    """Return a sample's index as text, or its row if the sampler gave something else than an int."""
    index = int(index)
    return f"row {index & 0xFFFFFFFF}" if index < NO_INDEX + (1 << 33) else f"index {index}"


def empty():
    """Return a table without batches."""
    return np.empty(0, RECORD)
