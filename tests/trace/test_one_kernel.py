"""Operators that PyTorch composes where CUDA has one kernel, and loops that would not end without data."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("activation", [nn.SiLU, nn.Mish])
@pytest.mark.parametrize("inplace", [False, True])
def test_backward_of_activations_is_one_operator(activation: type[nn.Module], inplace: bool) -> None:
    from gpurig.trace.step import trace_step

    def setup() -> tuple[nn.Module, torch.Tensor]:
        return nn.Sequential(nn.Linear(64, 256), activation(inplace=inplace), nn.Linear(256, 8)).cuda(), torch.zeros(
            32, 64, device="cuda"
        )

    trace = trace_step(setup, lambda state: state[0](state[1]).sum().backward())
    names = [trace.ops[call.op].name for call in trace.calls if call.phase.value == "backward"]
    name = f"{activation.__name__.lower()}_backward"
    assert names.count(name) == 1
    assert not {"sigmoid", "tanh", "softplus"} & set(names)
    op = next(op for op in trace.ops if op.name == name)
    assert (op.read_bytes, op.write_bytes) == (2 * 32 * 256 * 4, 32 * 256 * 4)


def test_truncated_normal_weights_on_the_device_are_drawn_once() -> None:
    from gpurig.trace.step import trace_step

    def setup() -> nn.Module:
        with torch.device("cuda"):
            layer = nn.Linear(512, 512)
        nn.init.trunc_normal_(layer.weight, std=0.02)
        return layer

    def step(layer: nn.Module) -> None:
        layer(torch.zeros(4, 512, device="cuda")).sum().backward()

    assert 512 * 512 * 4 in {storage.num_bytes for storage in trace_step(setup, step).storages}
