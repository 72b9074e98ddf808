"""Remote reads that fail and are repeated: the rule of a verdict."""

FETCHING = 0.5  # of the time to fetch: remote reads must take so much
LOST = 0.2  # of the time of remote reads: failed attempts and the pauses after them are the cause
# Name of the count -> (description, advice).
REPEATED = {
    "refused": (
        "refused with 429 or 5xx",
        "The server limits requests, or cannot serve them: request less at once (fewer workers or "
        "`fetch_threads`, larger shards or row groups), and keep the data that was read "
        "(`slipring.Storage(disk_cache=folder)`).",
    ),
    "timeouts": (
        "no answer in time",
        "Find out why the server stalls. If its answers are only slow, give them more time "
        "(`slipring.Storage(attempt_timeout=60, timeout=300)`).",
    ),
    "broken": (
        "broken connections or answers",
        "The server, a proxy or the network breaks connections off: see their logs, and the warnings of "
        "`logging.getLogger('slipring')`, which reports the first failure.",
    ),
}


def retries(f, known=None):
    """Check for failed attempts that take a large part of the time to fetch; see `slipring._observe.causes`."""
    reads = f.snapshot.segment_info["reads"]
    spent = reads["ns"] + reads["lost_ns"]
    failed = {name: reads[name] for name in REPEATED if reads[name]}
    if not failed or reads["lost_ns"] < LOST * spent or spent < FETCHING * f.snapshot.stages["fetch"].total_s * 1e9:
        return None
    counts = ", ".join(f"{REPEATED[name][0]}: {count:,}" for name, count in failed.items())
    share = sum(failed.values()) / reads["attempts"]
    return (
        "retries",
        f"{share:.0%} of the {reads['attempts']:,} remote reads failed and were repeated ({counts}). That took "
        f"{reads['lost_ns'] / spent:.0%} of the time of all reads.",
        REPEATED[max(failed, key=failed.get)][1],
    )
