"""The ranks of a distributed job on this machine, seen from outside; `ranks` says which of them hold up the others.

A launcher (torchrun, mpirun, srun) tells each rank its number by environment variables. Processes without a number that
share a pool's workers are numbered by their pids.
"""

import collections
import dataclasses
import os

from slipring._core.ring import process
from slipring._core.ring.process import cpus
from slipring._observe.jobs import attach, environ_of, jobs, last_busy
from slipring._observe.ranks import memory_of, times_of
from slipring._observe.rates import Figures
from slipring._observe.snapshot import Snapshot
from slipring._observe.verdict import Known, verdict

# The variables that have a process's rank and the number of ranks: torchrun, Open MPI, MPICH, Slurm.
RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
# Variables that have one value in all ranks of a job, and another one in other jobs.
OF_JOB = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"),
    "PMI_JOBID",
)


def rank_of(environ):
    """Return (rank, number of ranks) of a process with these environment variables; None if no launcher set them."""
    for names in RANKS:
        rank, size = (environ.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            return int(rank), int(size)
    return None


def peers(job):
    """Return {rank: `WatchedJob`} of the job's ranks on this machine, with the same loader; {} for a single process."""
    environ = environ_of(job.pid)
    own = rank_of(environ)
    if not job.push and own is None:
        return _of_pool(job)
    if job.push or own[1] < 2:
        return {}
    label, found = job.watch.segment_info()["label"], {}
    for other in sorted(jobs()[0], key=last_busy):
        its = environ_of(other.pid)
        rank = rank_of(its)
        if other.push or rank is None or rank[1] != own[1] or other.watch.segment_info()["label"] != label:
            continue
        if all(its.get(name) == environ.get(name) for name in OF_JOB):
            found[rank[0]] = other
    return {**found, own[0]: job}


def _of_pool(job):
    """Return the same for a process to which no launcher gave a rank."""
    label, own, found = job.watch.segment_info()["label"], _workers_of(job), {}
    for other in sorted(jobs()[0], key=last_busy):
        if not other.push and _workers_of(other) & own and other.watch.segment_info()["label"] == label:
            found[other.pid] = other
    found = {**found, job.pid: job}
    return {rank: found[pid] for rank, pid in enumerate(sorted(found))} if len(found) > 1 else {}


def _workers_of(job):
    """Return the pids of a loader's worker processes."""
    consumer, *workers = (job.number(int(pid)) for pid in job.watch.participants()["pid"])
    return set(workers) - {0, consumer}


def by_job(found):
    """Return the segments in `found` as lists, one for each job, in which the process of the lowest rank comes first.

    A job is a process, the ranks of one launcher, or processes whose loaders have a process in common, such as a worker
    of a pool.
    """
    of, seen, grouped = {}, collections.Counter(), []
    for job in found:
        of.setdefault(job.pid, []).append(job)
    environs = {pid: environ_of(pid) for pid in of}
    ranks = {pid: rank_of(environ) for pid, environ in environs.items()}
    for pid in sorted(of, key=lambda pid: (all(job.push for job in of[pid]), ranks[pid] or (0, 0), pid)):
        loaders = (job for job in of[pid] if not job.push)
        marks = {pid, *(job.number(each) for job in loaders for each in job.participant_pids())} - {0}
        if ranks[pid] is not None:
            launched = ranks[pid][1], *map(environs[pid].get, OF_JOB)
            # A second process with the same rank has inherited its variables, and belongs to no other rank.
            seen[ranks[pid], launched] += 1
            marks.add((*launched, seen[ranks[pid], launched]))
        known = next((each for each in grouped if each[0] & marks), None)
        if known is None:
            grouped.append((marks, of[pid]))
        else:
            known[0].update(marks)
            known[1].extend(of[pid])
    return [its for _, its in grouped]


def verdict_of(job, snapshot):
    """Return the `Verdict` on a job that this process watches, with the CPUs that the job may use."""
    pid = job.pid
    try:
        allowed = cpus(pid, environ_of(pid)) if pid else None
    except ProcessLookupError:
        allowed = None  # it has just ended
    return verdict(snapshot, Known(cpus=allowed))


def verdicts(own, found, snapshot):
    """Return a dict of each rank in `found` (see `peers`): its times, memory and verdict. `snapshot` is of `own`."""
    rows = []
    for rank, job in sorted(found.items()):
        its = snapshot if job is own else Snapshot(job.watch)
        figures = {**times_of(Figures(its)), "own_s": None, **memory_of(its)}
        rows.append({"rank": rank, "pid": job.pid, **figures, **dataclasses.asdict(verdict_of(job, its))})
    return rows


def seen_from(ring):
    """Return `verdicts` of all ranks on this machine, for the segment of a loader of this process."""
    own = os.fstat(ring.controls)
    for job in attach(process.pid()):
        if job.key == (own.st_dev, own.st_ino):
            return verdicts(job, peers(job), Snapshot(job.watch))
    return []
