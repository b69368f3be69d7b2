"""Models by name, for people without a script: ``hf:NAME`` or ``hf:CONFIG.json``, ``timm:NAME``, ``torchvision:NAME``.

`trace_model` runs the ordinary training loop of this file through the script door, so that nothing here needs PyTorch in
the parent process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from gpurig.errors import InputError, UnknownName
from gpurig.trace.card import CardFacts
from gpurig.trace.script.parent import trace_script
from gpurig.trace.script.request import ScriptRequest, ScriptTrace

KINDS = ("hf", "timm", "torchvision")
PRECISIONS = ("fp32", "fp16-amp", "bf16-amp", "fp16", "bf16")
OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "rmsprop")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model to be trained, and how.

    Attributes:
        name: ``hf:NAME``, ``hf:CONFIG.json``, ``timm:NAME`` or ``torchvision:NAME``.
        batch_size: Samples of one forward pass.
        shape: Of one sample: (tokens,) for text, (channels, height, width) for images, (samples,) for sound; empty: the
            model's usual one (512 tokens at most for text).
        precision: One of PRECISIONS.
        optimizer: One of OPTIMIZERS.
        checkpointing: Activation checkpointing, where the library offers it.
        accumulation: Forward passes per optimizer step.
    """

    name: str
    batch_size: int = 8
    shape: tuple[int, ...] = ()
    precision: str = "bf16-amp"
    optimizer: str = "adamw"
    checkpointing: bool = False
    accumulation: int = 1
    card: CardFacts = CardFacts()
    python: str | None = None
    time_limit_s: float = 150.0
    network: bool = False

    def __post_init__(self) -> None:
        split_name(self.name)
        for value, allowed in ((self.precision, PRECISIONS), (self.optimizer, OPTIMIZERS)):
            if value not in allowed:
                raise UnknownName("option", value, allowed)
        if self.batch_size < 1 or self.accumulation < 1:
            raise InputError("batch size and accumulation start at 1")


def is_model_name(text: str) -> bool:
    """Whether a command-line word names a model rather than a script."""
    return text.partition(":")[0] in KINDS and ":" in text


def split_name(name: str) -> tuple[str, str]:
    """("hf", "gpt2") of "hf:gpt2".

    Raises:
        UnknownName: it starts with none of KINDS.
    """
    kind, colon, rest = name.partition(":")
    if kind not in KINDS or not colon or not rest:
        raise UnknownName("model", name, tuple(f"{k}:NAME" for k in KINDS))
    return kind, rest


def trace_model(request: ModelRequest) -> ScriptTrace:
    """Trace the training step of a model that is known by its name.

    Raises:
        NotTraceable: the name needs a download, or the model cannot be built or trained this way.
        ScriptFailed, MissingPackage: the library is not installed.
    """
    words = {
        "name": request.name,
        "batch_size": request.batch_size,
        "shape": request.shape,
        "precision": request.precision,
        "optimizer": request.optimizer,
        "checkpointing": request.checkpointing,
        "accumulation": request.accumulation,
    }
    return trace_script(
        ScriptRequest(
            script=str(Path(__file__).with_name("model_loop.py")),
            argv=(json.dumps(words),),
            python=request.python,
            card=request.card,
            time_limit_s=request.time_limit_s,
            network=request.network,
        )
    )


# --- configurations that are known without the hub --------------------------------------------------------------------
@cache
def known_configs() -> Mapping[str, dict[str, object]]:
    """Configurations of well-known models of the Hugging Face hub by lower-case name, short names included.

    Each is {"model_type": …, fields that differ from the defaults of the transformers library}.
    """
    text = resources.files("gpurig.trace").joinpath("known_configs.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, object]] = {}
    for row in json.loads(text)["models"]:
        for name in row["names"]:
            table[name.lower()] = row["config"]
            table.setdefault(name.lower().rpartition("/")[2], row["config"])
    return table
