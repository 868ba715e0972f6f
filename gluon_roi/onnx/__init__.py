# SPDX-License-Identifier: Apache-2.0
"""Models in ONNX: whole detectors, or parts of them, in standard operators of opset 16."""

from __future__ import annotations

from typing import Any, Sequence

from ..files import check_other_file, target
from .metadata import detector_metadata

OPSET = 16

__all__ = ["detector_metadata", "export"]


def export(
    model: Any,
    input_shapes: Sequence,
    path: Any,
    params: Any = None,
    input_types: Sequence | None = None,
    dynamic: Sequence[Sequence[int]] | None = None,
    inputs: dict[str, Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
    metadata: dict[str, Any] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Write a model to an ONNX file, using standard operators only.

    The file holds the model for inference, as outside of ``autograd.record``; guards, ``BlockGrad``
    and ``Dropout`` are left out. A rule for each operator translates its nodes, and rejects
    attributes that it does not cover. At the end, onnx checks the file, and the shape and type of
    every tensor are compared with MXNet's. docs/onnx_operators.md describes the translations and
    their accuracy.

    Parameters
    ----------
    model : mxnet.gluon.HybridBlock, mxnet.sym.Symbol, str or pathlib.Path
        A block, hybridized or not, a symbol, or the path of a symbol file. A symbol file may hold
        unregistered Custom operators if they are cut off. MXNet's own RoI operators are switched
        as by :func:`gluon_roi.optimize`.
    input_shapes : sequence
        A shape for each input, in the order of the block's call, or in that of
        ``symbol.list_arguments()`` without those in `params` or `inputs` and without those that
        only the labels of ``SoftmaxOutput`` and similar layers need. An input that is a list of
        arrays has a list of shapes.
    path : str or pathlib.Path
        The file to write.
    params : dict, str or pathlib.Path, optional
        Parameters and auxiliary states of a symbol: name -> array, or the path of their file. Names
        may have the prefixes ``arg:`` and ``aux:`` of ``mx.model.save_checkpoint``. A block has its
        own.
    input_types : sequence, optional
        A dtype for each input, those of `inputs` last. By default, types follow from the
        parameters; otherwise they are int32 for rois_num and float32 for all others.
    dynamic : sequence, optional
        For each input, those of `inputs` last, the axes whose sizes may vary, such as
        ``[(0, 2, 3), (0,)]`` for data and for any number of rois. Any axis may vary, except the
        channels and axes whose size the model or another input fixes.
    inputs : dict, optional
        Cuts the model: name -> shape. The output of the node, or the output, of this name becomes
        an input; nodes that only it depends on are left out.
    outputs : list of str, optional
        Names of nodes or of their outputs that become the model's outputs, in place of its own.
    metadata : dict, optional
        What programs have to know to use the file: name -> a value that JSON can hold, written to
        ``metadata_props`` as JSON. A detector of GluonCV has that of :func:`detector_metadata`
        already; what is given here takes precedence.
    output_names : list of str, optional
        The names of the outputs in the file, in place of MXNet's. No name may be that of an input,
        unless the output is this input. Those of GluonCV's detectors are
        ids, scores, boxes and, for Mask R-CNN, masks.

    Raises
    ------
    ImportError
        The package onnx is not installed; ``pip install onnx`` installs it.
    ValueError
        An argument does not fit the model.
    NotImplementedError
        A node, or its attributes and types, cannot be translated; the message names the node.
        Python code (``Custom``) cannot be translated: cut the model there.

    Notes
    -----
    A batch index that is NaN, fractional, or beyond the batch (without ``bad_index='padding'``)
    makes a row of NaN, as on a GPU, because an ONNX model cannot raise an error.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi, onnx, os, tempfile
    >>> net = gluon_roi.PSROIPool(pooled_size=2, spatial_scale=1 / 16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, 'pool.onnx')
    ...     gluon_roi.onnx.export(net, [(1, 12, 38, 63), (8, 5)], path, dynamic=[(2, 3), (0,)])
    ...     model = onnx.load(path)
    >>> [[d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim]
    ...  for i in model.graph.input]
    [[1, 12, 'data0_2', 'data0_3'], ['data1_0', 5]]
    >>> sorted({node.domain for node in model.graph.node})
    ['']
    """
    _check_onnx()
    from .model import export_model
    from .source import metadata_of, output_names_of, source_of

    file = target("onnx.export: path", path)
    check_other_file("onnx.export: path", file, {"model": model, "params": params})
    texts = metadata_of(model, metadata)
    source = source_of(model, input_shapes, params, input_types, dynamic, inputs, outputs)
    names = output_names_of(model, output_names, source.symbol, outputs)
    export_model(OPSET, file, source, names, texts)


def input_names(
    model: Any, params: Any, inputs: Sequence[str], outputs: Sequence[str] | None
) -> list[str]:
    """The inputs of a symbol or symbol file that need a shape, in the order of `export`."""
    _check_onnx()
    from .source import named_inputs

    return named_inputs(model, params, inputs, outputs)[2]


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"gluon_roi.onnx.export needs the package onnx ({error}); run 'pip install onnx'"
        ) from error
