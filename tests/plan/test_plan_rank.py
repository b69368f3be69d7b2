"""Ranking: every offer is either a choice or counted as rejected, and the arithmetic adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_fakes import MadeUpWorkload, gpu, offer

from gpurig.model.offer import SpotBand
from gpurig.model.plan import BatchPolicy, Goal, Plan, Reason, RunLength, SpotPolicy
from gpurig.plan.rank import rank
from gpurig.plan.recipes import ScriptBatch, recipes
from gpurig.plan.spot import checkpoint_interval_s, hazard_per_h, spot_cost

GPUS = {g.gpu_id: g for g in (gpu(), gpu("small", 16.0), gpu("slow", 80.0, fp16_tflops=100.0))}
GOAL = Goal(run=RunLength(samples=1_000_000, text="a million samples", assumed=False))


def plan(offers, goal=GOAL, workload=None, **options) -> Plan:
    workload = workload or MadeUpWorkload()
    return rank(offers, GPUS, lambda family: [GPUS["slow"], GPUS["small"]], workload, goal,
                lambda price: price.amount_per_h * (0.14 if price.currency == "CNY" else 1.0), **options)  # fmt: skip


def test_the_cheapest_run_comes_first_not_the_cheapest_hour() -> None:
    slow = offer(1.0, gpu_id="slow", instance_type="slow")
    found = plan([slow, offer(2.0)])
    assert [c.offer.instance_type for c in found.choices] == ["one", "slow"]
    assert found.choices[0].price_per_h > found.choices[1].price_per_h


def test_cost_is_hours_times_price() -> None:
    (choice,) = plan([offer(2.0)]).choices
    useful = choice.steps * choice.prediction.time.step_time_s / 3600
    assert choice.steps == GOAL.run.samples / 16
    assert choice.hours == pytest.approx(useful + GOAL.startup_s / 3600)
    assert choice.cost == pytest.approx(choice.hours * 2.0)


def test_a_foreign_price_is_converted_and_kept() -> None:
    (choice,) = plan([offer(10.0, currency="CNY")]).choices
    assert choice.cost_native == pytest.approx(choice.hours * 10.0)
    assert choice.cost == pytest.approx(choice.hours * 1.4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"gpu_id": "small"}, Reason.MEMORY, id="memory"),
        pytest.param({"suspect": "60 % below the median"}, Reason.SUSPECT, id="suspect price"),
        pytest.param({"vgpu": True, "gpu_count": 0.5}, Reason.SLICE, id="slice"),
        pytest.param({"gpu_count": 16.0}, Reason.TOO_MANY_GPUS, id="too many GPUs"),
        pytest.param({"gpu_count": 5.0}, Reason.BATCH, id="batch does not divide"),
    ],
)
def test_a_rejected_offer_is_counted_with_its_reason(changes, reason) -> None:
    found = plan([offer(**changes)], workload=MadeUpWorkload(gib=20.0))
    assert not found.choices
    assert [(r.reason, r.count) for r in found.rejections] == [(reason, 1)]


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        pytest.param(replace(GOAL, deadline_h=0.01), Reason.DEADLINE, id="deadline"),
        pytest.param(replace(GOAL, budget=0.01), Reason.BUDGET, id="budget"),
        pytest.param(replace(GOAL, spot=SpotPolicy.ONLY), Reason.SPOT, id="no spot price"),
    ],
)
def test_a_missed_goal_is_a_reason(goal, reason) -> None:
    assert [r.reason for r in plan([offer()], goal).rejections] == [reason]


def test_the_slowest_possible_part_is_promised_where_the_form_is_not_stated() -> None:
    (choice,) = plan([offer(gpu_id=None, gpu_family="A100")], workload=MadeUpWorkload(gib=4.0)).choices
    assert choice.gpu_id == "slow"
    assert "form not stated" in choice.notes[0]


def test_unknown_facts_are_a_reason_of_their_own() -> None:
    unknown = replace(GPUS["slow"], sm_count=None)
    found = rank([offer(gpu_id="x")], {"x": unknown}, lambda _: [], MadeUpWorkload(), GOAL, lambda p: p.amount_per_h)
    assert [r.reason for r in found.rejections] == [Reason.GPU_FACTS]


def test_the_users_filters_are_part_of_the_account() -> None:
    found = plan([offer()], filtered_out=7)
    assert found.considered == 8
    assert (Reason.FILTERED, 7) in [(r.reason, r.count) for r in found.rejections]


_offers = st.lists(
    st.builds(
        offer,
        price=st.floats(0.1, 50),
        gpu_id=st.sampled_from(["A100-SXM4-40GB", "small", "slow"]),
        gpu_count=st.sampled_from([1.0, 2.0, 4.0, 8.0, 0.5]),
        spot_price_per_h=st.none() | st.floats(0.05, 20),
        suspect=st.none() | st.just("too low"),
    ),
    max_size=12,
)


class TestProperties:
    """A plan accounts for every offer; wishes only ever remove choices; nothing on the frontier is beaten."""

    @given(_offers)
    def test_every_offer_is_a_choice_or_rejected(self, offers) -> None:
        found = plan(offers)
        with_choice = {id(c.offer) for c in found.choices}
        rejected = sum(r.count for r in found.rejections)
        assert rejected == sum(id(o) not in with_choice for o in offers)

    @given(_offers, st.floats(0.5, 100), st.floats(0.1, 20))
    def test_a_wish_never_adds_a_choice(self, offers, budget, deadline) -> None:
        free = plan(offers)
        bound = plan(offers, replace(GOAL, budget=budget, deadline_h=deadline))
        assert {(c.cost, c.hours) for c in bound.choices} <= {(c.cost, c.hours) for c in free.choices}
        assert all(c.cost <= budget and c.hours <= deadline for c in bound.choices)

    @given(_offers)
    def test_nothing_beats_the_frontier(self, offers) -> None:
        found = plan(offers)
        for index in found.frontier:
            best = found.choices[index]
            assert not any(c.cost < best.cost and c.hours < best.hours for c in found.choices)

    @given(_offers)
    def test_choices_are_in_order_of_cost(self, offers) -> None:
        costs = [c.cost for c in plan(offers).choices]
        assert costs == sorted(costs)


class TestRecipes:
    """The global batch is the script's, whatever the number of GPUs."""

    @given(st.integers(1, 512), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
    def test_the_global_batch_stays(self, micro_batch, accumulation, num_gpus) -> None:
        batch = ScriptBatch(micro_batch=micro_batch, accumulation=accumulation, adjustable=True)
        for recipe in recipes(batch, num_gpus, 1, "fp32", BatchPolicy.KEEP):
            assert recipe.micro_batch * recipe.accumulation * recipe.num_gpus == micro_batch * accumulation
            assert recipe.micro_batch <= micro_batch

    def test_largest_micro_batch_first(self) -> None:
        found = list(recipes(ScriptBatch(micro_batch=16, adjustable=True), 2, 1, "fp32", BatchPolicy.KEEP))
        assert [(r.micro_batch, r.accumulation) for r in found] == [(8, 1), (4, 2), (2, 4), (1, 8)]

    def test_scaling_keeps_the_batch_of_each_gpu(self) -> None:
        found = next(recipes(ScriptBatch(micro_batch=16, adjustable=True), 4, 1, "fp32", BatchPolicy.SCALE))
        assert (found.micro_batch, found.accumulation, found.num_gpus) == (16, 1, 4)

    def test_without_a_second_trace_only_the_scripts_own_micro_batch_is_known(self) -> None:
        batch = ScriptBatch(micro_batch=16, accumulation=4)
        assert [(r.micro_batch, r.accumulation) for r in recipes(batch, 2, 1, "fp32", BatchPolicy.KEEP)] == [(16, 2)]
        assert not list(recipes(ScriptBatch(micro_batch=16), 2, 1, "fp32", BatchPolicy.KEEP))


class TestSpot:
    def test_interruptions_cost_time(self) -> None:
        cost = spot_cost(10.0, 10**9, offer(), startup_s=300, save_gb_per_s=0.5)
        assert cost.hazard_assumed
        assert cost.expected_interruptions > 0
        assert 0 < cost.overhead < 0.2

    def test_a_published_band_gives_the_hazard(self) -> None:
        hazard, source, assumed = hazard_per_h(offer(spot_interruption=SpotBand.UNDER_5))
        assert not assumed
        assert "<5%" in source
        assert hazard == pytest.approx(0.05129 / 730, rel=1e-3)

    @given(st.floats(1, 1000), st.floats(1e-5, 1))
    def test_youngs_interval_minimises_the_overhead(self, save_s, hazard) -> None:
        def overhead(interval: float) -> float:
            return save_s / interval + hazard / 3600 * interval / 2

        best = checkpoint_interval_s(save_s, hazard)
        assert overhead(best) <= min(overhead(best * 0.9), overhead(best * 1.1))

    def test_spot_is_a_choice_of_its_own_with_its_price(self) -> None:
        found = plan([offer(2.0, spot_price_per_h=0.5)])
        assert [c.spot for c in found.choices] == [True, False]
        assert found.choices[0].hours > found.choices[1].hours
