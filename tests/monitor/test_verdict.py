"""The verdict names the cause that a simulated job has, and none if it has none.

`bench/verdicts.py` plants the same causes in real loaders.
"""

from types import SimpleNamespace

import pytest

import slipring
from tests.monitor.simulated import MS, Job
from tests.support.inside import READ_COUNTS, EmptySnapshot, observing, reporting, verdict

WAITS = 0.02  # share of a worker's time on a processor if it mostly waits
MIB = 1 << 20


@pytest.fixture(autouse=True)
def four_processors(monkeypatch):
    """Make the advice independent of the machine."""
    monkeypatch.setattr(observing("verdict"), "cpus", lambda: 4)


def slower(times, worker=1):
    """Return a function for the time of batches if one worker takes `times` as long as the others."""
    return lambda made: 10 * times if made.worker == worker else 10


def every(n, batches, extra):
    """Return samples that take longer: the second one of every n-th batch."""
    return {4 * batch + 1: extra for batch in range(1, batches, n)}


def bursts(number):
    return 0 if number % 4 else 40


# Two workers make a batch every 10 ms, and the step takes 1 ms.
COMPUTING = {"fetch": 20}
WAITING = {"fetch": 20, "cpu": WAITS}
SLOW = {"workers": 1, "fetch": 8, "step": 7.9}  # a sample takes 2 ms
MANY = {"batches": 150, "workers": 4, "fetch": 8, "wake": 4}  # the time to wake the workers counts as idle, too
THREADS = {"workers": 4, "threads": True, "fetch": 40, "step": 0.5}
EPOCHS = {"batches": 40, "epochs": 3, "fetch": 20, "start": 600, "persistent": False}
CACHED = {"rows": 100, "batches": 50, "epochs": 3, "fetch": 8, "step": 0.2}
COPIES = {"copied_bytes": (100 * MIB,) * 2, "parent_bytes": 300 * MIB, "forked": True}
AUGMENTING = {"fetch": 8, "parts": {"decode": 0.2, "augment": 0.7}}
MINE = {"fetch": 8, "parts": {"decode": 0.1, "your_code": 0.8}}
COLLATING = {"fetch": 0.8, "collate": 6}
SMALL = {"workers": 1, "prefetch": 1, "step": 0, "wake": 0.3}


def misses(share):
    """Return the share of missed lookups: all in the first epoch, `share` later."""
    return lambda making: share if making.epoch else 1.0


# Each rule just below its threshold and just above it: the job, what the loader knows, and the cause.
THRESHOLDS = [
    (COMPUTING | {"step": 9.1}, {}, "ok"),  # the loop waits 9 % of its time
    (COMPUTING | {"step": 8.9}, {}, "compute"),
    (COMPUTING | {"batches": 7}, {}, "unknown"),
    (COMPUTING | {"batches": 8}, {}, "compute"),
    (COMPUTING | {"cpu": 0.59}, {}, "storage"),
    (COMPUTING | {"cpu": 0.61}, {}, "compute"),
    (COMPUTING | {"cpu": 0.3, "queued": 0.29}, {}, "storage"),  # a worker that is ready to run would compute
    (COMPUTING | {"cpu": 0.3, "queued": 0.31}, {}, "compute"),
    (COMPUTING | {"parts": {"read": 0.49, "decode": 0.4}}, {}, "compute"),
    (COMPUTING | {"parts": {"read": 0.51, "decode": 0.4}}, {}, "storage"),
    (COMPUTING | {"parts": {"read": 0.3, "augment": 0.5}, "cpu": 0.3}, {}, "storage"),
    (COMPUTING | {"parts": {"read": 0.3, "your_code": 0.6}, "cpu": 0.3}, {}, "storage"),
    (COMPUTING | {"parts": {"read": 0.6}, "collate": 19}, {}, "storage"),
    (COMPUTING | {"parts": {"read": 0.6}, "collate": 21}, {}, "compute"),  # most of the time goes into collation
    ({"batches": 150, "fetch": lambda made: 80 if made.number < 25 else 0.8, "step": 3, "cpu": WAITS}, {}, "storage"),
    (SLOW | {"sleepy": every(5, 100, extra=9.8)}, {}, "compute"),  # not six times as long as the others
    (SLOW | {"sleepy": every(5, 100, extra=10.2)}, {}, "sample"),
    (SLOW | {"sleepy": every(4, 100, extra=20)}, {}, "sample"),  # slow samples in a quarter of the batches
    (SLOW | {"sleepy": every(4, 100, extra=20) | {0: 20}}, {}, "compute"),
    (SLOW | {"sleepy": every(5, 100, extra=40), "cpu": 0.5, "queued": 0.24}, {}, "sample"),
    (SLOW | {"sleepy": every(5, 100, extra=40), "cpu": 0.5, "queued": 0.26}, {}, "compute"),  # half of the excess
    (COMPUTING | {"step": 4, "sleepy": {77: 290}}, {}, "compute"),  # less than half of the waiting
    (COMPUTING | {"step": 4, "sleepy": {77: 1500}}, {}, "sample"),
    ({"fetch": 0.8, "collate": 6}, {"pickled": 0.0}, "compute"),
    ({"fetch": 6, "collate": 0.8}, {"pickled": 256.0}, "compute"),
    ({"fetch": 0.8, "step": 10, "cpu": WAITS}, {"pickled": 3.0, "unpickle_ns": 0.9e6}, "ok"),
    (EPOCHS | {"fetch": 0.8, "step": 6, "persistent": True}, {}, "ok"),
    (EPOCHS | {"step": 9.2}, {}, "epoch_start"),
    (EPOCHS | {"step": 8.5}, {}, "compute"),  # the loop waits for 15 % of the time after it, too
    ({"batches": 40, "fetch": 20, "step": 2, "draw": 1}, {}, "compute"),
    (MANY | {"slots": 5}, {}, "slots"),
    (MANY | {"slots": 6}, {}, "compute"),
    (MANY | {"slots": 5, "wake": 2.9}, {}, "slots"),
    (MANY | {"slots": 5, "wake": 1.6}, {}, "compute"),  # busy workers have enough slots
    (COMPUTING, {"copied_share": 0.19}, "compute"),
    (COMPUTING, {"copied_share": 0.21}, "slots"),
    (THREADS | {"cpu": 0.12}, {}, "storage"),
    (THREADS | {"cpu": 0.13}, {}, "compute"),  # together the threads have about one processor
    (THREADS | {"cpu": 0.34}, {}, "compute"),
    (THREADS | {"cpu": 0.36}, {}, "storage"),
    (THREADS | {"cpu": 0.34, "threads": False}, {}, "storage"),  # each process has its own lock
    (WAITING, COPIES | {"free_bytes": 610 * MIB}, "storage"),  # copies of a quarter of the memory available
    (WAITING, COPIES | {"free_bytes": 590 * MIB}, "memory"),
    (WAITING, COPIES | {"free_bytes": 590 * MIB, "forked": False}, "storage"),
    (WAITING, {"copied_bytes": (63 * MIB,), "free_bytes": MIB, "forked": True}, "storage"),
    (WAITING, {"copied_bytes": (65 * MIB,), "free_bytes": MIB, "forked": True}, "memory"),
    (WAITING, {"private_bytes": (160 * MIB,) * 2, "free_bytes": MIB, "forked": True}, "storage"),
    (COMPUTING, COPIES | {"free_bytes": 8 << 30}, "compute"),  # the loop does not wait for copies
    ({"fetch": 8, "step": 4}, COPIES | {"free_bytes": 8 << 30}, "memory"),  # most of the parent's memory
    ({"fetch": 8, "step": 4}, COPIES | {"free_bytes": 8 << 30, "parent_bytes": 410 * MIB}, "ok"),
    (CACHED | {"missed": misses(0.19)}, {"cache_full": "full"}, "compute"),
    (CACHED | {"missed": misses(0.21)}, {"cache_full": "full"}, "cache"),
    (CACHED | {"missed": misses(0.21)}, {}, "compute"),
    (CACHED | {"missed": misses(0.21), "epochs": 1}, {"cache_full": "full"}, "compute"),  # no second lookup
    (COMPUTING | {"copy": 4.9, "preload": 1}, {}, "compute"),  # the thread copies for half of a step
    (COMPUTING | {"copy": 5.1, "preload": 1}, {}, "copy"),
    ({"fetch": 6, "copy": 3, "preload": 1, "step": bursts}, {}, "compute"),
    (SMALL | {"fetch": 0.19}, {}, "tiny"),
    (SMALL | {"fetch": 0.21}, {}, "compute"),
    (WAITING, {"block_wait_ns": 0.49 * 2000 * MS, "block_ns": 2000 * MS}, "storage"),
    (WAITING, {"block_wait_ns": 0.6 * 2000 * MS, "block_ns": 2000 * MS}, "ray"),
]


@pytest.mark.parametrize(
    ("job", "known", "cause"), THRESHOLDS, ids=[f"{n}-{row[2]}" for n, row in enumerate(THRESHOLDS)]
)
def test_a_cause_is_named_from_its_threshold_on(job, known, cause):
    found = Job(**job).verdict(**known)
    assert found.cause == cause, found
    assert found.data_bound == (cause not in ("ok", "unknown")) or cause in ("unknown", "memory")


# The job, what the loader knows, the cause, whether the loop is data-bound, and parts of sentence and advice.
CAUSES = [
    ({"fetch": 0.8, "step": 10, "cpu": WAITS}, {}, "ok", False, ["1 would do"], []),
    ({"fetch": 4.5, "step": 4, "cpu": WAITS}, {}, "ok", False, [], []),
    (COMPUTING | {"step": 8.9}, {}, "compute", True, ["waits 11%"], []),
    ({"fetch": 4, "step": 0.5}, {}, "compute", True, [], ["4 processors of this process are too few"]),
    ({"fetch": 35, "step": 0.1}, {}, "compute", True, [], ["4 processors of this process are too few", "cheaper"]),
    ({"fetch": 16, "cpu": WAITS}, {}, "storage", True, [], ["`num_workers=16` would"]),
    (COMPUTING | {"cpu": 0.3, "queued": 0.31}, {}, "compute", True, ["For 31% of it they are ready to run"], []),
    (
        {"batches": 200, "fetch": 0.8, "cpu": WAITS, "sleepy": {77: 300, 400: 290}}, {},
        "sample", True, ["index 77 (300 ms), index 400 (290 ms)"], ["in_order=False"],
    ),
    (COLLATING | {"cpu": WAITS}, {}, "storage", True, ["(88% collate_fn)"], ["waits for something"]),
    (COLLATING, {}, "compute", True, ["(88% collate_fn)"], ["`collate_fn=None`"]),
    (
        {"fetch": 0.8, "collate": 6, "step": 0.5}, {"pickled": 256.0},
        "pickled", True, ["each batch has 256 pickled leaves"], [],
    ),
    (
        {"fetch": 0.8, "step": 10, "cpu": WAITS}, {"pickled": 3.0, "unpickle_ns": 6e6}, "pickled", False,
        ["unpickling them takes 61% of the loop's time: each batch has 3 pickled leaves"], [],
    ),
    (  # the first wait of all does not count
        EPOCHS | {"fetch": 0.8, "step": 6}, {}, "epoch_start", True, ["601 ms, 2 seen"], ["persistent_workers=True"],
    ),
    ({"batches": 40, "fetch": 0.1, "step": 2, "draw": 8}, {}, "sampler", True, [], []),
    ({**MANY, "slots": 2, "wake": 0, "cpu": WAITS}, {}, "slots", True, ["2 slots"], ["slots=24"]),
    (
        {"slots": 16, "batches": 150, "fetch": 4, "keep": 18, "cpu": WAITS}, {},
        "slots", True, ["16 slots"], ["slots=32"],
    ),
    (COMPUTING, {"copied_share": 0.98}, "slots", True, ["98% of all were copied"], []),
    (COMPUTING | {"budget": 31_999}, {"copied_share": 0.98}, "slots", True, ["budget of the pool"], ["memory='64GiB'"]),
    (COMPUTING | {"budget": 32_000}, {"copied_share": 0.98}, "slots", True, ["98% of all were"], ["slots=40"]),
    (THREADS | {"cpu": 0.25}, {}, "compute", True, ["Python's lock have one processor together"], ["processes"]),
    (
        {"fetch": 4, "step": 4}, {**COPIES, "copied_bytes": (200 * MIB,) * 2, "free_bytes": 8 << 30},
        "memory", False, ["209.7 MB each"], ["StringList"],
    ),
    (
        CACHED | {"missed": misses(0.6)},
        {"cache_full": "its budget of 1 MB is used up", "cache_bytes": 5_000_000, "cached_images": True},
        "cache", True,
        ["60% of the lookups miss", "its budget of 1 MB is used up; all samples would take 5.0 MB"],
        ["Give `cache=5000000`"],
    ),
    (
        {"batches": 200, "fetch": 0.1, "copy": 6, "preload": 1}, {},
        "copy", True, ["takes 6 ms of the 6 ms of a step"], [],
    ),
    ({"fetch": 4, "step": 10, "preload": 2}, {}, "ok", False, ["waits 0.0%"], []),  # only the thread waits
    ({"fetch": 30, "step": 6, "preload": 2, "cpu": WAITS}, {}, "storage", True, [], ["`num_workers=5` would"]),
    (
        AUGMENTING, {}, "compute", True, ["(20% decode, 70% augment)"],
        ["bilinear in place of bicubic", "A cache of decoded images does not help", "are too few to keep up",
         "use `num_workers=4`, and make augmentation cheaper"],
    ),
    (AUGMENTING | {"step": 2.7}, {}, "compute", True, [], ["`num_workers=3` would be enough"]),
    (
        MINE, {}, "compute", True, ["80% your code"],
        ["Change the image in place, replace Python loops by NumPy"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("job", "known", "cause", "bound", "said", "advised"), CAUSES, ids=[row[2] for row in CAUSES])
def test_sentence_and_advice_are_those_of_the_cause(job, known, cause, bound, said, advised):
    found = Job(**job).verdict(**known)
    assert (found.cause, found.data_bound) == (cause, bound), found
    assert all(part in found.sentence for part in said), found.sentence
    assert all(part in found.advice for part in advised), found.advice
    assert found.advice or cause == "ok"


OF_DECODING, OF_AUGMENTING, OF_CODE = "smaller files", "bilinear", "replace Python loops"
LARGEST = [
    ({"decode": 0.4, "augment": 0.45}, OF_AUGMENTING),
    ({"decode": 0.3, "resize": 0.2, "augment": 0.45}, OF_DECODING),
    ({"augment": 0.45}, OF_DECODING),  # most of the time is in no part
    ({"augment": 0.55}, OF_AUGMENTING),
    ({"augment": 0.45, "your_code": 0.5}, OF_CODE),
    ({"augment": 0.5, "your_code": 0.45}, OF_AUGMENTING),
]


@pytest.mark.parametrize(("parts", "advised"), LARGEST)
def test_the_advice_is_about_the_largest_part_of_fetching(parts, advised):
    for job in ({"fetch": 8}, {"fetch": 8, "cpu": 0.3, "queued": 0.6}):
        found = Job(**job, parts=parts).verdict()
        assert found.cause == "compute"
        assert [text for text in (OF_DECODING, OF_AUGMENTING, OF_CODE) if text in found.advice] == [advised]


ALONE = {"fetch": 20, "step": 0.001, "cpu": 0.1}  # the step takes no time
FOUND = {"tuned": True, "saturated": (2, 44.6, 16, 46.1)}


NOT_AGAIN = [
    (COLLATING, {"own_collate": False}, "smaller samples", "leave"),
    (THREADS | {"cpu": 0.25}, {}, "processes do not", "num_workers"),
    (COLLATING | {"cpu": WAITS}, {"own_collate": True}, "waits for something", "processors"),
    (COMPUTING | {"sleepy": {77: 1500}}, {"in_order": False}, "prefetch_factor", "in_order"),
    (EPOCHS | {"fetch": 0.8, "step": 6}, {"persistent": True}, "longer epochs", "persistent_workers"),
    (ALONE, {}, "Have more workers, `num_workers=16` for a start", "auto"),
    (ALONE, {"cpus": 2}, "Have more workers, `num_workers=8` for a start", "auto"),
    (ALONE | {"workers": 16}, {}, '`num_workers="auto"` finds out how many workers help', "for a start"),
    (ALONE, {"tuned": True}, "Reading is slow", "num_workers"),
    (
        ALONE,
        FOUND,
        "More workers than `num_workers=2` bring hardly anything: 16 made 46.1 batches/s, and 2 made 44.6.",
        "would",
    ),
    (ALONE, FOUND, "a lock", "for a start"),
    (ALONE | {"cpu": 1}, FOUND, "hardly anything", "a lock"),
    (AUGMENTING, {}, "augmentation cheaper", "smaller files"),
    (AUGMENTING | {"workers": 4}, {}, "augmentation cheaper", "num_workers=4"),
    (CACHED | {"missed": misses(0.6)}, {"cache_full": "too little memory left"}, "more memory", "larger budget"),
    (CACHED | {"missed": misses(0.6)}, {"cache_full": "its budget is used up"}, "smaller entries", "side="),
    (
        CACHED | {"missed": misses(0.6)},
        {"cache_full": "its budget is used up", "cache_bytes": 9, "clips": True},
        "videos that were scaled down",
        "slipring.cached",
    ),
    (MINE, {}, "NumPy", "Python's lock"),
    (MINE | {"cpu": WAITS}, {}, "Your function waits for something", "NumPy"),
    (MINE | {"threads": True, "workers": 1}, {}, "Threads share Python's lock", "waits"),
]


@pytest.mark.parametrize(("job", "known", "said", "unsaid"), NOT_AGAIN)
def test_nothing_is_advised_that_is_so_already_or_did_not_help(job, known, said, unsaid):
    advice = Job(**job).verdict(**known).advice
    assert said in advice and unsaid not in advice


def test_the_first_batches_of_ray_are_no_wait_of_a_slow_pipeline():
    first = {"fetch": lambda made: 3000 if made.number < 2 else 20, "cpu": WAITS}  # Ray starts its tasks meanwhile
    spent = 2 * 3000 + 98 * 20
    for waited, cause in ((280, "storage"), (1100, "ray")):
        found = Job(**first).verdict(block_wait_ns=(6000 + waited) * MS, block_ns=spent * MS)
        assert found.cause == cause


@pytest.mark.usefixtures("forked")
def test_a_report_counts_the_pickled_leaves_of_each_batch(monkeypatch):
    monkeypatch.setattr(reporting, "Report", lambda name, snapshot, stats, known, **rest: known)
    with slipring.Loader(range(8), batch_size=2, num_workers=1, collate_fn=lambda s: [{k} for k in s]) as loader:
        assert sum(len(batch) for batch in loader) == 8
        known = loader.report()
    assert known.pickled == 2 and known.unpickle_ns > 0


def test_batches_made_in_torchs_loop_are_named():
    def made(fetch_ns, batches=8):
        none = dict.fromkeys(("bytes", "collate_ns"), 0)
        meter = SimpleNamespace(
            **none, batches=batches, fetch_ns=fetch_ns, wait_ns=fetch_ns, spent_ns=1_000_000,
            reads=dict.fromkeys(READ_COUNTS, 0),
        )  # fmt: skip
        return verdict(EmptySnapshot(meter))

    assert (made(110_000).cause, made(110_000).data_bound) == ("no_workers", True)
    assert (made(90_000).cause, made(90_000).data_bound) == ("ok", False)
    assert "num_workers=3" in made(720_000).advice  # their batches take three times the step
    assert made(110_000, batches=7).cause == "unknown"


# ---- under way


def test_a_wait_under_way_counts():
    job = Job(of=200, fetch=0.4, step=1, sleepy={401: 1e9})
    found = job.verdict(later=1.2e3, waits=True)
    assert not job.verdict(waits=True).data_bound and found.data_bound and found.wait_share > 0.85


def test_a_step_under_way_for_a_second_is_reported():
    job = Job(of=200, batches=50, fetch=20, step=9.1)
    assert job.verdict(later=900).cause == "ok"
    found = job.verdict(later=1100)
    assert (found.cause, found.data_bound) == ("ok", False)
    assert "in its step for 1.11 s" in found.sentence
    early = Job(of=200, batches=3).verdict(later=2000)
    assert early.cause == "unknown" and "The loop has been in its step for 2 s" in early.sentence


@pytest.mark.parametrize(("usual", "hangs"), [(20, 10.0), (1500, 15.0)])
def test_a_worker_hangs_after_ten_seconds_or_ten_times_what_took_longest(usual, hangs):
    # Batches 10 and 11 start at the same moment, and batch 11 does not end.
    job = Job(batches=10, of=30, fetch=lambda made: 1e12 if made.number == 11 else usual, step=0.1, cpu=WAITS)
    begun = (job.clock - max(int(batch["claimed_at"]) for batch in job.lying if batch and batch["seq"] == 11)) / 1e6
    assert job.verdict(later=1e3 * (hangs - 0.1) - begun, waits=True).cause != "hung"
    found = job.verdict(later=1e3 * (hangs + 0.1) - begun, waits=True)
    assert (found.cause, found.data_bound) == ("hung", True)
    assert "row 0 of its batch, which begins at index 44" in found.sentence
