"""The data sets by name: `open_dataset` reads one, `ensure_dataset` generates a missing one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gluoncv.data import VOCDetection

from ..errors import InputError
from . import signals, voc_files
from .voc import VOCFolder


@dataclass(frozen=True)
class DatasetSpec:
    """What the commands need to know about a data set before it is opened.

    Attributes
    ----------
    classes : tuple of str
    train, val, test : tuple of (int, str)
        Year and list in ImageSets/Main; `val` guides training, `test` is for the final figures.
    short, max_size : int
        Images are scaled to this short side unless the long one would exceed max_size, pixels.
    anchor_scales, anchor_ratios : tuple of float
        Anchor sides in units of 16 pixels, and height / width.
    paint : callable or None
        The painter of a generated set.
    recipe : str
        Name and version of the painter; a folder of another recipe is generated anew.
    counts : dict of str to int
        Images per split of a generated set.
    """

    classes: tuple
    train: tuple
    val: tuple
    test: tuple
    short: int
    max_size: int
    anchor_scales: tuple
    anchor_ratios: tuple = (0.5, 1.0, 2.0)
    paint: Callable | None = None
    recipe: str = ""
    counts: dict = field(default_factory=dict)


DATASETS = {
    "signals": DatasetSpec(
        classes=signals.CLASSES,
        train=((2007, "trainval"),),
        val=((2007, "val"),),
        test=((2007, "test"),),
        short=signals.IMAGE_SIZE,
        max_size=signals.IMAGE_SIZE,
        anchor_scales=(2.0, 3.5, 5.5),
        anchor_ratios=(1.0, 2.0),
        paint=signals.paint,
        recipe="signals-1",
        counts={"trainval": 3000, "val": 100, "test": 300},
    ),
    "voc": DatasetSpec(
        classes=VOCDetection.CLASSES,
        train=((2007, "trainval"), (2012, "trainval")),
        val=((2007, "test"),),
        test=((2007, "test"),),
        short=600,
        max_size=1000,
        anchor_scales=(2.0, 4.0, 8.0, 16.0, 32.0),
    ),
}


def ensure_dataset(name: str, root: Path, seed: int) -> bool:
    """Generate an embedded data set under root unless it is there already.

    Returns
    -------
    bool
        True when images were written.

    Raises
    ------
    InputError
        The data set is not a generated one.
    """
    spec = DATASETS[name]
    if spec.paint is None:
        raise InputError(f"data: dataset '{name}' is not generated; pass its --dataset-root")
    return voc_files.generate(Path(root), spec.paint, spec.counts, seed, spec.recipe)


def open_dataset(name: str, root: Path, purpose: str) -> VOCFolder:
    """Open a data set.

    Parameters
    ----------
    name : str
        A key of `DATASETS`.
    root : pathlib.Path
        Folder that holds the `VOC<year>` folders.
    purpose : {'train', 'val', 'test'}

    Raises
    ------
    InputError
        The folder, or every year of the purpose's lists, is missing.
    """
    spec = DATASETS[name]
    root = Path(root)
    if not root.is_dir():
        make = f"; 'python -m demo_rfcn data --dataset {name}' makes it" if spec.paint else ""
        raise InputError(f"dataset: folder {root} of '{name}' is missing{make}")
    lists = getattr(spec, purpose)
    present = tuple(entry for entry in lists if (root / f"VOC{entry[0]}").is_dir())
    return VOCFolder(root, present or lists, spec.classes)
