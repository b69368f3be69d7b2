from __future__ import annotations

import pytest
from runs import BERT, RESNET, run_of

from gpurig.accuracy.workload import Unanswerable, Workload, framework_age, rebuild


def rebuilt(tmp_path, base=RESNET, **cells) -> Workload:
    workload = rebuild(run_of(tmp_path, base, **cells))
    assert isinstance(workload, Workload), workload
    return workload


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        pytest.param({}, "image", (3, 224, 224), id="image size"),
        pytest.param({"input_shape": "380x380"}, "image", (3, 380, 380), id="image size without channels"),
        pytest.param({"channels_last": "y"}, "channels_last", True, id="layout"),
        pytest.param({"precision": "tf32"}, "tf32", "on", id="TF32 everywhere"),
        pytest.param({"precision": "fp32"}, "tf32", "default", id="TF32 as torch has it"),
        pytest.param({"precision": "fp16-true"}, "precision", "fp16", id="an fp16 model"),
        pytest.param({"precision": "fp16-static"}, "precision", "fp16-masters", id="static scaling keeps fp32 copies"),
        pytest.param({"precision": "fp16-amp"}, "grad_scaler", True, id="autocast with a scaler"),
        pytest.param({"optimizer": "none"}, "optimizer", "none", id="no optimizer"),
        pytest.param({"optimizer": "SGD without momentum"}, "optimizer", "sgd", id="plain SGD"),
        pytest.param({"optimizer": "RMSprop"}, "optimizer", "rmsprop", id="RMSprop"),
        pytest.param(
            {"task": "forward+backward only (no optimizer step)"}, "optimizer", "none", id="loop without a step"
        ),
        pytest.param({"grad_accum": "32"}, "accumulation", 32, id="accumulation"),
        pytest.param({"grad_accum": "128/micro-batch"}, "accumulation", 8, id="accumulation to a global batch"),
        pytest.param({"framework_version": "1.12"}, "zero_grad", "zero", id="torch before 2.0 cleared gradients"),
        pytest.param({"framework_version": "2.1.0+cu118"}, "zero_grad", "none", id="torch 2 drops them"),
        pytest.param({"notes": "script never calls zero_grad"}, "zero_grad", "never", id="gradients pile up"),
        pytest.param({"framework_version": "1.12"}, "foreach", False, id="optimizers looped before 2.0"),
        pytest.param({"activation_checkpointing": "y"}, "checkpointing", True, id="checkpointing"),
    ],
)
def test_what_a_row_says(tmp_path, cells, field, value):
    assert getattr(rebuilt(tmp_path, **cells), field) == value


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        pytest.param({}, "task", "masked-lm", id="head"),
        pytest.param({"notes": "attn=eager; x"}, "attention", "eager", id="attention as noted"),
        pytest.param({"notes": "attn=sdpa (flash)"}, "attention", "sdpa", id="attention as noted, sdpa"),
        pytest.param({"notes": "transformers 4.35.2"}, "attention", "eager", id="before transformers 4.36"),
        pytest.param({"notes": "transformers 4.40.0"}, "attention", "sdpa", id="since transformers 4.36"),
        pytest.param({"task": "question answering (SQuAD fine-tune)"}, "task", "qa", id="SQuAD"),
        pytest.param({"task": "LoRA fine-tune (q,v rank 16)"}, "lora_rank", 16, id="LoRA rank"),
        pytest.param(
            {"notes": "zero_grad, forward, logits.sum(), backward"}, "loss", "sum-of-logits", id="loss of the loop"
        ),
    ],
)
def test_what_a_text_row_says(tmp_path, cells, field, value):
    assert getattr(rebuilt(tmp_path, BERT, **cells), field) == value


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"kind": "inference"}, "inference"),
        ({"per_gpu_batch": ""}, "batch not stated"),
        ({"torch_compile": "y"}, "torch.compile or XLA"),
        ({"framework": "pytorch FSDP"}, "FSDP"),
        ({"model": "mmseg:pspnet_r50"}, "model not public"),
        ({"model": "DLE:waveglow"}, "model of another repository"),
        ({"precision": "bf16+nf4"}, "precision 'bf16+nf4'"),
        ({"optimizer": "bnb AdamW 8-bit"}, "optimizer bnb"),
        ({"input_shape": "short side 800 (COCO)"}, "input shape varies"),
        ({"task": "QLoRA fine-tune"}, "QLoRA"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_cannot_be_rebuilt_say_why(tmp_path, cells, reason):
    answer = rebuild(run_of(tmp_path, RESNET, **cells))
    assert isinstance(answer, Unanswerable)
    assert answer.reason.startswith(reason)


def test_equal_workloads_have_equal_keys_and_tf32_is_no_part_of_it(tmp_path):
    fp32, tf32, other = (rebuilt(tmp_path, **cells) for cells in ({}, {"precision": "tf32"}, {"per_gpu_batch": "17"}))
    assert fp32.key == tf32.key != other.key


def test_the_published_value_plays_no_part(tmp_path):
    slow, fast = (rebuilt(tmp_path, throughput=t, memory=m, memory_unit="GB") for t, m in (("1", "1"), ("9999", "70")))
    assert slow == fast


@pytest.mark.parametrize(
    ("cells", "age"),
    [
        ({"framework_version": "1.13.0a0+d0d6b1f"}, (1, 13)),
        ({"framework_version": "", "source_repo": "NVIDIA/DeepLearningExamples"}, (1, 8)),
        ({"framework_version": ""}, (2, 6)),
    ],
)
def test_age_of_the_framework(tmp_path, cells, age):
    assert framework_age(run_of(tmp_path, RESNET, **cells)) == age
