# SPDX-License-Identifier: Apache-2.0
"""Records what torchvision's box head detects with random weights (docs/from_torchvision.md).

    python tests/golden/box_head.py    # in an environment with torchvision

It writes box_head.npz next to itself: the maps of a pyramid, proposals, the state_dict() of
RoIHeads, and the ids (without background), scores and boxes that it returns.
"""

import json
import os
from collections import OrderedDict

import numpy as np
import torch
import torchvision
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import MultiScaleRoIAlign

CHANNELS, HIDDEN, CLASSES, IMAGE, PROPOSALS = 4, 16, 5, 256, 60
FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "box_head.npz")


def main() -> None:
    rng = np.random.RandomState(0)
    maps = OrderedDict(
        (str(level), rng.randint(-64, 64, (1, CHANNELS, IMAGE // 4 >> level, IMAGE // 4 >> level)))
        for level in range(4)
    )
    corners = rng.uniform(0, IMAGE, (PROPOSALS, 2))
    sizes = 2 ** rng.uniform(3, 8, (PROPOSALS, 2))
    proposals = np.hstack([corners - sizes / 2, corners + sizes / 2]).clip(0, IMAGE)
    heads = RoIHeads(
        MultiScaleRoIAlign(list(maps), output_size=7, sampling_ratio=2),
        TwoMLPHead(CHANNELS * 7 * 7, HIDDEN),
        FastRCNNPredictor(HIDDEN, CLASSES),
        *(0.5, 0.5, 512, 0.25, None, 0.05, 0.5, 100),
    ).eval()
    state = heads.state_dict()
    for array in state.values():
        array.copy_(torch.from_numpy(rng.randint(-64, 64, array.shape) / 128))
    given = OrderedDict((key, torch.from_numpy(array / 32).float()) for key, array in maps.items())
    boxes = torch.from_numpy(proposals).float()
    with torch.no_grad():
        (found,), _ = heads(given, [boxes], [(IMAGE, IMAGE)])
    np.savez_compressed(
        FILE,
        about=json.dumps({"torchvision": torchvision.__version__, "torch": torch.__version__}),
        proposals=boxes.numpy(),
        ids=found["labels"].numpy() - 1,
        scores=found["scores"].numpy(),
        boxes=found["boxes"].numpy(),
        **{f"maps.{key}": array.numpy() for key, array in given.items()},
        **{key: array.numpy() for key, array in state.items()},
    )


if __name__ == "__main__":
    main()
