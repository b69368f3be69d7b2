"""An ordinary training loop around a model by name: what `models.model_request` traces. Runs in the child process."""

from __future__ import annotations

import argparse
import json
from typing import Any, TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

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
        import torchvision

        model = torchvision.models.get_model(name, weights=None)
        size = shape or (3, 299, 299) if name == "inception_v3" else shape or (3, 224, 224)
    else:
        import timm

        model = timm.create_model(name, pretrained=False)
        size = shape or tuple(model.default_cfg["input_size"])
    return model, lambda: (torch.zeros(size), 0)


def text_model(
    config: dict[str, Any], shape: tuple[int, ...], *, checkpointing: bool
) -> tuple[nn.Module, Callable[[], Any]]:
    """A transformers model with its language-modelling (or classification) head, and a maker of samples for it."""
    import transformers

    values = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version", "model_type")}
    made = transformers.AutoConfig.for_model(config["model_type"], **values)
    wanted = (config.get("architectures") or [""])[0]
    model = _with_head(transformers, made, wanted)
    if checkpointing:
        model.gradient_checkpointing_enable()
    if hasattr(made, "image_size") and not hasattr(made, "vocab_size"):
        edge = shape[-1] if shape else made.image_size
        return model, lambda: {"pixel_values": torch.zeros(3, edge, edge), "labels": 0}
    length = shape[0] if shape else min(512, getattr(made, "max_position_embeddings", 512) or 512)
    if getattr(made, "is_encoder_decoder", False):
        return model, lambda: {name: torch.zeros(length, dtype=torch.long) for name in ("input_ids", "labels")}
    return model, lambda: {name: torch.zeros(length, dtype=torch.long) for name in ("input_ids", "labels")}


def _with_head(transformers: Any, config: Any, wanted: str) -> nn.Module:
    if wanted and hasattr(transformers, wanted) and "Model" not in wanted[-5:]:
        return getattr(transformers, wanted)(config)  # type: ignore[no-any-return]
    for name in (
        "AutoModelForCausalLM",
        "AutoModelForMaskedLM",
        "AutoModelForSeq2SeqLM",
        "AutoModelForImageClassification",
    ):
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            encoder = (
                name == "AutoModelForCausalLM" and type(config) in transformers.AutoModelForMaskedLM._model_mapping
            )
            if not encoder:
                return auto.from_config(config)  # type: ignore[no-any-return]
    raise SystemExit(f"no training head is known for model type {config.model_type}")


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss of a batch, images with labels or the inputs of a transformers model."""
    if isinstance(batch, dict):
        return model(**batch).loss  # type: ignore[no-any-return]
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
            model, make = text_model(args.config, args.shape, checkpointing=args.checkpointing)
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
