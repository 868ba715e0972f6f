# SPDX-License-Identifier: Apache-2.0
"""Bad input is rejected by name, with exit status 2, before any training."""

from __future__ import annotations

import re
import shlex

import cv2
import mxnet as mx
import numpy as np
import pytest
from support.demo_data import write_voc
from support.demo_runs import train_arguments

from demo_rfcn.data import signals

pytestmark = pytest.mark.usefixtures("no_training")

#: The arguments of `train_arguments` come first for the commands that train.
REFUSED = {
    "launch -n 2": "launch: expected '-- train' and its arguments",
    "launch -- eval": "launch: expected '-- train' and its arguments",
    "launch -- train --kv-store local": "launch: --kv-store local, expected dist_",
    "launch --address host -- train": "--address host, expected HOST:PORT",
    "launch --address host:99999 -- train": "host:99999, expected HOST:PORT",
    "launch --only worker -- train": "--only without --address, expected HOST:PORT",
    "train --dataset-root TMP/none": "TMP/none of 'signals' is missing; 'python -m demo_rfcn data",
    "train --dataset-root TMP/none --dataset voc": "TMP/none of 'voc' is missing",
    "train --batch-size 9": "--batch-size 9 exceeds the 8 training images: --batch-size 8",
    "train --resume RUN/last.ckpt --k 3": "last.ckpt is of another configuration: k: 7, not 3",
    "demo --save-prefix RUN --k 3": "last.ckpt is of another configuration: k: 7, not 3",
    "train --resume RUN/last.ckpt --optimizer sgd": "was trained with --optimizer adam; this "
    "command asks for sgd",
    "demo --save-prefix RUN --seed 5 --scale-jitter 0.9 1.0 --lr-warmup 3": "lr_warmup: 2, not 3; "
    "scale_jitter: [1.0, 1.0], not [0.9, 1.0]; seed: 0, not 5; choose another --save-prefix",
    "eval --dataset voc --pretrained RUN/last.ckpt": "expected the classes of 'voc': aeroplane",
    "export --pretrained TMP/none.ckpt": "none.ckpt is missing",
    "data --dataset-root TMP": "TMP holds files that this command did not write; expected an empty",
    "detect TMP --pretrained RUN/last.ckpt": "folder TMP holds no image",
    "detect TMP/no.jpg --pretrained RUN/last.ckpt": "no.jpg is missing",
    "train --cpus 3": "--batch-size 2, expected at least 3, one per context",
    "train --scale-jitter 1.2 0.8": "--scale-jitter 1.2 0.8, expected 0 < LOW <= HIGH",
    "train --lr-mode step --lr-decay-steps 5 3": "--lr-decay-steps 5 3, expected an increasing",
    "train --classes a": "'signals' has its own classes; leave out --classes",
    "train --dataset voc-like --classes cup ' cup'": "cup, cup, expected different names",
    "train --kv-store dist_sync": "not set: DMLC_ROLE, DMLC_PS_ROOT_URI",
    "train --save-prefix TMP/letter.txt": "TMP/letter.txt is a file, expected a folder",
    "train --network mobilenet1.0": "--network: invalid choice: 'mobilenet1.0'",
    "train --kv-store none": "--kv-store: invalid choice: 'none'",
    "detect a.jpg --thresh nan": "expected a number from 0 to 1, got nan",
    "train --pretrained TMP/none.ckpt": "none.ckpt is missing",
    "train --pretrained TMP/letter.txt": "letter.txt is not a checkpoint of demo_rfcn, or is dam",
    "data --dataset-root TMP/letter.txt": "data: TMP/letter.txt is a file, expected a folder",
    "data --dataset-root TMP/letter.txt/run": "cannot write TMP/letter.txt/run: a part of the pa",
    "train --fpn": "train: --fpn with --head 'psroi', expected one of 'light_head', 'roi_fc'",
}
RANGES = {
    "an integer >= 0": ["--seed -1", "--gpus 0,one"],
    "an integer >= 1": ["--batch-size 0", "--steps 1.5", "--steps nan"],
    "different numbers": ["--gpus 1,1"],
    "a number from 0 to 1": ["--flip-p 1.5", "--flip-p nan", "--color-jitter 2"],
    "a number > 0": ["--lr nan", "--lr inf", "--lr 0", "--lr=-1e-3", "--lr fast"]
    + ["--scale-jitter 1 0", "--scale-jitter 1 inf", "--clip-gradient 0", "--max-seconds inf"],
    "a number >= 0": ["--head-lr-mult nan", "--wd -1"],
    "a number >= 0 and < 1": ["--momentum 1"],
    "a number > 0 and <= 1": ["--lr-decay 1.1"],
    "a number > 0 and < 1": ["--val-share 1"],
}
for words, lines in RANGES.items():
    for line in lines:
        flag, *_, value = re.split("[ =]", line)
        start = f"demo_rfcn: argument {flag}: expected {words}, got {value.replace('0,', '')}; see "
        REFUSED[f"train {line}"] = start
OF_RUN = "--pretrained RUN/last.ckpt"
for line in ("train", f"eval {OF_RUN}", f"export {OF_RUN}", f"detect IMAGE {OF_RUN}"):
    words = "demo_rfcn: cannot write TMP/letter.txt/run: a part of the path is a file"
    REFUSED[f"{line} --save-prefix TMP/letter.txt/run"] = words
    if not mx.context.num_gpus() and "export" not in line:
        REFUSED[f"{line} --gpus 0"] = "--gpus 0, but MXNet sees 0 GPUs"


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_sentence(line, eight_images, short_run, tmp_path, rejects):
    (tmp_path / "letter.txt").write_text("mine")
    words, image = REFUSED[line], eight_images / "VOC2007/JPEGImages/000000.jpg"
    for name, path in {"TMP": tmp_path, "RUN": short_run, "IMAGE": image}.items():
        line, words = line.replace(name, str(path)), words.replace(name, str(path))
    command, *more = shlex.split(line)
    if command in ("train", "demo"):
        more = [*train_arguments(eight_images, tmp_path / "run")[1:], *more]
    rejects([command, *more], words)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_no_objects_to_evaluate(tmp_path, rejects):
    data = write_voc(tmp_path / "data", [(signals.paint(np.random.default_rng(0))[0], [])] * 2)
    words = "dataset: no annotated object in the 2 images of VOC2007 val, expected at least one"
    rejects(train_arguments(data, tmp_path / "run"), words)


def test_detect_replaces_no_image(short_run, tmp_path, rejects):
    checkpoint = ["--pretrained", short_run / "last.ckpt", "--save-prefix"]
    first, second, third = (tmp_path / name for name in ("a/one.jpg", "b/one.png", "b/two.png"))
    for path in (first, second, third):
        path.parent.mkdir(exist_ok=True)
        assert cv2.imwrite(str(path), np.zeros((64, 64, 3), np.uint8))
    words = f"{first} and {second} would both"
    (message,) = rejects(["detect", first, second, *checkpoint, tmp_path / "out"], words)
    assert "different names" in message
    # A path's picture may not replace an image, its own or another one.
    for images in ([third], [first, tmp_path / "a" / ".." / "b" / "two.png"]):
        rejects(["detect", *images, *checkpoint, tmp_path / "b"], "two.png is an image to read")
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["one.jpg", "one.png", "two.png"]
