"""Decide whether a quantity grew, or only fluctuated.

The first quarter of a run's turns is its warm-up and does not count. For the rest:

- Counts (of descriptors, threads, processes, segments, unreturned slots) have a value at rest to
  which they always return. A count grew if the minimum of the last quarter is above the second quarter's
  median.
- Measurements (of memory) are noisy, and a heap may fill holes long after the warm-up. One grew
  if the last quarter's median is above the second's by more than the band, and the growth has not ended:
  at least a quarter of it fell between the last two quarters (of a steady leak half does). The band is three
  times the noise (the median absolute deviation from the Theil-Sen line, as a standard deviation), and not
  less than the quantity's floor.

So a steady leak is noticed if it is larger than band / half the run; the report gives this per hour.
"""

import dataclasses

import numpy as np

LEAST = 3  # samples in each quarter: fewer cannot be judged


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A quantity that is watched.

    Attributes
    ----------
    name, unit : str
    floor : float or None
        Growth that is never a leak, in `unit`; None: a count, which has no noise.
    """

    name: str
    unit: str = ""
    floor: float | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for a quantity: medians of the second and the last quarter, and the growth per hour."""

    early: float
    late: float
    per_hour: float
    noticed_from: float
    grew: bool


def slope(times, values):
    """Return the Theil-Sen slope: the median of the slopes between all pairs of points."""
    first, second = np.triu_indices(len(times), 1)
    apart = times[second] - times[first]
    real = apart > 0
    return float(np.median((values[second] - values[first])[real] / apart[real]))


def judge(quantity, times, values):
    """Return the `Verdict` on a series; times in seconds.

    Raises
    ------
    ValueError
        There are too few samples.
    """
    times, values = np.asarray(times, float), np.asarray(values, float)
    if len(times) < 4 * LEAST:
        raise ValueError(f"{len(times)} samples are too few, {4 * LEAST} are the least: let it run longer")
    quarters = np.array_split(values, 4)
    warm = len(quarters[0])
    early, middle, late = (float(np.median(quarter)) for quarter in quarters[1:])
    half_s = times[-1] - times[warm + len(quarters[1])]
    at, of = times[warm:], values[warm:]
    per_s = slope(at, of)
    if quantity.floor is None:
        band = 1.0
        grew = bool(quarters[3].min() > early)
    else:
        left = of - per_s * at
        band = max(quantity.floor, 3 * 1.4826 * float(np.median(np.abs(left - np.median(left)))))
        grew = late - early > band and late - middle > (late - early) / 4
    return Verdict(early, late, 3600 * per_s, 3600 * band / half_s, grew)


def table(quantities, verdicts):
    """Return the report's lines."""
    width = max(len(f"{q.name}, {q.unit}") for q in quantities) + 1
    head = f"{'':{width}}{'2nd quarter':>14}{'last':>14}{'per hour':>14}{'noticed from':>14}"
    lines = [head]
    for quantity in quantities:
        v = verdicts[quantity.name]
        name = f"{quantity.name}, {quantity.unit}" if quantity.unit else quantity.name
        figures = "".join(f"{x:>14,.4g}" for x in (v.early, v.late, v.per_hour, v.noticed_from))
        lines.append(f"{name:{width}}{figures}{'  GREW' if v.grew else ''}")
    return lines
