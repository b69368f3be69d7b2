"""Trace the zoo and print what was seen, one JSON line a case: run once emulated, once over the shim."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path


def load(shim: str) -> None:
    """Load the shim after PyTorch's libraries and before its Python package."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    libraries = Path(spec.origin).parent / "lib"
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(shim)


def main() -> None:
    shim, names = sys.argv[1], sys.argv[2:]
    if shim != "none":
        load(shim)
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import zoo

    from gpurig.predict.allocator import replay
    from gpurig.trace.step import trace_step

    for name in names or zoo.ZOO:
        for precision in zoo.PRECISIONS:
            setup, step = zoo.ZOO[name](precision)
            trace = trace_step(setup, step, native=shim != "none", needs_optimizer=True)
            usage = replay([s.num_bytes for s in trace.storages], trace.events)
            ops = [
                f"{c.phase} {o.name} {o.dtype} {o.flops} {o.read_bytes} {o.write_bytes} {o.dims}"
                for c in trace.calls
                for o in (trace.ops[c.op],)
            ]
            print(json.dumps({
                "case": f"{name}/{precision}", "ops": ops, "allocated": usage.peak_allocated,
                "reserved": usage.peak_reserved, "precision": trace.precision,
            }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
