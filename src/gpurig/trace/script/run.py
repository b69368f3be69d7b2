"""One run of the user's script under a session: everything that is put in its way, and the trace at its end."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpurig.model.trace import Phase
from gpurig.trace.finish import RunFacts, finish
from gpurig.trace.patches import Patches
from gpurig.trace.script.failure import Failure
from gpurig.trace.script.guards import install as install_guards
from gpurig.trace.script.launch import Launch
from gpurig.trace.script.loader import Feed
from gpurig.trace.script.models import ModelWatch
from gpurig.trace.script.request import ChildReport
from gpurig.trace.script.steps import StepWatch
from gpurig.trace.session import Session
from gpurig.trace.standins import install as install_standins
from gpurig.trace.standins.absent import provide

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.trace.script.child import Reporter
    from gpurig.trace.script.request import ScriptRequest


_ENOUGH_ROUNDS = 2


class Run:
    """A script on its way to its second or third step."""

    def __init__(self, request: ScriptRequest, out: Reporter) -> None:
        self._request = request
        self._out = out
        self._started = time.perf_counter()
        self.session = Session(request.card)
        self.feed = Feed(self.session.recorder, batch_size=request.batch_size, batch_scale=request.batch_scale)
        self.launch = Launch(self.session, request)
        self.models = ModelWatch(self.session, request)
        self.steps = StepWatch(self.session, request.steps, request.time_limit_s, self._done, self._on_host)
        # the trace of the second step, in case the script ends before the third
        self._batches: list[int] = []
        self._enough: ChildReport | None = None

    def run(self, script: Callable[[ScriptRequest], None]) -> None:
        """Run the script to its end or to its last step; does not return."""
        failure: BaseException | None = None
        with self.session():
            self.session.recorder.phase = Phase.FORWARD
            try:
                script(self._request)
            except BaseException as error:
                failure = error
            report = Failure(self._request, self.session, self.steps, self.launch).report(failure)
            if self._enough is not None:  # what was wanted was seen before the script ended or failed
                note = f"only two steps were seen: {report.message}"
                report = dataclasses.replace(self._enough, notes=(*self._enough.notes, note))
            self._out.leave(report)

    def install(self) -> None:
        """Put everything in the script's way, for the rest of the process."""
        session, steps = self.session, self.steps
        patches = Patches()  # never undone: the process ends with the script
        install_guards(patches, self._request, session)
        self.feed.install(patches)
        self.launch.install(patches)
        self.models.install(patches)
        install_standins(patches, session)
        provide(self._request.stand_ins, session)
        session.after_step = self._stepped
        session.after_host_step = steps.host_stepped
        session.after_backward = self._backward_done
        steps.batches = self.feed.total
        steps.ended = self._round_ended
        steps.started = self._step_started
        init = torch.optim.Optimizer.__init__

        def constructed(optimizer: torch.optim.Optimizer, *args: object, **kwargs: object) -> None:
            init(optimizer, *args, **kwargs)
            steps.constructed[id(optimizer)] = optimizer

        patches.set(torch.optim.Optimizer, "__init__", constructed)
        warnings.simplefilter("ignore", ResourceWarning)

    # --- what happens -------------------------------------------------------------------------------------------------
    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if self.session.stepped_with_gradients:
            self.steps.optimizer_stepped(optimizer)

    def _backward_done(self) -> None:
        self.feed.backward_done()
        self.models.backward_done()
        self.steps.backward_done()

    def _round_ended(self) -> None:
        self._count_batches()
        self._out.steps = self.steps.rounds
        if self.steps.rounds == _ENOUGH_ROUNDS:
            report = self._described()
            self._enough = report if report.outcome == "traced" else None

    def _step_started(self) -> None:
        self.feed.step_ended()
        self.models.step_ended()

    def _on_host(self) -> None:
        self._out.leave(Failure(self._request, self.session, self.steps, self.launch).on_host())

    # --- the end ------------------------------------------------------------------------------------------------------
    def _count_batches(self) -> None:
        """How many batches the training had been given when a round ended."""
        feeding = self.feed.training()
        if self.steps.rounds == 1:
            self._batches.clear()
        self._batches.append(feeding.batches if feeding is not None else 0)

    def _done(self) -> None:
        self._count_batches()
        self._out.leave(self._described())

    def _described(self) -> ChildReport:
        try:
            return self._traced()
        except Exception as error:
            where = traceback.format_exc().splitlines()[-5:]
            message = f"the steps were followed, but not described: {type(error).__name__}: {error}"
            return ChildReport(outcome="not-traceable", message=message, details=tuple(where), hint="report this")

    def _traced(self) -> ChildReport:
        feeding = self.feed.training()
        micro_batch = feeding.samples if feeding is not None else self.models.leading_length()
        accumulation = self._accumulation()
        samples = None if micro_batch is None else micro_batch * accumulation
        facts = RunFacts(
            label=self._label(),
            steps_traced=self.steps.rounds,
            samples_per_step=samples,
            micro_batch=micro_batch,
            accumulation=accumulation,
            world_size=self.launch.world_size,
            data_parallel=self.launch.data_parallel,
            compiled=self.launch.compiled,
            input=self.feed.profile(),
            trace_time_s=time.perf_counter() - self._started,
        )
        return ChildReport(
            outcome="traced",
            trace=finish(self.session, facts),
            notes=tuple(note.text for note in self.session.recorder.notes.values()),
            batch_knob=feeding is not None,
            steps=self.steps.rounds,
        )

    def _accumulation(self) -> int:
        """Forward passes of one step: batches that fed it, and no more than backward passes."""
        feeding = self.feed.training()
        single = len(self.session.optimizers) <= 1
        backwards = max(1, self.steps.last_backwards)
        if feeding is None:
            return backwards if single else 1
        given = self._batches[-1] - self._batches[0] if len(self._batches) > 1 else feeding.batches
        batches = max(1, math.ceil(given / max(1, len(self._batches) - 1)))
        return min(backwards, batches) if single else batches

    def _label(self) -> str:
        return self._request.script if self._request.module else Path(sys.argv[0] or self._request.script).name
