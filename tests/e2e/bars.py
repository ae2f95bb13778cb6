"""One line of the result: a measured value beside what it must keep."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "at most": operator.le,
    "at least": operator.ge,
}


class Bar(NamedTuple):
    """``value`` must be "=", "at most" or "at least" ``bar``; None where there is no bar."""

    what: str
    value: float | int | str
    sign: str | None = None
    bar: float | int | str | None = None

    @property
    def holds(self) -> bool:
        """Whether the bar is kept; NaN keeps none."""
        return self.sign is None or _HOLDS[self.sign](self.value, self.bar)
