"""Simulation of PyTorch's CUDA caching allocator: what a program's requests make it reserve.

The rules are those of c10/cuda/CUDACachingAllocator.cpp, one stream, read in PyTorch 2.13 (sizes unchanged since 1.x):
requests are rounded up to 512 B; up to 1 MiB they come from 2 MiB segments, up to 10 MiB from 20 MiB segments, larger ones
from a segment of their own rounded to 2 MiB; the best fitting free block is split if enough remains; neighbours are merged
when freed; when the device is full, cached segments are released and the request tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MIN_BLOCK = 512
SMALL_SIZE = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE = 10 << 20
ROUND_LARGE = 2 << 20
_LARGE_ADDRESSES = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """PYTORCH_CUDA_ALLOC_CONF, as far as it changes sizes."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    roundup_power2_divisions: int = 0


class _Block:
    __slots__ = ("address", "free", "next", "previous", "size", "small")

    def __init__(self, address: int, size: int, *, small: bool) -> None:
        self.address = address
        self.size = size
        self.small = small
        self.free = False
        self.previous: _Block | None = None
        self.next: _Block | None = None


class OutOfMemory(Exception):
    """The device is full, also after every cached segment was released."""


class CachingAllocator:
    """The allocator's state after a series of requests.

    Attributes:
        allocated: Bytes in blocks given out now; `peak_allocated` its largest value so far.
        reserved: Bytes obtained from the device now; `peak_reserved` its largest value so far.
    """

    def __init__(self, settings: AllocatorSettings | None = None, capacity: int | None = None) -> None:
        self.settings = settings or AllocatorSettings()
        self.capacity = capacity
        self.allocated = self.peak_allocated = 0
        self.reserved = self.peak_reserved = 0
        self.retries = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # small? -> sorted (size, address)
        self._by_address: dict[int, _Block] = {}
        self._used: dict[int, _Block] = {}
        self._top = {True: 0, False: _LARGE_ADDRESSES}  # the next address of small and of large segments
        self._expandable: dict[bool, _Block | None] = {True: None, False: None}

    # --- requests -----------------------------------------------------------------------------------------------------
    def malloc(self, key: int, num_bytes: int) -> None:
        """Give out a block under `key`.

        Raises:
            OutOfMemory: the capacity is exceeded; the state is unchanged but for released segments.
        """
        size = self.rounded(num_bytes)
        small = size <= SMALL_SIZE
        block = self._take(size, small=small) or self._segment(size, small=small)
        if self._should_split(block, size):
            self._split(block, size)
        block.free = False
        self._used[key] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def free(self, key: int) -> None:
        """Take back the block of `key`; unknown keys are ignored (storages of no bytes)."""
        block = self._used.pop(key, None)
        if block is None:
            return
        self.allocated -= block.size
        block.free = True
        for neighbour in (block.previous, block.next):
            if neighbour is not None and neighbour.free:
                block = self._merge(block, neighbour)
        insort(self._free[block.small], (block.size, block.address))

    def rounded(self, num_bytes: int) -> int:
        """Bytes that a request of `num_bytes` takes from a block."""
        divisions = self.settings.roundup_power2_divisions
        if divisions > 1 and num_bytes > MIN_BLOCK * divisions:
            power = 1 << (num_bytes.bit_length() - 1)
            step = power // divisions
            return -(-num_bytes // step) * step
        return max(MIN_BLOCK, -(-num_bytes // MIN_BLOCK) * MIN_BLOCK)

    # --- free blocks --------------------------------------------------------------------------------------------------
    def _take(self, size: int, *, small: bool) -> _Block | None:
        """The smallest free block that is large enough, the lowest address among equals."""
        pool = self._free[small]
        index = bisect_left(pool, (size, -1))
        if index == len(pool):
            return None
        limit = self.settings.max_split_bytes
        found = pool[index][0]
        # a large block is not broken up for a small request, nor wasted on one that leaves too much
        if (
            limit is not None
            and not small
            and (size < limit <= found or (size >= limit and found >= size + LARGE_SEGMENT))
        ):
            return None
        return self._by_address[pool.pop(index)[1]]

    def _segment(self, size: int, *, small: bool) -> _Block:
        if self.settings.expandable_segments:
            return self._extend(size, small=small)
        if small:
            wanted = SMALL_SEGMENT
        elif size < MIN_LARGE:
            wanted = LARGE_SEGMENT
        else:
            wanted = -(-size // ROUND_LARGE) * ROUND_LARGE
        if not self._room_for(wanted):
            self._release_cached()
            if not self._room_for(wanted):
                raise OutOfMemory
        return self._new_block(wanted, small=small)

    def _extend(self, size: int, *, small: bool) -> _Block:
        """Grow the one expandable segment of the pool by whole pages (2 MiB small, 20 MiB large)."""
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        last = self._expandable[small]
        spare = last.size if last is not None and last.free else 0
        wanted = -(-(size - spare) // page) * page
        if not self._room_for(wanted):
            self._unmap_free()
            last = self._expandable[small]
            spare = last.size if last is not None and last.free else 0
            wanted = -(-(size - spare) // page) * page
            if not self._room_for(wanted):
                raise OutOfMemory
        block = self._new_block(wanted, small=small, after=last)
        if spare and last is not None:
            self._free[small].remove((last.size, last.address))
            block = self._merge(block, last)
        self._expandable[small] = block
        return block

    def _new_block(self, size: int, *, small: bool, after: _Block | None = None) -> _Block:
        block = _Block(self._top[small], size, small=small)
        if after is not None:
            after.next, block.previous = block, after
        self._by_address[block.address] = block
        self._top[small] += size if self.settings.expandable_segments else size + 1  # separate segments never touch
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def _room_for(self, size: int) -> bool:
        return self.capacity is None or self.reserved + size <= self.capacity

    def _release_cached(self) -> None:
        """Give segments without a used block back to the device."""
        self.retries += 1
        for small, pool in self._free.items():
            kept = []
            for size, address in pool:
                block = self._by_address[address]
                if block.previous is None and block.next is None:
                    self.reserved -= size
                    del self._by_address[address]
                else:
                    kept.append((size, address))
            self._free[small] = kept

    def _unmap_free(self) -> None:
        """Give the whole pages of free blocks back to the device; an expandable segment keeps only its addresses."""
        self.retries += 1
        for small, pool in self._free.items():
            page = SMALL_SEGMENT if small else LARGE_SEGMENT
            kept = []
            for size, address in pool:
                block = self._by_address[address]
                self.reserved -= size // page * page
                block.size = size % page
                if block.size:
                    kept.append((block.size, address))
                else:
                    self._unlink(block)
            self._free[small] = sorted(kept)

    def _unlink(self, block: _Block) -> None:
        del self._by_address[block.address]
        if block.previous is not None:
            block.previous.next = block.next
        if block.next is not None:
            block.next.previous = block.previous
        if self._expandable[block.small] is block:
            self._expandable[block.small] = block.previous

    def _should_split(self, block: _Block, size: int) -> bool:
        remaining = block.size - size
        if block.small or self.settings.expandable_segments:
            return remaining >= MIN_BLOCK
        limit = self.settings.max_split_bytes
        return remaining > SMALL_SIZE and (limit is None or size < limit)

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, small=block.small)
        rest.free = True
        rest.previous, rest.next = block, block.next
        if block.next is not None:
            block.next.previous = rest
        block.next = rest
        block.size = size
        self._by_address[rest.address] = rest
        if self._expandable[block.small] is block:
            self._expandable[block.small] = rest
        insort(self._free[block.small], (rest.size, rest.address))

    def _merge(self, block: _Block, neighbour: _Block) -> _Block:
        """One block of two that touch; the neighbour leaves the free list."""
        pool = self._free[block.small]
        index = bisect_left(pool, (neighbour.size, neighbour.address))
        if index < len(pool) and pool[index] == (neighbour.size, neighbour.address):
            pool.pop(index)
        first, second = (neighbour, block) if neighbour.address < block.address else (block, neighbour)
        first.size += second.size
        first.next = second.next
        if second.next is not None:
            second.next.previous = first
        first.free = True
        del self._by_address[second.address]
        if self._expandable[block.small] is second:
            self._expandable[block.small] = first
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a history of requests came to.

    `live_at_peak` holds the keys whose blocks were in use when `peak_allocated` was first reached; `peak_event` is the
    index of that event, -1 if nothing was asked for, and `peak_position` its position (see `replay`).
    """

    peak_allocated: int
    peak_reserved: int
    end_allocated: int
    retries: int
    peak_event: int
    peak_position: int
    live_at_peak: tuple[int, ...]


def replay(
    sizes: Sequence[int],
    events: Iterable[tuple[int, int, int]],
    *,
    settings: AllocatorSettings | None = None,
    capacity: int | None = None,
    resident: Sequence[int] = (),
    measure_from: int = 0,
) -> Usage:
    """Run a history of (sign, storage, position) through the allocator.

    Args:
        sizes: Bytes of each storage.
        events: +1 allocates, -1 frees; the position is the index of the call that did it, -1 if not known.
        settings: Allocator settings; PyTorch's defaults if None.
        capacity: Bytes that the device can give; None: no limit.
        resident: Sizes of blocks held throughout (library workspaces).
        measure_from: Index of the first event that counts for the peaks.

    Raises:
        OutOfMemory: the history does not fit into `capacity`.
    """
    allocator = CachingAllocator(settings, capacity)
    for index, size in enumerate(resident):
        allocator.malloc(-1 - index, size)
    peak = peak_event = -1
    history = list(events)
    for index, (sign, storage, _) in enumerate(history):
        if index == measure_from:
            allocator.peak_allocated, peak = allocator.allocated, -1
        if sign > 0:
            allocator.malloc(storage, sizes[storage])
            if allocator.allocated > peak:
                peak, peak_event = allocator.allocated, index
        else:
            allocator.free(storage)
    return Usage(
        peak_allocated=allocator.peak_allocated,
        peak_reserved=allocator.peak_reserved,
        end_allocated=allocator.allocated,
        retries=allocator.retries,
        peak_event=peak_event,
        peak_position=history[peak_event][2] if peak_event >= 0 else -1,
        live_at_peak=_live_after(history, peak_event),
    )


def _live_after(history: Sequence[tuple[int, int, int]], last: int) -> tuple[int, ...]:
    live: dict[int, None] = {}
    for sign, storage, _ in history[: last + 1]:
        if sign > 0:
            live[storage] = None
        else:
            live.pop(storage, None)
    return tuple(live)
