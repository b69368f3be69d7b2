"""Small models of every kind, each as (setup, step): what the oracle compares and other tests trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Case = tuple[Callable[[], Any], Callable[[Any], None]]
PRECISIONS = ("fp32", "fp16", "bf16")
_AMP = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Residual(nn.Module):
    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.body(x))


def convnet(groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(64, groups), Residual(64, groups), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(64, 10),
    )  # fmt: skip


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 4, 4)
        self.depthwise = nn.Conv2d(48, 48, 7, padding=3, groups=48)
        self.norm = nn.LayerNorm(48)
        self.up, self.down = nn.Linear(48, 192), nn.Linear(192, 48)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return self.head((x + y).mean((2, 3)))


class UNet(nn.Module):
    """Group norm, attention over pixels, upsampling and concatenation, as diffusion models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 32, 3, 2, 1)
        self.norm = nn.GroupNorm(8, 32)
        self.qkv = nn.Conv2d(32, 96, 1)
        self.out = nn.Conv2d(35, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.silu(self.norm(self.inner(x)))
        b, c, height, width = h.shape
        q, k, v = self.qkv(h).view(b, 3, 2, c // 2, height * width).transpose(-1, -2).unbind(1)
        h = h + F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, height, width)
        h = F.interpolate(h, scale_factor=2, mode="bilinear")
        return self.out(torch.cat([h, x], 1))


class Block(nn.Module):
    """A decoder block: "gpt" with layer norm and dropout, "llama" with RMS norm, rotary positions and grouped heads."""

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.kind, self.heads = kind, heads
        norm = nn.LayerNorm if kind == "gpt" else nn.RMSNorm
        self.first, self.second = norm(width), norm(width)
        self.kv_heads = heads if kind == "gpt" else heads // 2
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width * self.kv_heads // heads)
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        h = self.first(x)
        q = self.q(h).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(h).view(b, t, 2, self.kv_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.kind == "llama":
            q, k = self.rotate(q), self.rotate(k)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0, enable_gqa=self.kind == "llama"
        )
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, width)), 0.1)
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))

    @staticmethod
    def rotate(x: torch.Tensor) -> torch.Tensor:
        position = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        angle = position[:, None] * 10000 ** -(torch.arange(0, x.shape[-1], 2, device=x.device) / x.shape[-1])
        cos, sin = angle.cos().repeat(1, 2).to(x.dtype), angle.sin().repeat(1, 2).to(x.dtype)
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Decoder(nn.Module):
    def __init__(self, kind: str, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embed, self.position = nn.Embedding(1000, 128), nn.Embedding(64, 128)
        self.blocks = nn.ModuleList(Block(128, 4, kind) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 1000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 1000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(ids), src_key_padding_mask=ids > 990))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.rnn = kind(64, 96, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(192, 1000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


class Ranker(nn.Module):
    """Embedding tables and a multilayer perceptron with a pairwise loss on scores."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.EmbeddingBag(5000, 32, mode="sum"), nn.Embedding(5000, 32)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.PReLU(), nn.BatchNorm1d(128), nn.Linear(128, 10))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mlp(torch.cat([self.users(ids), self.items(ids[:, 0])], 1))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        edges = torch.randint(0, x.shape[0], (2, 512), device=x.device)
        h = torch.zeros(x.shape[0], 64, device=x.device).index_add_(0, edges[0], self.first(x)[edges[1]].float())
        norm = h.pow(2).sum(-1, keepdim=True).sqrt() + 1e-6
        return self.second((h / norm).relu())


def images(size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 3, size, size), torch.randint(0, 10, (8,))


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 1000, (4, 64))
    return ids, ids.clone()


def _loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if y.dim() == out.dim():
        return F.mse_loss(out, y)
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


def training(
    build: Callable[[], nn.Module],
    data: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    precision: str,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
    *,
    channels_last: bool = False,
    whole_model: bool = False,
    clip: bool = True,
    accumulation: int = 1,
) -> Case:
    """An ordinary training step: autocast for half types (or the whole model cast), scaler for fp16, clipping."""

    def setup() -> Any:
        torch.manual_seed(0)
        model = build().cuda()
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        if whole_model and precision in _AMP:
            model = model.to(_AMP[precision])
        scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16" and not whole_model)
        return model, optimizer(model.parameters()), scaler, data()

    def step(state: Any) -> None:
        model, opt, scaler, (x, y) = state
        opt.zero_grad()
        for _ in range(accumulation):
            inputs, target = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            if channels_last:
                inputs = inputs.to(memory_format=torch.channels_last)
            if whole_model and inputs.is_floating_point() and precision in _AMP:
                inputs = inputs.to(_AMP[precision])
            amp = precision in _AMP and not whole_model
            with torch.autocast("cuda", dtype=_AMP.get(precision, torch.float16), enabled=amp):
                loss = _loss(model(inputs), target) / accumulation
            scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    return setup, step


def nodes() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(128, 16), torch.randint(0, 10, (128,))


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(2, 3, 32, 32)
    return x, x.clone()


def bags() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 5000, (64, 7)), torch.randint(0, 10, (64,))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True)


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def loop(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, foreach=False)


ZOO: dict[str, Callable[[str], Case]] = {
    "convnet": lambda p: training(convnet, images, p, sgd),
    "convnet-channels-last": lambda p: training(convnet, images, p, sgd, channels_last=True),
    "grouped-convnet": lambda p: training(lambda: convnet(16), images, p, torch.optim.RMSprop),
    "convnext": lambda p: training(ConvNext, images, p),
    "unet": lambda p: training(UNet, pictures, p),
    "gpt": lambda p: training(lambda: Decoder("gpt"), tokens, p),
    "gpt-checkpointed": lambda p: training(lambda: Decoder("gpt", checkpointed=True), tokens, p, fused),
    "gpt-accumulated": lambda p: training(lambda: Decoder("gpt"), tokens, p, accumulation=3),
    "gpt-cast": lambda p: training(lambda: Decoder("gpt"), tokens, p, whole_model=True),
    "llama": lambda p: training(lambda: Decoder("llama"), tokens, p, fused),
    "llama-cast": lambda p: training(lambda: Decoder("llama"), tokens, p, whole_model=True),
    "encoder": lambda p: training(Encoder, tokens, p, loop),
    "lstm": lambda p: training(lambda: Recurrent(nn.LSTM), tokens, p),
    "gru": lambda p: training(lambda: Recurrent(nn.GRU), tokens, p, torch.optim.Adagrad),
    "ranker": lambda p: training(Ranker, bags, p, torch.optim.Adamax),
    "graph": lambda p: training(Graph, nodes, p, torch.optim.NAdam),
}
