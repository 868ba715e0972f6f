"""`export`: the whole test graph as symbol.json and parameters.

The files load in a process that imports only mxnet and gluon_roi:

    net = mx.gluon.SymbolBlock.imports("rfcn-symbol.json", ["data"], "rfcn-0000.params")
    ids, scores, boxes = net(data)
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import mxnet as mx

from . import demo, files


def command(args: argparse.Namespace) -> None:
    """Write <name>-symbol.json and <name>-0000.params."""
    files.prepare(Path(args.save_prefix))
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
    symbol, parameters = Path(f"{stem}-symbol.json"), Path(f"{stem}-0000.params")
    detect(mx.nd.zeros((1, 3, side, side)))
    with files.replacing(symbol) as first, files.replacing(parameters) as second:
        made = first.with_name(parameters.name)
        prefix = str(first.with_name(stem.name))
        files.save_and_reload(lambda: detect.export(prefix), first, made)
        os.replace(made, second)
    return symbol, parameters
