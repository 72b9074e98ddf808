"""The plan of an epoch: documents become packs, and packs become steps of all ranks.

Documents are packed in parts of about `PART` documents, each of which is a pure function of (lengths, seed, epoch, its
number). The packs of all parts follow one another. A *window* of them is sorted by cost: neighbours form a step, and
the steps are shuffled. So nothing depends on a rank, and a position is found without the plan of what precedes it.

Best fit with a limited number of open packs: J. Csirik and D. S. Johnson, Bounded space on-line bin packing: best is
better than first, SODA 1991. A second pass over what it leaves is best fit decreasing, as in TRL's ``pack_dataset``.
Neighbours of a sorted window as a step: transformers' LengthGroupedSampler, there by length.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, fields

import numpy as np

from slipring._core.ring._order import IndexOrder
from slipring._core.ring._ring import mix
from slipring.tokens._mixture import MixedOrder
from slipring.tokens._pack import best_fit, grouped, in_sequence

PART = 1 << 18  # documents
OPEN = 16  # packs, so that a pack mixes documents that are near to each other in the order
LOOSE = 512  # packs with more room than this part of each limit are packed again
_PARTS, _STEPS = 0x5041525453, 0x5354455053  # different seeds for the packs of a part and for the order of steps


@dataclass
class Packs:
    """Packs: which tokens of which documents, and what they cost."""

    documents: np.ndarray  # the members, pack after pack: int64, as their tokens and bounds
    starts: np.ndarray
    stops: np.ndarray
    cut: np.ndarray  # whether a member is not its whole document: bool
    costs: np.ndarray  # of each member: float64
    bounds: np.ndarray  # pack p has the members from bounds[p] to bounds[p + 1]
    sums: np.ndarray  # the cost of each pack: float64

    def __len__(self):
        return len(self.sums)

    def members(self, pack):
        return range(self.bounds[pack], self.bounds[pack + 1])

    def part(self, first, stop):
        """Return the packs from `first` to `stop`."""
        of = slice(self.bounds[first], self.bounds[stop])
        found = [getattr(self, field.name)[of] for field in fields(self)[:-2]]
        return Packs(*found, self.bounds[first : stop + 1] - self.bounds[first], self.sums[first:stop])

    def taken(self, members, bounds):
        """Return packs of these members."""
        found = [getattr(self, field.name)[members] for field in fields(self)[:-2]]
        numbers = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
        return Packs(*found, np.asarray(bounds), grouped(numbers, len(bounds) - 1, found[-1])[2])

    @staticmethod
    def joined(parts):
        """Return the packs of several objects, in their order."""
        if len(parts) == 1:
            return parts[0]
        found = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Packs)[:-2]]
        sizes = np.concatenate([np.diff(part.bounds) for part in parts])
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return Packs(*found, bounds, np.concatenate([part.sums for part in parts]))


class EpochPlan:
    """The packs of one epoch, part by part."""

    def __init__(self, documents, order, key):
        self.documents, self.order, self.key, self.read = documents, order, key, {}
        self.counts = {}  # part that was read -> how many documents it has dropped, truncated and split

    def span(self, part):
        """Return (the position of a part's first document in the order, the number of its documents)."""
        if isinstance(self.order, MixedOrder):  # its length may be unknown, and other weights may change it
            return part * PART, self.order.left(part * PART, PART)
        n = len(self.order)
        parts = max(1, round(n / PART))
        first = min(part, parts) * n // parts
        return first, min(part + 1, parts) * n // parts - first

    def packs_of(self, part):
        """Return the `Packs` of a part; None after the last part."""
        if part not in self.read:
            first, count = self.span(part)
            if not count:
                return None
            key = mix(self.key, _PARTS, part)
            found, self.counts[part] = self.documents.packed(self.order.part(first, count), key)
            self.read[part] = found
        return self.read[part]

    def take(self, part, pack, count):
        """Return (`count` packs from a position on, or as many as there are; the position after them)."""
        for read in [number for number in self.read if number < part]:
            del self.read[read]
        found = []
        while count and (packs := self.packs_of(part)) is not None:
            stop = min(pack + count, len(packs))
            if stop > pack:
                found.append(packs.part(pack, stop))
                count -= stop - pack
            part, pack = (part + 1, 0) if stop >= len(packs) else (part, stop)
        return found, (part, pack)

    def __len__(self):
        """Return the number of packs."""
        len(self.order)  # TypeError if it is endless
        count = part = 0
        while (packs := self.packs_of(part)) is not None:
            count += len(packs)
            del self.read[part]
            part += 1
        return count


class TokenLengths:
    """The lengths of documents, or with `cumulative` their n + 1 bounds, and how they become packs.

    The arguments are those of `PackedSampler`. `padded`: the packs are padded batches.
    """

    def __init__(self, lengths, cumulative, max_tokens, max_documents, limits, overflow, multiple, cost, padded):
        self.lengths, self.cumulative, self.max_tokens = lengths, cumulative, max_tokens
        self.limits, self.overflow, self.multiple, self.cost, self.padded = limits, overflow, multiple, cost, padded
        most = [np.iinfo(np.int64).max if max_tokens is None else max_tokens, *(most for _, most in limits.values())]
        self.most = np.array([*most, max_documents] if max_documents is not None else most, np.int64)
        self.counts_documents = max_documents is not None

    def __len__(self):
        return len(self.lengths) - self.cumulative

    def lengths_of(self, documents):
        """Return the lengths of an array of documents; raise ValueError if one is not positive."""
        if self.cumulative:
            bounds = self.lengths
            lengths = bounds[documents + 1].astype(np.int64) - bounds[documents].astype(np.int64)
        else:
            lengths = self.lengths[documents].astype(np.int64)
        _refuse(documents, lengths, lengths < 1, "document {} has {} tokens: each must have at least one: leave it out")
        return lengths

    def too_long(self, lengths):
        """Return which documents exceed `max_tokens`, with their padding."""
        return False if self.max_tokens is None else -(-lengths // self.multiple) * self.multiple > self.max_tokens

    def check(self):
        """Raise ValueError for lengths that are not positive, and for documents above the budget if none may be."""
        for first in range(0, len(self), PART):
            documents = np.arange(first, min(first + PART, len(self)))
            self._refuse_long(documents, self.lengths_of(documents))

    def _refuse_long(self, documents, lengths):
        if self.overflow == "error" and self.max_tokens is not None:
            text = (
                f"document {{}} has {{}} tokens, more than max_tokens={self.max_tokens} (with document_multiple_of="
                f"{self.multiple}): give overflow='drop', 'truncate' or 'split'"
            )
            _refuse(documents, lengths, self.too_long(lengths), text)

    def packed(self, documents, key):
        """Return (the `Packs` of these documents, how many were dropped, truncated and split)."""
        lengths = self.lengths_of(documents)
        self._refuse_long(documents, lengths)
        sizes, kept = self._sizes(documents)
        long = np.broadcast_to(self.too_long(lengths), lengths.shape)
        dropped = 0
        if self.overflow == "drop":
            kept = kept & ~long
        if not kept.all():
            dropped = int((~kept).sum())
            documents, lengths, long, sizes = documents[kept], lengths[kept], long[kept], sizes[:, kept]
        starts, stops, whole, cut = np.zeros_like(lengths), lengths, lengths, np.zeros(len(lengths), bool)
        if long.any():
            cut = long
            size = self.max_tokens // self.multiple * self.multiple
            if self.overflow == "truncate":
                stops = np.minimum(lengths, size)
            else:
                pieces = np.where(long, -(-lengths // size), 1)
                of = np.repeat(np.arange(len(lengths)), pieces)
                piece = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
                documents, whole, cut, sizes = documents[of], lengths[of], long[of], sizes[:, of]
                starts = piece * size
                stops = np.where(cut, np.minimum(whole, starts + size), whole)
        cuts = int(long.sum())
        counts = (dropped, cuts if self.overflow == "truncate" else 0, cuts if self.overflow == "split" else 0)
        rounded = -(-(stops - starts) // self.multiple) * self.multiple
        sizes = np.ascontiguousarray(np.concatenate([rounded[None], sizes]))
        pack_of, count = (self._batches if self.padded else self._fit)(sizes)
        # Packs of the second pass, and padded batches, would be sorted by length.
        if count:
            pack_of = IndexOrder.shuffled(count, key).part(0, count).astype(np.int32)[pack_of]
        costs = self._costs(documents, (stops - starts) / whole, self._padded_to(pack_of, count, rounded))
        members, bounds, sums = grouped(pack_of, count, costs)
        of = (documents, starts, stops, cut, costs)
        return Packs(*(array[members] for array in of), bounds, sums), counts

    def _sizes(self, documents):
        """Return (the numbers that the limits besides tokens limit, in rows; which documents they admit)."""
        rows, kept = [], np.ones(len(documents), bool)
        for name, (numbers, most) in self.limits.items():
            row = np.asarray(numbers[documents]).astype(np.int64)
            _refuse(documents, row, row < 0, f"document {{}} has {{}} {name}: none must be negative")
            if self.overflow != "drop":
                text = f"document {{}} has {{}} {name}, more than the limit {most}: give overflow='drop'"
                _refuse(documents, row, row > most, text)
            kept &= row <= most
            rows.append(row)
        rows += [np.ones(len(documents), np.int64)] * self.counts_documents
        return np.array(rows, np.int64).reshape(len(rows), len(documents)), kept

    def _fit(self, sizes):
        """Return (pack of each member, number of packs): online best fit, and a second pass over packs with room."""
        pack_of, room = best_fit(sizes, self.most, OPEN)
        loose = (room > self.most // LOOSE).all(axis=1)
        if loose.sum() < 2:
            return pack_of, len(room)
        again = np.flatnonzero(loose[pack_of])
        again = again[np.argsort(-sizes[0, again], kind="stable")]
        packs, room = best_fit(np.ascontiguousarray(sizes[:, again]), self.most, len(again))
        numbers = np.cumsum(~loose, dtype=np.int32)
        pack_of = numbers[pack_of] - np.int32(1)
        pack_of[again] = numbers[-1] + packs
        return pack_of, int(numbers[-1]) + len(room)

    def _batches(self, sizes):
        """Return (batch of each member, number of batches)."""
        order = np.argsort(-sizes[0], kind="stable")
        found = np.empty(len(order), np.int32)
        found[order] = batches = in_sequence(np.ascontiguousarray(sizes[:, order]), self.most)
        return found, int(batches[-1]) + 1 if len(batches) else 0

    def _padded_to(self, pack_of, count, rounded):
        if not self.padded:
            return rounded
        longest = np.zeros(count, np.int64)
        np.maximum.at(longest, pack_of, rounded)
        return longest[pack_of]

    def _costs(self, documents, part, tokens):
        """Return the cost of each member; `part` is its part of the document."""
        if isinstance(self.cost, tuple):
            linear, quadratic = self.cost
            return linear * tokens + quadratic * (tokens.astype(np.float64) * tokens)
        costs = np.asarray(self.cost[documents]).astype(np.float64)
        wrong = ~((costs >= 0) & (costs < np.inf))
        _refuse(documents, costs, wrong, "document {} has cost {}: costs must be finite and not negative")
        return costs * part


def _refuse(documents, values, wrong, text):
    """Raise ValueError that names the first document that is wrong."""
    if np.any(wrong):
        first = int(np.argmax(wrong))
        more = f" ({int(np.sum(wrong))} such documents among {len(documents)})" if np.sum(wrong) > 1 else ""
        raise ValueError(text.format(documents[first], values[first]) + more)


class StepWindow:
    """The steps of one window of at least `size` packs, for a division among ranks; `last`: see `PackedSampler`.

    `entry` is the start of the first pack, as (part, pack), and then, for each division that has read the window, a
    tuple: ranks, batches per step, and the position at which it began.

    The last division has the positions from `first` to `stop`, and `sequence` the packs there, of which `repeated` have
    been delivered before. The packs of `left_out` are not delivered. `after` is the start of the next window, as (part,
    pack); None if this is the last one.
    """

    def __init__(self, plan, entry, size, last):
        start, parts, divisions = entry[:2], [], entry[2:]
        left, count = np.empty(0, np.int64), 0
        for number, (ranks, batches, first) in enumerate(divisions):
            step = ranks * batches
            wanted = -(-max(len(left), size) // step) * step - len(left)
            found, start = plan.take(*start, wanted)
            rest, end = plan.take(*start, step)
            # Less than a step is no window of its own.
            self.after = start if sum(map(len, rest)) == step else None
            if self.after is None:
                found, start = found + rest, end
            parts += found
            got = sum(map(len, found))
            left = np.concatenate([left, np.arange(count, count + got)])
            count += got
            self.packs = Packs.joined(parts) if parts else None
            key = mix(plan.key, _STEPS, *entry[:2], number)
            self.first, self.repeated, self.left_out = first, 0, left[:0]
            self._divide(left, ranks, batches, key, last)
            if number + 1 < len(divisions):
                delivered = self.sequence[: divisions[number + 1][2] - first]
                left = np.setdiff1d(np.concatenate([self.sequence, self.left_out]), delivered)
                parts, count = ([self.packs], len(self.packs)) if parts else ([], 0)
        self.stop = self.first + len(self.sequence)

    def _divide(self, packs, ranks, batches, key, last):
        """Set the sequence: in each optimizer step a batch of all ranks from each stratum of the costs."""
        if not len(packs):
            self.sequence = packs
            return
        by_cost = packs[np.argsort(-self.packs.sums[packs], kind="stable")]
        step = ranks * batches
        steps, rest = divmod(len(by_cost), step)
        # The incomplete step is taken out of anywhere, so that its costs are like those of other steps.
        at = mix(key, batches) % (steps * batches + 1) * ranks
        if rest and last == "split":  # a pack for each rank: where documents are most, and of two steps if they are few
            at, documents = self._most_documents(by_cost, rest, ranks)
            if documents < step and steps:
                steps, rest = steps - 1, rest + step
                at, _ = self._most_documents(by_cost, rest, ranks)
        incomplete, full = by_cost[at : at + rest], np.delete(by_cost, np.s_[at : at + rest])
        rows = full.reshape(batches, steps, ranks)
        if steps:
            orders = [IndexOrder.shuffled(steps, mix(key, stratum)).part(0, steps) for stratum in range(batches)]
            rows = np.stack([row[order] for row, order in zip(rows, orders)])
        found = rows.swapaxes(0, 1).copy()
        found[:, 1::2] = found[:, 1::2, ::-1]  # the dearest pack of a batch is not always that of rank 0
        self.sequence = found.reshape(-1)
        if rest and last == "drop":
            self.left_out = incomplete
        elif rest:
            wanted = -(-rest // step) * step
            if last == "split":
                incomplete = self._divided(incomplete, wanted)
            self.repeated = missing = wanted - len(incomplete)
            again = by_cost if last == "repeat" else incomplete
            incomplete = np.concatenate([incomplete, again[np.arange(missing) * len(again) // max(1, missing)]])
            incomplete = incomplete[np.argsort(-self.packs.sums[incomplete], kind="stable")]
            self.sequence = np.concatenate([self.sequence, incomplete])

    def _most_documents(self, by_cost, count, ranks):
        """Return (the start of the `count` consecutive packs with the most documents, their number)."""
        total = np.concatenate([[0], np.cumsum(np.diff(self.packs.bounds)[by_cost])])
        documents = (total[count:] - total[:-count])[::ranks]
        return int(np.argmax(documents)) * ranks, int(documents.max())

    def _divided(self, packs, count):
        """Return `count` packs of the documents of fewer: the dearest that has several is halved again and again."""
        costs, halves, found = self.packs.costs, [], {*packs.tolist()}
        members = {pack: [*self.packs.members(pack)] for pack in found}
        several = [(-self.packs.sums[pack], pack) for pack in found if len(members[pack]) > 1]
        heapq.heapify(several)
        while len(found) < count and several:
            _, dearest = heapq.heappop(several)
            found.remove(dearest)
            parts, sums = ([], []), [0.0, 0.0]
            for member in sorted(members[dearest], key=lambda member: (-costs[member], member)):
                lighter = int((sums[1], len(parts[1])) < (sums[0], len(parts[0])))
                parts[lighter].append(member)
                sums[lighter] += costs[member]
            for part, total in zip(parts, sums):
                new = len(self.packs) + len(halves)
                halves.append(part)
                found.add(new)
                members[new] = part
                if len(part) > 1:
                    heapq.heappush(several, (-total, new))
        if halves:
            bounds = np.cumsum([0, *map(len, halves)])
            flat = np.array([member for half in halves for member in half])
            self.packs = Packs.joined([self.packs, self.packs.taken(flat, bounds)])
        return np.array(sorted(found))
