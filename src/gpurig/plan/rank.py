"""All offers × recipes, ranked by the total cost of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpurig.model.offer import Offer, Price
from gpurig.model.plan import Choice, Goal, Plan, Reason, Rejection, SpotPolicy
from gpurig.plan.recipes import ScriptBatch, recipes
from gpurig.plan.spot import spot_cost

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu
    from gpurig.model.prediction import Prediction
    from gpurig.model.recipe import Recipe

Convert = Callable[[Price], float]
"""A price per hour in the goal's currency."""


@dataclass(frozen=True, slots=True)
class Host:
    """What of the instance changes the time of a step, for one GPU of it."""

    gpus_per_node: int
    intra_node_link: str | None
    nvlink_gb_per_s: float | None
    network_gbps: float | None
    vcpus: float | None


class Workload(Protocol):
    """What the planner has to know of the script: a provider of predictions."""

    @property
    def batch(self) -> ScriptBatch:
        """The batch as the script runs it."""

    @property
    def precisions(self) -> Sequence[str]:
        """Precisions in which the step is known, the script's own first."""

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint: weights and optimizer state."""

    def supports(self, gpu: Gpu, precision: str) -> bool:
        """Whether the GPU has hardware for the precision."""

    def predict(self, recipe: Recipe, gpu: Gpu, host: Host) -> Prediction | None:
        """Memory and time, or None where the step is not known under this recipe."""


@dataclass(frozen=True, slots=True)
class _No:
    """Why one offer was not taken; `distance` orders near misses (smaller is nearer)."""

    reason: Reason
    text: str
    distance: float


def rank(
    offers: Iterable[Offer],
    gpus: Mapping[str, Gpu],
    parts: Callable[[str], Sequence[Gpu]],
    workload: Workload,
    goal: Goal,
    convert: Convert,
    *,
    filtered_out: int = 0,
) -> Plan:
    """The plan for a run.

    Args:
        offers: What can be rented, already filtered by the user's wishes.
        gpus: Facts by gpu_id.
        parts: The exact parts that a family name may mean, for offers that do not state the form.
        workload: Predictions of the step.
        goal: What is wanted.
        convert: Prices into the goal's currency.
        filtered_out: How many offers the user's own filters removed, for the account.
    """
    ranker = _Ranker(gpus, parts, workload, goal, convert)
    choices: list[Choice] = []
    noes: list[_No] = []
    considered = 0
    for offer in offers:
        considered += 1
        found, reasons = ranker.judge(offer)
        choices += found
        if not found:
            noes.append(min(reasons, key=lambda no: _SEVERITY.index(no.reason)))
    choices.sort(key=lambda c: (c.cost, c.hours, c.offer.provider, c.offer.instance_type, c.offer.region or ""))
    rejections = _count(noes)
    if filtered_out:
        rejections = (*rejections, Rejection(reason=Reason.FILTERED, count=filtered_out, nearest=""))
    return Plan(
        goal=goal,
        choices=tuple(choices),
        frontier=frontier(choices),
        rejections=rejections,
        considered=considered + filtered_out,
    )


def frontier(choices: Sequence[Choice]) -> tuple[int, ...]:
    """Indices of the choices that no other beats in both cost and hours, cheapest first. `choices` are sorted by cost."""
    best = float("inf")
    kept: list[int] = []
    for index, choice in enumerate(choices):
        if choice.hours < best * (1 - 1e-9):
            kept.append(index)
            best = choice.hours
    return tuple(kept)


# the reason that is reported where several applied: the one that the user could least do something about comes last
_SEVERITY = (
    Reason.BUDGET,
    Reason.DEADLINE,
    Reason.MEMORY_UNSURE,
    Reason.MEMORY,
    Reason.HOST_MEMORY,
    Reason.BATCH,
    Reason.PRECISION,
    Reason.SPOT,
    Reason.PRICE,
    Reason.SUSPECT,
    Reason.TOO_MANY_GPUS,
    Reason.SLICE,
    Reason.GPU_FACTS,
    Reason.FILTERED,
)


class _Ranker:
    def __init__(
        self,
        gpus: Mapping[str, Gpu],
        parts: Callable[[str], Sequence[Gpu]],
        workload: Workload,
        goal: Goal,
        convert: Convert,
    ) -> None:
        self._gpus = gpus
        self._parts = parts
        self._workload = workload
        self._goal = goal
        self._convert = convert
        self._seen: dict[tuple[str, int, Host], tuple[tuple[Recipe, Prediction] | None, tuple[_No, ...]]] = {}

    def judge(self, offer: Offer) -> tuple[list[Choice], list[_No]]:
        """The choices that an offer gives (on demand, spot), or why it gives none."""
        if offer.suspect is not None:
            return [], [_No(Reason.SUSPECT, f"{offer.provider} {offer.instance_type}: {offer.suspect}", 0)]
        if offer.vgpu or offer.gpu_count != int(offer.gpu_count) or offer.mig_profile:
            return [], [_No(Reason.SLICE, offer.gpu_label, 0)]
        exact = None if offer.gpu_id is None else self._gpus.get(offer.gpu_id)
        possible = self._parts(offer.gpu_family) if exact is None else (exact,)
        candidates = tuple(g for g in possible if _predictable(g))
        if not candidates:
            return [], [_No(Reason.GPU_FACTS, offer.gpu_label, 0)]
        choices: list[Choice] = []
        noes: list[_No] = []
        for num_nodes in range(1, self._goal.max_nodes + 1):
            num_gpus = int(offer.gpu_count) * num_nodes
            if num_gpus > self._goal.max_gpus:
                noes.append(_No(Reason.TOO_MANY_GPUS, f"{offer.gpu_label}: {num_gpus} GPUs", num_gpus))
                break
            found, reasons = self._with_nodes(offer, candidates, num_nodes)
            choices += found
            noes += reasons
        return choices, noes

    def _with_nodes(self, offer: Offer, candidates: Sequence[Gpu], num_nodes: int) -> tuple[list[Choice], list[_No]]:
        host = Host(int(offer.gpu_count), offer.intra_node_link, offer.nvlink_gb_per_s, offer.network_gbps, offer.vcpus)
        worst: tuple[Gpu, Recipe, Prediction] | None = None
        for gpu in candidates:  # the form is not stated: the slowest that it may be is promised
            best, noes = self._best_recipe(gpu, num_nodes, host)
            if best is None:
                return [], list(noes)
            if worst is None or best[1].time.step_time_s > worst[2].time.step_time_s:
                worst = (gpu, *best)
        assert worst is not None
        notes = () if len(candidates) == 1 else (f"form not stated by {offer.provider}: {worst[0].gpu_id} assumed",)
        choices: list[Choice] = []
        reasons: list[_No] = []
        for spot in self._ways(offer, reasons):
            choice = self._choice(offer, num_nodes, worst, notes, spot=spot)
            missed = self._misses_goal(choice)
            if missed is None:
                choices.append(choice)
            else:
                reasons.append(missed)
        return choices, reasons

    def _ways(self, offer: Offer, reasons: list[_No]) -> list[bool]:
        policy = self._goal.spot
        ways = [] if policy is SpotPolicy.ONLY else [False]
        if policy is not SpotPolicy.NEVER and offer.spot is not None:
            ways.append(True)
        elif policy is SpotPolicy.ONLY:
            reasons.append(_No(Reason.SPOT, offer.gpu_label, 0))
        return ways

    def _best_recipe(
        self, gpu: Gpu, num_nodes: int, host: Host
    ) -> tuple[tuple[Recipe, Prediction] | None, tuple[_No, ...]]:
        key = (gpu.gpu_id, num_nodes, host)
        if key not in self._seen:
            self._seen[key] = self._search_recipes(gpu, num_nodes, host)
        return self._seen[key]

    def _search_recipes(
        self, gpu: Gpu, num_nodes: int, host: Host
    ) -> tuple[tuple[Recipe, Prediction] | None, tuple[_No, ...]]:
        """The fastest recipe that fits, over precisions; in each the largest micro-batch that fits."""
        best: tuple[Recipe, Prediction] | None = None
        noes: list[_No] = []
        for precision in self._workload.precisions:
            if not self._workload.supports(gpu, precision):
                noes.append(_No(Reason.PRECISION, f"{gpu.gpu_id}: no {precision}", 0))
                continue
            fitting = self._first_that_fits(gpu, num_nodes, host, precision, noes)
            if fitting is not None and (best is None or _rate(fitting) > _rate(best)):
                best = fitting
        return best, tuple(noes)

    def _first_that_fits(
        self, gpu: Gpu, num_nodes: int, host: Host, precision: str, noes: list[_No]
    ) -> tuple[Recipe, Prediction] | None:
        tried = False
        num_gpus = host.gpus_per_node * num_nodes
        for recipe in recipes(self._workload.batch, num_gpus, num_nodes, precision, self._goal.batch):
            prediction = self._workload.predict(recipe, gpu, host)
            if prediction is None:
                continue
            tried = True
            if prediction.fits:
                return recipe, prediction
            noes.append(_memory_no(gpu, recipe, prediction))
        if not tried:
            noes.append(_No(Reason.BATCH, f"{num_gpus} GPUs", 0))
        return None

    def _choice(
        self, offer: Offer, num_nodes: int, worst: tuple[Gpu, Recipe, Prediction], notes: tuple[str, ...], *, spot: bool
    ) -> Choice:
        gpu, recipe, prediction = worst
        goal = self._goal
        per_step = (recipe.micro_batch or 1) * recipe.accumulation * recipe.num_gpus
        steps = goal.run.samples / per_step
        useful_h = steps * prediction.time.step_time_s / 3600
        startup_h = goal.startup_s / 3600
        price = offer.spot if spot else offer.on_demand
        assert price is not None
        interruptions = None
        hours = useful_h + startup_h
        if spot:
            interruptions = spot_cost(
                useful_h,
                self._workload.checkpoint_bytes,
                offer,
                startup_s=goal.startup_s,
                save_gb_per_s=goal.save_gb_per_s,
            )
            hours = useful_h * (1 + interruptions.overhead) + startup_h
        return Choice(
            offer=offer,
            num_nodes=num_nodes,
            spot=spot,
            gpu_id=gpu.gpu_id,
            recipe=recipe,
            prediction=prediction,
            steps=steps,
            hours=hours,
            price_per_h=price.amount_per_h * num_nodes,
            cost_native=price.amount_per_h * num_nodes * hours,
            cost=self._convert(price) * num_nodes * hours,
            spot_cost=interruptions,
            notes=notes,
        )

    def _misses_goal(self, choice: Choice) -> _No | None:
        goal = self._goal
        where = f"{choice.offer.provider} {choice.offer.instance_type}"
        if goal.deadline_h is not None and choice.hours > goal.deadline_h:
            text = f"{where}: {choice.hours:.1f} h, deadline {goal.deadline_h:g} h"
            return _No(Reason.DEADLINE, text, choice.hours / goal.deadline_h)
        if goal.budget is not None and choice.cost > goal.budget:
            text = f"{where}: {choice.cost:.2f} {goal.currency}, budget {goal.budget:g}"
            return _No(Reason.BUDGET, text, choice.cost / goal.budget)
        return None


def _predictable(gpu: Gpu) -> bool:
    """Whether the facts that a prediction needs are known. Only CUDA devices are predicted."""
    facts = (gpu.memory_bandwidth_gb_per_s, gpu.fp32_tflops, gpu.sm_count, gpu.sm)
    return gpu.vendor == "NVIDIA" and all(fact is not None for fact in facts)


def _rate(found: tuple[Recipe, Prediction]) -> float:
    recipe, prediction = found
    return (recipe.micro_batch or 1) * recipe.accumulation * recipe.num_gpus / prediction.time.step_time_s


def _memory_no(gpu: Gpu, recipe: Recipe, prediction: Prediction) -> _No:
    needs, has = prediction.memory.peak_device / (1 << 30), prediction.usable_memory / (1 << 30)
    reason = Reason.MEMORY if prediction.fits is False else Reason.MEMORY_UNSURE
    at = f" at micro-batch {recipe.micro_batch}" if recipe.micro_batch else ""
    return _No(reason, f"{gpu.gpu_id}: needs {needs:.1f} GiB{at}, has {has:.1f}", needs / has)


def _count(noes: Iterable[_No]) -> tuple[Rejection, ...]:
    by_reason: dict[Reason, list[_No]] = {}
    for no in noes:
        by_reason.setdefault(no.reason, []).append(no)
    return tuple(
        Rejection(reason=reason, count=len(group), nearest=min(group, key=lambda n: (n.distance, n.text)).text)
        for reason, group in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    )
