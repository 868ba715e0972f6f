# SPDX-License-Identifier: Apache-2.0
"""A detector of GluonCV in readable PyTorch, by hand, and backbones in torchvision's classes.

    pip install '.[torch,demo]'
    python examples/gluoncv_to_torch.py [--params faster_rcnn_resnet50_v1b_voc-447328d8.params]

Prints the largest difference of three classification networks, and how many detections of
faster_rcnn_resnet50_v1b_voc agree. Without --params, weights are random, the same each time.
`gluon_roi.onnx.to_torch` does the same for any exported network; a program of one's own can be
changed more easily. torchvision's FasterRCNN does not fit: it has other anchors, other rules for
small boxes, and another padding.
"""

from __future__ import annotations

import argparse

import mxnet as mx
import numpy as np
import torch
import torchvision
from gluoncv.model_zoo import get_model
from torch import nn
from torchvision.ops import nms, roi_align

import gluon_roi

#: Networks of GluonCV whose weights fit a class of torchvision.
BACKBONES = {
    "resnet50_v1b": torchvision.models.resnet50,
    "vgg16": torchvision.models.vgg16,
    "mobilenetv2_1.0": torchvision.models.mobilenet_v2,
}
#: Endings of Gluon's names, and PyTorch's.
RENAMED = {"gamma": "weight", "beta": "bias"}


# ---- Weights -------------------------------------------------------------------------------------


def weights_of(block: mx.gluon.Block) -> dict[str, torch.Tensor]:
    """The weights of a block, by their path in it, such as layer1.0.bn1.weight."""
    found = {}
    for path, parameter in block._collect_params_with_prefix().items():
        parent, _, name = path.rpartition(".")
        found[f"{parent}.{RENAMED.get(name, name)}"] = torch.tensor(parameter.data().asnumpy())
    return found


def load_weights(module: nn.Module, block: mx.gluon.Block) -> None:
    """Load a block's weights: by name, as for ResNet v1b, or in order, as for VGG and MobileNetV2.

    In order, a 1 x 1 convolution may be a dense layer, and may lack its bias.
    """
    weights = weights_of(block)
    state = {n: v for n, v in module.state_dict().items() if not n.endswith("num_batches_tracked")}
    if weights.keys() != state.keys():
        values = iter(weights.values())
        value = next(values, None)
        weights = {}
        for name, own in state.items():
            if name.endswith("bias") and (value is None or value.shape != own.shape):
                weights[name] = torch.zeros_like(own)
                continue
            weights[name] = value.reshape(own.shape)
            value = next(values, None)
    module.load_state_dict(weights, strict=False)


def compare_backbone(name: str) -> float:
    """The largest difference between the outputs of both, relative to the largest number."""
    mx.random.seed(0)
    image = mx.nd.random.normal(shape=(1, 3, 224, 224))
    block = get_model(name, pretrained=False)
    block.initialize(mx.init.Xavier(magnitude=2))
    expected = block(image).asnumpy()
    module = BACKBONES[name]().eval()
    load_weights(module, block)
    with torch.no_grad():
        found = module(torch.tensor(image.asnumpy())).numpy()
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# ---- The detector --------------------------------------------------------------------------------


class FasterRCNN(nn.Module):
    """GluonCV's faster_rcnn_resnet50_v1b_voc for one image; its rules stand in the comments."""

    STRIDE, SCALES, RATIOS = 16, (2, 4, 8, 16, 32), (0.5, 1, 2)
    NUM_CLASSES = 20

    def __init__(self) -> None:
        super().__init__()
        base = torchvision.models.resnet50()
        # Layers 1 to 3 are the features, layer 4 is the head: it runs once for each box.
        self.features = nn.Sequential(
            base.conv1, base.bn1, base.relu, base.maxpool, base.layer1, base.layer2, base.layer3
        )
        self.top_features = nn.Sequential(base.layer4)
        num_anchors = len(self.SCALES) * len(self.RATIOS)
        self.rpn = nn.ModuleDict(
            {
                "conv1": nn.Sequential(nn.Conv2d(1024, 1024, 3, padding=1), nn.ReLU()),
                "score": nn.Conv2d(1024, num_anchors, 1),
                "loc": nn.Conv2d(1024, 4 * num_anchors, 1),
            }
        )
        self.class_predictor = nn.Linear(2048, self.NUM_CLASSES + 1)
        self.box_predictor = nn.Linear(2048, 4 * self.NUM_CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Rows of class, score and corners in pixels, without order."""
        features = self.features(image)
        boxes = self.proposals(features, image.shape[2:])
        # 14 x 14 bins with 2 x 2 samples each, not aligned.
        pooled = roi_align(features, [boxes], (14, 14), 1 / self.STRIDE, 2, aligned=False)
        top = self.top_features(pooled).mean((2, 3))
        scores = self.class_predictor(top).softmax(1)
        offsets = self.box_predictor(top).reshape(len(boxes), self.NUM_CLASSES, 4)
        found = []
        for class_id in range(self.NUM_CLASSES):
            score = scores[:, 1 + class_id]  # 0 is the background
            decoded = decode(boxes, offsets[:, class_id], (0.1, 0.1, 0.2, 0.2))
            rows = (score > 0.01).nonzero()[:, 0]
            rows = rows[score[rows].argsort(descending=True, stable=True)[:400]]
            rows = rows[nms(decoded[rows], score[rows], 0.3)]
            label = torch.full_like(score[rows], class_id)
            found.append(torch.cat([label[:, None], score[rows, None], decoded[rows]], 1))
        return torch.cat(found)

    def proposals(self, features: torch.Tensor, size: torch.Size) -> torch.Tensor:
        """300 boxes (x1, y1, x2, y2); rows of -1 are padding, but pooled and scored like others."""
        hidden = self.rpn["conv1"](features)
        score = self.rpn["score"](hidden).permute(0, 2, 3, 1).reshape(-1).sigmoid()
        offsets = self.rpn["loc"](hidden).permute(0, 2, 3, 1).reshape(-1, 4)
        boxes = decode(self.anchors(*features.shape[2:]), offsets, (1, 1, 1, 1))
        height, width = size
        # Clipped to the size, not to the last pixel.
        boxes = boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]))
        sides = boxes[:, 2:] - boxes[:, :2] + 1  # the only place that counts + 1
        rows = (sides >= 16).all(1).nonzero()[:, 0]
        rows = rows[score[rows].argsort(descending=True, stable=True)[:6000]]
        rows = rows[nms(boxes[rows], score[rows], 0.7)[:300]]
        padding = boxes.new_full((300 - len(rows), 4), -1)
        return torch.cat([boxes[rows], padding])

    def anchors(self, height: int, width: int) -> torch.Tensor:
        """Corners of the anchors of each cell; GluonCV stores those of 128 x 128 cells."""
        middle = (self.STRIDE - 1) / 2
        sides = []
        for ratio in self.RATIOS:
            base_width = np.round(np.sqrt(self.STRIDE**2 / ratio))
            base_height = np.round(base_width * ratio)
            sides += [(base_width * scale, base_height * scale) for scale in self.SCALES]
        reach = (np.array(sides) - 1) / 2
        base = np.hstack([middle - reach, middle + reach])
        y, x = np.mgrid[:height, :width] * self.STRIDE
        corners = np.stack([x, y, x, y], axis=2)[:, :, None] + base
        return torch.tensor(corners.reshape(-1, 4).astype("float32"))


def decode(boxes: torch.Tensor, offsets: torch.Tensor, stds: tuple) -> torch.Tensor:
    """Corners of boxes that are shifted and scaled by offsets; sides are x2 - x1, without + 1."""
    sides = boxes[:, 2:] - boxes[:, :2]
    offsets = offsets * offsets.new_tensor(stds)
    centre = boxes[:, :2] + sides / 2 + offsets[:, :2] * sides
    reach = offsets[:, 2:].exp() * sides / 2
    return torch.cat([centre - reach, centre + reach], 1)


def detector_of_gluoncv(image: mx.nd.NDArray, params: str | None) -> mx.gluon.HybridBlock:
    """GluonCV's detector, with MXNet's ROIAlign replaced, which is wrong on padding rows."""
    mx.random.seed(0)
    net = get_model("faster_rcnn_resnet50_v1b_voc", pretrained=False, pretrained_base=False)
    if params is None:
        net.initialize(mx.init.Xavier(factor_type="in", magnitude=1.5))
        net(image)
        # Spread the scores: rounding orders boxes whose scores are nearly equal.
        for layer in (net.rpn.score, net.class_predictor):
            layer.weight.set_data(layer.weight.data() * 30)
    else:
        net.load_parameters(params)
    return gluon_roi.optimize(net, image)


def agreement(found: np.ndarray, expected: np.ndarray) -> tuple[int, float, float]:
    """How many expected rows are found (same class, score within .001, corners within .05 pixels).

    Also returns the largest differences of their scores and corners.
    """
    count, score, pixels = 0, 0.0, 0.0
    for row in expected:
        off = np.abs(found - row)
        same = (off[:, 0] == 0) & (off[:, 1] < 0.001) & (off[:, 2:] < 0.05).all(1)
        if same.any():
            best = np.flatnonzero(same)[off[same, 2:].max(1).argmin()]
            count, score = count + 1, max(score, off[best, 1])
            pixels = max(pixels, off[best, 2:].max())
            found = np.delete(found, best, axis=0)
    return count, score, pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--params", help="parameters of GluonCV's model zoo, instead of random ones"
    )
    parser.add_argument("--size", type=int, nargs=2, default=(320, 448), help="of the image")
    arguments = parser.parse_args()
    for name, make in BACKBONES.items():
        difference = compare_backbone(name)
        print(f"{name} in torchvision's {make.__name__}: largest difference {difference:.0e}")
    mx.random.seed(1)
    image = mx.nd.random.normal(shape=(1, 3, *arguments.size))
    net = detector_of_gluoncv(image, arguments.params)
    expected = np.concatenate([out[0].asnumpy() for out in net(image)], axis=1)
    expected = expected[expected[:, 0] >= 0]
    module = FasterRCNN().eval()
    module.load_state_dict(
        {n: v for n, v in weights_of(net).items() if n in module.state_dict()}, strict=False
    )
    with torch.no_grad():
        found = module(torch.tensor(image.asnumpy())).numpy()
    found = found[found[:, 1].argsort()[::-1][: len(expected)]]
    count, score, pixels = agreement(found, expected)
    print(
        f"faster_rcnn_resnet50_v1b_voc: {count} of {len(expected)} detections agree, scores within"
    )
    print(f"{score:.0e}, corners within {pixels:.0e} pixels")


if __name__ == "__main__":
    main()
