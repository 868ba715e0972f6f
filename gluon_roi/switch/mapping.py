# SPDX-License-Identifier: Apache-2.0
"""The table of MXNet's operators and their equivalents in gluon_roi, with their arguments.

tests/switch/test_switch_table.py compares it with MXNet's own arguments and with docs/switch.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mxnet as mx

from .. import nd
from ..bridge.arguments import is_true
from ..bridge.symbol_json import without_longs


class Argument(NamedTuple):
    """How an argument of MXNet's operator is translated to one of gluon_roi's, if it is given."""

    mxnet_name: str  # "" if there is none
    name: str  # "" if there is none
    #: The value to pass if MXNet's argument is not given, because the defaults differ.
    default: str | None = None
    #: Whether 0, MXNet's default, is omitted, because gluon_roi's operator does not accept it.
    zero_is_default: bool = False
    #: The operator of gluon_roi that MXNet's argument, a flag, selects.
    selects_operator: str = ""
    #: The input that MXNet's argument, a flag, removes.
    drops_input: str = ""


class Switch(NamedTuple):
    """An operator of MXNet, and its equivalent in gluon_roi.

    If it pools boxes, it also gets bad_index, an option of the switch.
    """

    mxnet_name: str  # in graphs
    name: str  # in gluon_roi.nd
    inputs: tuple[str, ...]  # the order is the same in both
    arguments: tuple[Argument, ...]
    alias: str = ""  # another name of MXNet's function

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of MXNet's function in mx.nd, mx.sym, their contrib, and mx.npx."""
        names = self.mxnet_name.replace("_contrib_", ""), self.alias
        return tuple(filter(None, names))

    @property
    def pools_boxes(self) -> bool:
        return "rois" in self.inputs

    def inputs_of(self, given: dict[str, Any]) -> tuple[str, ...]:
        """The inputs of a node of MXNet's operator with these arguments."""
        flags = [flag for flag in self.arguments if is_true(given.get(flag.mxnet_name))]
        dropped = [flag.drops_input for flag in flags]
        return tuple(name for name in self.inputs if name not in dropped)

    def translate(self, given: dict[str, Any], bad_index: str) -> tuple[str, dict[str, Any]]:
        """Translate arguments of MXNet's function to a name in gluon_roi.nd and its arguments.

        Unknown arguments are kept.
        """
        name, result = self.name, {k: v for k, v in given.items() if v is not mx.base._Null}
        for argument in self.arguments:
            value = result.pop(argument.mxnet_name, None)
            value = without_longs(value) if isinstance(value, str) else value
            if argument.selects_operator and is_true(value):
                name = argument.selects_operator
            # If the function has no_bias as well, it raises an error for a bias, as MXNet's does.
            if argument.drops_input and not argument.name and is_true(value):
                result.pop(argument.drops_input, None)
            if value is None:
                value = argument.default
            elif argument.zero_is_default and str(value) == "0":
                value = None
            if argument.name and value is not None:
                result[argument.name] = value
        if self.pools_boxes:
            result["bad_index"] = bad_index
        return name, result

    def node(
        self, name: str, inputs: dict[str, Any], given: dict[str, str], bad_index: str
    ) -> mx.sym.Symbol:
        """The equivalent of a node of MXNet's operator, with its name, inputs and attributes."""
        hidden = {key: value for key, value in given.items() if key.startswith("__")}
        visible = {key: value for key, value in given.items() if key not in hidden}
        function, arguments = self.translate(visible, bad_index)
        with mx.name.NameManager():  # the name already has its prefix
            return getattr(nd, function)(**inputs, **arguments, name=name, attr=hidden)


def _same(names: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, name) for name in names.split())


_ROIS = ("data", "rois")
_CONVOLUTION = (
    *_same("kernel stride dilate pad num_filter num_group num_deformable_group workspace layout"),
    Argument("no_bias", "no_bias", drops_input="bias"),
)
_PROPOSAL = (
    ("cls_prob", "bbox_pred", "im_info"),
    _same(
        "rpn_pre_nms_top_n rpn_post_nms_top_n threshold rpn_min_size scales ratios feature_stride "
        "output_score iou_loss"
    ),
)
SWITCHES = (
    Switch("ROIPooling", "ROIPool", _ROIS, _same("pooled_size spatial_scale"), alias="roi_pooling"),
    Switch(
        "_contrib_ROIAlign",
        "ROIAlign",
        _ROIS,
        (
            *_same("pooled_size spatial_scale"),
            Argument("sample_ratio", "sampling_ratio"),
            Argument("aligned", "aligned", default="False"),
            Argument("position_sensitive", "", selects_operator="PSROIAlign"),
        ),
    ),
    Switch(
        "_contrib_PSROIPooling",
        "PSROIPool",
        _ROIS,
        (
            *_same("spatial_scale output_dim pooled_size"),
            Argument("group_size", "group_size", zero_is_default=True),
        ),
    ),
    Switch(
        "_contrib_DeformablePSROIPooling",
        "DeformablePSROIPool",
        (*_ROIS, "trans"),
        (
            *_same("spatial_scale output_dim group_size pooled_size trans_std"),
            Argument("part_size", "part_size", zero_is_default=True),
            Argument("sample_per_part", "sample_per_part", default="1"),
            Argument("no_trans", "", drops_input="trans"),
        ),
    ),
    Switch(
        "_contrib_RROIAlign",
        "RotatedROIAlign",
        _ROIS,
        (
            *_same("pooled_size spatial_scale sampling_ratio"),
            Argument("", "aligned", default="False"),
        ),
    ),
    Switch(
        "_contrib_DeformableConvolution",
        "DeformableConvolution",
        ("data", "offset", "weight", "bias"),
        _CONVOLUTION,
    ),
    Switch(
        "_contrib_ModulatedDeformableConvolution",
        "ModulatedDeformableConvolution",
        ("data", "offset", "mask", "weight", "bias"),
        (*_CONVOLUTION, *_same("im2col_step")),
    ),
    Switch(
        "_contrib_box_nms",
        "BoxNMS",
        ("data",),
        _same(
            "overlap_thresh valid_thresh topk coord_start score_index id_index background_id "
            "force_suppress in_format out_format"
        ),
        alias="box_non_maximum_suppression",
    ),
    Switch("_contrib_box_iou", "BoxIoU", ("lhs", "rhs"), _same("format")),
    Switch("_contrib_Proposal", "Proposal", *_PROPOSAL),
    Switch("_contrib_MultiProposal", "Proposal", *_PROPOSAL),
)
#: The switches by the names of MXNet's operators in graphs.
BY_OPERATOR = {switch.mxnet_name: switch for switch in SWITCHES}
#: The switches by the names of MXNet's functions, in any module.
BY_FUNCTION = {name: switch for switch in SWITCHES for name in switch.functions}


class Options(NamedTuple):
    """Options of a switch."""

    bad_index: str
    rois_only: bool = False

    @classmethod
    def checked(cls, caller: str, bad_index: str, rois_only: bool) -> Options:
        """Options from the arguments of `caller`; raises ValueError for a wrong `bad_index`."""
        if bad_index not in ("error", "padding"):
            raise ValueError(
                f"{caller}: argument bad_index: expected 'error' or 'padding', got {bad_index!r}"
            )
        return cls(bad_index, bool(rois_only))

    def includes(self, switch: Switch) -> bool:
        return switch.pools_boxes or not self.rois_only


def builtins(options: Options | None = None) -> tuple[str, ...]:
    """The names of MXNet's operators in graphs (npx.roi_pooling is ROIPooling there)."""
    return tuple(s.mxnet_name for s in SWITCHES if options is None or options.includes(s))
