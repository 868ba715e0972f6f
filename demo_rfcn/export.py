"""`export`: the whole test graph as symbol.json and parameters.

The files load in a process that imports only mxnet and gluon_roi:

    net = mx.gluon.SymbolBlock.imports("rfcn-symbol.json", ["data"], "rfcn-0000.params")
    ids, scores, boxes = net(data)
"""

from __future__ import annotations

import os
from pathlib import Path

import mxnet as mx

from . import demo, files
from .detector import Detector


def command(name: str, pretrained: Path, save_prefix: Path) -> None:
    """Write <name>-symbol.json and <name>-0000.params."""
    files.prepare(save_prefix)
    detect, meta = demo.load_detector(pretrained, mx.cpu())
    for path in export(detect, save_prefix / name, meta["short"]):
        print(path)


def export(detect: Detector, stem: Path, side: int) -> tuple[Path, Path]:
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
