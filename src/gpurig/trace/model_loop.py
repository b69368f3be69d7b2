"""The training loop that `models.trace_model` traces: an ordinary script on random data, run in the child process."""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpurig.errors import NotTraceable, UnknownName
from gpurig.trace.models import known_configs, split_name

_USUAL_TOKENS, _CLASSES, _STEPS = 512, 1000, 100
_AMP = {"fp16-amp": torch.float16, "bf16-amp": torch.bfloat16}
_PURE = {"fp16": torch.float16, "bf16": torch.bfloat16}

Batch = dict[str, torch.Tensor]
Loss = Callable[[nn.Module, Batch], torch.Tensor]


# --- Hugging Face ---------------------------------------------------------------------------------------------------------
def hugging_face(name: str, batch: int, shape: tuple[int, ...]) -> tuple[nn.Module, Batch, Loss]:
    """Model, batch and loss of a transformers configuration."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    config = _config(name)
    config.use_cache = False
    kind = type(config)
    encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    tables: list[tuple[str, Any, Any]] = [
        (
            "seq2seq",
            auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if encoder_decoder else {},
            transformers.AutoModelForSeq2SeqLM,
        ),
        ("speech", auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING, transformers.AutoModelForSpeechSeq2Seq),
        ("masked", auto.MODEL_FOR_MASKED_LM_MAPPING, transformers.AutoModelForMaskedLM),
        ("causal", auto.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.AutoModelForCausalLM),
        ("image", auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, transformers.AutoModelForImageClassification),
        ("sound", auto.MODEL_FOR_CTC_MAPPING, transformers.AutoModelForCTC),
    ]
    for task, mapping, maker in tables:
        if kind in mapping:
            with torch.device("cuda"):
                model = maker.from_config(config)
                inputs = _inputs(task, config, batch, shape)
            return model, inputs, lambda model, inputs: model(**inputs).loss
    raise NotTraceable(
        f"models of type {config.model_type!r} have no usual training task that gpurig knows",
        hint="plan your training script instead",
    )


def _config(name: str) -> Any:
    import transformers

    path = Path(name)
    if path.is_file():
        fields = json.loads(path.read_text())
        return transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    if not path.is_dir():
        known = known_configs().get(name.lower())
        if known is not None:
            return transformers.AutoConfig.for_model(**known)
    try:
        return transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        close = tuple(difflib.get_close_matches(name.lower(), known_configs(), 3))
        near = f"known without a download: {', '.join(close)}" if close else ""
        raise NotTraceable(
            f"the configuration of {name!r} is not on this machine and would have to be downloaded",
            details=(near,) if near else (),
            hint="save its config.json and plan hf:config.json, or allow the download with --network",
        ) from error


def _inputs(task: str, config: Any, batch: int, shape: tuple[int, ...]) -> Batch:
    if task == "image":
        side = getattr(config, "image_size", 224)
        side = side if isinstance(side, int) else side[0]
        pixels = shape or (getattr(config, "num_channels", 3), side, side)
        labels = torch.randint(config.num_labels, (batch,))
        return {"pixel_values": torch.randn(batch, *pixels), "labels": labels}
    if task == "sound":
        labels = torch.randint(1, config.vocab_size, (batch, 64))
        return {"input_values": torch.randn(batch, *(shape or (10 * 16000,))), "labels": labels}
    if task == "speech" and hasattr(config, "num_mel_bins"):
        frames = shape or (config.num_mel_bins, 2 * config.max_source_positions)
        labels = torch.randint(config.vocab_size, (batch, 128))
        return {"input_features": torch.randn(batch, *frames), "labels": labels}
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or _USUAL_TOKENS
    tokens = torch.randint(text.vocab_size, (batch, *(shape or (min(limit, _USUAL_TOKENS),))))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


# --- image models ---------------------------------------------------------------------------------------------------------
def timm_model(name: str, batch: int, shape: tuple[int, ...]) -> tuple[nn.Module, Batch, Loss]:
    """Model, batch and loss of a timm model."""
    import timm

    if name not in timm.list_models():
        raise UnknownName("timm model", name, tuple(difflib.get_close_matches(name, timm.list_models(), 3)))
    with torch.device("cuda"):
        model = timm.create_model(name, pretrained=False)
    return model, _images(batch, shape or tuple(model.default_cfg["input_size"])), _classification


def torchvision_model(name: str, batch: int, shape: tuple[int, ...]) -> tuple[nn.Module, Batch, Loss]:
    """Model, batch and loss of a torchvision classification or segmentation model."""
    from torchvision import models

    if name not in models.list_models():
        raise UnknownName("torchvision model", name, tuple(difflib.get_close_matches(name, models.list_models(), 3)))
    options: dict[str, Any] = {"weights_backbone": None} if hasattr(models.segmentation, name) else {}
    with torch.device("cuda"):
        model = models.get_model(name, weights=None, **options)
    side = 299 if name == "inception_v3" else 520 if options else 224
    images = _images(batch, shape or (3, side, side))
    if options:
        images["labels"] = torch.randint(21, (batch, *images["images"].shape[2:]), device="cuda")
    return model, images, _classification


def _images(batch: int, shape: tuple[int, ...]) -> Batch:
    labels = torch.randint(_CLASSES, (batch,), device="cuda")
    return {"images": torch.randn(batch, *shape, device="cuda"), "labels": labels}


def _classification(model: nn.Module, batch: Batch) -> torch.Tensor:
    out = model(batch["images"])
    logits = out["out"] if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out
    return F.cross_entropy(logits, batch["labels"] % logits.shape[1])


# --- the loop -------------------------------------------------------------------------------------------------------------
def main(
    name: str, batch_size: int, shape: list[int], precision: str, optimizer: str, checkpointing: bool, accumulation: int
) -> None:
    """Train until the process is stopped."""
    kind, rest = split_name(name)
    make = {"hf": hugging_face, "timm": timm_model, "torchvision": torchvision_model}[kind]
    model, batch, loss_of = make(rest, batch_size, tuple(shape))
    if precision in _PURE:
        model.to(_PURE[precision])
        batch = {k: v.to(_PURE[precision]) if v.is_floating_point() else v for k, v in batch.items()}
    if checkpointing:
        _checkpoint(model)
    model.train()
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "adafactor": lambda parameters: torch.optim.Adafactor(parameters),
        "rmsprop": torch.optim.RMSprop,
    }
    updates = makers[optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16-amp")
    cast = torch.autocast("cuda", dtype=_AMP[precision]) if precision in _AMP else contextlib.nullcontext()
    for _ in range(_STEPS):
        for _ in range(accumulation):
            with cast:
                loss = loss_of(model, batch) / accumulation
            scaler.scale(loss).backward()
        scaler.step(updates)
        scaler.update()
        updates.zero_grad()


def _checkpoint(model: nn.Module) -> None:
    for switch in ("gradient_checkpointing_enable", "set_grad_checkpointing"):
        if hasattr(model, switch):
            getattr(model, switch)()
            return
    raise NotTraceable(f"{type(model).__name__} offers no activation checkpointing", hint="plan it without")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
