"""What older software kept in memory, as the accuracy table rebuilds it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from gpurig.accuracy.workload import Workload

torch = pytest.importorskip("torch")
nn = torch.nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.model.trace import StepTrace

pytestmark = pytest.mark.torch
BASE = Workload(model="timm:resnet50", batch=8, precision="fp32")


def traced(
    make: Callable[[], nn.Module], inputs: Callable[[], dict[str, Any]], loss: Callable[[Any], Any]
) -> StepTrace:
    from gpurig.trace.step import trace_step

    def setup() -> tuple[nn.Module, dict[str, Any]]:
        with torch.device("cuda"):
            return make(), inputs()

    def step(state: tuple[nn.Module, dict[str, Any]]) -> None:
        model, given = state
        loss(model(**given)).backward()
        for parameter in model.parameters():
            parameter.grad = None

    return trace_step(setup, step)


def kept_until_backward(trace: StepTrace) -> Counter[int]:
    """Sizes of the activations alive when the steady step's backward begins."""
    from gpurig.model.trace import Phase, StorageKind

    first = next(i for i, call in enumerate(trace.calls) if call.phase is Phase.BACKWARD)
    live: set[int] = set()
    for sign, storage, position in trace.events:
        if position >= first:
            break
        (live.add if sign > 0 else live.discard)(storage)
    return Counter(trace.storages[i].num_bytes for i in live if trace.storages[i].kind is StorageKind.ACTIVATION)


@pytest.mark.parametrize("keeps_input", [False, True])
def test_softmax_held_its_input_before_1_11(keeps_input: bool) -> None:
    from gpurig.accuracy.of_the_day import days_softmax

    class Scores(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with days_softmax(keeps_input=keeps_input):
                return nn.functional.softmax(x + self.scale, dim=-1)

    trace = traced(Scores, lambda: {"x": torch.zeros(64, 1024)}, lambda out: out.sum())
    assert kept_until_backward(trace)[64 * 1024 * 4] == (2 if keeps_input else 1)


def test_bert_on_torch_1_4_keeps_two_more_scores_and_two_more_intermediates_a_layer() -> None:
    transformers = pytest.importorskip("transformers")
    from gpurig.accuracy.bert import NvidiaBertForQuestionAnswering

    layers, batch, length, width, heads, inner = 2, 3, 64, 96, 4, 544
    config = transformers.BertConfig(
        vocab_size=128, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner
    )

    def kept(*, autograd_of_1_4: bool) -> Counter[int]:
        def inputs() -> dict[str, Any]:
            tokens = torch.zeros(batch, length, dtype=torch.long)
            ends = torch.zeros(batch, dtype=torch.long)
            mask = torch.ones_like(tokens)
            return {"input_ids": tokens, "attention_mask": mask, "start_positions": ends, "end_positions": ends.clone()}

        return kept_until_backward(
            traced(
                lambda: NvidiaBertForQuestionAnswering(config, autograd_of_1_4=autograd_of_1_4),
                inputs,
                lambda out: out.loss,
            )
        )

    scores, intermediates = 4 * batch * heads * length * length, 4 * batch * length * inner
    new, old = (kept(autograd_of_1_4=value) for value in (False, True))
    assert old[scores] - new[scores] == 2 * layers
    assert old[intermediates] - new[intermediates] == 2 * layers


def test_litgpts_projection_is_one_and_its_adapter_serves_queries_and_values() -> None:
    from gpurig.accuracy.lora import LoraLinear, add_lora, chunked_loss
    from gpurig.trace.standins import torchvision_ops

    torchvision_ops.declare()
    transformers = pytest.importorskip("transformers")

    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )
    plain, fused = (transformers.LlamaForCausalLM(config) for _ in range(2))
    work = replace(BASE, lora_rank=8, lora_targets=("q_proj", "v_proj"))
    add_lora(plain, work)
    add_lora(fused, replace(work, litgpt=True))
    trainable = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (plain, fused)]
    assert trainable == [2 * 2 * 8 * (64 + 64)] * 2
    assert sum(isinstance(m, LoraLinear) for m in plain.modules()) == 4
    assert chunked_loss(fused, torch.zeros(1, 300, dtype=torch.long)).shape == ()


def test_a_field_that_came_later_does_not_change_the_key_of_a_workload_without_it() -> None:
    early = sorted(
        (name, value)
        for name, value in asdict(BASE).items()
        if name
        not in (
            "tf32",
            "frees_output",
            "keeps_cache",
            "softmax_keeps_input",
            "bert",
            "apex_o2",
            "cudnn_benchmark",
            "litgpt",
        )
    )
    assert sha256(repr(early).encode()).hexdigest()[:16] == BASE.key
    for change in ({"frees_output": True}, {"bert": "nvidia"}, {"litgpt": True}, {"cudnn_benchmark": True}):
        assert replace(BASE, **change).key != BASE.key
