"""Models in ONNX: whole detectors, or parts of them, in standard operators of opset 16."""

from __future__ import annotations

from typing import Any, Sequence

OPSET = 16

__all__ = ["export"]


def export(
    model: Any,
    input_shapes: Sequence,
    path: Any,
    params: dict[str, Any] | None = None,
    input_types: Sequence | None = None,
    dynamic: Sequence[Sequence[int]] | None = None,
    inputs: dict[str, Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
) -> None:
    """Write a model to an ONNX file, in standard operators alone.

    The model is what it is outside of ``autograd.record``; guards, ``BlockGrad`` and ``Dropout``
    are left out. Each node is translated by a rule of its own, which refuses what it does not know;
    in the end the file is checked by onnx, and the shape and type of every tensor against MXNet's.
    docs/onnx.md says what is translated how, and how near the results are.

    Parameters
    ----------
    model : mxnet.gluon.HybridBlock, mxnet.sym.Symbol, str or pathlib.Path
        A block, hybridized or not, a symbol, or the path of a symbol file, which may have Custom
        operators that are not registered as long as they are cut off. MXNet's own RoI operators are
        switched as by :func:`gluon_roi.optimize`.
    input_shapes : sequence
        A shape for each input, in the order in which the block is called, or in that of
        ``symbol.list_arguments()`` without those that `params` or `inputs` have and without labels
        of ``SoftmaxOutput`` and the like. An input that is a list of arrays has a list of shapes.
    path : str or pathlib.Path
        The file to write.
    params : dict, optional
        name -> array, parameters and auxiliary states of a symbol, names with or without the
        ``arg:`` and ``aux:`` of ``mx.model.save_checkpoint``. A block has its own.
    input_types : sequence, optional
        A dtype for each input, those of `inputs` last. What follows from the parameters if not
        given, else int32 for rois_num and float32.
    dynamic : sequence, optional
        For each input, those of `inputs` last, the axes whose sizes may differ from the ones given,
        such as ``[(0, 2, 3), (0,)]`` for data and rois of any number. Number of channels excepted,
        any axis may be among them, as far as the model itself has not fixed it.
    inputs : dict, optional
        Cuts the model: name -> shape. What a node gives, or one of its outputs, becomes an input of
        that name; what only it depends on is left out.
    outputs : list of str, optional
        Names of nodes or of their outputs at which the model ends, in place of its own outputs.

    Raises
    ------
    ImportError
        The package onnx is not installed; ``pip install 'gluon_roi[onnx]'`` does it.
    ValueError
        An argument does not fit the model.
    NotImplementedError
        A node has no translation, or not with its attributes and types; the message names it.
        Python code (``Custom``) has none: cut the model there.

    Notes
    -----
    A batch index that is NaN, fractional, or beyond the batch (without ``bad_index='padding'``)
    gives a row of NaN, as on a GPU: an ONNX model cannot raise an error.

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
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"gluon_roi.onnx.export needs the package onnx ({error}); "
            "run pip install 'gluon_roi[onnx]'"
        ) from error
    from .model import export_model

    export_model(OPSET, path, model, input_shapes, params, input_types, dynamic, inputs, outputs)
