# SPDX-License-Identifier: Apache-2.0
"""Rotated boxes from the map to the detections, on words that are drawn: trains nothing.

    python rotated_text.py RESULT.png [--seed 0]

Candidates around each word are pooled with RotatedROIAlign, scored by the ink that they hold, and
suppressed with BoxNMS. The picture has the candidates in grey, the kept boxes in colours with their
scores and, below, the words as RotatedROIAlign straightens them. Needs NumPy and Pillow.
"""

import argparse

import mxnet as mx
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import gluon_roi

WORDS = ("rotated", "boxes", "overlap", "exactly", "here")
HEIGHT, WIDTH = 300, 480
CROP = (24, 120)  # of a straightened word
FONT = ImageFont.load_default(26)


def draw_words(random):
    """A page (HEIGHT, WIDTH), uint8, and the box [cx, cy, w, h, degrees] around each word."""
    page, boxes = Image.new("L", (WIDTH, HEIGHT), 255), []
    for place, word in enumerate(WORDS):
        left, top, right, bottom = FONT.getbbox(word)
        size = right - left + 8, bottom - top + 8
        centre = 95 + 145 * (place % 3) + 70 * (place // 3), 85 + 125 * (place // 3)
        degrees = random.uniform(-60, 60)
        label = Image.new("L", size, 0)
        ImageDraw.Draw(label).text((4 - left, 4 - top), word, 255, FONT)
        label = label.rotate(degrees, expand=True, resample=Image.BICUBIC)
        corner = round(centre[0] - label.width / 2), round(centre[1] - label.height / 2)
        page.paste(0, corner, label)
        boxes.append((corner[0] + label.width / 2, corner[1] + label.height / 2, *size, degrees))
    return np.array(page), np.array(boxes)


def propose(boxes, random, count=40):
    """Boxes around the true ones, as a network would predict them."""
    candidates = np.repeat(boxes, count, axis=0)
    candidates[:, :2] += 5 * random.randn(len(candidates), 2)
    candidates[:, 2:4] *= np.exp(0.2 * random.randn(len(candidates), 2))
    candidates[:, 4] += 8 * random.randn(len(candidates))
    return candidates


def detect(page, candidates, overlap_thresh=0.15):
    """Rows [score, cx, cy, w, h, degrees] of the kept boxes, best first, and their crops."""
    ink = mx.nd.array(1 - page / 255.0).reshape((1, 1, HEIGHT, WIDTH))
    boxes = mx.nd.array(candidates)

    def pool(rows):
        rois = mx.nd.concat(mx.nd.zeros((rows.shape[0], 1)), rows, dim=1)
        return gluon_roi.nd.RotatedROIAlign(ink, rois, CROP, 1.0, aligned=True)

    # How dense the ink is, and its share in the ink of the box with a margin.
    margin = mx.nd.array([[0, 0, 16, 16, 0]])
    larger = mx.nd.broadcast_add(boxes, margin)
    density, around = (pool(rows).mean(axis=(1, 2, 3)) for rows in (boxes, larger))
    area, larger_area = (rows[:, 2] * rows[:, 3] for rows in (boxes, larger))
    scores = density * area / (around * larger_area + 1e-6) * mx.nd.sqrt(density)
    rows = gluon_roi.nd.BoxNMS(
        mx.nd.concat(scores.reshape((-1, 1)), boxes, dim=1),
        overlap_thresh,
        valid_thresh=0.2,
        score_index=0,
        coord_start=1,
        in_format="rotated",
        out_format="rotated",
    )
    kept = int((rows[:, 0] > 0).sum().asscalar())
    rows = rows[:kept]
    return rows.asnumpy(), pool(rows[:, 1:])[:, 0].asnumpy()


def corners(box):
    """The corners of a box, for ImageDraw."""
    cx, cy, w, h, degrees = box
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
    return [(cx + (i * w * c + j * h * s) / 2, cy + (j * h * c - i * w * s) / 2) for i, j in signs]


def main(result, seed):
    random = np.random.RandomState(seed)
    page, boxes = draw_words(random)
    candidates = propose(boxes, random)
    rows, crops = detect(page, candidates)
    picture = Image.new("RGB", (WIDTH, HEIGHT + 2 * (CROP[0] + 8)), "white")
    picture.paste(Image.fromarray(page).convert("RGB"))
    draw = ImageDraw.Draw(picture)
    for box in candidates:
        draw.line(corners(box), "#d8d8d8")
    picture.paste((0, 0, 0), (0, 0), Image.fromarray(255 - page))
    for place, (row, crop) in enumerate(zip(rows, crops)):
        colour = f"hsl({360 * place // len(rows)}, 90%, 40%)"
        draw.line(corners(row[1:]), colour, 2)
        draw.text(corners(row[1:])[0], f"{row[0]:.2f}", colour)
        corner = 8 + place % 3 * (CROP[1] + 24), HEIGHT + place // 3 * (CROP[0] + 8)
        picture.paste(Image.fromarray(np.uint8(255 * (1 - crop))), corner)
        draw.rectangle([*corner, corner[0] + CROP[1], corner[1] + CROP[0]], outline=colour)
    picture.save(result)
    overlaps = gluon_roi.nd.BoxIoU(mx.nd.array(boxes), mx.nd.array(rows[:, 1:]), format="rotated")
    found = ", ".join(f"{word} {best:.2f}" for word, best in zip(WORDS, overlaps.max(1).asnumpy()))
    print(f"{len(candidates)} boxes, {len(rows)} kept; overlaps with the words: {found}")


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("result")
    parser.add_argument("--seed", type=int, default=0, help="of words and boxes, default 0")
    main(**vars(parser.parse_args()))
