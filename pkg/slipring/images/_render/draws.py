"""Random numbers for one sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slipring._core.ring._ring import mix

if TYPE_CHECKING:
    from collections.abc import Sequence

_BITS = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_APART = 0x4150415254
_UNIFORM = 1 << 53  # the number of values of `uniform(0, 1)`


class Draws:
    """Uniform numbers from 64 random bits, the same on every machine (splitmix64)."""

    state: int

    def __init__(self, seed: int) -> None:
        self.state = seed

    def bits(self) -> int:
        """Return 64 random bits."""
        self.state = z = (self.state + _GOLDEN) % _BITS
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _BITS
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _BITS
        return z ^ (z >> 31)

    def apart(self, number: int) -> int:
        """Return 64 bits for another generator, which is the `number`-th here; the next draws stay the same."""
        return mix(self.state, number, _APART)

    def uniform(self, low: float, high: float) -> float:
        """Return a number from [low, high)."""
        return low + (high - low) * ((self.bits() >> 11) / _UNIFORM)

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n - 1."""
        return min(int(n * ((self.bits() >> 11) / _UNIFORM)), n - 1)

    def chance(self, p: float) -> bool:
        """Return True with probability `p`."""
        return (self.bits() >> 11) / _UNIFORM < p

    def normal(self, mean: float = 0.0, deviation: float = 1.0) -> float:
        """Return a number from a normal distribution."""
        radius = math.sqrt(-2 * math.log(1 - self.uniform(0, 1)))
        return mean + deviation * radius * math.cos(2 * math.pi * self.uniform(0, 1))

    def gamma(self, shape: float) -> float:
        """Return a number from a gamma distribution of scale 1 (Marsaglia and Tsang's method)."""
        if shape < 1:
            return self.gamma(shape + 1) * (1 - self.uniform(0, 1)) ** (1 / shape)
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = self.normal()
            v = (1 + c * x) ** 3
            u = 1 - self.uniform(0, 1)
            if v > 0 and math.log(u) < 0.5 * x * x + d * (1 - v + math.log(v)):
                return d * v

    def dirichlet(self, alpha: float, n: int) -> list[float]:
        """Return `n` numbers with sum 1, from a Dirichlet distribution of equal parameters `alpha`."""
        drawn = [self.gamma(alpha) for _ in range(n)]
        total = sum(drawn)
        if total == 0:  # a tiny alpha: all weight is on one of them
            drawn[self.below(n)] = total = 1.0
        return [one / total for one in drawn]

    def permutation(self, n: int) -> list[int]:
        """Return the numbers 0 to n - 1 in a random order."""
        order = list(range(n))
        for last in range(n - 1, 0, -1):
            at = self.below(last + 1)
            order[last], order[at] = order[at], order[last]
        return order

    def choice(self, weights: Sequence[float]) -> int:
        """Return an index of `weights`, with probabilities in proportion to them."""
        left = self.uniform(0, sum(weights))
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return max(index for index, weight in enumerate(weights) if weight > 0)  # rounding
