# SPDX-License-Identifier: Apache-2.0
"""Which layout the maps of a network get: MXNet's, or those of oneDNN."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from gluon_roi.inference import convert, layouts

S = mx.sym
OURS = "convolutions in MXNet's layout"
POOLED = "max pooling in MXNet's layout"


def convolution(data: Any, name: str, channels: int, side: int = 1, **attributes: Any) -> Any:
    size = {"kernel": (side, side), "pad": (side // 2, side // 2), "num_filter": channels}
    return S.Convolution(data, name=name, no_bias=True, **size, **attributes)


def blocks(channels: int, **attributes: Any) -> Any:
    """Three convolutions."""
    x = S.var("data")
    for number in range(3):
        x = S.relu(convolution(x, f"c{number}", channels, **attributes))
    return x


def flipped_blocks(channels: int) -> Any:
    """With an operator between the layers that needs MXNet's layout."""
    x = S.var("data")
    for number in range(3):
        x = S.reverse(convolution(x, f"c{number}", channels), axis=3)
    return x


def changes(symbol: Any, shape: tuple[int, ...], given: bool = True) -> dict[str, int]:
    """What is changed in a symbol that is called with this shape."""
    arguments, _, _ = symbol.infer_shape(data=shape)
    params = {
        name: mx.nd.array(np.ones(size))
        for name, size in zip(symbol.list_arguments(), arguments)
        if name != "data"
    }
    return convert.convert(symbol, params, {"data": shape} if given else {}).changes


def test_small_maps_stay_with_mxnet():
    """A half of a block's lanes would be padding."""
    assert changes(blocks(64), (1, 64, 3, 3))[OURS] == 0


def test_depthwise_layers_alone_stay_with_mxnet():
    assert changes(blocks(64, side=3, num_group=64), (1, 64, 28, 28))[OURS] == 0


def test_maps_between_operators_that_need_mxnets_layout_have_it():
    assert changes(flipped_blocks(64), (1, 64, 40, 40))[OURS] == 3


def test_without_sizes_it_is_a_detector():
    assert changes(blocks(64), (1, 64, 3, 3), given=False)[OURS] == 3


def test_concat_of_files_is_mxnets(monkeypatch):
    """This package's Concat, which is for networks alone, decides for MXNet's layout; with AVX2."""
    monkeypatch.setattr(layouts, "build_info", lambda: {"simd": "avx2"})
    symbol = S.concat(blocks(64, side=1), S.var("data"))
    shape = (1, 64, 8, 9)
    params = {f"c{number}_weight": mx.nd.ones((64, 64, 1, 1)) for number in range(3)}
    found = [
        convert.convert(symbol, params, {"data": data}).changes[OURS]
        for data in (mx.nd.ones(shape), shape)
    ]
    assert found == [3, 0]


def test_pooling_has_the_layout_of_its_map():
    shape = {"kernel": (2, 2), "stride": (2, 2), "pool_type": "max"}
    assert changes(S.Pooling(blocks(64), **shape), (1, 64, 3, 3))[POOLED] == 0
    joined = S.concat(blocks(256), S.var("data"))
    assert changes(S.Pooling(joined, **shape), (1, 256, 3, 3))[POOLED] == 0
    assert changes(S.Pooling(flipped_blocks(64), **shape), (1, 64, 40, 40))[POOLED] == 1
    assert changes(S.Pooling(S.var("data"), **shape), (1, 64, 40, 40))[POOLED] == 1
