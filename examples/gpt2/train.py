"""Train a GPT-2 (124 M parameters) on tokens, with bf16 autocast and fused AdamW.

    python train.py --epochs 1 --batch-size 16

The corpus is made on first use: a few million token ids with the frequencies of English words (Zipf's law).
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    """Windows of `length` tokens and the same shifted by one."""

    def __init__(self, path, length):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        window = torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]


def make_corpus(path, count=4_000_000, vocabulary=50_257):
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        np.minimum(rng.zipf(1.1, count), vocabulary - 1).astype(np.uint16).tofile(path)
    return path


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, vocabulary=50_257, length=1024, width=768, heads=12, layers=12, dropout=0.1):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.init)

    @staticmethod
    def init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids):
        x = self.drop(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data" / "tokens.bin")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    assert torch.cuda.is_available(), "this script needs a GPU"
    device = torch.device("cuda")
    dataset = Tokens(make_corpus(args.data), args.length)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    model = GPT(length=args.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    total = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / total)))

    step = 0
    for epoch in range(args.epochs):
        for ids, targets in loader:
            ids, targets = ids.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(ids)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step}/{total} loss {loss.item():.3f}")
            step += 1
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "checkpoint.pt")


if __name__ == "__main__":
    main()
