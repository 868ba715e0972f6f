# SPDX-License-Identifier: Apache-2.0
"""Operators of detectors: sampling, boxes, proposals."""

from __future__ import annotations

import numpy as np

from .growth import Call, Graph, Tensor, maker
from .layers import windows


def _offsets(g: Graph, x: Tensor, modulated: bool) -> Call | None:
    if x.rank != 4 or not x.exact or not x.is_float:
        return None
    attributes = windows(g, x) or {}
    if g.coin(0.3):
        attributes["dilate"] = (g.size(1, 2), g.size(1, 2))
    channels, cells, bias = x.shape[1], int(np.prod(attributes["kernel"])), g.coin()
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    groups, parts, each = g.among(divisors), g.among(divisors), g.size(1, 2)
    filters = groups * parts * each  # of both, as MXNet wants it of the modulated one
    made = [
        (size + 2 * pad - dilate * (kernel - 1) - 1) // stride + 1
        for size, kernel, pad, stride, dilate in zip(
            x.shape[2:],
            attributes["kernel"],
            attributes.get("pad", (0, 0)),
            attributes.get("stride", (1, 1)),
            attributes.get("dilate", (1, 1)),
        )
    ]
    if min(made) < 1:
        return None
    # Around the map, and on its cells and borders.
    offsets = g.scaled(0.25, x.shape[0], 2 * parts * cells, *made, dtype=x.dtype)
    masks = [g.input(x.shape[0], parts * cells, *made, dtype=x.dtype)] * modulated
    weight = g.input(filters, channels // groups, *attributes["kernel"], dtype=x.dtype)
    attributes.update(
        num_filter=filters, num_group=groups, num_deformable_group=parts, no_bias=not bias
    )
    biases = [g.input(filters, dtype=x.dtype)] * bias
    return [x, offsets, *masks, weight, *biases], attributes


@maker("_contrib_DeformableConvolution")
def _deformable(g: Graph, x: Tensor) -> Call | None:
    return _offsets(g, x, modulated=False)


@maker("_contrib_ModulatedDeformableConvolution")
def _modulated(g: Graph, x: Tensor) -> Call | None:
    return _offsets(g, x, modulated=True)


@maker("_contrib_AdaptiveAvgPooling2D")
def _adaptive(g: Graph, x: Tensor) -> Call | None:
    size = g.among([1, (1, 1), g.size(2, 7), (g.size(1, 7), g.size(1, 7))])
    return ([x], {"output_size": size}) if x.rank == 4 and x.is_float else None


@maker("_contrib_BilinearResize2D")
def _bilinear_resize(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4 or not x.is_float:
        return None
    corners = {"align_corners": g.coin()}
    mode = g.among(["size", "scale", "like", "odd_scale", "to_even_up", "to_odd_down", "to_odd_up"])
    if mode == "like":
        like = g.input(1, 2, g.size(1, 7), g.size(1, 7), dtype=x.dtype)
        return [x, like], {"mode": mode, **corners}
    scales = {f"scale_{name}": g.among([0.5, 1.0, 1.5, 2.5]) for name in ("height", "width")}
    if mode == "size":
        return [x], {"height": g.size(1, 9), "width": g.size(1, 9), **corners}
    if mode == "scale":
        return [x], {**scales, **corners}
    return [x], {"mode": mode, **(scales if mode == "odd_scale" else {}), **corners}


@maker("GridGenerator")
def _grid(g: Graph, x: Tensor) -> Call | None:
    if g.coin():
        flow = g.input(g.size(), 2, g.size(2), g.size(2), dtype=g.dtype)
        return [flow], {"transform_type": "warp"}
    affine = g.input(g.size(), 6, dtype=g.dtype)
    return [affine], {"transform_type": "affine", "target_shape": (g.size(2, 5), g.size(2, 5))}


@maker("BilinearSampler")
def _sampler(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4 or not x.is_float:
        return None
    # Inside of the map and around it.
    grid = g.scaled(0.5, x.shape[0], 2, g.size(), g.size(), dtype=x.dtype)
    return [x, grid], {}


@maker("UpSampling")
def _upsampling(g: Graph, x: Tensor) -> Call | None:
    return ([x], {"scale": g.size(1, 3), "sample_type": "nearest"}) if x.rank == 4 else None


@maker("_contrib_box_decode")
def _box_decode(g: Graph, x: Tensor) -> Call | None:
    batch, number = g.size(1, 2), g.size()
    attributes: dict = {f"std{n}": g.among([1.0, 0.125]) for n in range(4)}
    attributes.update(clip=g.among([-1.0, 0.5]), format=g.among(["corner", "center"]))
    return [g.input(batch, number, 4), g.input(1, number, 4)], attributes


@maker("_contrib_box_nms")
def _box_nms(g: Graph, x: Tensor) -> Call | None:

    def rows(shape: tuple) -> np.ndarray:
        images, number, _ = shape
        low = g.random.randint(0, 20, (images, number, 2))
        boxes = np.concatenate([low, low + g.random.randint(-2, 12, low.shape)], axis=-1)
        score = g.random.randint(-2, 9, (images, number, 1)) / 8  # some of them equal
        kind = g.random.randint(-1, 3, (images, number, 1))
        return np.concatenate([kind, score, boxes], axis=-1)

    return [g.made(rows, g.size(1, 2), g.size(1, 12), 6)], {
        "overlap_thresh": g.among([0.0, 0.25, 0.5, 1.0]),
        "valid_thresh": g.among([0.0, 0.125]),
        "topk": g.among([-1, 0, 3, 100]),
        "id_index": g.among([-1, 0]),
        "background_id": g.among([-1, 1]),
        "force_suppress": g.coin(),
        "in_format": g.among(["corner", "center"]),
        "out_format": g.among(["corner", "center"]),
    }


@maker("_contrib_MultiBoxPrior")
def _priors(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4 or not x.is_float:
        return None
    some = {
        name: tuple(g.among([0.25, 0.5, 1.0, 3.0]) for _ in range(g.size()))
        for name in ("sizes", "ratios")
    }
    if g.coin():
        some.update(steps=(0.25, 0.125), offsets=(g.number(), 0.5))
    return [x], {**some, "clip": g.coin()}


@maker("_contrib_MultiBoxDetection")
def _multi_box(g: Graph, x: Tensor) -> Call | None:
    images, number, classes = g.size(1, 2), g.size(1, 12), g.size(2, 4)
    scale = g.among([0.0, 0.5])

    def boxes(shape: tuple) -> np.ndarray:
        low = g.random.randint(0, 20, (*shape[:2], 2)) / 32
        return np.concatenate([low, low + g.random.randint(-2, 12, low.shape) / 32], axis=-1)

    # Some scores are equal.
    scores = g.made(lambda shape: g.random.randint(-1, 10, shape) / 8, images, classes, number)
    moves = g.made(lambda shape: g.random.randint(-1, 2, shape) * scale, images, 4 * number)
    return [scores, moves, g.made(boxes, 1, number, 4)], {
        "clip": g.coin(),
        "threshold": g.among([0.0, 0.25]),
        "nms_threshold": g.among([-1.0, 0.25, 0.5, 1.0]),
        "force_suppress": g.coin(),
        "nms_topk": g.among([-1, 3, 100]),
        "background_id": g.among([0, -1]),
        "variances": g.among([(0.125, 0.125, 0.25, 0.25), (1.0, 1.0, 1.0, 1.0)]),
    }


@maker("_contrib_MultiProposal")
def _multi_proposal(g: Graph, x: Tensor) -> Call | None:
    return _proposals(g, g.size(1, 3))


@maker("_contrib_Proposal")
def _proposal(g: Graph, x: Tensor) -> Call | None:
    return _proposals(g, 1)


def _proposals(g: Graph, images: int) -> Call:
    scales = tuple(g.among([1.0, 2.0, 3.5]) for _ in range(g.size(1, 2)))
    ratios = tuple(g.among([0.5, 1.0, 3.0]) for _ in range(g.size(1, 2)))
    anchors, stride = len(scales) * len(ratios), g.among([4, 16])
    height, width = g.size(), g.size()
    scores = g.index(images, 2 * anchors, height, width, low=0, high=9)
    scale = g.among([0.0, 0.125])
    boxes = g.made(
        lambda shape: g.random.randint(-1, 2, shape) * scale, images, 4 * anchors, height, width
    )

    def sizes(shape: tuple) -> np.ndarray:
        sides = [(g.size(1, height) * stride, g.size(1, width) * stride) for _ in range(shape[0])]
        return np.insert(np.array(sides), 2, 1, axis=1)

    return [scores, boxes, g.made(sizes, images, 3)], {
        "scales": scales,
        "ratios": ratios,
        "feature_stride": stride,
        "rpn_pre_nms_top_n": g.among([-1, 5, 6000]),
        "rpn_post_nms_top_n": g.size(1, 9),
        "threshold": g.among([0.0, 0.3, 0.7, 1.0]),
        "rpn_min_size": g.among([0, 4, 16]),
        "output_score": g.coin(),
        "iou_loss": g.coin(0.3),
    }
