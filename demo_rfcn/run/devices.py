# SPDX-License-Identifier: Apache-2.0
"""The devices of a process."""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx

from ..errors import InputError


def contexts(gpus: Sequence[int], cpus: int) -> list[mx.Context]:
    """Return the GPUs that are named, or that many CPU contexts.

    Raises
    ------
    InputError
        There is no such GPU.
    """
    if not gpus:
        return [mx.cpu(number) for number in range(cpus)]
    present = mx.context.num_gpus()
    for number in gpus:
        if number >= present:
            raise InputError(f"--gpus {number}, but MXNet sees {present} GPUs")
    return [mx.gpu(number) for number in gpus]
