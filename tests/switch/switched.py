# SPDX-License-Identifier: Apache-2.0
"""Networks and symbols with MXNet's RoI operators, which gluon_roi.optimize switches."""

import mxnet as mx
import numpy as np
from mxnet import gluon

import gluon_roi

SCALE = 0.25
#: Rows that MXNet's operators and ours agree on, over two images of 80 x 96 pixels.
ROWS = [[0, 4, 4, 60, 40], [1, 10, 20, 90, 70], [0, 0, 0, 95, 79], [1, 33, 7, 50, 30]]
# name -> channels of the map, our operator, a call with MXNet's functions
FORMS: dict = {
    "pool": (6, "ROIPool", lambda F, x, r: F.ROIPooling(x, r, (3, 3), SCALE)),
    "align": (6, "ROIAlign", lambda F, x, r: F.contrib.ROIAlign(x, r, (3, 3), SCALE)),
    "align_half": (
        6,
        "ROIAlign",
        lambda F, x, r: F.contrib.ROIAlign(
            x, rois=r, pooled_size=(2, 3), spatial_scale=SCALE, sample_ratio=2, aligned=True
        ),
    ),
    "ps_align": (
        18,
        "PSROIAlign",
        lambda F, x, r: F.contrib.ROIAlign(
            x, r, (3, 3), SCALE, sample_ratio=2, position_sensitive=True
        ),
    ),
    "ps_pool": (
        18,
        "PSROIPool",
        lambda F, x, r: F.contrib.PSROIPooling(x, r, SCALE, 2, 3),
    ),
    "deformable": (
        18,
        "DeformablePSROIPool",
        lambda F, x, r: F.contrib.DeformablePSROIPooling(
            x,
            r,
            # One offset for all: MXNet's results repeat then.
            F.slice_axis(F.tile(F.ones_like(r), (1, 4)), axis=1, begin=0, end=18).reshape(
                (-1, 2, 3, 3)
            ),
            spatial_scale=SCALE,
            output_dim=2,
            group_size=3,
            pooled_size=3,
            part_size=3,
            sample_per_part=2,
            trans_std=0.1,
        ),
    ),
    "deformable_no_trans": (
        18,
        "DeformablePSROIPool",
        lambda F, x, r: F.contrib.DeformablePSROIPooling(
            x, r, spatial_scale=SCALE, output_dim=2, group_size=3, pooled_size=3, no_trans=True
        ),
    ),
    "ps_pool_groups": (
        8,
        "PSROIPool",
        lambda F, x, r: F.contrib.PSROIPooling(
            data=x, rois=r, spatial_scale=SCALE, output_dim=2, pooled_size=4, group_size=2
        ),
    ),
}


class Head(gluon.HybridBlock):
    """A call with MXNet's functions, `users` times on one map."""

    def __init__(self, form, users=1, **kwargs):
        super().__init__(**kwargs)
        self.form, self.users = form, users

    def hybrid_forward(self, F, x, rois):
        # The names are what tells that this block is to be switched.
        assert F.ROIPooling and F.contrib.ROIAlign and F.contrib.PSROIPooling
        call = FORMS[self.form][2]
        return F.add_n(*[call(F, x * 1 if self.users == 1 else x, rois) for _ in range(self.users)])


class Detector(gluon.HybridBlock):
    """A head between layers whose shapes are inferred at the first call."""

    def __init__(self, form="align", **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = gluon.nn.Conv2D(FORMS[form][0], 3, padding=1)
            self.head = Head(form)
            self.top = gluon.nn.Dense(5)

    def hybrid_forward(self, F, x, rois):
        return self.top(self.head(self.body(x), rois))


def inputs(form="align", rows=ROWS):
    channels = FORMS[form][0]
    data = np.random.RandomState(0).randn(2, channels, 20, 24).astype("float32")
    return mx.nd.array(data), mx.nd.array(rows)


def symbol_of(form, users=1):
    return Head(form, users)(mx.sym.var("x"), mx.sym.var("rois"))


def parts(net):
    return {name: count for name, count in gluon_roi.count(net).items() if count}


SWITCHED = {"_gluon_roi_ROIAlign": 1}
