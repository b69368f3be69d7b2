"""Communication of data-parallel training: ring all-reduce over buckets, overlapped with the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpurig.model.gpu import Gpu

# torch.nn.parallel.DistributedDataParallel: bucket_cap_mb, and the first bucket that starts the pipeline
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
HOP_LATENCY_S = 15e-6
# Bus bandwidth that NCCL's all-reduce reaches of the sum of links, one direction: 230 of 300 GB/s on NVLink 3,
# 120 of 150 on NVLink 2, 10 to 12 of 15.75 on PCIe 3 x16 through the host bridge
NVLINK_SHARE = 0.78
PCIE_SHARE = 0.65
NETWORK_SHARE = 0.85
OVERLAP_SLOWDOWN = 1.04  # all-reduce kernels take multiprocessors from the backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the GPUs of a job. Bandwidths are in GB/s (10^9), one direction.

    Attributes:
        gpu_gb_per_s: Bus bandwidth of a ring inside one node, as all-reduce reaches it.
        network_gb_per_s: The same between nodes, per node; None: a single node.
        latency_s: Per hop.
    """

    gpu_gb_per_s: float
    network_gb_per_s: float | None = None
    latency_s: float = HOP_LATENCY_S

    def __post_init__(self) -> None:
        if self.gpu_gb_per_s <= 0 or (self.network_gb_per_s is not None and self.network_gb_per_s <= 0):
            raise ValueError("bandwidths are positive")


def link_of(gpu: Gpu, *, network_gbit_per_s: float | None = None) -> Link:
    """The link that a card's data sheet and the instance's network suggest.

    Args:
        gpu: Its NVLink if it has one, else PCIe.
        network_gbit_per_s: Network of one node in Gbit/s; None: 25, a common figure.
    """
    if gpu.nvlink_gb_per_s:
        inside = NVLINK_SHARE * gpu.nvlink_gb_per_s / 2
    else:
        generation, lanes = gpu.pcie_gen or 3.0, gpu.pcie_lanes or 16
        inside = PCIE_SHARE * 0.985 * 2 ** (generation - 3) * lanes
    return Link(gpu_gb_per_s=inside, network_gb_per_s=NETWORK_SHARE * (network_gbit_per_s or 25.0) / 8)


def allreduce_time_s(message_bytes: float, num_gpus: int, num_nodes: int, link: Link) -> float:
    """Time for one ring all-reduce.

    t = 2 (n − 1) / n · bytes / bandwidth + 2 (n − 1) · latency. Over several nodes a tree of rings: reduce inside the
    nodes, all-reduce between them, spread again; the slower of both paths sets the rate.

    Args:
        message_bytes: Gradient bucket.
        num_gpus: Ranks of the job; 1 returns 0.
        num_nodes: Nodes that they are spread over evenly.
        link: Bandwidths.

    Raises:
        ValueError: fewer than one GPU or node, GPUs that do not divide over nodes, or nodes without a network.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md.
    """
    if num_gpus < 1 or num_nodes < 1 or num_gpus % num_nodes:
        raise ValueError(f"{num_gpus} GPUs on {num_nodes} nodes")
    if num_gpus == 1:
        return 0.0
    per_node = num_gpus // num_nodes
    inside = 2 * (per_node - 1) / per_node * message_bytes / (link.gpu_gb_per_s * 1e9) if per_node > 1 else 0.0
    latency = 2 * (per_node - 1) * link.latency_s
    if num_nodes == 1:
        return inside + latency
    if link.network_gb_per_s is None:
        raise ValueError("several nodes need the bandwidth of a network")
    between = 2 * (num_nodes - 1) / num_nodes * message_bytes / (link.network_gb_per_s * 1e9)
    return max(inside, between) + latency + 2 * (num_nodes - 1) * 2 * link.latency_s


def buckets(gradient_bytes: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """Gradients in the order in which they become ready, as buckets: (bytes, share of the backward pass then done).

    Layers hold about as many tensors as they take time, so the i-th of n tensors is taken to be ready after i/n of
    the backward pass.
    """
    result: list[tuple[int, float]] = []
    size, limit = 0, FIRST_BUCKET_BYTES
    for index, num_bytes in enumerate(gradient_bytes, start=1):
        size += num_bytes
        if size >= limit or index == len(gradient_bytes):
            result.append((size, index / len(gradient_bytes)))
            size, limit = 0, BUCKET_BYTES
    return tuple(result)


def exposed_time_s(
    gradient_bytes: Sequence[int],
    backward_s: float,
    num_gpus: int,
    num_nodes: int,
    link: Link,
    *,
    sharded: bool = False,
) -> float:
    """Time that communication adds to a step beyond what the backward pass hides, its slowdown included.

    Args:
        gradient_bytes: Per parameter tensor, in the order gradients become ready.
        backward_s: Backward pass of the last micro-batch, without communication.
        num_gpus: Ranks.
        num_nodes: Nodes.
        link: Bandwidths.
        sharded: FSDP: parameters are gathered for forward and backward besides, half as much again in bytes, and hidden
            by the forward pass only in part.
    """
    if num_gpus == 1:
        return 0.0
    end = 0.0
    busy = 0.0
    for num_bytes, ready in buckets(gradient_bytes):
        duration = allreduce_time_s(num_bytes * (1.5 if sharded else 1.0), num_gpus, num_nodes, link)
        busy += duration
        end = max(end, ready * backward_s * OVERLAP_SLOWDOWN) + duration
    slowdown = (OVERLAP_SLOWDOWN - 1) * min(busy, backward_s)
    return max(0.0, end - backward_s * OVERLAP_SLOWDOWN) + slowdown
