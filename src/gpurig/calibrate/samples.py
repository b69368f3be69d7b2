"""What the fit needs of a measurement, without PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpurig.model.trace import Op


class Sample(Protocol):
    """An operator and the seconds that one call of it took."""

    @property
    def op(self) -> Op: ...

    @property
    def time_s(self) -> float: ...
