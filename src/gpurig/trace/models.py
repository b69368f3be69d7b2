"""The door for people without a script: a model by name, with a batch and a shape, in an ordinary training loop."""

from __future__ import annotations

import difflib
import json
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gpurig.errors import InputError, UnknownName
from gpurig.trace.script.request import ScriptRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("hf", "timm", "torchvision")
DEFAULT_BATCH = 8


def model_request(
    reference: str,
    *,
    batch: int | None = None,
    shape: str | None = None,
    precision: str = "bf16-amp",
    optimizer: str = "adamw",
    checkpointing: bool = False,
    python: str | None = None,
    time_limit_s: float = 150.0,
) -> ScriptRequest:
    """What to trace for ``hf:NAME``, ``hf:CONFIG.json``, ``timm:NAME`` or ``torchvision:NAME``.

    Args:
        reference: The model.
        batch: Samples of a step; 8 if None.
        shape: ``3x224x224`` for images, a number of tokens for text; the model's own default if None.
        precision: "fp32", "fp16-amp", "bf16-amp", or "bf16" for a model cast as a whole.
        optimizer: "adamw" or "sgd".
        checkpointing: Activation checkpointing, for transformers.
        python: Interpreter with the libraries.
        time_limit_s: Limit of the trace.

    Raises:
        InputError: a reference or shape of another form.
        UnknownName: a Hugging Face name whose configuration does not come with gpurig.
    """
    kind, colon, name = reference.partition(":")
    if not colon or kind not in KINDS or not name:
        raise InputError(
            f"{reference!r} is not a model by name", hint="write hf:NAME, hf:CONFIG.json, timm:NAME or torchvision:NAME"
        )
    if batch is not None and batch < 1:
        raise InputError(f"a batch of {batch} has no samples", hint="give --batch 1 or more")
    arguments = ["--model", reference, "--batch", str(batch or DEFAULT_BATCH), "--precision", precision]
    arguments += ["--optimizer", optimizer, *(["--checkpointing"] if checkpointing else [])]
    if shape is not None:
        arguments += ["--shape", ",".join(str(n) for n in _shape(shape))]
    if kind == "hf":
        arguments += ["--config", json.dumps(configuration(name))]
    return ScriptRequest(
        script="gpurig.trace.by_name", module=True, argv=tuple(arguments), python=python, time_limit_s=time_limit_s
    )


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", text):
        raise InputError(f"{text!r} is not a shape", hint="write --shape 3x224x224, or --shape 512 for tokens")
    return tuple(int(n) for n in re.split("[x,]", text))


def configuration(name: str) -> dict[str, object]:
    """The configuration of a Hugging Face model: of a config.json, or of a public model that gpurig knows.

    Raises:
        InputError: the file is no configuration.
        UnknownName: no such file, and not a known model.
    """
    path = Path(name)
    if path.suffix == ".json":
        return _read(path)
    known = _known()
    found = known.get(name) or known.get(name.rpartition("/")[2])
    if found is None:
        close = tuple(difflib.get_close_matches(name, known, 3, cutoff=0.5))
        raise UnknownName("Hugging Face model", name, close, hint="download its config.json and give hf:config.json")
    like = found.get("like")
    rest = {key: value for key, value in found.items() if key != "like"}
    return {**configuration(str(like)), **rest} if like else rest


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownName("configuration file", str(path), hint="give the path of a config.json") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON", details=(str(error),)) from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise InputError(f"{path} has no model_type: it is not the configuration of a transformers model")
    return found


def _known() -> Mapping[str, dict[str, object]]:
    text = resources.files("gpurig.data").joinpath("models/transformers.json").read_text("utf-8")
    return json.loads(text)["models"]  # type: ignore[no-any-return]
