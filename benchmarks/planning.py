"""How long a plan takes: traces of three models, and ranking of every offer.

    python benchmarks/planning.py [--check]

Times are given as they are and as multiples of `python -c "import torch"` measured in the same run, since machines differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from gpurig.plan.make import PlanRequest, make_plan
from gpurig.trace.models import model_request
from gpurig.trace.script import ScriptRequest, ScriptTrace, trace_script

LIMIT_S = {"ResNet-50": 4.0, "BERT-large": 6.0, "Llama-3-8B": 10.0}
LIMIT_GIB = 1.0
LIMIT_RANK_S = 1.0


@dataclass
class Row:
    name: str
    seconds: float
    peak_gib: float


def cases() -> dict[str, ScriptRequest]:
    return {
        "ResNet-50": model_request("torchvision:resnet50", batch=64, shape="3x224x224", precision="fp16-amp"),
        "BERT-large": model_request("hf:bert-large-uncased", batch=8, shape="512", precision="bf16-amp"),
        "Llama-3-8B": model_request(
            "hf:meta-llama/Meta-Llama-3-8B", batch=1, shape="8192", precision="bf16", checkpointing=True
        ),
    }


def traced(name: str, request: ScriptRequest) -> tuple[Row, ScriptTrace]:
    """Wall time of the whole child process and its largest resident size."""
    read, write = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:  # a process of its own, so that the largest resident size is this trace's
        import pickle
        import resource

        found = trace_script(request)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20)
        with os.fdopen(write, "wb") as pipe:
            pickle.dump((found, peak, time.perf_counter() - started), pipe)
        os._exit(0)
    os.close(write)
    import pickle

    with os.fdopen(read, "rb") as pipe:
        found, peak, seconds = pickle.load(pipe)
    os.waitpid(child, 0)
    return Row(name, seconds, peak), found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    check = parser.parse_args().check
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    baseline = time.perf_counter() - started
    print(f"import torch: {baseline:.2f} s")
    failed = False
    for name, request in cases().items():
        row, found = traced(name, request)
        within = row.seconds <= LIMIT_S[name] and row.peak_gib < LIMIT_GIB
        failed |= not within
        print(
            f"trace {name:11s} {row.seconds:5.1f} s ({row.seconds / baseline:4.1f} × import torch, limit {LIMIT_S[name]:.0f} s)  "
            f"{row.peak_gib:.2f} GiB resident{'' if within else '  OVER'}"
        )
    request = PlanRequest(script=ScriptRequest(script="-"), steps=1000.0, vary_batch=False)
    started = time.perf_counter()
    planned = make_plan(request, tracer=lambda _: found)
    ranked = time.perf_counter() - started
    failed |= ranked > LIMIT_RANK_S
    print(
        f"rank {planned.plan.considered:,} offers, {len(planned.plan.choices):,} choices: {ranked:.2f} s "
        f"(limit {LIMIT_RANK_S:.0f} s){'' if ranked <= LIMIT_RANK_S else '  OVER'}"
    )
    return int(failed and check)


if __name__ == "__main__":
    raise SystemExit(main())
