"""Plan: what to rent, how to run on it, what it will cost, and why each other offer was not chosen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpurig.model.offer import Currency, Offer

if TYPE_CHECKING:
    from gpurig.model.prediction import Prediction
    from gpurig.model.recipe import Recipe


class SpotPolicy(StrEnum):
    """Whether instances that the provider may take back are considered."""

    NEVER = "never"
    ALLOW = "allow"
    ONLY = "only"


class BatchPolicy(StrEnum):
    """What happens to the batch on several GPUs."""

    KEEP = "keep"  # the global batch of the script stays: each GPU gets a share, so the training is the same
    SCALE = "scale"  # each GPU runs the script's batch: the global batch grows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """How much there is to train."""

    samples: float  # over the whole run, all ranks
    text: str  # "3 epochs of 50,000 samples"
    assumed: bool  # the script does not say; a stated default was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted of a run."""

    run: RunLength
    currency: Currency = Currency.USD
    budget: float | None = None  # in `currency`, for the whole run
    deadline_h: float | None = None
    spot: SpotPolicy = SpotPolicy.ALLOW
    batch: BatchPolicy = BatchPolicy.KEEP
    max_gpus: int = 8
    max_nodes: int = 1
    startup_s: float = 300.0  # boot, environment, data: paid for, once a start
    save_gb_per_s: float = 0.5  # checkpoint writing


class Reason(StrEnum):
    """Why an offer is not among the choices."""

    MEMORY = "memory"
    MEMORY_UNSURE = "memory within the error band"
    PRECISION = "no hardware for the precision"
    GPU_FACTS = "GPU facts not known"
    SLICE = "a slice of a GPU, not predicted"
    HOST_MEMORY = "host memory"
    PRICE = "price not known"
    SUSPECT = "price not believed"
    SPOT = "not offered as spot"
    BATCH = "batch does not divide over the GPUs"
    TOO_MANY_GPUS = "more GPUs than allowed"
    DEADLINE = "deadline"
    BUDGET = "budget"
    FILTERED = "filtered out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One reason, how many offers it excluded, and the one that came closest."""

    reason: Reason
    count: int
    nearest: str  # "L4 24 GB: needs 31.2 GiB, has 22.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCost:
    """What interruptions add."""

    hazard_per_h: float
    hazard_source: str
    hazard_assumed: bool
    checkpoint_every_s: float  # Young/Daly
    save_s: float
    restart_s: float
    expected_interruptions: float
    overhead: float  # share of the useful time


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to do the run."""

    offer: Offer
    num_nodes: int
    spot: bool
    gpu_id: str
    recipe: Recipe
    prediction: Prediction
    steps: float
    hours: float  # expected, with start-up and interruptions
    price_per_h: float  # native currency, all nodes
    cost_native: float
    cost: float  # in the goal's currency
    spot_cost: SpotCost | None
    notes: tuple[str, ...] = ()

    @property
    def samples_per_s(self) -> float:
        samples = (self.recipe.micro_batch or 1) * self.recipe.accumulation * self.recipe.num_gpus
        return samples / self.prediction.time.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Choices by total cost, and what was rejected."""

    goal: Goal
    choices: tuple[Choice, ...]
    frontier: tuple[int, ...]  # indices of choices that nothing beats in both cost and time, cheapest first
    rejections: tuple[Rejection, ...]
    considered: int

    @property
    def best(self) -> Choice | None:
        """The cheapest, or None if nothing is left."""
        return self.choices[0] if self.choices else None
