"""Low-rank adapters, as PEFT and as litgpt put them beside frozen projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from gpurig.accuracy.workload import Workload

_CHUNK = 128  # litgpt's lm_head_chunk_size


class LoraLinear(nn.Module):
    """A frozen projection and a low-rank branch beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        options = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.lora_a = nn.Linear(base.in_features, rank, bias=False, **options)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False, **options)
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.lora_b(self.lora_a(self.dropout(x))) * 2.0
        return out


class _FusedQkv(nn.Module):
    """litgpt's one projection for queries, keys and values; its adapter serves queries and values.

    The three parts are views of one tensor: as long as attention holds the values, all of it lives.
    """

    def __init__(self, widths: tuple[int, int, int], weight: torch.Tensor, rank: int) -> None:
        super().__init__()
        self.widths = widths
        options = {"device": weight.device, "dtype": weight.dtype}
        inputs = weight.shape[1]
        self.weight = nn.Parameter(torch.empty(sum(widths), inputs, **options), requires_grad=False)
        self.lora_a = nn.Parameter(torch.empty(2 * rank, inputs, **options))
        self.lora_b = nn.Parameter(torch.empty(widths[0] + widths[2], rank, **options))
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pretrained = functional.linear(x, self.weight)
        low = functional.linear(self.dropout(x), self.lora_a)
        rank = self.lora_a.shape[0] // 2
        query, _, value = self.widths
        branches = (
            functional.linear(low[..., :rank], self.lora_b[:query]),
            functional.linear(low[..., rank:], self.lora_b[query:]),
        )
        padded = x.new_zeros(*x.shape[:-1], sum(self.widths))
        places = torch.cat((torch.arange(query), torch.arange(sum(self.widths) - value, sum(self.widths)))).to(x.device)
        padded = padded.index_copy(-1, places, torch.cat(branches, dim=-1))
        parts: tuple[torch.Tensor, ...] = (pretrained + padded * 2.0).split(self.widths, dim=-1)
        return parts


class _Part(nn.Module):
    """Hands out one of the three parts; the first asked for computes them all."""

    def __init__(self, shared: list[tuple[torch.Tensor, ...]], index: int, fused: _FusedQkv | None) -> None:
        super().__init__()
        self.fused = fused
        self.index = index
        self._shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused is not None:
            self._shared.append(self.fused(x))
        part = self._shared[0][self.index]
        if self.index == 2:
            self._shared.clear()
        return part


def add_lora(model: nn.Module, workload: Workload) -> None:
    """Freeze `model` and put adapters of `workload.lora_rank` on it."""
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    for module in list(model.modules()):
        if workload.litgpt:
            if all(isinstance(getattr(module, name, None), nn.Linear) for name in ("q_proj", "k_proj", "v_proj")):
                _fuse(module, workload.lora_rank)
            continue
        for name, child in list(module.named_children()):
            if name in workload.lora_targets and isinstance(child, nn.Linear):
                setattr(module, name, LoraLinear(child, workload.lora_rank))


def _fuse(attention: nn.Module, rank: int) -> None:
    projections = [getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")]
    widths = tuple(p.out_features for p in projections)
    fused = _FusedQkv((widths[0], widths[1], widths[2]), projections[0].weight, rank)
    shared: list[tuple[torch.Tensor, ...]] = []
    for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
        setattr(attention, name, _Part(shared, index, fused if index == 0 else None))


def chunked_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Loss as litgpt has it: head and cross entropy over 128 positions at a time, in the model's own type."""
    hidden = model.model(input_ids=tokens).last_hidden_state
    logits = [model.lm_head(part) for part in hidden.split(_CHUNK, dim=1)]
    targets = tokens.split(_CHUNK, dim=1)
    losses = [
        functional.cross_entropy(one.reshape(-1, one.shape[-1]), target.reshape(-1), reduction="none")
        for one, target in zip(logits, targets, strict=True)
    ]
    return torch.cat(losses).mean()
