"""The caching allocator against its documented rules, and what must hold for any history."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurig.predict.allocator import AllocatorSettings, CachingAllocator, OutOfMemory, Usage, replay

KIB, MIB = 1 << 10, 1 << 20
History = list[tuple[int, int, int]]


@pytest.mark.parametrize(
    ("requests", "allocated", "reserved"),
    [
        pytest.param([1], 512, 2 * MIB, id="rounded to 512 B, from a small segment"),
        pytest.param([513], 1024, 2 * MIB, id="rounded up, never down"),
        pytest.param([MIB], MIB, 2 * MIB, id="1 MiB is still small"),
        pytest.param([MIB + 1], MIB + 512, 20 * MIB, id="above 1 MiB from a 20 MiB segment"),
        pytest.param([10 * MIB - 512], 10 * MIB - 512, 20 * MIB, id="just below 10 MiB shares a segment"),
        pytest.param([10 * MIB], 10 * MIB, 10 * MIB, id="10 MiB has a segment of its own"),
        pytest.param(
            [12 * MIB - 512], 12 * MIB, 12 * MIB, id="own segments are rounded to 2 MiB, the rest is not split"
        ),
        pytest.param([11 * MIB, MIB], 13 * MIB, 14 * MIB, id="small ones never use what large ones left"),
        pytest.param([MIB, MIB, 1], 2 * MIB + 512, 4 * MIB, id="two fill a small segment, the third opens the next"),
        pytest.param([8 * MIB, 8 * MIB, 4 * MIB], 20 * MIB, 20 * MIB, id="three share a large segment"),
        pytest.param([8 * MIB, 8 * MIB, 2 * MIB], 18 * MIB, 20 * MIB, id="a rest of more than 1 MiB is split off"),
    ],
)
def test_sizes_of_requests_and_segments(requests: list[int], allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    for key, size in enumerate(requests):
        allocator.malloc(key, size)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


@pytest.mark.parametrize(("second", "given_out"), [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512)])
def test_a_large_block_is_split_only_if_more_than_1_mib_remains(second: int, given_out: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(0, 20 * MIB)
    allocator.free(0)
    allocator.malloc(1, second)
    assert allocator.allocated == given_out


def test_neighbours_merge_when_freed() -> None:
    allocator = CachingAllocator()
    for key in range(4):
        allocator.malloc(key, 5 * MIB)
    for key in (0, 2, 1, 3):
        allocator.free(key)
    allocator.malloc(9, 9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    for key, size in enumerate((40 * MIB, 12 * MIB)):
        allocator.malloc(key, size)
    for key in (0, 1):
        allocator.free(key)
    allocator.malloc(2, 12 * MIB)
    allocator.malloc(3, 40 * MIB)
    assert allocator.reserved == 52 * MIB


def test_cached_segments_are_released_before_it_fails() -> None:
    allocator = CachingAllocator(capacity=30 * MIB)
    allocator.malloc(0, 20 * MIB)
    allocator.free(0)
    allocator.malloc(1, 24 * MIB)
    assert (allocator.reserved, allocator.retries) == (24 * MIB, 1)
    with pytest.raises(OutOfMemory):
        allocator.malloc(2, 12 * MIB)
    assert allocator.allocated == 24 * MIB


def test_a_segment_in_use_is_not_released() -> None:
    allocator = CachingAllocator(capacity=30 * MIB)
    allocator.malloc(0, 5 * MIB)
    allocator.malloc(1, 9 * MIB)
    allocator.free(1)
    with pytest.raises(OutOfMemory):
        allocator.malloc(2, 20 * MIB)


@pytest.mark.parametrize(
    ("options", "requests", "allocated"),
    [
        pytest.param(AllocatorSettings(roundup_power2_divisions=4), [5 * MIB], 5 * MIB, id="on a division"),
        pytest.param(AllocatorSettings(roundup_power2_divisions=4), [5 * MIB + 1], 6 * MIB, id="up to the next"),
        pytest.param(AllocatorSettings(roundup_power2_divisions=4), [1000], 1024, id="small sizes as ever"),
    ],
)
def test_rounding_to_divisions_of_powers_of_two(
    options: AllocatorSettings, requests: list[int], allocated: int
) -> None:
    allocator = CachingAllocator(options)
    for key, size in enumerate(requests):
        allocator.malloc(key, size)
    assert allocator.allocated == allocated


def test_blocks_above_the_split_limit_are_kept_for_large_requests() -> None:
    limited = CachingAllocator(AllocatorSettings(max_split_bytes=50 * MIB))
    plain = CachingAllocator()
    for allocator in (limited, plain):
        allocator.malloc(0, 100 * MIB)
        allocator.free(0)
        allocator.malloc(1, 20 * MIB)
    assert plain.reserved == 100 * MIB
    assert limited.reserved == 120 * MIB


def test_expandable_segments_have_no_gaps_between_segments() -> None:
    growing = [(+1, 0, 0), (-1, 0, 0), (+1, 1, 0), (-1, 1, 0), (+1, 2, 0)]
    sizes = [100 * MIB, 140 * MIB, 180 * MIB]
    plain = replay(sizes, growing)
    expandable = replay(sizes, growing, settings=AllocatorSettings(expandable_segments=True))
    assert plain.peak_reserved == 420 * MIB
    assert expandable.peak_reserved == 180 * MIB


def test_expandable_segments_give_pages_back_at_the_limit() -> None:
    history = [(+1, 0, 0), (+1, 1, 0), (-1, 0, 0), (+1, 2, 0)]
    sizes = [100 * MIB, 20 * MIB, 120 * MIB]
    usage = replay(sizes, history, settings=AllocatorSettings(expandable_segments=True), capacity=160 * MIB)
    assert usage.retries == 1
    with pytest.raises(OutOfMemory):
        replay(sizes, history, settings=AllocatorSettings(expandable_segments=True), capacity=130 * MIB)


def test_more_room_can_be_worse_than_less() -> None:
    """With little room cached segments go back early; with more, a small request settles in one and pins it.

    So a verdict near a limit comes from a replay at that very limit.
    """
    sizes = [60 * MIB, 100 * MIB, 20 * MIB, 12 * MIB, 30 * MIB]
    history = [(+1, 0, 0), (-1, 0, 0), (+1, 1, 0), (+1, 2, 0), (+1, 3, 0), (-1, 2, 0), (+1, 4, 0), (-1, 1, 0)]
    assert replay(sizes, history, capacity=150 * MIB).peak_reserved <= 150 * MIB
    with pytest.raises(OutOfMemory):
        replay(sizes, history, capacity=160 * MIB)


# --- any history --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Program:
    """Sizes and a history in which every storage is made once and freed at most once, after it was made."""

    sizes: list[int]
    events: History


@st.composite
def programs(draw: st.DrawFn) -> Program:
    sizes = draw(
        st.lists(
            st.one_of(st.integers(1, 4 * KIB), st.integers(MIB // 2, 3 * MIB), st.integers(8 * MIB, 60 * MIB)),
            min_size=1,
            max_size=40,
        )
    )
    events: History = []
    live: list[int] = []
    for index in range(len(sizes)):
        while live and draw(st.booleans()):
            events.append((-1, live.pop(draw(st.integers(0, len(live) - 1))), 0))
        events.append((+1, index, 0))
        live.append(index)
    return Program(sizes, events)


configurations = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(expandable_segments=True),
        AllocatorSettings(max_split_bytes=20 * MIB),
        AllocatorSettings(roundup_power2_divisions=8),
    ]
)


@given(programs(), configurations)
@settings(deadline=None)
def test_reserved_covers_allocated_and_blocks_never_overlap(program: Program, options: AllocatorSettings) -> None:
    allocator = CachingAllocator(options)
    for sign, key, _ in program.events:
        if sign > 0:
            allocator.malloc(key, program.sizes[key])
        else:
            allocator.free(key)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved
        blocks = sorted(allocator._by_address.values(), key=lambda b: b.address)
        assert all(a.address + a.size <= b.address for a, b in itertools.pairwise(blocks))
        assert sum(b.size for b in blocks) == allocator.reserved
        assert sum(b.size for b in blocks if not b.free) == allocator.allocated


@given(programs(), configurations)
@settings(deadline=None)
def test_freeing_everything_returns_to_nothing_allocated(program: Program, options: AllocatorSettings) -> None:
    made = {key for sign, key, _ in program.events if sign > 0}
    freed = {key for sign, key, _ in program.events if sign < 0}
    usage = replay(program.sizes, [*program.events, *((-1, key, 0) for key in made - freed)], settings=options)
    assert usage.end_allocated == 0
    assert usage.peak_reserved >= usage.peak_allocated >= max(program.sizes)


@given(programs(), configurations, st.integers(0, 200 * MIB))
@settings(deadline=None)
def test_room_for_the_unlimited_peak_is_always_enough(program: Program, options: AllocatorSettings, more: int) -> None:
    unlimited = replay(program.sizes, program.events, settings=options)
    limited = replay(program.sizes, program.events, settings=options, capacity=unlimited.peak_reserved + more)
    assert limited == unlimited


@given(programs(), configurations)
@settings(deadline=None)
def test_less_room_than_is_in_use_never_fits(program: Program, options: AllocatorSettings) -> None:
    with pytest.raises(OutOfMemory):
        replay(program.sizes, program.events, settings=options, capacity=_in_use(program) - 1)


def _in_use(program: Program) -> int:
    """Bytes asked for and not yet freed, at their highest: no allocator can do with less."""
    now = peak = 0
    for sign, key, _ in program.events:
        now += sign * program.sizes[key]
        peak = max(peak, now)
    return peak


@given(programs(), st.lists(st.integers(1000, 2000), max_size=8), st.data())
@settings(deadline=None)
def test_frees_of_unknown_keys_change_nothing(program: Program, unknown: list[int], data: st.DataObject) -> None:
    mixed = list(program.events)
    for key in unknown:
        mixed.insert(data.draw(st.integers(0, len(mixed))), (-1, key, 0))
    assert _figures(replay(program.sizes, mixed)) == _figures(replay(program.sizes, program.events))


def _figures(usage: Usage) -> tuple[int, int, int, tuple[int, ...]]:
    return usage.peak_allocated, usage.peak_reserved, usage.end_allocated, usage.live_at_peak


@given(programs(), st.integers(0, 39))
@settings(deadline=None)
def test_measuring_from_later_leaves_earlier_peaks_out(program: Program, start: int) -> None:
    whole = replay(program.sizes, program.events)
    part = replay(program.sizes, program.events, measure_from=min(start, len(program.events) - 1))
    assert part.peak_allocated <= whole.peak_allocated
    assert part.peak_reserved == whole.peak_reserved


@given(programs())
@settings(deadline=None)
def test_what_is_live_at_the_peak_adds_up_to_it(program: Program) -> None:
    usage = replay(program.sizes, program.events)
    in_use = CachingAllocator()
    for sign, key, _ in program.events[: usage.peak_event + 1]:
        if sign > 0:
            in_use.malloc(key, program.sizes[key])
        else:
            in_use.free(key)
    assert in_use.allocated == usage.peak_allocated
    assert set(usage.live_at_peak) == set(in_use._used)
