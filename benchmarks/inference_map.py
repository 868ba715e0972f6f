# SPDX-License-Identifier: Apache-2.0
"""mAP and time of a trained detector: switched, converted for inference, and quantised to int8.

    OMP_NUM_THREADS=1 python -m benchmarks.inference_map runs/signals/last.ckpt [--limit 100]

Evaluates a checkpoint of the demo on its test images, in the three ways. int8 is MXNet's own
quantisation, whose ranges come from images of the training set; layers that assemble boxes are
excluded, as docs/switch_reference.md says. Milliseconds are those of a call with one image, the
median of all test images.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi
from demo_rfcn import checkpoint, networks
from demo_rfcn.cli import stored_options
from demo_rfcn.config import Data, take, with_defaults
from demo_rfcn.data.loader import normalise, resize
from demo_rfcn.metrics import evaluate
from demo_rfcn.predictor import Predictor

CALIBRATION_IMAGES = 50


def quantised(net: Any, images: list) -> Any:
    """MXNet's int8 form of a network, with ranges from some images."""
    dataset = mx.gluon.data.ArrayDataset(mx.nd.stack(*images), mx.nd.zeros(len(images)))
    loader = mx.gluon.data.DataLoader(dataset, batch_size=1)
    return mx.contrib.quantization.quantize_net(
        net,
        quantized_dtype="int8",
        calib_mode="naive",
        calib_data=loader,
        exclude_operators=["Concat", "slice_axis", "SliceChannel"],
    )


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--limit", type=int, help="test images (default: all)")
    options = parser.parse_args()
    stored = checkpoint.read(options.checkpoint)
    names = {"dataset", "dataset_root", "val_share"}
    values = {**stored_options(stored, names), "short": stored.scale[0]}
    data = take(Data, with_defaults({**values, "max_size": stored.scale[1]}))
    train_set, test_set = data.open("train", "test", classes=stored.config.classes)

    def prepared(dataset: Any, index: int) -> np.ndarray:
        return normalise(resize(dataset.read(index), *data.scale)[0])

    images = [mx.nd.array(prepared(train_set, i)) for i in range(CALIBRATION_IMAGES)]
    example = images[0].expand_dims(0)
    detectors: dict[str, Any] = {}
    for way in ("switched", "inference", "int8"):
        detector = networks.detector(stored.detector([mx.cpu()]).net)
        detector(example)
        gluon_roi.optimize(detector, example, inference=way == "inference")
        detectors[way] = quantised(detector, images) if way == "int8" else detector
    numbers = range(len(test_set))[: options.limit]
    calls = [mx.nd.array(prepared(test_set, index)).expand_dims(0) for index in numbers]
    spent: dict[str, list[float]] = {way: [] for way in detectors}
    for image in calls:
        for way, detector in detectors.items():
            begin = time.perf_counter()
            for output in detector(image):
                output.asnumpy()
            spent[way].append(time.perf_counter() - begin)
    print("| | mAP@0.5 | mAP@0.75 | ms |\n|---|---|---|---|", flush=True)
    for way, detector in detectors.items():
        predictor = Predictor(detector, data.scale, [mx.cpu()])
        scores = evaluate(predictor, test_set, options.limit)
        milliseconds = 1e3 * float(np.median(spent[way]))
        cells = f"{scores['map50']:.4f} | {scores['map75']:.4f} | {milliseconds:.1f}"
        print(f"| {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
