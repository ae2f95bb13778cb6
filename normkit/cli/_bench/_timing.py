"""Contenders timed in turn."""

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

# Below 20 ms a call, the data may lie in a cache, which each contender then fills for itself.
_WARM_BELOW_S = 0.020
MIN_ROUNDS = 5


class Effort(NamedTuple):
    """How long is measured.

    Attributes:
        rounds: Turns of each contender, at most.
        turn_s: Least length of a turn: short calls are repeated.
        limit_s: Of all rounds together; there are fewer rounds, but at least `MIN_ROUNDS` (or
            ``rounds``), where they would take longer.
    """

    rounds: int
    turn_s: float
    limit_s: float


def in_turn(
    functions: Mapping[str, Callable[[], object]], effort: Effort
) -> dict[str, list[float]]:
    """Seconds a call, one number for each function and round.

    The functions have been called before: a first call may compile.

    In every round each function has one turn, and each round starts with another function. The
    speed of a machine drifts; the ratio of two turns of the same round does not know.
    """
    repeats = {name: _repeats(function, effort.turn_s) for name, function in functions.items()}
    round_s = sum(count * seconds for count, seconds in repeats.values())
    least = min(effort.rounds, MIN_ROUNDS)
    rounds = max(least, min(effort.rounds, int(effort.limit_s / max(round_s, 1e-9))))
    found: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            first = i % len(names)
            for name in names[first:] + names[:first]:
                count, seconds = repeats[name]
                if seconds < _WARM_BELOW_S:
                    functions[name]()
                found[name].append(_seconds(functions[name], count) / count)
    finally:
        gc.enable()
    return found


def _repeats(function: Callable[[], object], turn_s: float) -> tuple[int, float]:
    """Calls in a turn, and seconds a call."""
    count = 1
    while (seconds := _seconds(function, count)) < turn_s / 4:
        count *= 4
    return max(1, math.ceil(turn_s * count / seconds)), seconds / count


def _seconds(function: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        function()
    return time.perf_counter() - start
