"""`export`: the whole test graph as symbol.json and parameters.

The files load in a process that imports only mxnet and gluon_roi:

    net = mx.gluon.SymbolBlock.imports("rfcn-symbol.json", ["data"], "rfcn-0000.params")
    ids, scores, boxes = net(data)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mxnet as mx

from . import demo


def command(args: argparse.Namespace) -> None:
    """Write <name>-symbol.json and <name>-0000.params."""
    detect, meta = demo.load_detector(Path(args.pretrained), mx.cpu())
    for path in export(detect, Path(args.save_prefix) / args.name, meta["short"]):
        print(path)


def export(detect, stem: Path, side: int) -> tuple:
    """Export a detector; images of any size at least that of the anchors' coverage may follow.

    Parameters
    ----------
    detect : detector.Detector
        Hybridized.
    stem : pathlib.Path
        Path of the files without their endings.
    side : int
        Height and width of the image that traces the graph, pixels.

    Returns
    -------
    symbol, parameters : pathlib.Path
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    detect(mx.nd.zeros((1, 3, side, side)))
    detect.export(str(stem))
    return Path(f"{stem}-symbol.json"), Path(f"{stem}-0000.params")
