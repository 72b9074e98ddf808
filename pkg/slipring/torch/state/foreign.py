"""States that torchdata's StatefulDataLoader has saved, as far as they say enough."""

from slipring.torch.state.order import as_text, generator_of, source_of


def is_theirs(state):
    """Whether torchdata's loader has made this state."""
    return "_iterator_finished" in state and ("_snapshot" in state or "_num_yielded" in state)


def translated(loader, header, state):
    """Return the state in our own form.

    Parameters
    ----------
    loader : DataLoader
    header : dict
        What the loader's own states begin with.
    state : dict
        torchdata's.

    Raises
    ------
    ValueError
        It does not say enough; the message says what is missing.
    """
    snapshot = state.get("_snapshot")
    main = snapshot["_main_snapshot"] if snapshot else state
    lag = state.get("_steps_since_snapshot", 0)
    finished = bool(state["_iterator_finished"])
    yielded = snapshot["_snapshot_step"] + lag if snapshot else state["_num_yielded"]
    made = {
        **header,
        "num_workers": main.get("_num_workers", 0),
        "base_seed": main.get("_base_seed"),
        "finished": finished,
        "rng_next": None,
    }
    workers = snapshot["_worker_snapshots"].values() if snapshot else [state]
    places = _places(workers)
    if places:
        _refuse(lag, "dataset")
        made.update(workers=places, last_worker=snapshot["_last_yielded_worker_id"] if snapshot else 0)
    if header["kind"] == "stream":
        # Without states nothing says how many of them each worker has read.
        return made if places else {**made, "workers": {}, "last_worker": -1, "dropped": yielded}
    order = _order(loader, main, lag, finished)
    return {**made, "yielded": yielded, "above": [], "rng": None, "sampler": None, **order}


def _refuse(lag, what):
    if lag:
        raise ValueError(
            f"torchdata's state was taken {lag} batches after its last snapshot, and the {what}'s state is "
            "that of the snapshot: save it with snapshot_every_n_steps=1"
        )


def _places(workers):
    """Where each worker was, as far as its dataset or iterator says so."""
    places = {}
    for worker in workers:
        fetcher = worker.get("fetcher_state") or {}
        found = {"dataset": worker.get("dataset_state"), "iterator": fetcher.get("dataset_iter_state")}
        states = {name: state for name, state in found.items() if state is not None}
        if states and fetcher.get("fetcher_ended"):
            states["last"] = True  # torchdata's own workers read it once more
        if states:
            places[worker.get("worker_id", 0)] = {"batches": 0, "states": states}
    return places


def _order(loader, main, lag, finished):
    """What the state says about the sampler, or about the generator of torchdata's own random one."""
    saved_state, over = main.get("_sampler_iter_state"), finished
    if isinstance(saved_state, dict) and "samples_yielded" in saved_state:  # of torchdata's batching
        over = finished or bool(saved_state["samples_yielded"] % (source_of(loader)[1] or 1))
        parts = {
            "sampler": saved_state.get("sampler_state"),
            "sampler_iterator": saved_state.get("sampler_iter_state"),
        }
    else:
        parts = {"sampler": main.get("_index_sampler_state"), "sampler_iterator": saved_state}
    inner = parts["sampler_iterator"]
    if isinstance(inner, dict) and set(inner) == {"yielded", "generator"}:
        if finished:
            return {"rng_next": _after_an_epoch(loader, inner["generator"])}
        return {"rng": as_text(inner["generator"]), "rng_is_the_samplers": True}
    parts = {name: part for name, part in parts.items() if part is not None}
    if not parts:
        return {}
    _refuse(lag, "sampler")
    return {**parts, "sampler_over": True} if over else parts


def _after_an_epoch(loader, begun):
    """Where the generator that an epoch began with is at its end; None: it is torch's global one."""
    generator = generator_of(loader)
    if generator is None:
        return None
    now = generator.get_state()
    generator.set_state(begun)
    for _ in loader.sampler:
        pass
    end = generator.get_state()
    generator.set_state(now)
    return as_text(end)
