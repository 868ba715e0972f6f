"""``python -m gluon_roi``: prints how the package was built and checks every operator."""

import sys
from typing import Callable, Dict

import numpy as np

import gluon_roi
import mxnet as mx

REFERENCES: Dict[str, Callable[..., np.ndarray]] = {
    "ROIPool": gluon_roi.reference.roi_pool,
    "ROIAlign": gluon_roi.reference.roi_align,
    "PSROIPool": gluon_roi.reference.ps_roi_pool,
    "PSROIAlign": gluon_roi.reference.ps_roi_align,
}


def check(name: str) -> bool:
    """Compare an operator with its NumPy reference on one batch of boxes, in float64."""
    rng = np.random.RandomState(0)
    data = rng.randn(2, 27, 20, 30)
    low = rng.uniform(0, 200, (16, 2))
    boxes = np.hstack([rng.randint(0, 2, (16, 1)), low, low + rng.uniform(1, 150, (16, 2))])
    arrays = [mx.nd.array(value, dtype="float64") for value in (data, boxes)]
    actual = getattr(gluon_roi.nd, name)(*arrays, pooled_size=3, spatial_scale=0.1).asnumpy()
    return np.allclose(actual, REFERENCES[name](data, boxes, 3, 0.1), rtol=1e-12, atol=1e-12)


def main() -> int:
    for key, value in gluon_roi.build_info().items():
        print(f"{key:12} {value}")
    failed = 0
    for name in REFERENCES:
        ok = check(name)
        failed += not ok
        print(f"{name:12} {'agrees with the reference' if ok else 'DIFFERS from the reference'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
