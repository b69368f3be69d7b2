"""What ``import gpurig`` gives: nothing heavy, and three functions that are also rooms."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "click", "rich", "msgspec", "json")


def test_import_costs_nothing() -> None:
    code = f"import sys, gpurig; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_sorted_and_exist() -> None:
    import gpurig

    assert list(gpurig.__all__) == sorted(gpurig.__all__)
    assert all(callable(getattr(gpurig, name)) for name in gpurig.__all__ if name != "__version__")
    with pytest.raises(AttributeError):
        _ = gpurig.nothing


@pytest.mark.torch
def test_a_step_is_traced_and_predicted_in_a_few_lines() -> None:
    torch = pytest.importorskip("torch")
    import gpurig
    from gpurig.catalog.gpus import load_gpus
    from gpurig.model.recipe import Recipe

    existing = torch.nn.Linear(8, 8)
    before = existing.weight.detach().clone()

    def setup() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
        model = torch.nn.Sequential(existing, torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
        return model, torch.optim.AdamW(model.parameters()), torch.randn(4, 8).cuda()

    def step(state: tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]) -> None:
        model, optimizer, batch = state
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = gpurig.trace(step, setup=setup, micro_batch=4, samples_per_step=4)
    prediction = gpurig.predict(trace, Recipe(precision="fp32", micro_batch=4), load_gpus()["T4"])
    assert trace.optimizers == ("AdamW",)
    assert trace.num_parameters == 8 * 8 + 8 + 8 + 1
    assert prediction.fits
    assert prediction.time.bottleneck == "launch"
    assert torch.equal(existing.weight, before), "modules that existed before are given back as they were"
    assert existing.weight.device.type == "cpu"
