"""Jobs of several ranks whose sampler plans packs, and what a plan promises."""

import json

import numpy as np

from slipring import tokens

KINDS = [tokens.PackedSampler, tokens.TokenBatchSampler]


def lengths(n, seed=0, mean=4.0, most=256):
    """Return lognormal lengths from 1 to `most`."""
    return np.random.default_rng(seed).lognormal(mean, 1, n).astype(np.int32).clip(1, most)


def ranks_of(kind, sizes, ranks, **options):
    """Return the sampler of each rank."""
    options = {"max_tokens": 256, "seed": 3, **options}
    return [kind(sizes, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def steps_of(iterators, most=None):
    """Return the batches of each step, at most so many; every rank must have as many as the others."""
    found = []
    while most is None or len(found) < most:
        step = [next(iterator, None) for iterator in iterators]
        assert len({batch is None for batch in step}) == 1, "a rank has another number of batches"
        if step[0] is None:
            return found
        found.append(step)
    return found


def steps_of_changing_ranks(draw, make, mosts):
    """Return the steps of an epoch that is resumed after random numbers of steps, each time by new samplers.

    ``make()`` returns the sampler of each rank. Their states must be alike, except for the rank.
    """
    seen, state = [], None
    while True:
        samplers = make()
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        iterators = [*map(iter, samplers)]
        most = draw.choice(mosts)
        steps = steps_of(iterators, most)
        seen += steps
        if len(steps) < most:
            return seen
        states = [iterator.state_dict() for iterator in iterators]
        assert len({str({**each, "rank": 0}) for each in states}) == 1
        state = saved(draw.choice(states))


def saved(state):
    """Return a state as a file has it."""
    return json.loads(json.dumps(state))


def tokens_of(member, sizes):
    """Return (document, first token, end) of a member of a batch."""
    return tuple(member) if isinstance(member, tokens.Piece) else (member, 0, int(sizes[member]))


def check_limits(batches, sizes, padded=False, max_tokens=256, multiple=1, most=None):
    """Assert that no batch exceeds its limits."""
    for batch in batches:
        rounded = [
            -(-(stop - start) // multiple) * multiple for _, start, stop in map(lambda m: tokens_of(m, sizes), batch)
        ]
        used = max(rounded) * len(rounded) if padded else sum(rounded)
        assert 0 < used <= max_tokens
        assert most is None or len(batch) <= most


def flat(steps):
    return [member for step in steps for batch in step for member in batch]
