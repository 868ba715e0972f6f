# SPDX-License-Identifier: Apache-2.0
"""ONNX export of complete detectors, or parts of them, with standard operators of opset 16."""

from __future__ import annotations

from typing import Any, Sequence

from ..files import check_other_file, target
from .metadata import detector_metadata

__all__ = ["detector_metadata", "export", "to_torch"]


def export(
    model: Any,
    input_shapes: Sequence | dict[str, Sequence[int]],
    path: Any,
    params: Any = None,
    input_types: Sequence | dict[str, Any] | None = None,
    dynamic: Sequence | dict[str, Any] | None = None,
    inputs: dict[str, Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
    metadata: dict[str, Any] | None = None,
    output_names: Sequence[str] | None = None,
    verify: bool | Sequence | dict[str, Any] = False,
    fold: bool = True,
) -> None:
    """Write a model to an ONNX file, using standard operators only.

    The file holds the model for inference, as outside of ``autograd.record``; guards, ``BlockGrad``
    and ``Dropout`` are removed. A rule for each operator translates its nodes, and raises an error
    for attributes that it does not support. Before the file is written, onnx checks the model, and,
    without dynamic axes, the shapes and dtypes of the tensors between nodes are compared with
    MXNet's. docs/onnx_operators.md describes the translations and their accuracy.

    Parameters
    ----------
    model : mxnet.gluon.HybridBlock, mxnet.sym.Symbol, str or pathlib.Path
        A block, hybridized or not, a symbol, or the path of a symbol file. A symbol file may
        contain unregistered Custom operators if they are cut off. MXNet's RoI operators are
        switched as by :func:`gluon_roi.optimize`.
    input_shapes : sequence or dict
        A shape for each input, in the order of the block's call, or of ``symbol.list_arguments()``
        without parameters, `inputs`, and labels of ``SoftmaxOutput`` and similar layers. An input
        that is a list of arrays has a list of shapes. Or a dict: name -> shape. For a block its
        order is that of the call, and the file's inputs get these names, which are otherwise data,
        or data0, data1, ...
    path : str or pathlib.Path
        The file to write.
    params : dict, str or pathlib.Path, optional
        Parameters and auxiliary states of a symbol: name -> array, or the path of their file. Names
        may have the prefixes ``arg:`` and ``aux:`` of ``mx.model.save_checkpoint``. Not for a
        block, which has parameters.
    input_types : sequence or dict, optional
        A dtype for each input, followed by those of `inputs`, or a dict: name -> dtype. By default,
        dtypes are inferred from the parameters; otherwise they are int32 for rois_num and float32
        for all others.
    dynamic : sequence or dict, optional
        For each input, followed by those of `inputs`, the axes with dynamic sizes, such as ``[(0,
        2, 3), (0,)]`` for data and for any number of rois. Or a dict by names, ``{"data": (0, 2,
        3)}``. A dict instead of a list of axes names them: ``{"data": {0: "batch", 2: "height"}}``;
        axes with one name have one size. Any axis may be dynamic, except channels and axes whose
        size is fixed by the model or by another input.
    inputs : dict, optional
        Cuts the model: name -> shape. The name is that of an output, or of a node with one output,
        which becomes an input; nodes that are no longer needed are removed.
    outputs : list of str, optional
        Names of nodes or of their outputs that become the outputs of the exported model.
    metadata : dict, optional
        Information for programs that use the file: name -> a value that JSON supports, written to
        ``metadata_props`` as JSON. Detectors of GluonCV also get :func:`detector_metadata`; the
        values given here take precedence.
    output_names : list of str, optional
        The names of the outputs in the file instead of MXNet's. An output must not have the name of
        an input, unless it is this input. By default, the outputs of GluonCV's detectors are ids,
        scores, boxes and, for Mask R-CNN, masks.
    verify : bool, sequence or dict, default False
        Whether onnxruntime runs the model, and its outputs are compared with those of the switched
        model in MXNet, before anything is written. The inputs are arrays, in their order or by
        name, whose sizes along dynamic axes may be others than in `input_shapes`. True draws them:
        boxes of RoI operators on the map, sizes of images for proposals, and otherwise normal
        values; and it draws them again with another size of each dynamic axis that MXNet accepts.
        Floats may differ by 1e-4 of the largest number of an output, or of 1 if that is larger
        (float16: 1e-2). If the model sorts or suppresses anywhere, 95 % of the rows of an output
        have to be found again, in any order; masks may differ by 1e-3 then, because they are
        pooled from boxes that rounding has moved.
    fold : bool, default True
        Whether batch normalisation becomes part of the convolution, deconvolution or dense layer
        before it. False keeps a ``BatchNormalization`` for each one, and every weight as it is in
        MXNet, for programs that train the file further.

    Raises
    ------
    ImportError
        The package onnx is not installed, or onnxruntime, which `verify` needs; ``pip install
        onnx onnxruntime`` installs them.
    ValueError
        An argument does not match the model.
    RuntimeError
        onnx rejects the model, or infers other shapes or dtypes than MXNet. With `verify`:
        onnxruntime does not run the model, or an output is not MXNet's; then the message names the
        first node whose output differs, if one does.
    NotImplementedError
        A node, or its attributes and types, cannot be translated; the message names the node.
        Python code (``Custom``) cannot be translated: cut the model there.

    Notes
    -----
    A batch index that is NaN, fractional, or beyond the batch (without ``bad_index='padding'``)
    results in a row of NaN, as on a GPU, because an ONNX model cannot raise an error.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi, onnx, os, tempfile
    >>> net = gluon_roi.PSROIPool(pooled_size=2, spatial_scale=1 / 16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, 'pool.onnx')
    ...     gluon_roi.onnx.export(net, {'maps': (1, 12, 38, 63), 'rois': (8, 5)}, path,
    ...                           dynamic={'maps': (2, 3), 'rois': {0: 'rows'}})
    ...     model = onnx.load(path)
    >>> [[d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim]
    ...  for i in model.graph.input]
    [[1, 12, 'maps_2', 'maps_3'], ['rows', 5]]
    >>> sorted({node.domain for node in model.graph.node})
    ['']
    """
    _check_onnx()
    if verify is not False:
        _check_runtime()
    from .model import export_model
    from .source import metadata_of, output_names_of, source_of

    file = target("onnx.export: path", path)
    check_other_file("onnx.export: path", file, {"model": model, "params": params})
    texts = metadata_of(model, metadata)
    source = source_of(model, input_shapes, params, input_types, dynamic, inputs, outputs)
    names = output_names_of(model, output_names, source.symbol, outputs)
    export_model(file, source, names, texts, verify, fold)


def to_torch(path: Any) -> Any:
    """Load a file that `export` wrote as a module of PyTorch, for inference and for training.

    Where MXNet is not installed, ``gluon_roi_torch.to_torch`` does the same.

    Parameters
    ----------
    path : str or pathlib.Path
        The ONNX file.

    Returns
    -------
    torch.nn.Module
        A ``torch.fx.GraphModule`` in evaluation mode, which takes the inputs of the file in its
        order, and returns its output, or a tuple of its outputs. The weights are Parameters under
        their names in Gluon, the statistics of batch normalization are buffers, and both are the
        whole ``state_dict``. ``module.meta`` has the metadata of the file.

    Raises
    ------
    ImportError
        A package is not installed; ``pip install onnx torch torchvision`` installs them.
    FileNotFoundError
        There is no such file.
    ValueError
        It is not an ONNX model as `export` writes it.
    NotImplementedError
        A node cannot be translated; the message names it.

    Notes
    -----
    ``BlockGrad`` is not in an exported file. Suppression and other choices of boxes have no
    gradient. docs/to_torch.md shows how to compare, train and save the module.

    Examples
    --------
    >>> import gluon_roi
    >>> net = gluon_roi.onnx.to_torch('model.onnx')  # doctest: +SKIP
    >>> [name for name, _ in net.named_parameters()][:2]  # doctest: +SKIP
    ['resnetv1b_conv0_weight', 'resnetv1b_layers1_conv0_weight']
    """
    try:
        import gluon_roi_torch
    except ImportError as error:
        raise ImportError(
            f"gluon_roi.onnx.to_torch needs the packages onnx, torch and torchvision ({error}); "
            "run 'pip install onnx torch torchvision'"
        ) from error
    return gluon_roi_torch.to_torch(path)


def _check_runtime() -> None:
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"onnx.export: verify needs the package onnxruntime ({error}); run "
            "'pip install onnxruntime'"
        ) from error


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"gluon_roi.onnx.export needs the package onnx ({error}); run 'pip install onnx'"
        ) from error
