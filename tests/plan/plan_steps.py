"""Made-up steps: small, exact, and the same in every run."""

from __future__ import annotations

from gpurig.model.trace import Call, InputProfile, Op, OpClass, Phase, Site, StepTrace, Storage, StorageKind

MIB = 1 << 20
LAYERS = 4
WIDTH = 1024


def step(
    micro_batch: int = 16,
    precision: str = "bf16-amp",
    *,
    weights_mib: int = 64,
    activation_mib_per_sample: int = 24,
    dataset: int | None = 50_000,
) -> StepTrace:
    """A stack of layers: weights, gradients, two optimizer states, activations that grow with the batch."""
    dtype = precision.removesuffix("-amp")
    tokens = micro_batch * 128
    flops = 2 * tokens * WIDTH * WIDTH
    moved = 2 * (2 * tokens * WIDTH + WIDTH * WIDTH)
    ops = (
        Op("addmm", OpClass.GEMM, dtype, flops, moved, 2 * tokens * WIDTH, 1, (1, tokens, WIDTH, WIDTH)),
        Op("mm", OpClass.GEMM, dtype, flops, moved, 2 * tokens * WIDTH, 1, (1, tokens, WIDTH, WIDTH)),
        Op("mm", OpClass.GEMM, dtype, flops, moved, 4 * WIDTH * WIDTH, 1, (1, WIDTH, WIDTH, tokens)),
        Op("gelu", OpClass.ELEMENTWISE, dtype, 0, 2 * tokens * WIDTH, 2 * tokens * WIDTH, 1),
        Op("_fused_adamw_", OpClass.OPTIMIZER, "fp32", 0, 4 * weights_mib * MIB, 3 * weights_mib * MIB, 4),
    )
    calls: list[Call] = []
    storages: list[Storage] = []
    events: list[tuple[int, int, int]] = []

    def born(num_bytes: int, kind: StorageKind, phase: Phase, site: int) -> int:
        storages.append(Storage(num_bytes, kind, site, phase))
        events.append((1, len(storages) - 1, len(calls) - 1))
        return len(storages) - 1

    def call(op: int, phase: Phase) -> None:
        calls.append(Call(op, phase, -1))

    for _ in range(LAYERS):
        size = weights_mib * MIB // LAYERS
        born(size, StorageKind.PARAMETER, Phase.SETUP, 0)
        born(size, StorageKind.OPTIMIZER, Phase.OPTIMIZER, 2)
        born(size, StorageKind.OPTIMIZER, Phase.OPTIMIZER, 2)
    events = [(sign, storage, -1) for sign, storage, _ in events]
    steady = len(events)
    kept = []
    for _ in range(LAYERS):
        call(0, Phase.FORWARD)
        kept.append(
            born(micro_batch * activation_mib_per_sample * MIB // LAYERS, StorageKind.ACTIVATION, Phase.FORWARD, 1)
        )
        call(3, Phase.FORWARD)
    gradients = []
    for activation in reversed(kept):
        call(1, Phase.BACKWARD)
        call(2, Phase.BACKWARD)
        gradients.append(born(weights_mib * MIB // LAYERS, StorageKind.GRADIENT, Phase.BACKWARD, 3))
        events.append((-1, activation, len(calls) - 1))
    call(4, Phase.OPTIMIZER)
    events += [(-1, gradient, len(calls) - 1) for gradient in gradients]
    profile = (
        InputProfile(0.05, 4, micro_batch * MIB, micro_batch, dataset, dataset // micro_batch) if dataset else None
    )
    return StepTrace(
        label="train.py",
        torch_version="2.13.0",
        sm=80,
        precision=precision,
        steps_traced=3,
        samples_per_step=micro_batch,
        micro_batch=micro_batch,
        accumulation=1,
        num_parameters=weights_mib * MIB // 4,
        num_trainable=weights_mib * MIB // 4,
        ops=ops,
        calls=tuple(calls),
        sites=(
            Site("train.py", 12, "main"),
            Site("train.py", 40, "Net.forward"),
            Site("train.py", 61, "main"),
            Site("train.py", 60, "main"),
        ),
        storages=tuple(storages),
        events=tuple(events),
        steady_from=steady,
        gradient_bytes=(weights_mib * MIB // LAYERS,) * LAYERS,
        optimizers=("AdamW",),
        input=profile,
    )
