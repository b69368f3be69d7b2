"""Copies that CUDA kernels make of their operands, which no operator of the trace shows.

cuBLAS wants matrices with one dense dimension, cuDNN wants dense tensors in one memory format; ATen copies an operand
that is otherwise, for the time of the call.

Source: prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas in ATen/native/cuda/Blas.cpp; cudnn_convolution in
ATen/native/cudnn/ConvShared.cpp, PyTorch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch

_MATRICES = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "addmm_": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "baddbmm_": (1, 2),
}
_CONVOLUTIONS = {"convolution": (0, 1), "convolution_backward": (0, 1, 2)}


def operand_copies(name: str, args: tuple[Any, ...]) -> list[int]:
    """Bytes of each temporary copy that a call makes besides its result."""
    if name in _MATRICES:
        operands = [args[i] for i in _MATRICES[name]]
        return [_dense_bytes(t) for t in operands if not _suits_cublas(t)]
    if name in _CONVOLUTIONS:
        operands = [args[i] for i in _CONVOLUTIONS[name]]
        wanted = _memory_format(operands)
        return [_dense_bytes(t) for t in operands if not t.is_contiguous(memory_format=wanted)]
    return []


def _dense_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # type: ignore[no-any-return]


def _suits_cublas(matrix: torch.Tensor) -> bool:
    """Whether one of the last two dimensions is dense and the other's stride covers it."""
    rows, columns = matrix.shape[-2:]
    row_stride, column_stride = matrix.stride()[-2:]
    if matrix.numel() == 0:
        return True
    return (row_stride == 1 and column_stride >= max(1, rows)) or (column_stride == 1 and row_stride >= max(1, columns))  # type: ignore[no-any-return]


def _memory_format(operands: list[torch.Tensor]) -> torch.memory_format:
    """Layout of a convolution: cuDNN runs in channels-last if any operand of at least four dimensions is laid out so."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in operands[-2:]:
        wanted = formats.get(tensor.dim())
        if wanted is not None and tensor.is_contiguous(memory_format=wanted) and not tensor.is_contiguous():
            return wanted
    return torch.contiguous_format
