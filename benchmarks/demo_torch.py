# SPDX-License-Identifier: Apache-2.0
"""The demo's training graph in PyTorch: the same layers, targets and losses, for `demo_step`.

It needs torch, torchvision and NumPy, but neither MXNet nor the demo. torchvision's ps_roi_pool
rounds RoIs to cells; the rest is the same arithmetic, as `demo_step --torch` checks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torchvision import ops

ROI_STDS, RPN_STDS = torch.tensor([0.1, 0.1, 0.2, 0.2]), torch.ones(4)
PRE_NMS, PROPOSALS, NMS_THRESH, MIN_SIZE = 600, 128, 0.7, 8
MAX_LOG_GROWTH = math.log(1000 / 16)


class Block(nn.Module):
    """The residual block of the small network."""

    def __init__(self, inputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, 96, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(96)
        self.conv2 = nn.Conv2d(96, 96, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(96)
        self.downsample = nn.Conv2d(inputs, 96, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)), inplace=True)))
        return functional.relu(out + self.downsample(x), inplace=True)


class Small(nn.Module):
    """The backbone `small`."""

    channels = (96, 96)

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 48, 7, 4, 3, bias=False), nn.BatchNorm2d(48), nn.ReLU(inplace=True)
        self.body = nn.Sequential(*stem, Block(48, 2), Block(96, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, features


class ResNet50(nn.Module):
    """The backbone `resnet50_v1b`, its last stage dilated."""

    channels = (1024, 1024)

    def __init__(self) -> None:
        super().__init__()
        dilation = {"replace_stride_with_dilation": [False, False, True]}
        net = torchvision.models.resnet50(weights=None, **dilation)
        self.early = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.early.extend([net.layer1, net.layer2, net.layer3])
        self.last, self.reduce = nn.Sequential(net.layer4), nn.Conv2d(2048, 1024, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        conv4 = self.early(x)
        return conv4, functional.relu(self.reduce(self.last(conv4)))


BACKBONES: dict[str, Any] = {"small": Small, "resnet50_v1b": ResNet50}


class Detector(nn.Module):
    """Backbone, RPN and head; `forward` returns the four losses of a batch, each (B,).

    Parameters have the names that the demo gives them, but for PyTorch's of batch normalisation.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        base = np.array(config["anchors"], np.float32)
        self.stride, self.k, self.classes = config["stride"], config["k"], config["classes"]
        self.rpn_sample, self.roi_sample = config["rpn_sample"], config["roi_sample"]
        self.backbone = BACKBONES[config["network"]]()
        rpn_channels, channels = self.backbone.channels
        hidden = config["rpn_channels"]
        self.rpn = nn.ModuleDict(
            {
                "conv": nn.Conv2d(rpn_channels, hidden, 3, 1, 1),
                "score": nn.Conv2d(hidden, len(base), 1),
                "loc": nn.Conv2d(hidden, 4 * len(base), 1),
            }
        )
        maps = nn.Conv2d(channels, (self.classes + 1 + 4) * self.k**2, 1)
        self.head = nn.ModuleDict({"maps": maps})
        self.base = torch.from_numpy(base)

    def forward(self, data: Tensor, labels: Tensor, rpn_cls: Tensor, rpn_box: Tensor) -> tuple:
        rpn_features, features = self.backbone(data)
        hidden = functional.relu(self.rpn["conv"](rpn_features))
        score = self.rpn["score"](hidden).permute(0, 2, 3, 1).flatten(1)
        loc = self.rpn["loc"](hidden).permute(0, 2, 3, 1).reshape(len(data), -1, 4)
        with torch.no_grad():
            anchors = self.anchors(*rpn_features.shape[2:])
            proposed, exists = self.propose(score, loc, anchors, data.shape[3], data.shape[2])
            boxes = torch.cat([proposed, labels[..., :4]], 1)
            exists = torch.cat([exists, labels[..., 4] >= 0], 1)
            cls, targets, positive, counts = match(boxes, exists, labels)
        logits, offsets = self.vote(features, boxes, exists)
        return (
            *rpn_loss(score, loc, rpn_cls, rpn_box, self.rpn_sample),
            *roi_loss(logits, offsets, cls, targets, positive, counts, self.roi_sample),
        )

    def anchors(self, height: int, width: int) -> Tensor:
        x, y = (torch.arange(side) * self.stride for side in (width, height))
        y, x = torch.meshgrid(y, x, indexing="ij")
        return (torch.stack([x, y, x, y], -1)[:, :, None] + self.base).reshape(-1, 4)

    def propose(
        self, score: Tensor, loc: Tensor, anchors: Tensor, width: int, height: int
    ) -> tuple:
        """Return the best boxes of each image, (B, PROPOSALS, 4), and whether they exist."""
        score, index = score.sigmoid().topk(min(PRE_NMS, score.shape[1]))
        offsets = loc.gather(1, index[..., None].expand(-1, -1, 4))
        boxes = decode(anchors[index], offsets, RPN_STDS)
        boxes = torch.minimum(boxes.clamp(min=0), torch.tensor([width, height] * 2))
        result = boxes.new_full((len(boxes), PROPOSALS, 4), -1)
        exists = torch.zeros(result.shape[:2], dtype=torch.bool)
        for image, (rows, scores) in enumerate(zip(boxes, score)):
            large = ((rows[:, 2:] - rows[:, :2]).amin(1) >= MIN_SIZE).nonzero()[:, 0]
            kept = large[ops.nms(rows[large], scores[large], NMS_THRESH)[:PROPOSALS]]
            result[image, : len(kept)], exists[image, : len(kept)] = rows[kept], True
        return result, exists

    def vote(self, features: Tensor, boxes: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, N, C + 1) and offsets (B, N, 4); zeros for boxes that do not exist."""
        image = torch.arange(len(boxes))[:, None].expand_as(exists)[exists]
        last_pixel = boxes[exists] - torch.tensor([0.0, 0.0, 1.0, 1.0])
        rois = torch.cat([image[:, None].to(boxes), last_pixel], 1)
        votes = ops.ps_roi_pool(self.head["maps"](features), rois, self.k, 1 / self.stride)
        means = votes.new_zeros((*exists.shape, votes.shape[1]))
        means[exists] = votes.mean((2, 3))
        return means.split([self.classes + 1, 4], -1)


def decode(boxes: Tensor, offsets: Tensor, stds: Tensor) -> Tensor:
    (low, high), offsets = boxes.split(2, -1), offsets * stds
    centre = (low + high) / 2 + offsets[..., :2] * (high - low)
    half = offsets[..., 2:].clamp(max=MAX_LOG_GROWTH).exp() * (high - low) / 2
    return torch.cat([centre - half, centre + half], -1)


def encode(boxes: Tensor, objects: Tensor, stds: Tensor) -> Tensor:
    (low, high), (object_low, object_high) = boxes.split(2, -1), objects.split(2, -1)
    shift = (object_low + object_high - low - high) / 2 / (high - low)
    return torch.cat([shift, ((object_high - object_low) / (high - low)).log()], -1) / stds


def match(boxes: Tensor, exists: Tensor, labels: Tensor) -> tuple:
    """Return class, offsets, whether a box is positive, and whether it counts."""
    overlaps = torch.stack([ops.box_iou(*pair) for pair in zip(boxes, labels[..., :4])])
    best, index = overlaps.nan_to_num().max(-1)
    label = labels.gather(1, index[..., None].expand(-1, -1, 6))
    is_matched, difficult = (best >= 0.5) & exists, label[..., 5] == 1
    positive, counts = is_matched & ~difficult, exists & ~(is_matched & difficult)
    offsets = encode(boxes, label[..., :4], ROI_STDS)
    targets = torch.where(positive[..., None], offsets, torch.zeros(()))
    return ((label[..., 4] + 1) * positive).long(), targets, positive, counts


def rpn_loss(score: Tensor, loc: Tensor, cls: Tensor, box: Tensor, sample: int) -> tuple:
    entropy = functional.binary_cross_entropy_with_logits(score, cls.clamp(min=0), reduction="none")
    smooth = functional.smooth_l1_loss(loc, box, reduction="none").sum(-1)
    return (entropy * (cls >= 0)).sum(1) / sample, (smooth * (cls == 1)).sum(1) / sample


def roi_loss(
    logits: Tensor, offsets: Tensor, cls: Tensor, box: Tensor, positive: Tensor, counts: Tensor,
    sample: int,
) -> tuple:  # fmt: skip
    """Return the losses of the hardest RoIs."""
    cls_loss = functional.cross_entropy(logits.transpose(1, 2), cls, reduction="none")
    box_loss = functional.smooth_l1_loss(offsets, box, reduction="none").sum(-1) * positive
    with torch.no_grad():
        hardness = torch.where(counts, cls_loss + box_loss, -torch.ones(()))
        chosen = torch.zeros_like(hardness).scatter(1, hardness.topk(sample).indices, 1.0)
        share = chosen * counts / sample
    return (cls_loss * share).sum(1), (box_loss * share).sum(1)


class Training:
    """A detector with its optimizer, in the layout that is fastest on a CPU."""

    def __init__(self, config: dict[str, Any], threads: int) -> None:
        torch.set_num_threads(threads)
        self.net = Detector(config).to(memory_format=torch.channels_last)
        rule = {"lr": config["lr"], "weight_decay": config["wd"]}
        self.optimizer = torch.optim.Adam(self.net.parameters(), fused=True, **rule)

    def load(self, weights: dict[str, np.ndarray]) -> None:
        """Set the weights to those of the demo, by name."""
        names = {"gamma": "weight", "beta": "bias"}
        state = {}
        for name, values in weights.items():
            layer, _, kind = name.rpartition(".")
            state[f"{layer}.{names.get(kind, kind)}"] = torch.from_numpy(values)
        missing, unexpected = self.net.load_state_dict(state, strict=False)
        missing = [name for name in missing if not name.endswith("num_batches_tracked")]
        assert not missing and not unexpected, (missing, unexpected)

    def step(self, batch: list[np.ndarray]) -> np.ndarray:
        """Train on a batch, and return the mean of each loss."""
        data, *rest = map(torch.from_numpy, batch)
        self.optimizer.zero_grad()
        losses = self.net(data.contiguous(memory_format=torch.channels_last), *rest)
        total = torch.stack(losses).sum(0).mean()
        total.backward()
        self.optimizer.step()
        return np.array([loss.detach().mean() for loss in losses])
