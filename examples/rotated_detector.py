# SPDX-License-Identifier: Apache-2.0
"""A two-stage detector of rotated boxes, from DOTA's text files to mAP, trained on drawn images.

    python rotated_detector.py FOLDER RESULT.png [--steps 600] [--seed 0]

FOLDER has train/ and val/, each with images/NAME.png of one size and labelTxt/NAME.txt in DOTA's
format; if it does not exist, it is drawn. The network is a rotated Faster R-CNN (RRPN, Ma et al.
2018): rotated anchors become proposals, RotatedROIAlign pools them, and dense layers classify and
refine them. RESULT.png shows detections in images of val/. Needs NumPy, OpenCV and Pillow.

A box is [cx, cy, w, h, degrees] everywhere: pixels, w >= h, counter-clockwise in the picture.
"""

import argparse
import tempfile
import time
from pathlib import Path

import cv2
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from PIL import Image, ImageDraw

import gluon_roi

STRIDE = 8  # pixels of the image for a cell of the features
SHAPES = ((20, 8), (20, 16), (40, 16), (40, 32))  # of the anchors, each at six angles
STDS = nd.array([[0.1, 0.1, 0.2, 0.2, 0.1]])  # of offsets, as in encode
PROPOSALS, SAMPLES = 48, 64  # for each image


# Labels: DOTA's text to boxes.


def read_dota(file):
    """Polygons (K, 4, 2), names and difficult flags of a file; lines x1 y1 ... x4 y4 name flag."""
    polygons, names, flags = [], [], []
    for number, line in enumerate(Path(file).read_text().splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith(("imagesource:", "gsd:")):  # the header
            continue
        try:
            polygons.append([float(word) for word in words[:8]])
            names.append(words[8])
        except (IndexError, ValueError):
            raise SystemExit(
                f"{file}, line {number}: expected x1 y1 x2 y2 x3 y3 x4 y4 name flag, got {line!r}"
            ) from None
        flags.append(len(words) > 9 and words[9] != "0")
    return np.array(polygons, "float32").reshape(-1, 4, 2), names, np.array(flags, bool)


def box_of(polygon):
    """The smallest rectangle around a polygon (4, 2), with w >= h and degrees in [-90, 90)."""
    (cx, cy), (w, h), clockwise = cv2.minAreaRect(np.float32(polygon))
    degrees = -clockwise
    if w < h:
        w, h, degrees = h, w, degrees + 90
    return [cx, cy, w, h, (degrees + 90) % 180 - 90]


def polygon_of(box):
    """The corners (4, 2) of a box, clockwise in the picture."""
    cx, cy, w, h, degrees = box
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) / 2
    return [cx, cy] + signs * [w, h] @ [[c, -s], [s, c]]


def load(folder):
    """Images (N, 3, H, W), and for each boxes (K, 5), names and difficult flags."""
    images, labels = [], []
    for file in sorted((folder / "images").glob("*.png")):
        text = folder / "labelTxt" / f"{file.stem}.txt"
        if not text.is_file():
            raise SystemExit(f"{text}: expected the labels of {file}, got no file")
        polygons, names, flags = read_dota(text)
        boxes = np.array([box_of(polygon) for polygon in polygons], "float32").reshape(-1, 5)
        labels.append((boxes, np.array(names), flags))
        images.append(np.array(Image.open(file).convert("RGB")).transpose(2, 0, 1))
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        sizes = ", ".join(f"{width} x {height}" for _, height, width in sorted(shapes)) or "none"
        raise SystemExit(f"{folder}/images: expected PNG images of one size, got {sizes}")
    return np.array(images), labels


def as_class_ids(labels, classes):
    """Labels with indices of classes in place of their names."""
    unknown = {name for _, names, _ in labels for name in names} - {*classes}
    if unknown:
        raise SystemExit(f"{sorted(unknown)[0]}: not a class of the training images")
    return [(b, np.array([classes.index(n) for n in names], int), f) for b, names, f in labels]


# Offsets between boxes, in the frame of the first one.


def columns(boxes):
    return [boxes.slice_axis(-1, n, n + 1) for n in range(5)]


def encode(boxes, objects):
    """Offsets (K, 5) with which decode makes objects (K, 5) of boxes (K, 5)."""
    (x, y, w, h, angle), (ox, oy, ow, oh, o_angle) = columns(boxes), columns(objects)
    c, s = nd.cos(nd.radians(angle)), nd.sin(nd.radians(angle))
    dx, dy = ox - x, oy - y
    rotation = nd.radians((o_angle - angle + 90) % 180 - 90)  # 180 degrees are the same box
    shift = (dx * c - dy * s) / w, (dx * s + dy * c) / h
    return nd.concat(*shift, nd.log(ow / w), nd.log(oh / h), rotation, dim=-1) / STDS


def decode(boxes, offsets):
    """Boxes (..., 5) with the offsets (..., 5) applied."""
    x, y, w, h, angle = columns(boxes)
    u, v, dw, dh, rotation = columns(offsets * STDS.reshape((1,) * (offsets.ndim - 1) + (5,)))
    c, s = nd.cos(nd.radians(angle)), nd.sin(nd.radians(angle))
    u, v, sizes = u * w, v * h, [side * nd.exp(d.clip(-2, 2)) for side, d in ((w, dw), (h, dh))]
    angle = (angle + nd.degrees(rotation) + 90) % 180 - 90
    return nd.concat(x + u * c + v * s, y - u * s + v * c, *sizes, angle, dim=-1)


# The network.


def make_anchors(height, width):
    """(height * width * A, 5), in the order of the RPN's outputs."""
    shapes = [[w, h, degrees] for w, h in SHAPES for degrees in range(-90, 90, 30)]
    y, x = np.meshgrid(np.arange(height) + 0.5, np.arange(width) + 0.5, indexing="ij")
    centres = np.repeat(np.stack([x, y], -1).reshape(-1, 2) * STRIDE, len(shapes), axis=0)
    return nd.array(np.hstack([centres, np.tile(shapes, (height * width, 1))]))


class Backbone(nn.HybridSequential):
    def __init__(self):
        super().__init__()
        for channels, stride in ((16, 2), (32, 2), (64, 2), (64, 1)):
            self.add(nn.Conv2D(channels, 3, stride, 1, use_bias=False), nn.BatchNorm())
            self.add(nn.Activation("relu"))


class RPN(gluon.HybridBlock):
    """Features -> for every anchor a logit (N, anchors) and offsets (N, anchors, 5)."""

    def __init__(self):
        super().__init__()
        count = len(SHAPES) * 6
        with self.name_scope():
            self.conv = nn.Conv2D(64, 3, padding=1, activation="relu")
            self.logits = nn.Conv2D(count, 1, weight_initializer=mx.init.Normal(0.01))
            self.offsets = nn.Conv2D(count * 5, 1, weight_initializer=mx.init.Normal(0.01))

    def hybrid_forward(self, F, x):
        x = self.conv(x)
        logits, offsets = (
            F.transpose(layer(x), (0, 2, 3, 1)) for layer in (self.logits, self.offsets)
        )
        return logits.reshape((0, -1)), offsets.reshape((0, -1, 5))


class Head(gluon.HybridBlock):
    """Features and rows (K, 6) -> class logits (K, 1 + classes), background first; offsets."""

    def __init__(self, classes):
        super().__init__()
        with self.name_scope():
            self.pool = gluon_roi.RotatedROIAlign(7, 1 / STRIDE, sampling_ratio=2, aligned=True)
            self.dense = nn.Dense(128, activation="relu")
            self.logits = nn.Dense(1 + classes)
            self.offsets = nn.Dense(5, weight_initializer=mx.init.Normal(0.01))

    def hybrid_forward(self, F, features, rows):
        x = self.dense(self.pool(features, rows))
        return self.logits(x), self.offsets(x)


def suppress(rows, overlap_thresh, **arguments):
    """BoxNMS on rows [..., score, rotated box]."""
    return gluon_roi.nd.BoxNMS(
        rows, overlap_thresh, in_format="rotated", out_format="rotated", **arguments
    )


class RotatedRCNN(gluon.Block):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes
        with self.name_scope():
            self.backbone, self.rpn, self.head = Backbone(), RPN(), Head(len(classes))
        for block in (self.backbone, self.rpn, self.head):
            block.hybridize()

    def propose(self, images):
        """Features, anchors, the RPN's outputs, and proposals (N, PROPOSALS, 5)."""
        features = self.backbone(images)
        logits, offsets = self.rpn(features)
        anchors = make_anchors(*features.shape[2:])
        with autograd.pause():
            boxes = decode(anchors.expand_dims(0).broadcast_axes(0, len(images)), offsets)
            rows = nd.concat(nd.sigmoid(logits).expand_dims(2), boxes, dim=2)
            rows = suppress(rows, 0.7, topk=300, score_index=0, coord_start=1)
        # Rows that suppression emptied are -1, and so are their sides.
        return features, anchors, logits, offsets, rows[:, :PROPOSALS, 1:]

    def pool_and_classify(self, features, boxes):
        """The head on boxes (N, R, 5); boxes without sides are padding rows, which pool zeros."""
        rows = gluon_roi.rois.from_batch(boxes, valid=boxes[:, :, 2] > 0)
        return rows, *self.head(features, rows)

    def forward(self, images, score_thresh=0.05):
        """The best 100 rows [class, score, box] of each image; rows of -1 where there are fewer."""
        features, _, _, _, boxes = self.propose(images)
        rows, logits, offsets = self.pool_and_classify(features, boxes)
        scores = nd.softmax(logits)[:, 1:] * (rows[:, :1] >= 0)
        boxes = decode(rows[:, 1:], offsets).expand_dims(1)
        ids = nd.arange(len(self.classes)).reshape((1, -1, 1)).broadcast_like(scores.expand_dims(2))
        boxes = boxes.broadcast_axes(1, len(self.classes))
        rows = nd.concat(ids, scores.expand_dims(2), boxes, dim=2).reshape((len(images), -1, 7))
        return suppress(rows, 0.2, valid_thresh=score_thresh, id_index=0)[:, :100]


# Training.


def assign(boxes, objects, classes, high, low, random):
    """Labels, weights and matched objects of boxes (R, 5), of which SAMPLES have weight 1.

    A label is 0 for background, otherwise 1 + class. Boxes whose overlap with an object is at least
    `high`, and the best box of each object, are that object; boxes below `low` are background.
    """
    labels, match = np.zeros(len(boxes), "float32"), np.zeros(len(boxes), int)
    best, valid = np.zeros(len(boxes)), boxes[:, 2].asnumpy() > 0
    if len(objects):
        overlaps = gluon_roi.nd.BoxIoU(boxes, nd.array(objects), format="rotated").asnumpy()
        match, best = overlaps.argmax(1), overlaps.max(1)
        found = np.flatnonzero(overlaps.max(0) > low)
        nearest = overlaps.argmax(0)[found]
        match[nearest], best[nearest] = found, 1
        labels = np.where(best >= high, 1 + classes[match], 0).astype("float32")
    weights = np.zeros(len(boxes), "float32")
    positive, negative = np.flatnonzero(labels), np.flatnonzero((best < low) & valid)
    positive = random.permutation(positive)[: SAMPLES // 2]
    weights[positive] = 1
    weights[random.permutation(negative)[: SAMPLES - len(positive)]] = 1
    targets = objects[match] if len(objects) else np.ones((len(boxes), 5), "float32")
    return labels, weights, targets


def assign_all(boxes, labels, high, low, random):
    """assign for every image: boxes (N, R, 5) -> labels, weights and objects of N * R boxes."""
    parts = [assign(b, *label[:2], high, low, random) for b, label in zip(boxes, labels)]
    return [nd.array(np.concatenate(each)) for each in zip(*parts)]


def losses(net, images, labels, random):
    """Losses of the RPN and of the head: of classes, and of boxes that have an object."""
    features, anchors, logits, offsets, proposals = net.propose(images)
    with autograd.pause():
        each = anchors.expand_dims(0).broadcast_axes(0, len(images))
        of_anchors = assign_all(each, labels, 0.5, 0.3, random)
        # The objects themselves are proposals too, so that the head has boxes to learn.
        rows = max(1, max(len(boxes) for boxes, _, _ in labels))
        objects = [np.pad(boxes, ((0, rows - len(boxes)), (0, 0))) for boxes, _, _ in labels]
        proposals = nd.concat(proposals, nd.array(objects), dim=1)
        of_proposals = assign_all(proposals, labels, 0.5, 0.5, random)
    rows, class_logits, refinements = net.pool_and_classify(features, proposals)
    parts = (
        (logits.reshape((-1,)), offsets.reshape((-1, 5)), each.reshape((-1, 5)), of_anchors),
        (class_logits, refinements, rows[:, 1:], of_proposals),
    )
    total = 0
    for logit, offset, boxes, (label, weight, objects) in parts:
        if logit.ndim == 1:
            errors = nd.relu(logit) - logit * (label > 0) + nd.log1p(nd.exp(-nd.abs(logit)))
        else:
            errors = -nd.pick(nd.log_softmax(logit), label)
        is_object = weight * (label > 0)
        # Boxes without an object may have no size, whose logarithm is not finite.
        boxes, objects = (nd.where(is_object, b, nd.ones_like(b)) for b in (boxes, objects))
        distances = nd.smooth_l1(offset - encode(boxes, objects), scalar=1).sum(axis=1)
        total = total + ((errors * weight).sum() + (distances * is_object).sum()) / weight.sum()
    return total


def prepare(images):
    return nd.array(images) / 128 - 1


def train(net, images, labels, steps, random, batch=4):
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    begin, sums = time.time(), []
    for step in range(steps):
        if step == int(0.7 * steps):
            trainer.set_learning_rate(4e-4)
        chosen = random.choice(len(images), batch, replace=False)
        with autograd.record():
            loss = losses(net, prepare(images[chosen]), [labels[n] for n in chosen], random)
        loss.backward()
        trainer.step(1)
        sums.append(loss.asscalar())
        if (step + 1) % 100 == 0 or step + 1 == steps:
            recent = np.mean(sums[-100:])
            print(f"step {step + 1}: loss {recent:.3f}, {time.time() - begin:.0f} s", flush=True)
    return sums


# Evaluation.


def average_precision(detections, labels, class_id, threshold):
    """VOC's AP (2010 and later) with overlaps of rotated boxes; difficult objects do not count."""
    found, count = [], 0
    for rows, (boxes, classes, difficult) in zip(detections, labels):
        rows = rows[rows[:, 0] == class_id]
        boxes, difficult = boxes[classes == class_id], difficult[classes == class_id]
        count += (~difficult).sum()
        taken = np.zeros(len(boxes), bool)
        overlaps = np.zeros((len(rows), len(boxes)))
        if overlaps.size:
            pair = nd.array(rows[:, 2:]), nd.array(boxes)
            overlaps = gluon_roi.nd.BoxIoU(*pair, format="rotated").asnumpy()
        for row, overlap in zip(rows, overlaps):  # by descending score
            best = overlap.argmax() if len(boxes) else 0
            is_found = len(boxes) > 0 and overlap[best] >= threshold
            if is_found and difficult[best]:
                continue
            found.append((row[1], is_found and not taken[best]))
            if is_found:
                taken[best] = True
    if count == 0:
        return np.nan
    hits = np.array([hit for _, hit in sorted(found, key=lambda each: -each[0])], float)
    recall, precision = hits.cumsum() / count, hits.cumsum() / (np.arange(len(hits)) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0) * precision).sum())


def detect(net, images, batch=16):
    """Rows [class, score, box] of each image, best first."""
    parts = [net(prepare(images[n : n + batch])).asnumpy() for n in range(0, len(images), batch)]
    return [rows[rows[:, 0] >= 0] for rows in np.concatenate(parts)]


# Images: drawn ones, and detections on them.


def draw_object(draw, name, box):
    """An object whose bow, nose or cab is at the right end of the box at 0 degrees."""
    cx, cy, w, h, degrees = box
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))

    def shape(points, colour):  # parts of w and h, from -0.5 to 0.5
        points = np.array(points) * [w, h] @ [[c, -s], [s, c]] + [cx, cy]
        draw.polygon([tuple(point) for point in points], colour)

    if name == "ship":
        shape([[-0.5, -0.5], [0.25, -0.5], [0.5, 0], [0.25, 0.5], [-0.5, 0.5]], "#c8ccd0")
        shape([[-0.35, -0.3], [-0.1, -0.3], [-0.1, 0.3], [-0.35, 0.3]], "#707478")
    elif name == "truck":
        shape([[-0.5, -0.5], [0.2, -0.5], [0.2, 0.5], [-0.5, 0.5]], "#b8a070")
        shape([[0.26, -0.4], [0.5, -0.4], [0.5, 0.4], [0.26, 0.4]], "#a04038")
    else:
        shape([[-0.5, -0.08], [0.5, -0.08], [0.5, 0.08], [-0.5, 0.08]], "#f0f0f0")
        shape([[-0.1, -0.5], [0.15, -0.08], [0.15, 0.08], [-0.1, 0.5]], "#e4e4e4")
        shape([[-0.5, -0.2], [-0.38, 0], [-0.5, 0.2]], "#d8d8d8")


def draw_image(random, side=128):
    """An image of some objects, and its lines of DOTA's text."""
    noise = Image.fromarray(random.randint(0, 40, (8, 8)).astype("uint8"))
    ground = np.array(noise.resize((side, side), Image.BICUBIC), int)[..., None]
    pixels = ground + random.randint(40, 90, 3) + random.randint(0, 12, (side, side, 3))
    image = Image.fromarray(pixels.astype("uint8"))
    draw, boxes, lines = ImageDraw.Draw(image), [], []
    sizes = {"plane": (34, 28), "ship": (44, 14), "truck": (24, 10)}
    for _ in range(random.randint(2, 7)):
        name = list(sizes)[random.randint(len(sizes))]
        size = np.array(sizes[name]) * random.uniform(0.8, 1.25)
        box = np.array([*random.uniform(20, side - 20, 2), *size, random.uniform(-180, 180)])
        others = nd.array(np.reshape([*boxes, [-99, -99, 1, 1, 0]], (-1, 5)))
        if gluon_roi.nd.BoxIoU(nd.array(box[None]), others, format="rotated").max() > 0.02:
            continue
        draw_object(draw, name, box)
        boxes.append(box)
        lines.append(" ".join(f"{number:.1f}" for number in polygon_of(box).ravel()) + f" {name} 0")
    return image, lines


def draw_folder(folder, count, random):
    for part in ("images", "labelTxt"):
        (folder / part).mkdir(parents=True)
    for number in range(count):
        image, lines = draw_image(random)
        image.save(folder / "images" / f"{number:04}.png")
        text = "\n".join(["imagesource:drawn", "gsd:1", *lines])
        (folder / "labelTxt" / f"{number:04}.txt").write_text(text + "\n")


def draw_detections(images, detections, result, thresh=0.5, count=8, zoom=2):
    """The first images in two rows, with the boxes that score at least `thresh`."""
    colours = ("#56b4e9", "#e69f00", "#f0e442")
    side = images.shape[2] * zoom
    picture = Image.new("RGB", (side * count // 2, side * 2))
    for place, (pixels, rows) in enumerate(zip(images[:count], detections)):
        tile = Image.fromarray(pixels.transpose(1, 2, 0)).resize((side, side), Image.BICUBIC)
        draw = ImageDraw.Draw(tile)
        for class_id, score, *box in rows[rows[:, 1] >= thresh]:
            corners = [tuple(corner) for corner in polygon_of(np.array(box)) * [zoom, zoom]]
            colour = colours[int(class_id) % len(colours)]
            draw.line([*corners, corners[0]], colour, 2)
            draw.text(max(corners, key=lambda corner: corner[1]), f"{score:.2f}", colour)
        picture.paste(tile, (place % (count // 2) * side, place // (count // 2) * side))
    picture.save(result)


def main(folder, result, steps, seed):
    random = np.random.RandomState(seed)
    mx.random.seed(seed)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            drawn = Path(name) / folder.name
            draw_folder(drawn / "train", 300, random)
            draw_folder(drawn / "val", 60, random)
            drawn.rename(folder)  # when it is complete
    (images, labels), (val_images, val_labels) = (load(folder / part) for part in ("train", "val"))
    classes = sorted({str(name) for _, names, _ in labels for name in names})
    labels, val_labels = as_class_ids(labels, classes), as_class_ids(val_labels, classes)
    net = RotatedRCNN(classes)
    net.initialize(mx.init.Xavier(magnitude=2))
    train(net, images, labels, steps, random)
    detections = detect(net, val_images)
    for threshold in (0.5, 0.75):
        scores = [
            average_precision(detections, val_labels, n, threshold) for n in range(len(classes))
        ]
        each = ", ".join(f"{name} {score:.3f}" for name, score in zip(classes, scores))
        print(f"mAP@{threshold} {np.nanmean(scores):.3f} ({each})")
    draw_detections(val_images, detections, result)


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("result")
    parser.add_argument("--steps", type=int, default=600, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    main(**vars(parser.parse_args()))
