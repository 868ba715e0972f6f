# SPDX-License-Identifier: Apache-2.0
"""A detector behind HTTP, on Flask and gunicorn; docs/production.md explains it.

    DETECTOR=exported/rfcn gunicorn --pythonpath examples --preload --workers 4 serve:app
    curl --data-binary @photo.jpg http://127.0.0.1:8000/detect

Reads DETECTOR-symbol.json, DETECTOR-0000.params and DETECTOR-metadata.json, as detect.py
does. OPERATORS=mxnet serves the network as it is in the file, OPERATORS=switched after
gluon_roi.optimize, and OPERATORS=inference, the default, after the conversion for inference.
"""

import io
import json
import os
from pathlib import Path

import flask
import mxnet as mx
from detect import find
from PIL import Image, ImageOps

import gluon_roi

THRESH = 0.5  # lowest score
LARGEST = 32 << 20  # bytes of a request


def load(prefix, operators):
    """The network of the files PREFIX-..., ready for calls, and its metadata."""
    if operators not in ("mxnet", "switched", "inference"):
        raise SystemExit(f"OPERATORS is {operators!r}, expected mxnet, switched or inference")
    files = [f"{prefix}-{end}" for end in ("symbol.json", "0000.params", "metadata.json")]
    for file in files:
        if not os.path.isfile(file):
            raise SystemExit(f"DETECTOR is {prefix!r}, but there is no file {file}")
    net = mx.gluon.SymbolBlock.imports(files[0], "data", files[1])
    about = json.loads(Path(files[2]).read_text())
    example = mx.nd.zeros((1, 3, about["short"], about["short"]))
    if operators == "switched":
        gluon_roi.optimize(net, example)
    elif operators == "inference":
        gluon_roi.optimize(net, example, inference=True, static_alloc=True)
    net(example)
    mx.nd.waitall()  # no call may run while gunicorn forks
    return lambda data: [output.asnumpy() for output in net(mx.nd.array(data))], about


def make_app(prefix, operators, thresh=THRESH):
    net, about = load(prefix, operators)
    app = flask.Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = LARGEST

    @app.get("/health")
    def health():
        return {"operators": operators, "worker": os.getpid()}

    @app.post("/detect")
    def detect():
        body = flask.request.get_data()
        try:
            picture = ImageOps.exif_transpose(Image.open(io.BytesIO(body))).convert("RGB")
        # Pillow raises SyntaxError for damaged PNG files, and TypeError for damaged TIFF files.
        except (OSError, ValueError, SyntaxError, TypeError, Image.DecompressionBombError):
            expected = f"expected an image file as the body, got {len(body)} bytes"
            return {"error": f"{expected} that Pillow does not decode"}, 400
        return {"detections": find(net, about, picture, thresh), "worker": os.getpid()}

    return app


if "DETECTOR" in os.environ:
    app = make_app(os.environ["DETECTOR"], os.environ.get("OPERATORS", "inference"))
