"""BERT as NVIDIA's training scripts of 2019 to 2021 wrote it: other operators than transformers' BERT, more memory.

Differences that decide memory: GELU spelled out in elementary operators (each keeps its operand for backward), attention
scores divided and masked in separate operators, bias added apart from the matrix product.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import BertConfig


def spelled_out_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU by the error function, operator by operator."""
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


class _Kept(torch.autograd.Function):
    """The identity, holding its operand until backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Activated(nn.Linear):
    """A linear layer whose bias is added with the activation."""

    def __init__(self, in_features: int, out_features: int, *, tanh: bool, autograd_of_1_4: bool) -> None:
        super().__init__(in_features, out_features)
        self.tanh, self.spelled_out = tanh, autograd_of_1_4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        biased = self.bias + functional.linear(x, self.weight, None)
        if self.tanh:
            return torch.tanh(biased)
        return spelled_out_gelu(biased) if self.spelled_out else functional.gelu(biased)


class _Layer(nn.Module):
    def __init__(self, config: BertConfig, *, autograd_of_1_4: bool) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.keeps_scores = autograd_of_1_4
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.inner = _Activated(width, inner, tanh=False, autograd_of_1_4=autograd_of_1_4)
        self.outer = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(config.hidden_dropout_prob)
        self.drop_scores = nn.Dropout(config.attention_probs_dropout_prob)

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def _kept(self, x: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = _Kept.apply(x) if self.keeps_scores else x
        return kept

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._by_head(part(x)) for part in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = self._kept(scores) / math.sqrt(query.shape[-1])
        scores = self._kept(scores) + mask
        weights = functional.softmax(scores, dim=-1)
        weights = self.drop_scores(weights)
        context = torch.matmul(weights, value)
        context = context.permute(0, 2, 1, 3).contiguous()
        context = context.view(*context.shape[:-2], -1)
        x = self.attention_norm(self.drop(self.attention_out(context)) + x)
        out: torch.Tensor = self.norm(self.drop(self.outer(self.inner(x))) + x)
        return out


class NvidiaBertForQuestionAnswering(nn.Module):
    """The SQuAD model: encoder, then start and end logits; the loss is part of the result.

    Args:
        config: A transformers BertConfig.
        autograd_of_1_4: As it ran on torch 1.4: GELU spelled out, and the scores before scaling and before masking
            kept for backward. The latter is inferred: published memory grows per layer and sample by two tensors of
            the scores' size more than the operators account for, in fp32 and in fp16 alike.
    """

    def __init__(self, config: BertConfig, *, autograd_of_1_4: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.max_position_embeddings, width)
        self.segments = nn.Embedding(config.type_vocab_size, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(
            _Layer(config, autograd_of_1_4=autograd_of_1_4) for _ in range(config.num_hidden_layers)
        )
        self.pooler = _Activated(width, width, tanh=True, autograd_of_1_4=autograd_of_1_4)
        self.answers = nn.Linear(width, 2)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        start_positions: torch.Tensor,
        end_positions: torch.Tensor,
    ) -> Answers:
        mask = attention_mask[:, None, None, :].to(self.answers.weight.dtype)
        mask = (1.0 - mask) * -10000.0
        places = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0).expand_as(input_ids)
        x = self.words(input_ids) + self.positions(places) + self.segments(torch.zeros_like(input_ids))
        x = self.drop(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        start, end = (logits.squeeze(-1) for logits in self.answers(x).split(1, dim=-1))
        loss = functional.cross_entropy(start, start_positions) + functional.cross_entropy(end, end_positions)
        return Answers(loss / 2, start, end)


class Answers:
    """Loss and logits of a batch of questions."""

    def __init__(self, loss: torch.Tensor, start_logits: torch.Tensor, end_logits: torch.Tensor) -> None:
        self.loss = loss
        self.start_logits = start_logits
        self.end_logits = end_logits
