"""States of torchdata's StatefulDataLoader: read and written, as far as they have the information."""

import dataclasses

import torch

from slipring._core.passes.reshard import by_number, saved_sampler, worker_positions
from slipring.torch.generators import as_state, as_text, generator_of
from slipring.torch.order import source_of


def is_theirs(state):
    """Return whether torchdata's loader has made this state."""
    return "_iterator_finished" in state and ("_snapshot" in state or "_num_yielded" in state)


def translated(loader, header, state):
    """Return torchdata's state in slipring's form; `header` is the beginning of this loader's own states.

    Raise ValueError if the state lacks information; the message names the missing part.
    """
    snapshot = state.get("_snapshot")
    main = snapshot["_main_snapshot"] if snapshot else state
    lag = state.get("_steps_since_snapshot", 0)
    finished = bool(state["_iterator_finished"])
    yielded = snapshot["_snapshot_step"] + lag if snapshot else state["_num_yielded"]
    made = dataclasses.replace(
        header, num_workers=main.get("_num_workers", 0), seed=main.get("_base_seed"), finished=finished
    )
    workers = snapshot["_worker_snapshots"].values() if snapshot else [state]
    positions = by_number(_positions(workers, yielded))
    if positions:
        _refuse(lag, "dataset")
        next_worker = snapshot["_last_yielded_worker_id"] + 1 if snapshot else 1
        made = dataclasses.replace(made, workers=positions, next_worker=next_worker)
    if header.kind == "iterable":
        # Without states, only their total is known, not each worker's number.
        return made if positions else dataclasses.replace(made, dropped=yielded)
    return dataclasses.replace(made, delivered=yielded, **_order(loader, main, lag, finished))


def _refuse(lag, what):
    if lag:
        raise ValueError(
            f"torchdata's state was taken {lag} batches after its last snapshot, and the {what}'s state is "
            "that of the snapshot: save it with snapshot_every_n_steps=1"
        )


def _positions(workers, yielded):
    """Return each worker's position, as far as its dataset or iterator saves it; they have taken turns."""
    positions = {}
    for worker in workers:
        fetcher = worker.get("fetcher_state") or {}
        found = {"dataset": worker.get("dataset_state"), "iterator": fetcher.get("dataset_iter_state")}
        states = {name: state for name, state in found.items() if state is not None}
        if states and fetcher.get("fetcher_ended"):
            states["last"] = True  # torchdata's own workers read the iterator once more
        if states:
            number = worker.get("worker_id", 0)
            positions[number] = {"batches": len(range(number, yielded, len(workers))), "states": states}
    return positions


def _order(loader, main, lag, finished):
    """Return the part of the state on the sampler, or on the generator of torchdata's own random sampler."""
    saved_state, over = main.get("_sampler_iter_state"), finished
    if isinstance(saved_state, dict) and "samples_yielded" in saved_state:  # of torchdata's batching
        over = finished or bool(saved_state["samples_yielded"] % (source_of(loader)[1] or 1))
        itself, inner = saved_state.get("sampler_state"), saved_state.get("sampler_iter_state")
    else:
        itself, inner = main.get("_index_sampler_state"), saved_state
    if isinstance(inner, dict) and set(inner) == {"yielded", "generator"}:
        if finished:
            return dict(rng_next=_after_an_epoch(loader, inner["generator"]))
        return dict(rng=as_text(inner["generator"]), rng_is_the_samplers=True)
    itself, inner = (None if part is None else (part,) for part in (itself, inner))
    if itself is None and inner is None:
        return {}
    _refuse(lag, "sampler")
    return dict(sampler=itself, sampler_iterator=inner, sampler_over=bool(over))


def _after_an_epoch(loader, begun):
    """Return the generator's state after an epoch that started at `begun`; None for torch's global generator."""
    generator = generator_of(loader)
    if generator is None:
        return None
    now = generator.get_state()
    try:
        generator.set_state(begun)
        for _ in loader.sampler:
            pass
        return as_text(generator.get_state())
    finally:
        generator.set_state(now)


# ---- from slipring's form to torchdata's


def in_their_form(loader, state):
    """Return a state of this loader in the form of torchdata 0.11.

    Raise ValueError if torchdata's form cannot express it; the message names the part.
    """
    count, positions = state.num_workers, worker_positions(state)
    _check_theirs(state, positions)
    is_stream = state.kind == "iterable"
    yielded = 0 if state.finished else _yielded(state, positions)
    workers = [_worker(number, positions.get(number), is_stream) for number in range(max(1, count))]
    main = {
        "_index_sampler_state": None,
        "_sampler_iter_state": None,
        "_sampler_iter_yielded": yielded,
        "_IterableDataset_len_called": None,
        "_shared_seed": None,
        **({} if is_stream else _their_order(loader, state, yielded)),
    }
    finished = {"_iterator_finished": state.finished}
    if not count:
        del workers[0]["worker_id"]
        return {**main, "_num_yielded": yielded, **workers[0], **finished}
    last = state.next_worker - 1 if is_stream else (yielded - 1) % count
    return {
        "_snapshot": {
            "_snapshot_step": yielded,
            "_last_yielded_worker_id": last % count,
            "_main_snapshot": {**main, "_num_workers": count, "_base_seed": state.seed},
            "_worker_snapshots": {f"worker_{worker['worker_id']}": worker for worker in workers},
        },
        "_steps_since_snapshot": 0,
        **finished,
    }


def _check_theirs(state, positions):
    if state.beyond:
        raise ValueError("torchdata's state cannot say which batches came out of order: use in_order=True")
    if state.drawn:
        raise ValueError(
            "a Stateful sampler was asked ahead of the delivery, which torchdata's state cannot say: use num_workers=0 "
            "or take the state at the end of an epoch"
        )
    if any(position.get("since") or position.get("again") for position in positions.values()):
        raise ValueError(
            "a worker has delivered batches since its last snapshot, which torchdata's state cannot say of one worker: "
            "use snapshot_every_n_steps=1"
        )


def _yielded(state, positions):
    if state.kind == "map":
        return state.delivered or 0
    return state.dropped + sum(position["batches"] for position in positions.values())


def _worker(number, position, is_stream):
    states = (position or {}).get("states") or {}
    fetcher = {"dataset_iter_state": states.get("iterator"), "fetcher_ended": bool(states.get("last"))}
    return {
        "worker_id": number,
        "dataset_state": states.get("dataset"),
        "fetcher_state": fetcher if is_stream else None,
    }


def _their_order(loader, state, yielded):
    source, size, _ = source_of(loader)
    given = min(yielded * (size or 1), len(source)) if hasattr(source, "__len__") else yielded * (size or 1)
    saved = saved_sampler(state)
    its_iterator, itself = (None if part is None else part[0] for part in (saved.iterator, saved.itself))
    if isinstance(source, torch.utils.data.RandomSampler):
        generator = _generator_of_an_epoch(loader, state)
        if generator is not None:
            its_iterator = {"yielded": None if state.finished else given, "generator": generator}
    if not size:
        return {"_index_sampler_state": itself, "_sampler_iter_state": its_iterator}
    parts = {"sampler_state": itself, "sampler_iter_state": its_iterator}
    parts = {name: part for name, part in parts.items() if part is not None}
    return {"_sampler_iter_state": {"samples_yielded": given, **parts}}


def _generator_of_an_epoch(loader, state):
    """Return the state of the generator of the epoch's order; after an epoch's end, that of the next epoch's.

    Return None if torch's global generator determines it when the epoch begins.
    """
    text = state.rng_next if state.finished else state.rng
    if text is None:
        return None
    own = generator_of(loader) is not None or state.rng_is_the_samplers
    if own and not (state.finished and loader.generator is not None):
        return as_state(text)
    generator = torch.Generator()
    generator.set_state(as_state(text))
    drawn = torch.empty((), dtype=torch.int64).random_(generator=generator).item()
    if own:  # torch draws the workers' seed before the order, torchdata after it
        return generator.get_state()
    # torch's sampler seeds its own generator from the global one in each epoch.
    return torch.Generator().manual_seed(drawn).get_state()
