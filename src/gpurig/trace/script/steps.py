"""When a training step ends, and when enough of them have been seen.

A step is one round of all optimizers: from one step of the rarest optimizer to its next. A script without optimizers
(it updates the weights by hand) is followed by its backward passes.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from torch._subclasses.fake_tensor import FakeTensor

from gpurig.trace.device import on_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import optim

    from gpurig.trace.session import Session

_WAIT_FOR_OTHERS = 12  # steps of one optimizer during which others that exist may come in
_HOST_STEPS = 4  # optimizer steps on the host after which a script is said to train on the CPU
_HOST_BACKWARDS = 30
_STALE_STEPS = 4  # steps without a new batch, after which a script is taken to work on one batch for good
_TWO_ARE_ENOUGH_AFTER_S = 20.0
_BACKWARDS_WITHOUT_OPTIMIZER = 3


class StepWatch:
    """Counts rounds and calls `done` after enough.

    Args:
        session: The running trace.
        wanted: Rounds to see.
        time_limit_s: Enough is less when time runs short: two rounds after a part of this.
        done: Called once, at the end of the last round.
        on_host: Called when the script turns out to train on the CPU.
    """

    def __init__(
        self,
        session: Session,
        wanted: int,
        time_limit_s: float,
        done: Callable[[], None],
        on_host: Callable[[], None],
    ) -> None:
        self._session = session
        self._wanted = wanted
        self._enough_after = time.monotonic() + min(time_limit_s / 3, _TWO_ARE_ENOUGH_AFTER_S)
        self._done = done
        self._on_host = on_host
        self._counts: dict[int, int] = {}
        self._anchor: int | None = None
        self._host_steps = 0
        self._backwards = 0
        self.backwards_in_step = 0
        self.last_backwards = 0
        self.rounds = 0
        self.constructed: dict[int, optim.Optimizer] = {}
        self.by_hand = self.any_backward = False
        self.batches: Callable[[], int] = lambda: 0  # batches that DataLoaders have given so far
        self._batches = self._stale = 0
        self.ended: Callable[[], None] = lambda: None  # a round has ended and is still recorded
        self.started: Callable[[], None] = lambda: None  # the next one begins

    # --- what the session reports -------------------------------------------------------------------------------------
    def optimizer_stepped(self, optimizer: optim.Optimizer) -> None:
        """An optimizer has changed planned parameters."""
        key = id(optimizer)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._anchor is None:
            self._anchor = key
        elif key != self._anchor and self._counts[key] == 1 and self._counts[self._anchor] > 1:
            # a rarer one (a generator after five rounds of its critic): rounds are counted from it
            self._anchor, self.rounds = key, 0
        if key != self._anchor or self._same_batch():
            return
        self._round_ended()

    def host_stepped(self, optimizer: optim.Optimizer) -> None:
        """An optimizer has changed parameters that are on the host only."""
        del optimizer
        self._host_steps += 1
        if self._host_steps >= _HOST_STEPS and not self._counts:
            self._on_host()

    def backward_done(self) -> None:
        """A backward pass has ended."""
        self.backwards_in_step += 1
        self.any_backward = True
        if self.constructed or self._counts:
            return
        self._backwards += 1
        if self._backwards == _HOST_BACKWARDS and not self._session.recorder.events:
            self._on_host()
        if self._changed_by_hand() and self._backwards >= _BACKWARDS_WITHOUT_OPTIMIZER:
            self.by_hand = True
            self._round_ended()

    def on_host_only(self) -> bool:
        """Whether the script trains, and nothing has ever reached the planned device."""
        return (self.any_backward or self._host_steps > 0) and not self._session.recorder.events

    # --- rounds -------------------------------------------------------------------------------------------------------
    def _round_ended(self) -> None:
        self.rounds += 1
        self.last_backwards, self.backwards_in_step = self.backwards_in_step, 0
        late = time.monotonic() > self._enough_after
        if self.rounds >= (2 if late else self._wanted) and not self._others_may_come():
            self._done()
            return
        self.ended()
        self._session.recorder.start_step()
        self.started()

    def _same_batch(self) -> bool:
        """Whether the optimizer has stepped before on the batch at hand (a regularizer's own step, say)."""
        if len(self.constructed) < 2:
            return False
        fresh, self._batches = self.batches() > self._batches, self.batches()
        self._stale = 0 if fresh or not self._batches else self._stale + 1
        return 0 < self._stale < _STALE_STEPS

    def _others_may_come(self) -> bool:
        """Whether an optimizer over planned parameters exists that has not stepped yet."""
        if self.rounds >= _WAIT_FOR_OTHERS:
            return False
        return any(
            key not in self._counts
            and any(on_device(p) and p.requires_grad for group in o.param_groups for p in group["params"])
            and not self._shares_parameters(o)
            for key, o in self.constructed.items()
        )

    def _shares_parameters(self, optimizer: optim.Optimizer) -> bool:
        """Whether its parameters are already updated by one that steps (a wrapper, or one that replaced it)."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for key, other in self.constructed.items():
            if key in self._counts and any(id(p) in mine for group in other.param_groups for p in group["params"]):
                return True
        return False

    def _changed_by_hand(self) -> bool:
        """Whether weights with gradients have been written to since the backward pass before."""
        recorder = self._session.recorder
        written, recorder.writes = recorder.writes, 0
        recorder.watched = {
            value.untyped_storage()._cdata
            for value in gc.get_objects()
            if isinstance(value, FakeTensor) and value.is_leaf and value.requires_grad and value.grad is not None
        }
        return written > 0
