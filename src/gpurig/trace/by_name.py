"""An ordinary training loop around a model by name: what `models.model_request` traces. Runs in the child process."""

from __future__ import annotations

import argparse
import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gpurig.errors import NotTraceable, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable

_USUAL_TOKENS = 512
_SAMPLES = 1_000_000  # of the made-up data set: enough for any batch
_HALF = {"fp16-amp": torch.float16, "bf16-amp": torch.bfloat16}


class MadeUp(Dataset[Any]):
    """Samples of one shape, made when they are asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self._make()


def image_model(kind: str, name: str, shape: tuple[int, ...]) -> tuple[nn.Module, Callable[[], Any]]:
    """A torchvision or timm classifier and a maker of samples for it."""
    if kind == "torchvision":
        from torchvision import models

        _check(kind, name, models.list_models(module=models))
        model = models.get_model(name, weights=None)
        size = shape or ((3, 299, 299) if name == "inception_v3" else (3, 224, 224))
    else:
        import timm

        _check(kind, name, timm.list_models())
        model = timm.create_model(name, pretrained=False)
        size = shape or tuple(model.default_cfg["input_size"])
    return model, lambda: (torch.zeros(size, device="cpu"), 0)


def _check(kind: str, name: str, known: list[str]) -> None:
    if name.partition(".")[0] not in known:
        raise UnknownName(f"{kind} model", name, tuple(difflib.get_close_matches(name, known, 3)))


def hub_model(
    config: dict[str, Any], shape: tuple[int, ...], *, checkpointing: bool
) -> tuple[nn.Module, Callable[[], Any]]:
    """A transformers model with the head of its usual training task, and a maker of samples for it."""
    import transformers

    values = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version", "model_type")}
    made = transformers.AutoConfig.for_model(config["model_type"], **values)
    made.use_cache = False
    for task in TASKS:
        auto = getattr(transformers, task.auto)
        if type(made) in auto._model_mapping:
            model = auto.from_config(made)
            if checkpointing:
                model.gradient_checkpointing_enable()
            return model, task.samples(made, shape)
    raise NotTraceable(
        f"no usual training task is known for models of type {made.model_type!r}",
        hint="plan your training script instead",
    )


def _tokens(config: Any, shape: tuple[int, ...]) -> Callable[[], Any]:
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or _USUAL_TOKENS
    length = shape[0] if shape else min(limit, _USUAL_TOKENS)
    return lambda: {name: torch.zeros(length, dtype=torch.long, device="cpu") for name in ("input_ids", "labels")}


def _pixels(config: Any, shape: tuple[int, ...]) -> Callable[[], Any]:
    edge = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
    size = shape or (getattr(config, "num_channels", 3), edge, edge)
    return lambda: {"pixel_values": torch.zeros(size, device="cpu"), "labels": 0}


def _speech(config: Any, shape: tuple[int, ...]) -> Callable[[], Any]:
    size = shape or (config.num_mel_bins, 2 * config.max_source_positions)
    labels = torch.zeros(128, dtype=torch.long, device="cpu")
    return lambda: {"input_features": torch.zeros(size, device="cpu"), "labels": labels}


@dataclass(frozen=True)
class Task:
    """A usual training task: transformers' class for it, and what its samples look like."""

    auto: str
    samples: Callable[[Any, tuple[int, ...]], Callable[[], Any]]


# the first that a configuration has: an encoder is trained on masked tokens although it could be asked to generate
TASKS = (
    Task("AutoModelForSpeechSeq2Seq", _speech),
    Task("AutoModelForSeq2SeqLM", _tokens),
    Task("AutoModelForMaskedLM", _tokens),
    Task("AutoModelForCausalLM", _tokens),
    Task("AutoModelForImageClassification", _pixels),
)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss of a batch, images with labels or the inputs of a transformers model."""
    if isinstance(batch, dict):
        return model(**batch).loss
    output = model(batch[0])
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return F.cross_entropy(logits, batch[1])


def on_gpu(value: Any) -> Any:
    """A batch, moved."""
    if isinstance(value, dict):
        return {k: on_gpu(v) for k, v in value.items()}
    return [on_gpu(v) for v in value] if isinstance(value, (list, tuple)) else value.cuda(non_blocking=True)


def main() -> None:
    """Train for as long as nobody stops it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--config", type=json.loads)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--shape", type=lambda text: tuple(int(n) for n in text.split(",")), default=())
    parser.add_argument("--precision", default="bf16-amp")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()

    kind, _, name = args.model.partition(":")
    # built where it will live: no host memory for weights of billions of parameters
    with torch.device("cuda"):
        if kind == "hf":
            model, make = hub_model(args.config, args.shape, checkpointing=args.checkpointing)
        else:
            model, make = image_model(kind, name, args.shape)
    model = model.train()
    if args.precision == "bf16":
        model = model.to(torch.bfloat16)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if args.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=args.precision == "fp16-amp")
    dtype = _HALF.get(args.precision)
    for batch in DataLoader(MadeUp(make), args.batch, drop_last=True):
        with torch.autocast("cuda", dtype=dtype or torch.float16, enabled=dtype is not None):
            loss = loss_of(model, on_gpu(batch))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()
