# SPDX-License-Identifier: Apache-2.0
"""Detects objects in an image file with an exported network; docs/deploy.md explains it.

    python detect_mxnet.py PREFIX IMAGE RESULT.png [--thresh 0.5]

Reads PREFIX-symbol.json, PREFIX-0000.params and PREFIX-metadata.json. Writes a picture with boxes,
and RESULT.json with class names, scores and boxes in pixels of IMAGE.
"""

import argparse
import json
from pathlib import Path

import cv2
import mxnet as mx
import numpy as np
from PIL import Image, ImageDraw, ImageOps

import gluon_roi  # noqa: F401  (makes its operators known to MXNet)


def prepare(image, about):
    """Resize and normalise an image, (H, W, 3) uint8 RGB, as in training.

    Returns the model's input (1, 3, h, w), and the factors (x, y, x, y) from IMAGE to it.
    """
    height, width = image.shape[:2]
    scale = min(about["short"] / min(height, width), about["max_size"] / max(height, width))
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    if size != (width, height):
        image = cv2.resize(image, size, interpolation=getattr(cv2, about["resize"]))
    mean, std = (np.array(about[key], "float32") for key in ("mean", "std"))
    data = ((image - mean) / std).transpose(2, 0, 1)[None]
    return np.ascontiguousarray(data), np.array([size[0] / width, size[1] / height] * 2, "float32")


def main(prefix, image, result, thresh):
    net = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", "data", f"{prefix}-0000.params")
    about = json.loads(Path(f"{prefix}-metadata.json").read_text())

    picture = ImageOps.exif_transpose(Image.open(image)).convert("RGB")
    data, factors = prepare(np.asarray(picture), about)
    outputs = net(mx.nd.array(data))
    ids, scores, boxes = (output[0].asnumpy() for output in outputs[:3])  # of the first image

    rows, draw, thickness = [], ImageDraw.Draw(picture), max(picture.size) // 300 + 1
    for kind, score, box in zip(ids.ravel(), scores.ravel(), boxes / factors):
        if kind < 0 or score < thresh:  # an id of -1 is an empty row
            continue
        name, box = about["classes"][int(kind)], box.tolist()
        rows.append({"class": name, "score": float(score), "box": box})
        colour = f"hsl({360 * int(kind) // len(about['classes'])}, 90%, 40%)"
        x1, y1, x2, y2 = box
        draw.line([x1, y1, x2, y1, x2, y2, x1, y2, x1, y1], colour, thickness)
        outline = {"stroke_width": thickness // 2 + 1, "stroke_fill": "white"}
        draw.text((x1, y1), f"{name} {score:.2f}", colour, font_size=10 * thickness, **outline)
    result = Path(result)
    picture.save(result.with_suffix(result.suffix or ".png"))
    rows.sort(key=lambda row: -row["score"])
    result.with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    for name in ("prefix", "image", "result"):
        parser.add_argument(name)
    parser.add_argument("--thresh", type=float, default=0.5, help="lowest score, default 0.5")
    main(**vars(parser.parse_args()))
