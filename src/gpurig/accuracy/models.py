"""Models by reference, without weights and without a network: torchvision, timm, transformers, and a few small ones."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import TYPE_CHECKING

from gpurig.accuracy.workload import Workload
from gpurig.errors import InputError, MissingPackage

if TYPE_CHECKING:
    from torch import nn

# timm names of 2022 whose architecture carries another name today, or is another name's with the same layers
TIMM_RENAMED = {
    "gluon_xception65": "xception65",
    "resnetv2_50d_evob": "resnetv2_50d_evos",
}


def make_model(workload: Workload) -> nn.Module:
    """The module of a workload on the current default device, in the current default dtype, randomly initialised.

    Raises:
        InputError: the reference is not known, or the installed package has no such model.
        MissingPackage: the package of the reference is not installed.
    """
    scheme, _, name = workload.model.partition(":")
    makers = {
        "torchvision": _torchvision,
        "timm": _timm,
        "transformers": _transformers,
        "ncf": _ncf,
    }
    if scheme not in makers:
        raise InputError(
            f"unknown model {workload.model!r}", hint="use torchvision:NAME, timm:NAME or transformers:NAME"
        )
    try:
        return makers[scheme](name, workload)
    except ImportError as error:
        raise MissingPackage(f"{scheme} is needed to rebuild {workload.model}", hint=f"pip install {scheme}") from error


def _torchvision(name: str, workload: Workload) -> nn.Module:
    from gpurig.trace.standins import torchvision_ops

    torchvision_ops.declare()
    from torchvision import models

    del workload
    if name not in models.list_models():
        raise InputError(f"torchvision has no model {name!r}")
    kwargs = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    model: nn.Module = models.get_model(name, weights=None, **kwargs)
    return model


def _timm(name: str, workload: Workload) -> nn.Module:
    from gpurig.trace.standins import torchvision_ops

    torchvision_ops.declare()
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(workload.attention == "sdpa")
    if name == "resnext152_32x4d":
        from timm.models.resnet import Bottleneck, ResNet

        return ResNet(Bottleneck, [3, 8, 36, 3], cardinality=32, base_width=4)  # type: ignore[no-any-return]
    name = TIMM_RENAMED.get(name, name)
    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}")
    model: nn.Module = timm.create_model(name, pretrained=False, **_timm_size(name, workload))
    return model


def _timm_size(name: str, workload: Workload) -> dict[str, int | tuple[int, int]]:
    """Transformers with position tables need the image size when it is not their own."""
    from timm.models import get_pretrained_cfg

    if workload.image is None:
        return {}
    config = get_pretrained_cfg(name, allow_unregistered=True)
    own = config.input_size[-2:] if config else None
    if own is None or tuple(own) == workload.image[1:] or not (config.fixed_input_size or "vit" in name):
        return {}
    return {"img_size": workload.image[1:]}


@functools.cache
def _configurations() -> dict[str, dict[str, object]]:
    text = (resources.files("gpurig") / "data" / "models" / "transformers.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, object]] = json.loads(text)["models"]
    return table


def known_transformers() -> tuple[str, ...]:
    """References that can be built without a network."""
    return tuple(sorted(_configurations()))


def _transformers(name: str, workload: Workload) -> nn.Module:
    from gpurig.trace.standins import torchvision_ops

    torchvision_ops.declare()
    import transformers

    entry = _configuration(name)
    architecture = str(entry["model_type"])
    overrides = {key: value for key, value in entry.items() if key not in ("model_type", "source", "like")}
    config = transformers.AutoConfig.for_model(architecture, **overrides)
    if workload.bert != "transformers" and architecture == "bert" and workload.task == "qa":
        from gpurig.accuracy.bert import NvidiaBertForQuestionAnswering

        return NvidiaBertForQuestionAnswering(config, autograd_of_1_4=workload.bert == "nvidia-1.4")
    config._attn_implementation = workload.attention
    if hasattr(config, "use_cache"):
        config.use_cache = workload.keeps_cache
    maker = getattr(transformers, _head(architecture, workload.task))
    if workload.seq_len and getattr(config, "max_position_embeddings", workload.seq_len) < workload.seq_len:
        config.max_position_embeddings = workload.seq_len
    model: nn.Module = maker(config)
    if workload.checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    return model


def _configuration(name: str) -> dict[str, object]:
    """The entry of a name; an entry may be `like` another with a few differences."""
    table = _configurations()
    plain = name.split("(", maxsplit=1)[0].rstrip()
    for candidate in (name, plain, plain.split("/")[-1]):
        if candidate in table:
            entry = dict(table[candidate])
            if "like" in entry:
                entry = {**_configuration(str(entry["like"])), **entry}
            return entry
    raise InputError(
        f"the configuration of transformers:{name} is not known offline",
        hint="give a model of the list that `gpurig plan --help` names, or its config.json",
    )


_HEADS = {
    "qa": "{}ForQuestionAnswering",
    "pretrain": "{}ForPreTraining",
    "masked-lm": "{}ForMaskedLM",
    "causal-lm": "{}ForCausalLM",
    "text-classify": "{}ForSequenceClassification",
    "audio-classify": "{}ForAudioClassification",
    "classify": "{}ForImageClassification",
}
_HEAD_EXCEPTIONS = {
    ("gpt2", "causal-lm"): "GPT2LMHeadModel",
    ("vivit", "classify"): "VivitForVideoClassification",
    ("t5", "causal-lm"): "T5ForConditionalGeneration",
    ("bart", "causal-lm"): "BartForConditionalGeneration",
    ("distilbert", "pretrain"): "DistilBertForMaskedLM",
    ("roberta", "pretrain"): "RobertaForMaskedLM",
}
_PREFIX = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
    "gpt2": "GPT2",
    "gpt_neo": "GPTNeo",
    "gpt_neox": "GPTNeoX",
    "gptj": "GPTJ",
    "opt": "OPT",
    "bloom": "Bloom",
    "llama": "Llama",
    "mistral": "Mistral",
    "gemma": "Gemma",
    "qwen2": "Qwen2",
    "phi": "Phi",
    "phi3": "Phi3",
    "t5": "T5",
    "bart": "Bart",
    "reformer": "Reformer",
    "whisper": "Whisper",
    "vit": "ViT",
    "deit": "DeiT",
    "beit": "Beit",
    "swin": "Swin",
    "convnext": "ConvNext",
    "resnet": "ResNet",
    "vivit": "Vivit",
}


def _head(architecture: str, task: str) -> str:
    exception = _HEAD_EXCEPTIONS.get((architecture, task))
    if exception:
        return exception
    if architecture not in _PREFIX or task not in _HEADS:
        raise InputError(f"no head for task {task!r} on {architecture!r}")
    return _HEADS[task].format(_PREFIX[architecture])


def _ncf(name: str, workload: Workload) -> nn.Module:
    """Neural collaborative filtering as in NVIDIA's scripts: MovieLens-20M, 64 factors, layers 256-256-128-64."""
    del name, workload
    import torch
    from torch import nn

    class NeuMF(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            users, items, factors = 138_493, 26_744, 64
            layers = (256, 256, 128, 64)
            self.mf_user = nn.Embedding(users, factors)
            self.mf_item = nn.Embedding(items, factors)
            self.mlp_user = nn.Embedding(users, layers[0] // 2)
            self.mlp_item = nn.Embedding(items, layers[0] // 2)
            self.mlp = nn.ModuleList(nn.Linear(a, b) for a, b in zip(layers, layers[1:], strict=False))
            self.final = nn.Linear(layers[-1] + factors, 1)

        def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
            general = self.mf_user(user) * self.mf_item(item)
            x = torch.cat((self.mlp_user(user), self.mlp_item(item)), dim=1)
            for layer in self.mlp:
                x = nn.functional.dropout(torch.relu(layer(x)), 0.5)
            out: torch.Tensor = self.final(torch.cat((general, x), dim=1))
            return out

    return NeuMF()
