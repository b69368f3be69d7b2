"""StepTrace: one training step as an operator table and storage lifetimes. Knows nothing of prices."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SCHEMA_VERSION = 1


class OpClass(StrEnum):
    """What kind of work an operator is; each kind has efficiencies of its own."""

    GEMM = "gemm"
    CONV = "conv"
    ATTENTION = "attention"
    RNN = "rnn"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"  # softmax, sum, pooling, losses
    NORM = "norm"  # batch, layer, group norm
    COPY = "copy"  # layout or dtype change, cat, gather of rows
    EMBEDDING = "embedding"
    OPTIMIZER = "optimizer"  # multi-tensor and fused kernels
    SORT = "sort"
    TRANSFER = "transfer"  # host to device or back
    SYNC = "sync"  # the host waits for the device
    VIEW = "view"  # no kernel, host time only
    OTHER = "other"


class Phase(StrEnum):
    """Part of the step in which an operator runs or a storage is born."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class StorageKind(StrEnum):
    """What a storage on the device is for."""

    PARAMETER = "parameters"
    GRADIENT = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATION = "activations"
    TEMPORARY = "temporaries"
    INPUT = "inputs"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Op:
    """One distinct operator call: everything that its cost depends on.

    `dims` depends on `op_class`:

    * GEMM: (batch, m, n, k), the product of batch × [m,k] and [k,n].
    * CONV: (n, c_in, h, w, c_out, kernel_h, kernel_w, stride, dilation, groups, out_h, out_w, direction, transposed)
      with direction 0 forward, 1 gradient of the input, 2 gradient of the weight. 1-d has h = 1; 3-d folds depth into
      n for the output and into the kernel for the reduction.
    * ATTENTION: (batch, heads, query_length, key_length, head_dim, causal, backward); name says flash or efficient.
    * RNN: (seq_len, batch, input_size, hidden_size, layers, directions, gates).
    * NORM, REDUCTION: (rows, cols) where known.
    * others: ().
    """

    name: str  # aten name without namespace: "addmm"
    op_class: OpClass
    dtype: str  # of the arithmetic: "fp32", "fp16", "bf16", "fp64", "int", "bool"
    flops: int
    read_bytes: int
    write_bytes: int
    num_kernels: int
    dims: tuple[int, ...] = ()
    channels_last: bool = False
    tf32: bool = False  # fp32 that the script allows to run as TF32 where the chip has it


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the user's code something happened."""

    file: str
    line: int
    function: str
    module: str = ""  # fully qualified name of the nn.Module, if inside one


@dataclass(frozen=True, slots=True)
class Call:
    """One operator of the steady step, in issue order."""

    op: int  # index into StepTrace.ops
    phase: Phase
    site: int  # index into StepTrace.sites, -1: not known


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of device memory that the program asked for."""

    num_bytes: int
    kind: StorageKind
    site: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class InputProfile:
    """How the script feeds itself, measured on this machine's CPU."""

    batch_time_s: float | None  # one worker, one batch, warm; None: not timed
    num_workers: int
    batch_bytes: int
    batch_size: int | None  # samples per batch on one rank
    dataset_samples: int | None  # None: an iterable without a length
    batches_per_epoch: int | None
    cpu_note: str = ""


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that the trace could not see and took for granted."""

    code: str
    text: str
    site: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One steady training step, and the memory history that led to it.

    `events` are (sign, storage, position): +1 allocates, -1 frees storage `storage`; `position` is the index of the
    call in `calls` for the steady step and -1 before it. `steady_from` is the index in `events` where the steady step
    starts. The history before it is kept since the allocator's state depends on it.
    """

    label: str
    torch_version: str
    sm: int  # class of GPU whose kernel choice was emulated: 70, 75, 80, 90
    precision: str  # as observed: "fp32", "fp16-amp", "bf16-amp", "fp16", "bf16"
    steps_traced: int
    samples_per_step: int | None  # on one rank, all accumulation steps together
    micro_batch: int | None
    accumulation: int
    num_parameters: int
    num_trainable: int
    ops: tuple[Op, ...]
    calls: tuple[Call, ...]
    sites: tuple[Site, ...]
    storages: tuple[Storage, ...]
    events: tuple[tuple[int, int, int], ...]
    steady_from: int
    gradient_bytes: tuple[int, ...] = ()  # per parameter tensor, in the order gradients become ready
    world_size: int = 1  # ranks that the script was started with
    data_parallel: str = "none"  # "none", "ddp", "dp", "fsdp"
    compiled: bool = False
    optimizers: tuple[str, ...] = ()
    input: InputProfile | None = None
    assumptions: tuple[Assumption, ...] = ()
    host_syncs: int = 0
    cudnn_benchmark: bool = False  # whether cuDNN may try all its algorithms (torch.backends.cudnn.benchmark)
    trace_time_s: float = 0.0
    schema_version: int = field(default=SCHEMA_VERSION)
