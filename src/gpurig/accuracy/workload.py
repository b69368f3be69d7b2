"""Workload: everything about a measured run that decides its operators and its memory, and how a table row says it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.accuracy.table import MeasuredRun

_LATER = ("frees_output", "keeps_cache", "softmax_keeps_input", "bert", "apex_o2", "cudnn_benchmark", "litgpt")
_APEX_VERSIONS = ("0.", "1.0", "1.1.", "1.2", "1.3", "1.4", "1.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step that can be built and traced without its data, weights or GPU.

    Attributes:
        model: Reference such as ``timm:resnet50`` or ``transformers:bert-base-uncased``.
        batch: Samples per micro-batch on one GPU.
        image: (channels, height, width), or (frames, height, width) for video; None: the model's own, or text.
        seq_len: Tokens per sample; None: not a text model.
        precision: "fp32", "fp16-amp", "bf16-amp", "fp16", "bf16", or "fp16-masters": an fp16 model whose optimizer
            keeps fp32 copies (apex O2, static loss scaling).
        tf32: Whether fp32 products and convolutions may run as TF32: "on", "off", or "default": what torch allows by
            itself, convolutions only. The operators are the same, so it is no part of `key`.
        optimizer: Name in `gpurig.accuracy.optimizers`, or "none".
        task: What the model is asked for: "classify", "qa", "pretrain" (all tokens), "pretrain-masked" (the language
            head sees masked tokens only), "masked-lm", "causal-lm", "audio-classify", "recommend".
        loss: "cross-entropy", or "sum-of-logits" as some benchmark loops have it.
        zero_grad: "none" sets gradients to None, "zero" keeps and clears them, "never" accumulates.
        hold_outputs: The model's output of a step, all of it, lives until the next one has its own.
        frees_output: The output is dropped before backward, as a function that returns only the loss does.
        keeps_cache: A decoder returns its keys and values with the output, the very tensors that attention used.
        softmax_keeps_input: Backward of softmax holds its input too, as in torch before 1.11.
        bert: Whose BERT runs question answering: "transformers", or NVIDIA's scripts with the autograd of torch 1.4
            ("nvidia-1.4") or a later one ("nvidia").
        apex_o2: With "fp16-masters": gradients of the masters live only from the end of backward to the next step.
        cudnn_benchmark: The script lets cuDNN try all its algorithms.
        litgpt: litgpt's LoRA: one projection for queries, keys and values, and a loss over 128 positions at a time.
    """

    model: str
    batch: int
    precision: str
    image: tuple[int, int, int] | None = None
    seq_len: int | None = None
    tf32: str = "default"
    optimizer: str = "sgd-momentum"
    task: str = "classify"
    loss: str = "cross-entropy"
    zero_grad: str = "none"
    channels_last: bool = False
    checkpointing: bool = False
    accumulation: int = 1
    attention: str = "sdpa"
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    clip_gradients: bool = False
    grad_scaler: bool = False
    hold_outputs: bool = False
    copy_input: bool = False
    logged_loss: bool = False
    foreach: bool = True
    backward: bool = True
    frees_output: bool = False
    keeps_cache: bool = False
    softmax_keeps_input: bool = False
    bert: str = "transformers"
    apex_o2: bool = False
    cudnn_benchmark: bool = False
    litgpt: bool = False

    @property
    def key(self) -> str:
        """A stable identity: equal workloads have equal keys, in any process and on any day."""
        default = Workload(model="", batch=0, precision="")
        given = asdict(self)
        # a field that came later is left out where it says nothing, so that the keys of earlier days hold
        parts = [(n, v) for n, v in given.items() if n != "tf32" and (n not in _LATER or v != getattr(default, n))]
        text = repr(sorted(parts))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Unanswerable:
    """Why a row cannot be rebuilt. `reason` is short and the same for all rows of its kind, so that it can be counted."""

    reason: str


class _RefusedError(Exception):
    """A row that the rules below turn down."""


def rebuild(run: MeasuredRun) -> Workload | Unanswerable:
    """The workload of a measured run, or why there is none.

    What a row leaves open is filled in from the habits of its source (the loop of its script, the defaults of its
    framework version); nothing is taken from the measured value.
    """
    try:
        return _rebuild(run)
    except _RefusedError as refused:
        return Unanswerable(str(refused))


def _rebuild(run: MeasuredRun) -> Workload:
    if run.kind == "inference" or run.task.startswith("forward only"):
        raise _RefusedError("inference")
    if run.batch is None:
        raise _RefusedError("batch not stated")
    if run.compiled:
        raise _RefusedError("torch.compile or XLA")
    if "fsdp" in (run.framework + run.notes).lower():
        raise _RefusedError("FSDP")
    base = Workload(
        model=_model_reference(run),
        batch=run.batch,
        precision="fp32",
        image=_image(run),
        seq_len=_seq_len(run),
        channels_last=bool(run.channels_last),
        checkpointing=run.checkpointing,
        accumulation=_accumulation(run),
        task=_task(run),
        attention=_attention(run),
        zero_grad=_zero_grad(run),
        foreach=framework_age(run) >= (2, 0),
        softmax_keeps_input=framework_age(run) < (1, 11),
        cudnn_benchmark=_cudnn_benchmark(run),
    )
    return _loop(run, _lora(run, _optimizer(run, _precision(run, base))))


def _cudnn_benchmark(run: MeasuredRun) -> bool:
    """Timm's train.py switches it on, also where another collection runs it."""
    return "timm train.py" in run.notes + run.optimizer or run.source.endswith("pytorch-image-models")


def _model_reference(run: MeasuredRun) -> str:
    scheme, _, name = run.model.partition(":")
    if scheme not in ("torchvision", "timm", "transformers", "DLE") and run.model != "ncf":
        raise _RefusedError(f"model not public in torchvision, timm or transformers ({scheme or 'blank'})")
    if "(approx)" in run.model:
        raise _RefusedError("detection model with approximate shapes")
    if run.model in ("ncf", "DLE:ncf"):
        return "ncf"
    if scheme == "DLE":
        raise _RefusedError(f"model of another repository (DLE:{name.split('-')[0]})")
    if "GPTQ" in name:
        raise _RefusedError("quantised weights")
    return run.model


def _image(run: MeasuredRun) -> tuple[int, int, int] | None:
    numbers = [int(n) for n in re.findall(r"\d+", run.input_shape)]
    if re.fullmatch(r"\d+x\d+", run.input_shape):
        return (3, numbers[0], numbers[1])
    if re.fullmatch(r"\d+x\d+x\d+", run.input_shape):
        return (numbers[0], numbers[1], numbers[2])
    if run.input_shape and not run.input_shape.startswith("timm default"):
        raise _RefusedError("input shape varies")
    return None


def _seq_len(run: MeasuredRun) -> int | None:
    """The stated length; where only a bound is stated, the bound: it decides the memory peak."""
    found = re.search(r"\d+", run.seq_len)
    if found:
        length = int(found.group())
        binned = run.source == "NVIDIA/DeepLearningExamples" and "pretraining" in run.task and length == 512
        return round(length * BINNED_SHARE / 8) * 8 if binned else length
    if run.model.startswith("transformers:") and not run.input_shape and "whisper" not in run.model:
        if "bert" in run.model and run.kind != "max-batch":  # what fits depends on it
            return 512
        raise _RefusedError("sequence length not stated")
    return None


# NVIDIA's pre-training loader sorts sequences into bins by length. Its published rates at 128 and 512 tokens agree only
# if the mean length of the second phase is about two thirds of its bound.
BINNED_SHARE = 0.66


def _accumulation(run: MeasuredRun) -> int:
    """Accumulation steps; a rate per sample with a large count is traced with fewer, the optimizer's share is small."""
    text = run.grad_accum
    if text.endswith("/micro-batch"):
        return max(1, int(text.split("/")[0]) // (run.batch or 1))
    return int(text) if text.isdigit() else 1


def _task(run: MeasuredRun) -> str:
    text = run.task.lower()
    if run.model in ("ncf", "DLE:ncf"):
        return "recommend"
    if not run.model.startswith("transformers:"):
        return "classify"
    for words, task in (
        ("question answering", "qa"),
        ("pretraining", "pretrain-masked"),
        ("audio", "audio-classify"),
        ("masked lm", "masked-lm"),
        ("language modelling", "masked-lm"),
        ("causal lm", "causal-lm"),
        ("image class", "classify"),
        ("video class", "classify"),
        ("text class", "text-classify"),
    ):
        if words in text:
            return task
    name = run.model.lower()
    if "bert" in name or "electra" in name:
        return "pretrain" if run.source.endswith("NeuSight") else "masked-lm"
    return "causal-lm"


def _attention(run: MeasuredRun) -> str:
    found = re.search(r"attn=(eager|sdpa)", run.notes)
    if found:
        return found.group(1)
    if "NeuSight" in run.source:
        return "eager"
    if run.model.startswith("timm:"):
        if run.source.endswith("milabench"):  # its copy of timm is older than fused kernels: so memory per sample says
            return "eager"
        return "eager" if framework_age(run) < (2, 0) else "sdpa"
    if "litgpt" in run.framework or "torchtune" in run.framework:
        return "sdpa"
    # transformers chose sdpa by itself from 4.36 on (December 2023)
    stated = re.search(r"transformers (\d+)\.(\d+)", run.notes)
    if stated:
        return "sdpa" if (int(stated.group(1)), int(stated.group(2))) >= (4, 36) else "eager"
    return "eager" if framework_age(run) < (2, 2) else "sdpa"


# torch of the day when a source that states no version published
_UNSTATED_VERSIONS = (
    ("ryujaehun/", (1, 3)),
    ("NVIDIA/DeepLearningExamples", (1, 8)),
    ("sandeepkumar-skb/", (1, 7)),
    ("stanford-futuredata/", (1, 0)),
    ("siasosp23/", (1, 9)),
    ("open-mmlab/", (1, 8)),
)
NEWEST = (2, 6)


def framework_age(run: MeasuredRun) -> tuple[int, int]:
    """(major, minor) of the torch that ran: as stated, else by the habit of the source, else a recent one."""
    found = re.match(r"(\d+)\.(\d+)", run.framework_version)
    if found:
        return int(found.group(1)), int(found.group(2))
    for prefix, version in _UNSTATED_VERSIONS:
        if run.source.startswith(prefix):
            return version
    year = run.source_date[:4]
    return (1, 8) if year.isdigit() and int(year) < 2023 else NEWEST


def _zero_grad(run: MeasuredRun) -> str:
    if "never calls zero_grad" in run.notes:
        return "never"
    return "zero" if framework_age(run) < (2, 0) else "none"


def _precision(run: MeasuredRun, base: Workload) -> Workload:
    text = run.precision
    old_apex = run.framework_version.startswith(_APEX_VERSIONS) or "apex O2" in run.notes
    if text in ("fp32", ""):
        # before 1.12 torch let matrix products run as TF32 by itself
        allowed = "on" if text == "" and (1, 7) <= framework_age(run) < (1, 12) else "default"
        return replace(base, tf32="off" if run.source.endswith("NeuSight") else allowed)
    if text == "tf32":
        return replace(base, tf32="on")
    if text == "fp16-amp":
        if (
            base.task in ("qa", "pretrain", "pretrain-masked")
            and base.model.startswith("transformers:")
            and run.source.startswith(("NVIDIA", "lambdal"))
        ):
            return replace(base, precision="fp16-masters")  # apex O2 in the BERT scripts of this collection
        scaled = not run.source.endswith("pytorch-image-models")
        return replace(base, precision="fp16-amp", grad_scaler=scaled and not old_apex)
    if text == "bf16-amp":
        return replace(base, precision="bf16-amp")
    if text == "fp16-static":
        return replace(base, precision="fp16-masters")
    if text == "fp16-true":
        return replace(base, precision="fp16")
    if text == "bf16-true":
        return replace(base, precision="bf16")
    raise _RefusedError(f"precision {text!r}")


def _optimizer(run: MeasuredRun, base: Workload) -> Workload:
    text = run.optimizer.lower()
    if text == "none" or "no optimizer step" in run.task:
        return replace(base, optimizer="none")
    if not text:
        default = "sgd-momentum" if base.task == "classify" else "adamw"
        if run.source.endswith("GPUMemNet"):
            return replace(base, optimizer="adam")  # memory beyond the activations grows by twice the parameters
        if "torchtune" in run.framework:
            default = "adamw-fused"
        return replace(base, optimizer=default, clip_gradients=base.task != "classify")
    for words, name in (
        ("bnb", ""),
        ("torchao", ""),
        ("lamb", "lamb"),
        ("fusedadam", "adam-fused"),
        ("rmsprop", "rmsprop"),
        ("without momentum", "sgd"),
        ("sgd", "sgd-momentum"),
        ("adamw_hf", "adamw-loop"),
        ("adamw", "adamw"),
        ("adam", "adam"),
    ):
        if words in text:
            if not name:
                raise _RefusedError(f"optimizer {run.optimizer}")
            return _bert_optimizer(run, replace(base, optimizer=name, clip_gradients="Trainer" in run.optimizer))
    raise _RefusedError(f"optimizer {run.optimizer}")


def _bert_optimizer(run: MeasuredRun, base: Workload) -> Workload:
    """NVIDIA's SQuAD script: apex FusedAdam with fp16, and its own Adam, a loop over parameters, without."""
    if base.task != "qa" or not run.source.startswith(("NVIDIA", "lambdal")):
        return base
    fused = base.precision == "fp16-masters"
    return replace(
        base,
        optimizer="adam-fused" if fused else "bert-adam",
        clip_gradients=fused,
        bert="nvidia-1.4" if framework_age(run) < (1, 6) else "nvidia",
        apex_o2=fused,
    )


def _lora(run: MeasuredRun, base: Workload) -> Workload:
    text = run.task.lower()
    if "qlora" in text or "adapter" in text:
        raise _RefusedError("QLoRA or adapter fine-tune")
    if "lora" in text:
        rank = re.search(r"rank (\d+)", text)
        targets = ("q_proj", "v_proj")
        litgpt = run.source.endswith("/litgpt")
        return replace(base, lora_rank=int(rank.group(1)) if rank else 8, lora_targets=targets, litgpt=litgpt)
    if re.search(r"\b(pvera|shadow|vera|loha|lokr|ia3|boft|oft)\b", text):
        raise _RefusedError("fine-tuning method of PEFT other than LoRA")
    return base


def _loop(run: MeasuredRun, base: Workload) -> Workload:
    if "logits.sum()" in run.notes:
        held = "still referenced" in run.notes
        return replace(base, loss="sum-of-logits", hold_outputs=held, keeps_cache=held and base.task == "causal-lm")
    trainer = "HF Trainer" in run.optimizer + run.notes + run.memory_measure + run.task
    if trainer or "torchtune" in run.framework:
        return replace(base, frees_output=True)
    if "host-to-device copy of the input inside" in run.notes:
        return replace(base, copy_input=True)
    if run.source == "lambdal/deeplearning-benchmark" and base.task == "classify":
        return replace(base, copy_input=False)
    return base
