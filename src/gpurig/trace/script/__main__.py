"""``python -m gpurig.trace.script SCRIPT --json -- ARGS``: one JSON object about the trace of a script."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpurig.errors import GpurigError
from gpurig.predict.allocator import replay
from gpurig.trace import store
from gpurig.trace.script import ScriptRequest, ScriptTrace, trace_script


def main() -> int:
    """Exit status: 0 traced, 2 the script's own fault or a refusal, 3 something outside."""
    parser = argparse.ArgumentParser(prog="python -m gpurig.trace.script", description=__doc__)
    parser.add_argument("script")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    parser.add_argument(
        "--json", action="store_true", help="accepted for the sake of other commands; JSON is all there is"
    )
    parser.add_argument("--python", help="interpreter of the script's environment")
    parser.add_argument("--time-limit", type=float, default=150.0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--precision")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--out", type=Path, help="write the trace to this file")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    request = ScriptRequest(
        script=options.script,
        argv=tuple(words[cut + 1 :]),
        module=options.module,
        python=options.python,
        time_limit_s=options.time_limit,
        steps=options.steps,
        world_size=options.world_size,
        batch_size=options.batch_size,
        precision=options.precision,
        checkpointing=options.checkpointing,
        network=options.network,
    )
    try:
        traced = trace_script(request)
    except GpurigError as error:
        print(
            json.dumps(
                {"code": error.code, "reason": error.message, "details": error.details, "hint": error.hint}, indent=1
            )
        )
        return error.exit_code
    if options.out:
        store.save(traced.trace, options.out)
    print(json.dumps(_summary(traced), indent=1))
    return 0


def _summary(traced: ScriptTrace) -> dict[str, object]:
    trace = traced.trace
    usage = replay([s.num_bytes for s in trace.storages], trace.events)
    return {
        "label": trace.label,
        "steps_traced": trace.steps_traced,
        "peak_memory_bytes": usage.peak_reserved,
        "peak_allocated_bytes": usage.peak_allocated,
        "precision": trace.precision,
        "num_parameters": trace.num_parameters,
        "micro_batch": trace.micro_batch,
        "accumulation": trace.accumulation,
        "samples_per_step": trace.samples_per_step,
        "calls": len(trace.calls),
        "flops": sum(trace.ops[c.op].flops for c in trace.calls),
        "optimizers": trace.optimizers,
        "world_size": trace.world_size,
        "data_parallel": trace.data_parallel,
        "compiled": trace.compiled,
        "batch_time_s": trace.input.batch_time_s if trace.input else None,
        "num_workers": trace.input.num_workers if trace.input else None,
        "host_syncs": trace.host_syncs,
        "trace_time_s": round(trace.trace_time_s, 2),
        "wall_time_s": round(traced.wall_time_s, 2),
        "notes": traced.notes,
    }


if __name__ == "__main__":
    sys.exit(main())
