"""Put the documents of a stream into packs: online best fit, or parts that fill each pack."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from slipring._core.options.checks import integer
from slipring._core.workers.shards import here
from slipring.errors import shown
from slipring.tokens._collation import IDS
from slipring.tokens._reading import outside_of_slot

_log = logging.getLogger("slipring")


def share(steps, worker, workers):
    """Return how many of a rank's packs a worker delivers, if workers take turns."""
    return None if steps is None else len(range(worker, steps, workers))


class OpenPack:
    """Documents that will be delivered together, their items for a state, and how many more tokens fit."""

    def __init__(self, room):
        self.room, self.items, self.documents = room, [], []


class PackedPass:
    """One worker's pass over the documents of a `PackedStream`."""

    continues_after_errors = True  # a document that cannot be used is left out

    def __init__(self, packs):
        self.packs, options = packs, packs.options
        self.reading = packs._reading(packs.stream)
        multiple = options["document_multiple_of"]
        self.budget = options["max_tokens"] // multiple * multiple
        self.open, self.rests = [], deque()  # of a document that is being cut: (location, document, tokens, next token)
        self.saved = None  # (packs, rests) of the loaded state, until their documents are read again
        self.worker, self.workers = here(0)[:2] if options["steps_per_epoch"] else (0, 1)
        self.left = share(options["steps_per_epoch"], self.worker, self.workers)
        self.round = 0
        self.packed = 0  # documents that this round has put into packs; None: the round began before the loaded state
        self.overflowed = 0  # documents that were dropped or truncated
        self.ended = False

    def __iter__(self):
        return self

    def __next__(self):
        with outside_of_slot():
            if self.saved is not None:
                self._read_again()
            while self.left != 0:
                if len(self.open) > self.packs.options["open_packs"] or (self.ended and self.open):
                    return self._delivered()
                if not self.ended:
                    self._take()
                elif self.left is None:
                    break
                else:
                    self._restart()
            raise StopIteration

    def _delivered(self):
        fullest = min(self.open, key=lambda pack: pack.room)
        self.open.remove(fullest)
        if self.left is not None:
            self.left -= 1
        return fullest.documents

    def _restart(self):
        steps, self.round = self.packs.options["steps_per_epoch"], self.round + 1
        where = f"worker {self.worker} of {self.workers}"
        if self.packed == 0:
            missing, self.left = self.left, 0
            raise ValueError(
                f"{where} has no documents that can be packed, and steps_per_epoch={steps} needs {missing} packs of "
                "it: use fewer workers or ranks, more shards, or a larger max_tokens if documents were dropped"
            )
        _log.warning(
            "%s begins its documents again (round %d): they do not suffice for steps_per_epoch=%d, and %d packs of "
            "this worker are missing", where, self.round + 1, steps, self.left,
        )  # fmt: skip
        self.reading.restart(self.round)
        self.packed, self.ended = 0, False

    # ---- documents into packs

    def _take(self):
        """Put the next document, or the next part of one, into a pack."""
        if not self.rests:
            try:
                document = self.reading.next()
            except StopIteration:
                self._end()
                return
            location = self.reading.location()
            tokens = self._tokens_of(document, location)
            if not self._fits(tokens, location):
                return
            self.rests.append((location, document, tokens, 0))
        location, document, tokens, start = self.rests.popleft()
        options, multiple = self.packs.options, self.packs.options["document_multiple_of"]
        room = self.budget
        if options["split"]:
            room = min((pack.room for pack in self.open if pack.room), default=room)
        stop = min(start + room, tokens)
        part = self._part(document, location, start, stop, tokens)
        self._put([*location, start, stop], part, -(-(stop - start) // multiple) * multiple)
        if stop < tokens and options["overflow"] != "truncate":
            self.rests.appendleft((location, document, tokens, stop))

    def _end(self):
        self.ended = True
        if self.overflowed:
            overflow = self.packs.options["overflow"]
            _log.warning("documents above max_tokens in this worker's pass: %d, overflow=%r", self.overflowed, overflow)
            self.overflowed = 0

    def _put(self, item, document, size):
        pack = min((pack for pack in self.open if pack.room >= size), key=lambda pack: pack.room, default=None)
        if pack is None:
            pack = OpenPack(self.budget)
            self.open.append(pack)
        pack.items.append(item)
        pack.documents.append(document)
        pack.room -= size
        if self.packed is not None:
            self.packed += 1
        if len(pack.items) == self.packs.options["max_documents"]:
            pack.room = 0

    def _fits(self, tokens, location):
        """Return whether a document is to be packed; raise ValueError if it is too long and `overflow` says so."""
        options = self.packs.options
        overflow = "split" if options["split"] else options["overflow"]
        if tokens <= self.budget or overflow == "split":
            return True
        text = f"{self.reading.name(location)} has {tokens} tokens, more than max_tokens={options['max_tokens']}"
        if overflow == "error":
            raise ValueError(
                f"{text} (with document_multiple_of={options['document_multiple_of']}): give overflow='drop', "
                "'truncate' or 'split'"
            )
        if not self.overflowed:
            _log.warning("%s: overflow=%r, also for later ones", text, overflow)
        self.overflowed += 1
        return overflow == "truncate"

    def _tokens_of(self, document, location):
        """Return a document's number of tokens."""
        of, name = self.packs._length, self.reading.name
        if callable(of):
            tokens = integer(f"length() of {name(location)}", of(document))
        else:
            rows = document
            if isinstance(document, Mapping):
                field = (IDS if IDS in document else next(iter(document), IDS)) if of is None else of
                if field not in document:
                    fields = ", ".join(map(shown, document)) or "none"
                    raise ValueError(f"{name(location)} has no field {field!r}; it has {fields}")
                rows = document[field]
            tokens = _rows(rows)
            if tokens is None:
                raise TypeError(
                    f"{name(location)} is {shown(rows)}, which has no length: a document is an array or list of "
                    "tokens, or a dict of them. Otherwise give length=, a field or a function"
                )
        if tokens < 1:
            raise ValueError(f"{name(location)} has {tokens} tokens: each must have at least one. Leave it out before")
        return tokens

    def _part(self, document, location, start, stop, tokens):
        """Return some tokens of a document: of each field with as many rows as tokens."""
        if stop - start == tokens:
            return document
        if not isinstance(document, Mapping):
            if _rows(document) == tokens and not isinstance(document, tuple):
                return document[start:stop]
            raise self._whole(shown(document), location)
        part = {}
        for name, value in document.items():
            rows = _rows(value)
            if rows not in (None, tokens):
                raise self._whole(f"field {name!r} of {rows} rows", location)
            part[name] = value if rows is None else value[start:stop]
        return part

    def _whole(self, what, location):
        return ValueError(
            f"{self.reading.name(location)} cannot be cut, because {what} does not have a row for each token: use "
            "overflow='drop', or fields with tokens"
        )

    # ---- states

    def state_dict(self):
        """Return the position, and the locations of the documents that were read and not delivered."""
        if self.saved is not None:
            packs, rests = self.saved
        else:
            packs = [list(pack.items) for pack in self.open]
            rests = [[*location, start] for location, _, _, start in self.rests]
        return {
            **self.reading.state(self._locations(packs, rests)),
            "packs": packs,
            "rests": rests,
            "left": self.left,
            "round": self.round,
            "ended": self.ended,
            "options": self.packs.options,
        }

    def load_state_dict(self, state):
        """Continue from that position; the documents that were not delivered are read again at the next request."""
        self.packs.check_position(state, 0)
        n = self.reading.LOCATION_SIZE
        saved = _locations("packs", state["packs"], n + 2, of_lists=True), _locations("rests", state["rests"], n + 1)
        steps = self.packs.options["steps_per_epoch"]
        left = integer("the state's left", state["left"], 0, steps) if steps else None
        number = integer("the state's round", state["round"], 0)
        self.reading.load(state)
        self.open, self.rests, self.ended = [], deque(), False
        self.saved, self.left, self.round, self.packed = saved, left, number, None

    def _locations(self, packs, rests):
        n = self.reading.LOCATION_SIZE
        return [item[:n] for items in (*packs, rests) for item in items]

    def _read_again(self):
        """Fill the packs of the loaded state."""
        packs, rests = self.saved
        n, multiple = self.reading.LOCATION_SIZE, self.packs.options["document_multiple_of"]
        found = self.reading.again(self._locations(packs, rests))
        opened = []
        for items in packs:
            pack = OpenPack(self.budget)
            for *location, start, stop in items:
                document, tokens = self._found(found, location, stop)
                pack.documents.append(self._part(document, location, start, stop, tokens))
                pack.room -= -(-(stop - start) // multiple) * multiple
            pack.items = items
            if len(items) == self.packs.options["max_documents"]:
                pack.room = 0
            opened.append(pack)
        self.rests = deque((rest[:n], *self._found(found, rest[:n], rest[n]), rest[n]) for rest in rests)
        self.open, self.saved = opened, None

    def _found(self, found, location, stop):
        if tuple(location) not in found:
            raise ValueError(
                f"{self.reading.name(location)} is not among those that the state says were read: it is damaged, or "
                "not a state of this stream"
            )
        document = found[tuple(location)]
        tokens = self._tokens_of(document, location)
        if tokens < stop:
            raise ValueError(
                f"{self.reading.name(location)} has {tokens} tokens, but the state says that it has {stop} or more: "
                "resume with the documents that the state was taken of"
            )
        return document, tokens


def _locations(name, items, n, of_lists=False):
    """Return the items of a state as lists of `n` integers; raise ValueError if they are others."""
    if not isinstance(items, (list, tuple)):
        raise ValueError(f"the state's {name} must be a list, not {shown(items)}")
    if of_lists:
        return [_locations(name, each, n) for each in items]
    if not all(isinstance(item, (list, tuple)) and len(item) == n for item in items):
        raise ValueError(f"the state's {name} must be lists of {n} integers, not {shown(items)}")
    return [[int(integer(f"the state's {name}", each, 0)) for each in item] for item in items]


def _rows(value):
    """Return how many rows an array, tensor or list has; None if the value has none, such as a number or text."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return None if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__") else len(value)
