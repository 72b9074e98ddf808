"""The order of a mixture: sources with weights become one order of indices, of any length, in constant memory.

Each source has a *total*: the integral of its weight over the order, in samples. The total of source i passes each
whole number once, and draw j of the source is made at a random moment between j and j + 1. The draws of all sources,
sorted by their moments, are the order. So every draw is a pure function of seed, epoch, source and j, and a position in
the order is found without those before it. Totals are integers in units of 2 ** -40 samples: no error accumulates, and
an order that continues from a state has the same moments.

Merging flows by the moments at which a fair share is reached: A. Demers, S. Keshav and S. Shenker, Analysis and
simulation of a fair queueing algorithm, SIGCOMM 1989. One random moment per stratum: jittered sampling, R. L. Cook,
Stochastic sampling in computer graphics, ACM Transactions on Graphics 1986.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Set
from itertools import pairwise
from operator import itemgetter

import numpy as np

from slipring._core.options.checks import integer
from slipring._core.ring._order import IndexOrder
from slipring._core.ring._ring import mix
from slipring.errors import shown

ENDLESS = 1 << 62
CELL = 64  # samples: a state has the weights of whole cells
_CHUNK = 64 * CELL  # samples that are computed at once
_BITS = 40
_ONE, _FRACTION = 1 << _BITS, (1 << _BITS) - 1
_MOST_PIECES = 1 << 17
_SHORT = 256  # samples of a source
_DRAWS, _ROUNDS = 0x4452415753, 0x524F554E4453  # different seeds for the moments of draws and for the sources' orders


def rates_of(weights, means, what):
    """Return weights as integers that sum to 2 ** 40; `what` names the weights in an error.

    `means` are the mean lengths of the sources if the weights are shares of tokens, otherwise ones.
    """
    try:
        if isinstance(weights, (Mapping, Set)):  # their order is not that of the sources
            raise TypeError
        values = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a list of numbers, one for each source, not {shown(weights)}") from None
    if len(values) != len(means):
        raise ValueError(f"{what} must have a number for each of {len(means)} sources, not {len(values)}")
    for source, value in enumerate(values):
        if not 0 <= value < math.inf:
            raise ValueError(f"{what}: the weight of source {source} is {value}: it must be finite and not negative")
    most = max(values)
    if not most:
        raise ValueError(f"{what} sum to 0: at least one source needs a weight")
    shares = [value / most / mean for value, mean in zip(values, means)]
    total = math.fsum(shares)
    rates = [max(int(share / total * _ONE), int(value > 0)) for share, value in zip(shares, values)]
    rates[rates.index(max(rates))] += _ONE - sum(rates)
    return rates


class MixedOrder:
    """The indices of a mixture's epoch, of sources with so many samples (`sizes`).

    ``rates_at(step)`` returns the rates of a step of `step_size` samples, which sum to 2 ** 40 (see `rates_of`); with
    `step_size` None, they never change. `saved` is the result of an earlier order's method of that name: its rates and
    totals take the place of `rates_at`. `end` is the position after the last sample; None: it has not been computed.
    """

    def __init__(self, sizes, rates_at, step_size, stop, shuffle, key, saved=None):
        self.sizes, self.stop, self.shuffle, self.key = sizes, stop, shuffle, key
        self.rates_at, self.step_size = rates_at, step_size
        self.first_of = np.concatenate([[0], np.cumsum(sizes)])
        self.moments = [IndexOrder.drawn(_ONE, ENDLESS, mix(key, _DRAWS, source)) for source in range(len(sizes))]
        self.awaited = range(len(sizes))  # sources that stop="last" waits for
        if stop == "last" and step_size is None:
            self.awaited = [source for source, rate in enumerate(rates_at(0)) if rate]
        self.furthest, self.end, self._open = 0, None, 0
        self._chunks, self._rounds, self._starts = {}, {}, {}
        self._saved = saved or {"from": 0, "whole": [0] * len(sizes), "fraction": [0] * len(sizes), "rates": []}
        self.begin = int(self._saved["from"])
        self._forget()

    def __len__(self):
        """Return the number of samples until the mixture stops."""
        if self.stop == "never":
            raise TypeError("a mixture with stop='never' has no length")
        return self._found_end()

    def left(self, position, most):
        """Return how many of the next `most` positions belong to the epoch."""
        if self.stop == "never":
            return most
        if self.end is None:
            after = self._chunk_of(position + most) + 1
            if after <= self._open or not self._has_ended(after):
                self._open = max(self._open, after)
                return most
        return max(0, min(most, self._found_end() - position))

    def part(self, first, count, step=1):
        """Return the int64 indices at `count` positions: first, first + step, ...; they may be after the end."""
        found, chunk, at = [np.empty(0, np.int64)], self._chunk_of(first), first
        while count:
            indices = self._draws_of(chunk)[0][at - self._start_of(chunk) :: step][:count]
            found.append(indices)
            chunk, at, count = chunk + 1, at + len(indices) * step, count - len(indices)
        self.furthest = max(self.furthest, at)
        return np.concatenate(found)

    def saved(self, first, last):
        """Return what continues the order from position `first`, with the same rates until position `last`.

        Another thread, or the function that a signal handler interrupts, may be reading the order.
        """
        return self._copy()._saved_from(first, last)

    def _copy(self):
        found = MixedOrder(self.sizes, self.rates_at, self.step_size, self.stop, self.shuffle, self.key, self._saved)
        known = self._known  # before the pieces, of which another thread may add one
        pieces = [piece for piece in self._pieces.copy() if piece[0] < known]
        if pieces:
            found._pieces, found._known = pieces, known
        return found

    def _saved_from(self, first, last):
        first = max(first, self._start_of(0))
        start, stop = self._time_of(first), self._time_of(max(first, last)) + CELL
        stop = max(stop, int(self._saved.get("until", 0)))
        totals = self._totals(start)
        self._extend(stop)
        rates = [[max(start, piece[0]), *piece[2]] for piece in self._between(start, stop)]
        return {
            "from": start,
            "until": stop,
            "whole": [total >> _BITS for total in totals],
            "fraction": [total & _FRACTION for total in totals],
            "rates": rates,
        }

    # ---- totals and rates by time, in samples

    def _forget(self):
        """Begin at the saved totals; rates after them are requested again."""
        totals = [whole << _BITS | fraction for whole, fraction in zip(self._saved["whole"], self._saved["fraction"])]
        self._pieces = []  # (time, the totals there, the rates from there on)
        for time, *rates in self._saved["rates"]:
            if self._pieces:
                totals = self._after(time)
            self._pieces.append((int(time), totals, rates))
        self._totals_there = totals
        self._known = int(self._saved.get("until", 0))

    def _between(self, begin, stop):
        """Return the pieces of a range of times."""
        first, end = (bisect_right(self._pieces, time, key=itemgetter(0)) for time in (begin, stop - 1))
        return self._pieces[first - 1 : end]

    def _after(self, time, piece=None):
        """Return the totals at a time, by the rates of a piece (default: the last one)."""
        begin, totals, rates = piece or self._pieces[-1]
        return [total + rate * (time - begin) for total, rate in zip(totals, rates)]

    def _extend(self, time):
        """Request the rates until a time."""
        while self._known < time:
            known, size = self._known, self.step_size
            step = known // size if size else 0
            rates = self.rates_at(step)
            if not self._pieces or rates != self._pieces[-1][2]:
                if len(self._pieces) > _MOST_PIECES:
                    del self._pieces[: _MOST_PIECES // 2]
                self._pieces.append((known, self._after(known) if self._pieces else self._totals_there, rates))
            self._known = (step + 1) * size if size else ENDLESS

    def _totals(self, time):
        """Return the total of each source at a time."""
        if self._pieces and time < self._pieces[0][0]:
            if time < self.begin:
                raise ValueError(f"the state continues from sample {self.begin}, and sample {time} is before it")
            self._forget()
        self._extend(max(time, 1))
        return self._after(time, self._between(time, time + 1)[0])

    def _counts(self, time):
        """Return how many draws of each source are before a time."""
        found = []
        for source, total in enumerate(self._totals(time)):
            whole, fraction = total >> _BITS, total & _FRACTION
            found.append(whole + bool(self.moments[source].part(whole, 1)[0] < fraction))
        return found

    # ---- chunks of the order: `_CHUNK` samples of time, and about as many positions

    def _start_of(self, chunk):
        """Return the position of a chunk's first draw."""
        if chunk not in self._starts:
            while len(self._starts) > 64:
                del self._starts[next(iter(self._starts))]
            self._starts[chunk] = sum(self._counts(self.begin + chunk * _CHUNK))
        return self._starts[chunk]

    def _chunk_of(self, position):
        """Return the chunk that has a position: time and position differ by less than the number of sources."""
        chunk = max(0, position - self.begin) // _CHUNK
        while chunk and self._start_of(chunk) > position:
            chunk -= 1
        if self._start_of(chunk) > position:
            raise ValueError(f"position {position} is before that of the state, {self._start_of(0)}")
        while self._start_of(chunk + 1) <= position:
            chunk += 1
        return chunk

    def _time_of(self, position):
        """Return the time of a position, rounded down to a multiple of `CELL`."""
        chunk = self._chunk_of(position)
        return self.begin + chunk * _CHUNK + int(self._draws_of(chunk)[2][position - self._start_of(chunk)])

    def _draws_of(self, chunk):
        """Return (indices, whether each is the last of its source's first round, its time in multiples of `CELL`)."""
        if chunk not in self._chunks:
            while len(self._chunks) > 2:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[chunk] = self._drawn(self.begin + chunk * _CHUNK)
        return self._chunks[chunk]

    def _drawn(self, begin):
        stop = begin + _CHUNK
        counts, totals, stops = self._counts(begin), self._totals(begin), self._counts(stop)
        pieces = self._between(begin, stop)
        # A draw's moment is relative to the beginning of its cell, wherever the chunk begins.
        times = [max(begin, piece[0]) for piece in pieces]
        edges = np.union1d(np.arange(begin, stop + 1, CELL), times)
        of_edge = np.searchsorted(times, edges[:-1], side="right") - 1
        rates = np.array([piece[2] for piece in pieces], np.int64)[of_edge]
        passed = np.concatenate([rates[:1] * 0, np.cumsum(rates * np.diff(edges)[:, None], axis=0)])
        found, lasts, cells, moments = [], [], [], []
        for source, (first, last, total) in enumerate(zip(counts, stops, totals)):
            draws = np.arange(last - first)
            reached = (draws + (first - (total >> _BITS)) << _BITS) - (total & _FRACTION)
            reached += self.moments[source].part(first, last - first)
            cell = np.searchsorted(passed[1:, source], reached, side="right")
            found.append(self._samples(source, first, last - first))
            lasts.append((draws == self.sizes[source] - 1 - first) & (source in self.awaited))
            cells.append(cell)
            moments.append((reached - passed[cell, source]) / rates[cell, source])
        cells = np.concatenate(cells)
        order = np.lexsort((np.concatenate(moments), cells))
        times = (edges[:-1] - begin) // CELL * CELL
        return np.concatenate(found)[order], np.concatenate(lasts)[order], times[cells[order]]

    def _samples(self, source, first, count):
        """Return the indices of consecutive draws of a source."""
        n, found = self.sizes[source], [np.empty(0, np.int64)]
        if not self.shuffle:
            return (first % n + np.arange(count)) % n + self.first_of[source]
        if n <= _SHORT:  # many rounds at once
            begin, stop = first // n * n, -(-(first + count) // n) * n
            drawn = IndexOrder.drawn(ENDLESS, ENDLESS, mix(self.key, _ROUNDS, source)).part(begin, stop - begin)
            order = np.argsort(drawn.reshape(-1, n), axis=1, kind="stable")
            return order.reshape(-1)[first - begin :][:count] + self.first_of[source]
        while count:
            number, position = divmod(first, n)
            taken = min(count, n - position)
            found.append(self._round(source, number).part(position, taken))
            first, count = first + taken, count - taken
        return np.concatenate(found) + self.first_of[source]

    def _round(self, source, number):
        """Return a source's order in a round."""
        if self._rounds.get(source, (None,))[0] != number:
            key = mix(self.key, _ROUNDS, source, number)
            self._rounds[source] = number, IndexOrder.shuffled(self.sizes[source], key)
        return self._rounds[source][1]

    # ---- the end

    def _has_ended(self, chunk):
        """Return whether the mixture has stopped before a chunk."""
        time = self.begin + chunk * _CHUNK
        counts = self._counts(time)
        ended = [counts[source] >= self.sizes[source] for source in self.awaited]
        if self.stop == "first" or all(ended):
            return any(ended)
        span = max(1 << 20, 16 * sum(self.sizes))
        if time >= self.begin + span:
            before, now = self._totals(time - span), self._totals(time)
            for source, over in zip(self.awaited, ended):
                if not over and before[source] == now[source]:
                    raise ValueError(
                        f"source {source} has weight 0 from sample {time - span} to {time} and has not ended, so "
                        "stop='last' would never stop: give it a weight, or stop='first' or 'never'"
                    )
        return False

    def _found_end(self):
        """Return the position after the last sample."""
        if self.end is None:
            least, most = 0, 1
            while not self._has_ended(most):
                least, most = most, 2 * most
            while most - least > 1:
                middle = (least + most) // 2
                least, most = (least, middle) if self._has_ended(middle) else (middle, most)
            last = np.flatnonzero(self._draws_of(least)[1])
            over = self._has_ended(least) or not len(last)  # before the saved position
            self.end = self._start_of(least) + (0 if over else 1 + int(last[0 if self.stop == "first" else -1]))
        return self.end


def checked_saved(saved, sizes):
    """Return what a state has from `MixedOrder.saved`; raise an error unless it is of such sources."""
    if not isinstance(saved, Mapping) or not saved.keys() >= {"from", "until", "whole", "fraction", "rates"}:
        raise ValueError(f"the state's mixture must be a dict of totals and rates, not {shown(saved)}")
    n = len(sizes)
    begin = integer("the state's mixture: from", saved["from"], 0, ENDLESS)
    until = integer("the state's mixture: until", saved["until"], begin + 1, ENDLESS)
    if begin % CELL or until % CELL:
        raise ValueError(f"the state's mixture must be from and until multiples of {CELL}, not {begin} and {until}")
    for name, most in (("whole", ENDLESS), ("fraction", _FRACTION)):
        _integers(name, saved[name], n, most)
    if not isinstance(saved["rates"], (list, tuple)) or not saved["rates"]:
        raise ValueError(f"the state's mixture: rates must be lists, not {shown(saved['rates'])}")
    for rates in saved["rates"]:
        _integers("rates", rates, n + 1, ENDLESS)
        if sum(rates[1:]) != _ONE:
            raise ValueError(f"the state's mixture: rates must sum to {_ONE}, not {shown(rates)}")
    times = [begin - 1, *(rates[0] for rates in saved["rates"]), until]
    if times[1] != begin or any(one >= other for one, other in pairwise(times)):
        raise ValueError(f"the state's mixture: rates must begin in order from {begin} on, not at {shown(times[1:])}")
    return saved


def _integers(name, values, n, most):
    if not isinstance(values, (list, tuple)) or len(values) != n:
        raise ValueError(f"the state's mixture: {name} must be {n} integers, not {shown(values)}")
    for value in values:
        integer(f"the state's mixture: {name}", value, 0, most)
