"""Workload -> a function that runs one training step, as the benchmark's own script would."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpurig.accuracy.lora import add_lora, chunked_loss
from gpurig.accuracy.models import make_model
from gpurig.accuracy.of_the_day import days_softmax, kept_cache
from gpurig.accuracy.optimizers import make_optimizer
from gpurig.accuracy.workload import Workload

if TYPE_CHECKING:
    import torch

    Inputs = dict[str, torch.Tensor]

MAX_TRACED_ACCUMULATION = 2
NUM_CLASSES = 1000


def traced_accumulation(workload: Workload) -> int:
    """Micro-batches that the built step runs: a long accumulation repeats one micro-batch, so two show all of it."""
    return min(workload.accumulation, MAX_TRACED_ACCUMULATION)


def make_step(workload: Workload, device: str = "cuda") -> Callable[[], None]:
    """Build model, optimizer and inputs on `device` and return the function that runs one optimizer step.

    To be called where `device` is fake: nothing is downloaded, and no weight is given a value that matters.

    Raises:
        InputError: the model is not known.
        MissingPackage: the package that holds it is not installed.
    """
    import torch

    torch.backends.cudnn.benchmark = workload.cudnn_benchmark
    model = _model_on(device, workload)
    masters = _masters(model) if workload.precision == "fp16-masters" else None
    optimizer = None
    if workload.optimizer != "none":
        owned = masters if masters is not None else list(model.parameters())
        optimizer = make_optimizer(workload.optimizer, owned, foreach=workload.foreach)
    return _Step(workload, device, model, optimizer, masters)


def _model_on(device: str, workload: Workload) -> torch.nn.Module:
    import torch

    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(workload.precision)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(half or previous)
    try:
        with torch.device(device):
            model = make_model(workload)
    finally:
        torch.set_default_dtype(previous)
    model = model.to(device)
    if workload.precision == "fp16-masters":
        _halve(model)
    if workload.lora_rank:
        add_lora(model, workload)
    if workload.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if workload.checkpointing and hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing()
    return model.train()


def _halve(model: torch.nn.Module) -> None:
    """fp16 everywhere except in batch norm, as apex O2 and NVIDIA's network_to_half do."""
    import torch

    for module in model.modules():
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.half()
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.half())


def _masters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    import torch

    return [torch.nn.Parameter(p.detach().float()) for p in model.parameters() if p.requires_grad]


class _Step:
    """One optimizer step of a workload; called again for the next one."""

    def __init__(
        self,
        workload: Workload,
        device: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        masters: list[torch.nn.Parameter] | None,
    ) -> None:
        import torch

        self.workload = workload
        self.device = device
        self.model = model
        self.optimizer = optimizer
        self.masters = masters
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        self.inputs: Inputs | None = None if workload.copy_input else self._make_inputs(device)
        self.held: object = None
        self.scaler = (
            torch.amp.GradScaler("cuda") if workload.grad_scaler and workload.precision == "fp16-amp" else None
        )

    def __call__(self) -> None:
        import torch

        work = self.workload
        if self.optimizer is None or work.precision != "fp16-masters":
            self._zero_grad()
        for _ in range(traced_accumulation(work)):
            inputs = self.inputs
            if inputs is None:
                inputs = {k: v.to(self.device) for k, v in self._make_inputs("cpu").items()}
            with self._autocast(), days_softmax(keeps_input=work.softmax_keeps_input):
                output = None if work.litgpt else self._forward(inputs)
                loss = self._loss(output, inputs)
            if work.hold_outputs:
                self.held = output
            if not work.backward:
                return
            if work.frees_output:
                del output
            self._backward(loss)
            del loss
        if self.masters is not None:
            self._step_masters(self.masters)
        elif self.optimizer is not None:
            if work.clip_gradients:
                if self.scaler is not None:
                    self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.trainable, 1.0)
            if self.scaler is not None:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def _forward(self, inputs: Inputs) -> object:
        if "pixel" in inputs:
            return self.model(inputs["pixel"])
        if self.workload.keeps_cache:
            return self.model(**inputs, **kept_cache(self.model))
        return self.model(**inputs)

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        import torch

        dtype = {"fp16-amp": torch.float16, "bf16-amp": torch.bfloat16}.get(self.workload.precision)
        if dtype is None:
            yield
            return
        with torch.autocast("cuda", dtype=dtype):
            yield

    def _zero_grad(self) -> None:
        if self.workload.zero_grad == "never":
            return
        for parameter in self.trainable:
            if parameter.grad is None:
                continue
            if self.workload.zero_grad == "none":
                parameter.grad = None
            else:
                parameter.grad.detach_().zero_()

    def _backward(self, loss: torch.Tensor) -> None:
        if self.workload.apex_o2:
            for parameter in self.trainable:
                parameter.grad = None  # apex lets autograd hand over its own tensors
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
        elif self.masters is not None:
            (loss.float() * 128.0).backward()
        else:
            loss.backward()

    def _step_masters(self, masters: list[torch.nn.Parameter]) -> None:
        """fp16 gradients to fp32 copies and unscaled, optimizer on the copies, result back to fp16: apex O2."""
        import torch

        if self.optimizer is None:
            return
        with torch.no_grad():
            pairs = [(m, p) for m, p in zip(masters, self.trainable, strict=True) if p.grad is not None]
            for master, _ in pairs:
                if master.grad is None:
                    master.grad = torch.empty_like(master)
            master_grads = [m.grad for m, _ in pairs]
            torch._foreach_copy_(master_grads, [p.grad for _, p in pairs])
            torch._foreach_mul_(master_grads, 1.0 / 128)
            if self.workload.clip_gradients:
                torch.nn.utils.clip_grad_norm_(masters, 1.0)
            self.optimizer.step()
            torch._foreach_copy_([p for _, p in pairs], [m for m, _ in pairs])
            for _, parameter in pairs:
                if parameter.grad is not None:
                    parameter.grad.zero_()
            if self.workload.apex_o2:
                for master in masters:
                    master.grad = None

    def _loss(self, output: object, inputs: Inputs) -> torch.Tensor:
        import torch
        from torch.nn import functional

        if self.workload.litgpt:
            return chunked_loss(self.model, inputs["input_ids"])
        if self.workload.loss == "sum-of-logits":
            return _logits(output).sum()
        own = getattr(output, "loss", None)
        if isinstance(own, torch.Tensor):
            return own
        logits = _logits(output)
        if self.workload.task == "recommend":
            return functional.binary_cross_entropy_with_logits(logits.squeeze(), torch.rand_like(logits.squeeze()))
        if self.workload.task == "pretrain":
            return functional.cross_entropy(logits.view(-1, logits.size(-1)), inputs["input_ids"].view(-1))
        target = torch.randint(0, logits.shape[-1], (logits.shape[0],), device=self.device)
        loss = functional.cross_entropy(logits, target)
        for name in ("aux_logits", "aux_logits1", "aux_logits2"):
            extra = getattr(output, name, None)
            if isinstance(extra, torch.Tensor):
                loss = loss + 0.4 * functional.cross_entropy(extra, target)
        return loss

    def _make_inputs(self, device: str) -> Inputs:
        import torch

        work = self.workload
        half = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp16-masters": torch.float16}.get(work.precision)
        if work.task == "recommend":
            return {name: torch.randint(0, 1000, (work.batch,), device=device) for name in ("user", "item")}
        if work.model.startswith("transformers:") and work.seq_len:
            return self._text_inputs(device)
        if work.task == "audio-classify":
            features = torch.randn(work.batch, 80, 3000, device=device, dtype=half)
            return {"input_features": features, "labels": torch.randint(0, 2, (work.batch,), device=device)}
        image = work.image or _own_image_size(self.model)
        if "vivit" in work.model:
            shape: tuple[int, ...] = (work.batch, image[0], 3, *image[1:])
        else:
            shape = (work.batch, *image)
        pixels = torch.randn(shape, device=device, dtype=half)
        if work.channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        return {"pixel": pixels}

    def _text_inputs(self, device: str) -> Inputs:
        import torch

        work = self.workload
        shape = (work.batch, work.seq_len or 1)
        tokens = torch.randint(0, 1000, shape, device=device)
        inputs: Inputs = {"input_ids": tokens}
        if work.loss == "sum-of-logits":
            return inputs
        if work.task in ("qa", "text-classify") or (work.task == "pretrain" and work.optimizer != "none"):
            inputs["attention_mask"] = torch.ones(shape, dtype=torch.long, device=device)
        if work.task == "qa":
            positions = torch.randint(0, shape[1], (work.batch,), device=device)
            inputs |= {"start_positions": positions, "end_positions": positions.clone()}
        elif work.task == "text-classify":
            inputs["labels"] = torch.randint(0, 2, (work.batch,), device=device)
        elif work.task in ("masked-lm", "causal-lm") or work.optimizer != "none":
            inputs["labels"] = tokens
        if work.task == "pretrain" and work.optimizer != "none":
            inputs["next_sentence_label"] = torch.zeros(work.batch, dtype=torch.long, device=device)
        return inputs


def _logits(output: object) -> torch.Tensor:
    for name in ("prediction_logits", "logits"):
        found = getattr(output, name, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    if isinstance(output, (tuple, list)):
        return output[0]  # type: ignore[no-any-return]
    return output  # type: ignore[return-value]


def _own_image_size(model: torch.nn.Module) -> tuple[int, int, int]:
    """The size that a timm model was made for; 3 × 224 × 224 where it does not say."""
    config = getattr(model, "default_cfg", None) or getattr(model, "pretrained_cfg", None)
    size = (config or {}).get("input_size") if isinstance(config, dict) else getattr(config, "input_size", None)
    return tuple(size) if size else (3, 224, 224)  # type: ignore[return-value]
