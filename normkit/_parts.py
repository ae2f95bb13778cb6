"""Statistics over a part of a row: its first features, or groups of them."""

from collections.abc import Callable
from typing import Any

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import Axes
from normkit._convention import Convention


def over_parts(ar: Arithmetic, c: Convention) -> Any:
    """``ar``, whose sums run over the parts of a row that ``c`` names."""
    return ar if c.partial == 1 and c.groups == 1 else _PartArithmetic(ar, c.partial, c.groups)


class _PartArithmetic(Arithmetic):
    """An arithmetic whose `sum`, `max` and `count` see parts; in all else it is ``whole``.

    A row is flattened along its axes in ascending order. The result stands at each element of its
    group, so that it combines with the row in the row's own shape.
    """

    def __init__(self, whole: Arithmetic, partial: float, groups: int) -> None:
        super().__init__(whole.xp)
        self._whole, self._partial, self._groups = whole, partial, groups
        for name in (
            "widen",
            "narrow",
            "to_float32",
            "round_to",
            "number_in",
            "trimmed",
            "leading",
            "constant",
            "total",
        ):
            setattr(self, name, getattr(whole, name))

    def sum(self, x: Array, axes: Axes) -> Array:
        """Sum over each part."""
        return self._each_part(x, axes, self._whole.sum)

    def max(self, x: Array, axes: Axes) -> Array:
        """Maximum over each part."""
        return self._each_part(x, axes, self._whole.max)

    def count(self, x: Array, axes: Axes) -> Any:
        """Number of elements of a part."""
        return int(self._partial * self._whole.count(x, axes)) // self._groups

    def seen(self, x: Array, axes: Axes) -> Array:
        """x, with 0 where an element does not count in the statistics."""
        rows, back = self._rows(x, axes)
        k = self.count(x, axes)
        unseen = self.xp.zeros_like(rows[..., k:])
        return back(self.xp.concat([rows[..., :k], unseen], axis=-1))

    def _each_part(self, x: Array, axes: Axes, reduce: Any) -> Array:
        rows, back = self._rows(x, axes)
        found = reduce(rows[..., : self.count(x, axes)], (rows.ndim - 1,))
        return back(self.xp.broadcast_to(found, rows.shape))

    def _rows(self, x: Array, axes: Axes) -> tuple[Array, Callable[[Array], Array]]:
        """``x`` as (batch axes, group, element), and the way back to its own shape."""
        xp = self.xp
        order = (*(a for a in range(x.ndim) if a not in axes), *axes)
        moved = tuple(x.shape[a] for a in order)
        batch = moved[: x.ndim - len(axes)]
        size = self._whole.count(x, axes) // self._groups
        rows = xp.reshape(xp.permute_dims(x, order), (*batch, self._groups, size))
        inverse = tuple(order.index(a) for a in range(x.ndim))
        return rows, lambda y: xp.permute_dims(xp.reshape(y, moved), inverse)
