"""From rounds to figures: medians and spreads, ratios within each round, targets met or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.workload import EXACT, Roles, Target, Workload

Rounds = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Spread:
    """A median with its extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        listed = list(values)
        return cls(median(listed), min(listed), max(listed)) if listed else None


@dataclass(frozen=True)
class Row:
    """One baseline on one workload. Ratios are this baseline's rate divided by the other's, in the same round."""

    baseline: str
    rate: Spread | None = None
    mb_per_s: float | None = None
    to_torch: Spread | None = None
    to_spdl: Spread | None = None
    to_roofline: Spread | None = None
    cpu_us: Spread | None = None
    touch_us: float | None = None
    images_per_s: float | None = None
    error_mean: float | None = None
    error_max: int | None = None
    to_plain: Spread | None = None
    hits: float | None = None
    memory: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A target and its result in this run; `met` is None without a result."""

    workload: str
    target: Target
    measured: Spread | None
    met: bool | None


def rows(rounds: Rounds, missing: dict[str, str], roles: Roles) -> list[Row]:
    """Summarize one workload."""
    return [_row(key, rounds, missing.get(key), roles) for key in rounds]


def _row(key: str, rounds: Rounds, missing: str | None, roles: Roles) -> Row:
    answers = rounds[key]
    good = [answer for answer in answers if "rate" in answer]
    notes = [f"not available: {missing}"] if missing else []
    for kind in ("error", "exit"):
        said = [answer[kind] for answer in answers if kind in answer]
        if said:
            notes.append(f"{len(said)} of {len(answers)} rounds: {said[-1]}")
    if not good:
        return Row(key, notes=tuple(notes))
    rate = Spread.of(answer["rate"] for answer in good)
    assert rate is not None
    return Row(
        baseline=key,
        rate=rate,
        mb_per_s=rate.median * good[0]["nbytes"] / 1e6,
        to_torch=_ratio(rounds, key, roles.torch),
        to_spdl=_ratio(rounds, key, roles.spdl),
        to_roofline=_ratio(rounds, key, roles.roofline),
        cpu_us=Spread.of(answer["cpu_us"] for answer in good if "cpu_us" in answer),
        touch_us=median(answer["touch_us"] for answer in good) if "touch_us" in good[0] else None,
        images_per_s=rate.median * good[0]["batch_size"],
        error_mean=good[0].get("error_mean"),
        error_max=good[0].get("error_max"),
        to_plain=_ratio(rounds, key, (roles.plain,)) if roles.plain else None,
        hits=median(answer["hits"] for answer in good) if "hits" in good[0] else None,
        memory=median(answer["memory"] for answer in good) if "memory" in good[0] else None,
        notes=tuple(notes),
    )


def _ratio(rounds: Rounds, key: str, others: tuple[str, ...]) -> Spread | None:
    """Divide, round by round, by the best of the others; rounds with a failure are left out."""
    ratios = []
    for number, answer in enumerate(rounds[key]):
        against = [
            rounds[other][number]["rate"]
            for other in others
            if number < len(rounds.get(other, ())) and "rate" in rounds[other][number]
        ]
        if "rate" in answer and against:
            ratios.append(answer["rate"] / max(against))
    return Spread.of(ratios)


def verdicts(workload: Workload, table: list[Row], rounds: Rounds) -> list[Verdict]:
    """Compare our row with the workload's targets, by the medians."""
    roles = workload.roles
    ours = next((row for row in table if row.baseline == roles.ours), Row(roles.ours))
    own = (roles.ours, roles.threads, *roles.roofline)
    exact = tuple(
        row.baseline
        for row in table
        if row.baseline not in own and row.error_max is not None and row.error_max <= EXACT
    )
    measured = {
        "exact": _ratio(rounds, roles.ours, exact) if roles.ours in rounds else None,
        "threads": _ratio(rounds, roles.threads, (roles.ours,)) if roles.threads in rounds else None,
        "roofline": ours.to_roofline,
        "torch": ours.to_torch,
        "spdl": ours.to_spdl,
        "cpu": ours.cpu_us,
        "plain": ours.to_plain,
        "half": next((row.to_plain for row in table if row.baseline == roles.half), None),
        "mapped": _ratio(rounds, roles.ours, (roles.mapped,)) if roles.mapped and roles.ours in rounds else None,
        "drop_in": next((row.to_torch for row in table if row.baseline == roles.drop_in), None),
    }
    result = []
    for target in workload.targets:
        value = measured[target.against]
        met = None
        if value is not None:
            met = value.median <= target.bound if target.against == "cpu" else value.median >= target.bound
        result.append(Verdict(workload.key, target, value, met))
    return result


def summarize(workloads: Iterable[Workload], outcome: dict[str, Any]) -> dict[str, Any]:
    """Summarize a run: ``tables`` (rows per workload) and ``targets``."""
    tables, targets = {}, []
    for workload in workloads:
        rounds = outcome["rounds"][workload.key]
        tables[workload.key] = rows(rounds, outcome["missing"], workload.roles)
        targets += verdicts(workload, tables[workload.key], rounds)
    return {"tables": tables, "targets": targets}
