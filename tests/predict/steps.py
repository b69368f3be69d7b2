"""Small steps, spelled out, that the memory tests share."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpurig.model.trace import Call, Op, OpClass, Phase, StepTrace, Storage, StorageKind

MIB = 1 << 20


def matrix_product() -> Op:
    return Op("mm", OpClass.GEMM, "fp32", 2 << 30, 8 * MIB, 4 * MIB, 1, (1, 1024, 1024, 1024))


def convolution(num_bytes: int, *, dtype: str = "fp32", tf32: bool = True, channels_last: bool = False) -> Op:
    dims = (8, 64, 56, 56, 64, 3, 3, 1, 1, 1, 56, 56, 0, 0)
    return Op(
        "convolution",
        OpClass.CONV,
        dtype,
        1 << 30,
        num_bytes // 2,
        num_bytes - num_bytes // 2,
        1,
        dims,
        channels_last,
        tf32,
    )


def addition() -> Op:
    return Op("add", OpClass.ELEMENTWISE, "fp32", 0, 8 * MIB, 4 * MIB, 1)


@dataclass
class StepBuilder:
    """A trace event by event: `make` and `free` happen in the call that was last issued."""

    torch_version: str = "2.6.0"
    cudnn_benchmark: bool = False
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    events: list[tuple[int, int, int]] = field(default_factory=list)

    def call(self, op: Op, phase: Phase = Phase.FORWARD) -> None:
        if op not in self.ops:
            self.ops.append(op)
        self.calls.append(Call(self.ops.index(op), phase, -1))

    def make(self, num_bytes: int, kind: StorageKind = StorageKind.ACTIVATION, *, site: int = -1) -> int:
        phase = self.calls[-1].phase if self.calls else Phase.SETUP
        self.storages.append(Storage(num_bytes, kind, site, phase))
        self.events.append((+1, len(self.storages) - 1, len(self.calls) - 1))
        return len(self.storages) - 1

    def free(self, storage: int) -> None:
        self.events.append((-1, storage, len(self.calls) - 1))

    def trace(self, *, micro_batch: int | None = None) -> StepTrace:
        return StepTrace(
            label="step",
            torch_version=self.torch_version,
            sm=80,
            precision="fp32",
            steps_traced=1,
            samples_per_step=micro_batch,
            micro_batch=micro_batch,
            accumulation=1,
            num_parameters=0,
            num_trainable=0,
            ops=tuple(self.ops),
            calls=tuple(self.calls),
            sites=(),
            storages=tuple(self.storages),
            events=tuple(self.events),
            steady_from=0,
            cudnn_benchmark=self.cudnn_benchmark,
        )
