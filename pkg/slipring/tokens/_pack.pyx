"""Assign documents to packs: the loops of a plan, over arrays of one window."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import numpy as np

__all__ = ["best_fit", "grouped", "in_sequence"]

cnp.import_array()

# A chain has the packs with the same room, or with similar rooms if the budget exceeds the number of chains.
cdef enum:
    CHAINS = 1 << 16
    TRIES = 64  # packs that are compared with a document, if the packs with enough tokens lack another limit

cdef extern from *:
    int lowest "__builtin_ctzll"(uint64_t) nogil


cdef struct Chains:
    # The open packs by their room, with a bit for each chain that is not empty and for each such word of bits. The
    # search in words of bits is that of a van Emde Boas tree with three levels.
    int32_t head[CHAINS]
    uint64_t chain[CHAINS >> 6]
    uint64_t word[CHAINS >> 12]
    uint64_t top
    int shift


cdef int next_chain(const Chains *chains, int at) noexcept nogil:
    """Return the first chain from `at` on that is not empty; -1 if there is none."""
    cdef uint64_t bits
    cdef int word
    if at >= CHAINS:
        return -1
    bits = chains.chain[at >> 6] >> (at & 63)
    if bits:
        return at + lowest(bits)
    word = (at >> 6) + 1
    if word >= CHAINS >> 6:
        return -1
    bits = chains.word[word >> 6] >> (word & 63)
    if bits:
        word += lowest(bits)
    else:
        at = (word >> 6) + 1
        bits = chains.top >> at
        if not bits:
            return -1
        at += lowest(bits)
        word = (at << 6) + lowest(chains.word[at])
    return (word << 6) + lowest(chains.chain[word])


cdef void link(Chains *chains, int32_t *after, int32_t *before, int32_t pack, int64_t room) noexcept nogil:
    cdef int at = <int> (room >> chains.shift)
    after[pack], before[pack] = chains.head[at], -1
    if after[pack] >= 0:
        before[after[pack]] = pack
    chains.head[at] = pack
    chains.chain[at >> 6] |= <uint64_t> 1 << (at & 63)
    chains.word[at >> 12] |= <uint64_t> 1 << (at >> 6 & 63)
    chains.top |= <uint64_t> 1 << (at >> 12)


cdef void unlink(Chains *chains, int32_t *after, int32_t *before, int32_t pack, int64_t room) noexcept nogil:
    cdef int at = <int> (room >> chains.shift)
    if after[pack] >= 0:
        before[after[pack]] = before[pack]
    if before[pack] >= 0:
        after[before[pack]] = after[pack]
        return
    chains.head[at] = after[pack]
    if after[pack] < 0:
        chains.chain[at >> 6] &= ~(<uint64_t> 1 << (at & 63))
        if not chains.chain[at >> 6]:
            chains.word[at >> 12] &= ~(<uint64_t> 1 << (at >> 6 & 63))
            if not chains.word[at >> 12]:
                chains.top &= ~(<uint64_t> 1 << (at >> 12))


def best_fit(const int64_t[:, ::1] sizes, const int64_t[::1] most, Py_ssize_t most_open):
    """Assign each document to the open pack in which the least room remains; return (pack of each, rooms of each pack).

    `sizes` has a row for each limit, and `most` is the limits. The first row is the tokens. No size exceeds its limit.
    If no open pack has room, a document opens a new one; if `most_open` are open, the fullest is closed first.
    """
    cdef Py_ssize_t limits = sizes.shape[0], n = sizes.shape[1], packs = 0, is_open = 0, i, k
    cdef int64_t[:, ::1] room = np.empty((n, limits), np.int64)
    cdef int32_t[::1] pack_of = np.empty(n, np.int32), after = np.empty(n, np.int32), before = np.empty(n, np.int32)
    cdef int32_t pack
    cdef int at, tries
    cdef bint fits, full
    cdef Chains *chains = <Chains *> calloc(1, sizeof(Chains))
    if chains == NULL:
        raise MemoryError
    memset(chains.head, -1, sizeof(chains.head))
    while most[0] - 1 >> chains.shift >= CHAINS:  # a pack in a chain has a document
        chains.shift += 1
    with nogil:
        for i in range(n):
            # Each pack in this chain and the later ones has room for the tokens.
            at = next_chain(chains, <int> ((sizes[0, i] + (<int64_t> 1 << chains.shift) - 1) >> chains.shift))
            pack, fits, tries = -1, False, 0
            while at >= 0 and not fits and tries < TRIES:
                pack = chains.head[at]
                while pack >= 0 and tries < TRIES:
                    tries += 1
                    fits = True
                    for k in range(limits):
                        fits = fits and sizes[k, i] <= room[pack, k]
                    if fits:
                        break
                    pack = after[pack]
                if not fits:
                    at = next_chain(chains, at + 1)
            if fits:
                unlink(chains, &after[0], &before[0], pack, room[pack, 0])
                is_open -= 1
            else:
                if is_open == most_open:
                    pack = chains.head[next_chain(chains, 0)]
                    unlink(chains, &after[0], &before[0], pack, room[pack, 0])
                    is_open -= 1
                pack = <int32_t> packs
                packs += 1
                for k in range(limits):
                    room[pack, k] = most[k]
            pack_of[i] = pack
            full = False
            for k in range(limits):
                room[pack, k] -= sizes[k, i]
                full = full or room[pack, k] == 0
            if not full:
                link(chains, &after[0], &before[0], pack, room[pack, 0])
                is_open += 1
    free(chains)
    return np.asarray(pack_of), np.asarray(room)[:packs]


def in_sequence(const int64_t[:, ::1] sizes, const int64_t[::1] most):
    """Assign documents, whose tokens descend, to padded batches; return the batch of each.

    A batch has as many tokens as its first document, times its number of documents. The arguments are those of
    `best_fit`. A document opens a new batch if a limit of the last one would be exceeded.
    """
    cdef Py_ssize_t limits = sizes.shape[0], n = sizes.shape[1], i, k
    cdef int64_t[::1] used = np.zeros(limits, np.int64)
    cdef int32_t[::1] batch_of = np.empty(n, np.int32)
    cdef int64_t longest = 0
    cdef int32_t batch = -1
    cdef bint fits
    for i in range(n):
        fits = batch >= 0 and used[0] + longest <= most[0]
        for k in range(1, limits):
            fits = fits and used[k] + sizes[k, i] <= most[k]
        if not fits:
            batch += 1
            longest = sizes[0, i]
            used[:] = 0
        used[0] += longest
        for k in range(1, limits):
            used[k] += sizes[k, i]
        batch_of[i] = batch
    return np.asarray(batch_of)


def grouped(const int32_t[::1] pack_of, Py_ssize_t packs, const double[::1] costs):
    """Return (documents ordered by their pack, the n + 1 bounds of packs, the cost of each pack).

    The costs are added in one order, so that every machine has the same sums and sorts them alike.
    """
    cdef Py_ssize_t n = pack_of.shape[0], i
    cdef int64_t[::1] bounds = np.zeros(packs + 1, np.int64), members = np.empty(n, np.int64)
    cdef double[::1] sums = np.zeros(packs)
    cdef int64_t[::1] at
    for i in range(n):
        bounds[pack_of[i] + 1] += 1
        sums[pack_of[i]] += costs[i]
    for i in range(packs):
        bounds[i + 1] += bounds[i]
    at = bounds.copy()
    for i in range(n):
        members[at[pack_of[i]]] = i
        at[pack_of[i]] += 1
    return np.asarray(members), np.asarray(bounds), np.asarray(sums)
