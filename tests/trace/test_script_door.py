"""The script door: unmodified scripts in a child process, traced or refused with the reason."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from gpurig.errors import GpurigError, MissingPackage, NotTraceable, ScriptFailed, ScriptNotFound
from gpurig.trace.card import CardFacts
from gpurig.trace.script import ScriptRequest, ScriptTrace, trace_script

pytestmark = pytest.mark.torch

START = """
import os, sys, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
def data(n=256, width=32):
    return TensorDataset(torch.randn(n, width), torch.randint(4, (n,)))
def net():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
"""
LOOP = """
for epoch in range(3):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.3f}")
"""
PLAIN = (
    START
    + """
model = net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(data(), batch_size=16, shuffle=True, num_workers=4, pin_memory=True)
"""
    + LOOP
)


def run(folder: Path, code: str, **options: Any) -> ScriptTrace:
    (folder / "train.py").write_text(textwrap.dedent(code))
    return trace_script(ScriptRequest(script="train.py", cwd=folder, time_limit_s=60, **options))


@dataclass(frozen=True)
class Passes:
    name: str
    code: str
    micro_batch: int | None = 16
    accumulation: int = 1
    precision: str = "fp32"
    data_parallel: str = "none"
    world_size: int = 1
    optimizers: tuple[str, ...] = ("AdamW",)
    parameters: int = 2372


PASSES = (
    Passes("plain", PLAIN),
    Passes(
        "amp with a scaler",
        START
        + """
        model = net().to("cuda"); optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in DataLoader(data(), batch_size=16):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x.to("cuda")), y.to("cuda"))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
        """.replace("\n        ", "\n"),
        precision="fp16-amp",
        optimizers=("SGD",),
    ),
    Passes(
        "gradient accumulation",
        START
        + """
        model = net().cuda(); optimizer = torch.optim.AdamW(model.parameters())
        for i, (x, y) in enumerate(DataLoader(data(), batch_size=16)):
            (F.cross_entropy(model(x.cuda()), y.cuda()) / 4).backward()
            if i % 4 == 3:
                optimizer.step(); optimizer.zero_grad()
        """.replace("\n        ", "\n"),
        accumulation=4,
    ),
    Passes(
        "two optimizers, one of them five times as often",
        START
        + """
        g, d = nn.Linear(32, 32).cuda(), net().cuda()
        og, od = torch.optim.Adam(g.parameters()), torch.optim.RMSprop(d.parameters())
        for i, (x, _) in enumerate(DataLoader(data(1024), batch_size=16)):
            od.zero_grad(); (d(g(torch.randn(16, 32, device="cuda")).detach()).mean() - d(x.cuda()).mean()).backward()
            od.step()
            if i % 5 == 4:
                og.zero_grad(); (-d(g(torch.randn(16, 32, device="cuda"))).mean()).backward(); og.step()
        """.replace("\n        ", "\n"),
        accumulation=5,
        optimizers=("Adam", "RMSprop"),
        parameters=3428,
    ),
    Passes(
        "weights updated by hand",
        START
        + """
        model = net().cuda()
        for x, y in DataLoader(data(), batch_size=16):
            model.zero_grad(); F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.data.add_(p.grad, alpha=-0.1)
        """.replace("\n        ", "\n"),
        optimizers=(),
    ),
    Passes(
        "no DataLoader, evaluation first",
        START
        + """
        model = net().cuda(); optimizer = torch.optim.AdamW(model.parameters())
        def batch():
            return torch.randn(16, 32).pin_memory().to("cuda", non_blocking=True)
        @torch.no_grad()
        def evaluate():
            model.eval()
            for _ in range(100_000):
                model(batch())
            model.train()
        evaluate()
        for _ in range(10):
            model(batch()).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
        """.replace("\n        ", "\n"),
    ),
    Passes(
        "evaluation over a stream before the first step",
        START
        + """
        class Stream(IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.randn(32)
        model = net().cuda(); optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(Stream(), batch_size=16)
        with torch.no_grad():
            for x in loader:
                model(x.cuda())
        for x in loader:
            model(x.cuda()).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
        """.replace("\n        ", "\n"),
    ),
    Passes(
        "batches that are dictionaries and lose their labels",
        START
        + """
        class Rows(Dataset):
            def __len__(self): return 64
            def __getitem__(self, i): return {"x": torch.randn(32), "labels": i % 4}
        model = net().cuda(); optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            for batch in DataLoader(Rows(), batch_size=16):
                labels = batch.pop("labels")
                F.cross_entropy(model(**{"input": batch["x"].cuda()}), labels.cuda()).backward()
                optimizer.step(); optimizer.zero_grad()
        """.replace("\n        ", "\n"),
    ),
    Passes(
        "distributed data parallel under a launcher",
        START
        + """
        import torch.distributed as dist
        dist.init_process_group("nccl")
        rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank)
        model = nn.parallel.DistributedDataParallel(net().cuda(rank), device_ids=[rank])
        optimizer = torch.optim.AdamW(model.parameters())
        sampler = torch.utils.data.distributed.DistributedSampler(data())
        loader = DataLoader(data(), batch_size=16, sampler=sampler)
        total = torch.ones(1).cuda(); dist.all_reduce(total); dist.barrier()
        """.replace("\n        ", "\n")
        + LOOP,
        data_parallel="ddp",
    ),
    Passes(
        "processes spawned by the script",
        START
        + """
        import torch.distributed as dist, torch.multiprocessing as mp
        def work(rank, size):
            dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=size)
            model = nn.parallel.DistributedDataParallel(net().to(rank), device_ids=[rank])
            optimizer = torch.optim.AdamW(model.parameters())
            for x, y in DataLoader(data(), batch_size=16):
                F.cross_entropy(model(x.to(rank)), y.to(rank)).backward(); optimizer.step(); optimizer.zero_grad()
        if __name__ == "__main__":
            mp.spawn(work, args=(4,), nprocs=4)
        """.replace("\n        ", "\n"),
        data_parallel="ddp",
        world_size=4,
    ),
    Passes(
        "it refuses to run on one GPU",
        START
        + """
        if torch.cuda.device_count() < 4:
            sys.exit("this script needs at least 4 GPUs")
        model = nn.DataParallel(net().cuda()); optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(data(), batch_size=16)
        """.replace("\n        ", "\n")
        + LOOP,
        data_parallel="dp",
        world_size=4,
    ),
    Passes(
        "files, seeds, streams, a copy of the weights",
        START
        + """
        import copy, threading
        print(os.get_terminal_size(0).columns, os.environ["CUDA_VISIBLE_DEVICES"])
        torch.save(torch.randn(3), "data.pt"); assert torch.load("data.pt").shape == (3,)
        model = net().cuda(); ema = copy.deepcopy(model); optimizer = torch.optim.AdamW(model.parameters())
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
        model.load_state_dict(torch.load("last.pt", map_location="cuda")["model"])
        model = torch.compile(model)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
        loader = DataLoader(data(), batch_size=16)
        """.replace("\n        ", "\n")
        + LOOP,
    ),
    Passes(
        "an extension with a fallback",
        START
        + """
        from torch.utils.cpp_extension import load
        try:
            fast = load("my_kernel", ["my_kernel.cu"])
        except RuntimeError:
            fast = None
        model = net().cuda(); optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(data(), batch_size=16)
        """.replace("\n        ", "\n")
        + LOOP,
    ),
    Passes(
        "it fails by itself after its second step",
        START
        + """
        model = net().cuda(); optimizer = torch.optim.AdamW(model.parameters())
        for i, (x, y) in enumerate(DataLoader(data(), batch_size=16)):
            F.cross_entropy(model(x.cuda()), y.cuda()).backward(); optimizer.step(); optimizer.zero_grad()
            if i == 1:
                raise TypeError("unexpected keyword 'range'")
        """.replace("\n        ", "\n"),
    ),
)


@pytest.mark.parametrize("case", PASSES, ids=lambda case: case.name)
def test_traced(case: Passes, tmp_path: Path) -> None:
    traced = run(tmp_path, case.code)
    trace = traced.trace
    assert trace.steps_traced >= 2
    assert trace.num_parameters == case.parameters
    assert trace.optimizers == case.optimizers
    seen = (trace.micro_batch, trace.accumulation, trace.precision, trace.data_parallel, trace.world_size)
    assert seen == (case.micro_batch, case.accumulation, case.precision, case.data_parallel, case.world_size)


@dataclass(frozen=True)
class Refused:
    name: str
    code: str
    error: type[GpurigError]
    says: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()


REFUSED = (
    Refused("crash", "def load():\n    raise ValueError('no such column: age')\nload()\n", ScriptFailed,
            ("no such column: age", "train.py:2 in load")),
    Refused("crash in a library", "import json\njson.loads('{')\n", ScriptFailed, ("JSONDecodeError", "train.py:2")),
    Refused("arguments", "import argparse\np = argparse.ArgumentParser(); p.add_argument('--bs')\np.parse_args()\n",
            ScriptFailed, ("refused its arguments", "unrecognized arguments: --what"), (("argv", ("--what",)),)),
    Refused("missing package", "import nothing_of_this_name\n", ScriptFailed, ("nothing_of_this_name", "install")),
    Refused("ends", "import torch\ntorch.randn(3).cuda()\n", NotTraceable, ("ended without an optimizer step",)),
    Refused("trains on the CPU", PLAIN.replace(".cuda()", ""), NotTraceable, ("trains on the CPU", "--device cuda")),
    Refused("steps over stale parameters",
            START + "model = net(); old = [nn.Parameter(p.detach().clone()) for p in model.parameters()]\n"
            "model.cuda()\noptimizer = torch.optim.SGD(old, 0.1)\nloader = DataLoader(data(), batch_size=16)\n" + LOOP,
            NotTraceable, ("optimizer",)),
    Refused("no step in time", "import time\nwhile True: time.sleep(1)\n", NotTraceable,
            ("no optimizer step within 20 s", "train.py:2"), (("time_limit_s", 20.0),)),
    Refused("reads from the terminal", "input('continue? ')\n", ScriptFailed, ("EOFError",)),
    Refused("download", "import urllib.request\nurllib.request.urlopen('https://example.org/data.zip')\n", NotTraceable,
            ("needs a download of https://example.org/data.zip", "--network")),
    Refused("extension", START + "from torch.utils.cpp_extension import load\nload('my_kernel', ['k.cu'])\n", NotTraceable,
            ("my_kernel", "train.py:11")),
)  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused(case: Refused, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(case.code)
    options = {"time_limit_s": 60.0, **dict(case.options)}
    with pytest.raises(case.error) as caught:
        trace_script(ScriptRequest(script="train.py", cwd=tmp_path, **options))
    text = "\n".join((caught.value.message, *caught.value.details, caught.value.hint or ""))
    for words in case.says:
        assert words in text
    assert "gpurig/trace" not in text, "a traceback of ours"


def test_no_such_script(tmp_path: Path) -> None:
    with pytest.raises(ScriptNotFound, match=r"nowhere[.]py"):
        trace_script(ScriptRequest(script="nowhere.py", cwd=tmp_path))


def test_no_pytorch(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(MissingPackage) as caught:
        run(tmp_path, PLAIN, python=str(bare))
    assert "pip install torch" in (caught.value.hint or "")


def test_a_module_is_run_as_one(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(PLAIN)
    traced = trace_script(ScriptRequest(script="mine.train", module=True, cwd=tmp_path, time_limit_s=60))
    assert traced.trace.steps_traced == 3


# --- how it is fed ----------------------------------------------------------------------------------------------------------
def test_the_pipeline_is_described(tmp_path: Path) -> None:
    profile = run(tmp_path, PLAIN).trace.input
    assert profile is not None
    assert (profile.num_workers, profile.batch_size, profile.dataset_samples, profile.batches_per_epoch) == (
        4,
        16,
        256,
        16,
    )
    assert profile.batch_bytes == 16 * (32 * 4 + 8)
    assert profile.batch_time_s is not None
    assert profile.batch_time_s > 0


# --- knobs ------------------------------------------------------------------------------------------------------------------
def test_batch_size_is_scaled(tmp_path: Path) -> None:
    whole, double = run(tmp_path, PLAIN), run(tmp_path, PLAIN, batch_scale=2.0)
    assert double.batch_knob
    assert double.trace.micro_batch == 32
    flops = [sum(t.trace.ops[c.op].flops for c in t.trace.calls) for t in (whole, double)]
    assert flops[1] == 2 * flops[0]


@pytest.mark.parametrize(("forced", "seen"), [("bf16-amp", "bf16-amp"), ("fp16-amp", "fp16-amp"), ("fp32", "fp32")])
def test_precision_is_forced(forced: str, seen: str, tmp_path: Path) -> None:
    code = (
        PLAIN
        if forced != "fp32"
        else PLAIN.replace("loss = F", "with torch.autocast('cuda', torch.bfloat16): loss = F")
    )
    assert run(tmp_path, code, precision=forced).trace.precision == seen


def test_checkpointing_is_forced(tmp_path: Path) -> None:
    code = PLAIN.replace(
        "model = net().cuda()",
        """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.body = net(); self.saving = False
    def set_grad_checkpointing(self, enable=True):
        self.saving = enable
    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) if self.saving else self.body(x)
model = Net().cuda()
""",
    )
    calls = [len(run(tmp_path, code, checkpointing=on).trace.calls) for on in (False, True)]
    assert calls[1] > calls[0]


@pytest.mark.parametrize(("capability", "kernel"), [((8, 0), "flash"), ((7, 5), "efficient")])
def test_the_class_of_gpu_chooses_kernels(capability: tuple[int, int], kernel: str, tmp_path: Path) -> None:
    code = (
        START
        + """
w = nn.Linear(64, 64).cuda().half(); optimizer = torch.optim.SGD(w.parameters(), 0.1)
for _ in range(4):
    q = w(torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.half))
    F.scaled_dot_product_attention(q, q, q).sum().backward(); optimizer.step()
"""
    )
    trace = run(tmp_path, code, card=CardFacts(capability=capability)).trace
    assert any(kernel in op.name for op in trace.ops)


def test_a_loader_made_of_a_loader_is_scaled_once(tmp_path: Path) -> None:
    again = """
first = DataLoader(data(), batch_size=16)
loader = DataLoader(first.dataset, batch_size=first.batch_size, sampler=first.sampler)
"""
    code = PLAIN.replace("\nfor epoch", again + "for epoch", 1)
    assert run(tmp_path, code, batch_scale=0.5).trace.micro_batch == 8


# --- safety -----------------------------------------------------------------------------------------------------------------
def test_nothing_is_written_from_the_gpu_and_no_gpu_is_seen(tmp_path: Path) -> None:
    code = PLAIN.replace(
        "loader =",
        """
torch.save(model.state_dict(), "weights.pt")
import subprocess, tempfile
seen = subprocess.run([sys.executable, "-c", "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"],
                      capture_output=True, text=True).stdout
open("seen.txt", "w").write(seen + tempfile.gettempdir() + " " + os.environ["WANDB_MODE"])
loader =""",
    )
    traced = run(tmp_path, code)
    assert (tmp_path / "weights.pt").stat().st_size < 100
    visible, temporary = (tmp_path / "seen.txt").read_text().splitlines()
    assert "gpurig-" in temporary
    assert temporary.endswith("disabled")
    assert not Path(temporary.split()[0]).exists(), "the scratch folder is removed"
    assert visible in ("''", "'0'")
    assert any("not written" in note for note in traced.notes)


def test_children_die_with_the_script(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    (tmp_path / "train.py").write_text(code)
    with pytest.raises(NotTraceable):
        trace_script(ScriptRequest(script="train.py", cwd=tmp_path, time_limit_s=12))
    pid = int((tmp_path / "pid").read_text())
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        state = "gone"
    assert state in ("gone", "Z"), "a process of the script's still runs"


def test_a_package_that_needs_a_gpu_is_stood_in_for(tmp_path: Path) -> None:
    code = (
        START
        + """
from flash_attn import flash_attn_func
w = nn.Linear(64, 64).cuda().half(); optimizer = torch.optim.SGD(w.parameters(), 0.1)
for _ in range(4):
    q = w(torch.randn(2, 128, 4, 64, device="cuda", dtype=torch.half))
    flash_attn_func(q, q, q, causal=True).sum().backward(); optimizer.step()
"""
    )
    traced = run(tmp_path, code)
    assert any("flash" in op.name for op in traced.trace.ops)
    assert any("flash_attn is not installed" in note for note in traced.notes)
