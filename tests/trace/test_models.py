"""Models by name: what is asked of the script door, and that the loop trains."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpurig.errors import InputError, UnknownName
from gpurig.trace.models import configuration, model_request
from gpurig.trace.script import trace_script

if TYPE_CHECKING:
    from pathlib import Path


def test_a_known_model_has_its_configuration() -> None:
    request = model_request("hf:bert-large-uncased", batch=4, shape="128")
    arguments = dict(zip(request.argv[::2], request.argv[1::2], strict=True))
    assert json.loads(arguments["--config"])["hidden_size"] == 1024
    assert (arguments["--batch"], arguments["--shape"]) == ("4", "128")


def test_aliases_inherit() -> None:
    assert configuration("google-bert/bert-base-uncased")["hidden_size"] == 768


def test_a_configuration_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_layer": 2}')
    assert configuration(str(path)) == {"model_type": "gpt2", "n_layer": 2}


@pytest.mark.parametrize(
    ("reference", "options", "error"),
    [
        pytest.param("bert", {}, InputError, id="no kind"),
        pytest.param("keras:bert", {}, InputError, id="unknown kind"),
        pytest.param("hf:bert-large-uncasd", {}, UnknownName, id="typo"),
        pytest.param("hf:missing.json", {}, UnknownName, id="no file"),
        pytest.param("timm:resnet50", {"shape": "3x"}, InputError, id="shape"),
        pytest.param("timm:resnet50", {"batch": 0}, InputError, id="batch"),
    ],
)
def test_what_makes_no_sense_is_refused(reference: str, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        model_request(reference, **options)  # type: ignore[arg-type]


def test_a_typo_is_answered_with_suggestions() -> None:
    with pytest.raises(UnknownName) as caught:
        model_request("hf:bert-large-uncasd")
    assert "bert-large-uncased" in caught.value.suggestions


@pytest.mark.torch
@pytest.mark.parametrize(
    ("reference", "shape", "parameters", "package"),
    [
        ("torchvision:resnet18", "3x64x64", 11_689_512, "torchvision"),
        ("timm:resnet18", "3x64x64", 11_689_512, "timm"),
        ("hf:prajjwal1/bert-tiny", "32", 4_416_698, "transformers"),
    ],
)
def test_the_loop_trains(reference: str, shape: str, parameters: int, package: str) -> None:
    pytest.importorskip("torch")
    import importlib.util

    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    trace = trace_script(model_request(reference, batch=2, shape=shape)).trace
    assert trace.num_parameters == parameters
    assert (trace.micro_batch, trace.precision, trace.optimizers) == (2, "bf16-amp", ("AdamW",))
