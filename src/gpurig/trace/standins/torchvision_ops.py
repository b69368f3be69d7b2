"""Torchvision beside a PyTorch build that its compiled operators do not fit.

Without them `import torchvision` fails ("operator torchvision::nms does not exist") and takes transformers and timm with
it. Declaring the operators is enough for all that does not compute boxes on the host.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w,"
    " SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask)"
    " -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt"
    " stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt"
    " offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int"
    " sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor",
    "ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor,"
    " Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int"
    " sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, SymInt"
    " batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, SymInt"
    " pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor",
    "_cuda_version() -> int",
)
_libraries: list[torch.library.Library] = []


def declare() -> bool:
    """Declare torchvision's operators if it is installed and its own library cannot be loaded.

    Call it before torchvision is imported. Returns whether they were declared.
    """
    if _libraries:
        return True
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _loads(Path(spec.origin).parent):
        return False
    if _defined():
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
    return True


def _defined() -> bool:
    """Whether somebody else has declared the operators (finding torchvision can run the user's own import hooks)."""
    return bool(torch._C._jit_get_schemas_for_operator("torchvision::nms"))


def _loads(package: Path) -> bool:
    """Whether the compiled operators of the installed torchvision load into this PyTorch."""
    found = [*package.glob("_C*.so"), *package.glob("_C*.pyd")]
    try:
        for path in found:
            torch.ops.load_library(str(path))
    except (OSError, RuntimeError):
        return False
    return bool(found)
