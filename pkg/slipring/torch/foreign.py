"""States that torchdata's StatefulDataLoader has saved, as far as they say enough."""


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
    made = {
        **header,
        "num_workers": main.get("_num_workers", 0),
        "base_seed": main.get("_base_seed"),
        "finished": bool(state["_iterator_finished"]),
        "rng_next": None,
    }
    if made["finished"]:
        return made
    yielded = snapshot["_snapshot_step"] + lag if snapshot else state["_num_yielded"]
    places = _places(state, snapshot, yielded)
    if lag and any(place["states"] for place in places.values()):
        raise ValueError(
            f"torchdata's state was taken {lag} batches after its last snapshot, and the dataset's state is "
            "that of the snapshot: save it with snapshot_every_n_steps=1"
        )
    if header["kind"] == "stream":
        last = snapshot["_last_yielded_worker_id"] if snapshot else 0
        return {**made, "workers": places, "last_worker": (last + lag) % max(1, len(places))}
    order = {"yielded": yielded, "above": [], "rng": None, "sampler": None}
    if any(place["states"] for place in places.values()):
        order.update(workers=places, last_worker=-1)
    return {**made, **order, **_sampler(main, lag)}


def _places(state, snapshot, yielded):
    """Where each worker was; batches went round in turn."""
    if not snapshot:
        workers = {0: state}
    else:
        workers = {w["worker_id"]: w for w in snapshot["_worker_snapshots"].values()}
    n = len(workers)
    return {
        number: {"batches": (yielded + n - 1 - number) // n, "states": _states(worker)}
        for number, worker in workers.items()
    }


def _states(worker):
    iterator = (worker.get("fetcher_state") or {}).get("dataset_iter_state")
    found = {"dataset": worker.get("dataset_state"), "iterator": iterator}
    return {name: told for name, told in found.items() if told is not None} or None


def _sampler(main, lag):
    """What the state says about the sampler: torchdata's own random one has noted its generator."""
    told = main.get("_sampler_iter_state") or {}
    inner = told.get("sampler_iter_state") if isinstance(told, dict) else None
    if isinstance(inner, dict) and set(inner) == {"yielded", "generator"}:
        return {"rng": inner["generator"].numpy().tobytes().hex(), "rng_is_the_samplers": True}
    known = inner if inner is not None else main.get("_index_sampler_state")
    if known is None:
        return {}
    if lag:
        raise ValueError(
            f"torchdata's state was taken {lag} batches after its last snapshot, and the sampler's state is "
            "that of the snapshot: save it with snapshot_every_n_steps=1"
        )
    return {"sampler": known}
