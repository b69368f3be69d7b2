from __future__ import annotations

import pytest
from cards import card
from hypothesis import given
from hypothesis import strategies as st

from gpurig.predict.communication import Link, allreduce_time_s, buckets, exposed_time_s, link_of

LINK = Link(gpu_gb_per_s=100.0, network_gb_per_s=10.0, latency_s=0.0)


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"),
    [
        pytest.param(1, 1, 0.0, id="one GPU talks to nobody"),
        pytest.param(2, 1, 1.0, id="two halves over one link"),
        pytest.param(8, 1, 1.75, id="ring of eight"),
        pytest.param(16, 2, 10.0, id="the network is the slower part"),
        pytest.param(2, 2, 10.0, id="two nodes of one"),
    ],
)
def test_ring_all_reduce(gpus, nodes, expected):
    assert allreduce_time_s(100e9, gpus, nodes, LINK) == pytest.approx(expected)


@pytest.mark.parametrize(("gpus", "nodes"), [(0, 1), (3, 2), (4, 0)])
def test_gpus_that_do_not_divide_over_nodes_are_refused(gpus, nodes):
    with pytest.raises(ValueError, match="GPUs"):
        allreduce_time_s(1.0, gpus, nodes, LINK)


def test_nodes_without_a_network_are_refused():
    with pytest.raises(ValueError, match="network"):
        allreduce_time_s(1.0, 16, 2, Link(gpu_gb_per_s=100.0))


def test_buckets_hold_every_byte_and_start_with_a_small_one():
    sizes = [400_000] * 200
    found = buckets(sizes)
    assert sum(size for size, _ in found) == sum(sizes)
    assert found[0][0] < 2 << 20 < found[1][0]
    assert found[-1][1] == 1.0


@given(st.lists(st.integers(1, 10**8), min_size=1, max_size=50), st.floats(1e-3, 1.0), st.integers(2, 8))
def test_communication_is_never_negative_and_a_faster_link_never_exposes_more(sizes, backward_s, gpus):
    slow = exposed_time_s(sizes, backward_s, gpus, 1, Link(gpu_gb_per_s=10.0))
    fast = exposed_time_s(sizes, backward_s, gpus, 1, Link(gpu_gb_per_s=200.0))
    assert 0 <= fast <= slow * 1.0001


def test_a_long_backward_pass_hides_all_but_the_last_bucket():
    sizes = [25 << 20] * 20
    hidden = exposed_time_s(sizes, 100.0, 8, 1, LINK)
    assert hidden < 0.1 * exposed_time_s(sizes, 1e-6, 8, 1, LINK) + 0.05 * 100


def test_nvlink_is_faster_than_pcie():
    assert link_of(card("A100-SXM4-80GB")).gpu_gb_per_s > 10 * link_of(card("T4")).gpu_gb_per_s
