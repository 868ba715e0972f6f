# SPDX-License-Identifier: Apache-2.0
"""Detects objects in an image file with an exported network; docs/deploy.md explains it.

    python detect.py MODEL.onnx IMAGE RESULT.png [--thresh 0.5]
    python detect.py PREFIX     IMAGE RESULT.png [--font FONT.ttf]

An ONNX file needs onnxruntime, NumPy, OpenCV and Pillow, and neither MXNet nor gluon_roi. With a
PREFIX, it reads PREFIX-symbol.json, PREFIX-0000.params and PREFIX-metadata.json, with MXNet and
gluon_roi. Writes a picture with boxes, and RESULT.json with class names, scores and boxes in pixels
of IMAGE.
"""

import argparse
import json
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps


def load(model):
    """Return an exported network, a function of one array, and its metadata."""
    if model.endswith(".onnx"):
        import onnxruntime

        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        texts = session.get_modelmeta().custom_metadata_map
        name = session.get_inputs()[0].name
        about = {key: json.loads(text) for key, text in texts.items()}
        return lambda data: session.run(None, {name: data}), about

    import mxnet as mx

    import gluon_roi  # noqa: F401  (makes its operators known to MXNet)

    net = mx.gluon.SymbolBlock.imports(f"{model}-symbol.json", "data", f"{model}-0000.params")
    about = json.loads(Path(f"{model}-metadata.json").read_text(encoding="utf-8"))
    return lambda data: [output.asnumpy() for output in net(mx.nd.array(data))], about


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


def find(net, about, picture, thresh):
    """Rows of class name, score and box in pixels of the picture, best first."""
    data, factors = prepare(np.asarray(picture), about)
    ids, scores, boxes = (output[0] for output in net(data)[:3])  # of the first image
    rows = [
        {"class": about["classes"][int(kind)], "score": float(score), "box": box.tolist()}
        for kind, score, box in zip(ids.ravel(), scores.ravel(), boxes / factors)
        if kind >= 0 and score >= thresh  # an id of -1 is an empty row
    ]
    return sorted(rows, key=lambda row: -row["score"])


def label(name, kind, has_font):
    """Return the name of a class, or its number if Pillow's own font lacks its characters."""
    in_latin_1 = name.encode("latin-1", "replace").decode("latin-1") == name
    return name if has_font or in_latin_1 else f"class {kind}"


def main(model, image, result, thresh, font=None):
    net, about = load(model)
    picture = ImageOps.exif_transpose(Image.open(image)).convert("RGB")
    rows = find(net, about, picture, thresh)
    draw, thickness = ImageDraw.Draw(picture), max(picture.size) // 300 + 1
    size = 10 * thickness
    text_font = ImageFont.truetype(font, size) if font else ImageFont.load_default(size)
    for row in rows:
        name, (x1, y1, x2, y2) = row["class"], row["box"]
        kind = about["classes"].index(name)
        colour = f"hsl({360 * kind // len(about['classes'])}, 90%, 40%)"
        draw.line([x1, y1, x2, y1, x2, y2, x1, y2, x1, y1], colour, thickness)
        outline = {"stroke_width": thickness // 2 + 1, "stroke_fill": "white"}
        text = f"{label(name, kind, font)} {row['score']:.2f}"
        draw.text((x1, y1), text, colour, text_font, **outline)
    result = Path(result)
    picture.save(result.with_suffix(result.suffix or ".png"))
    text = json.dumps(rows, indent=2, ensure_ascii=False)
    result.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    for argument in ("model", "image", "result"):
        parser.add_argument(argument)
    parser.add_argument("--thresh", type=float, default=0.5, help="lowest score, default 0.5")
    parser.add_argument("--font", help="a font file with the characters of the class names")
    main(**vars(parser.parse_args()))
