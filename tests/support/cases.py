# SPDX-License-Identifier: Apache-2.0
"""Common parts of the operator tests: tolerances, sizes, awkward boxes, and the class of a row.

The rows themselves are in tests/operators/. Importing this needs only NumPy, because recording
other libraries and checking the CUDA kernels use the rows where MXNet is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Tuple

import numpy as np

# ---- Types and tolerances ------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """How a type of data is computed, and how near its results are to exact arithmetic.

    `forward` and `backward` are tolerances, relative and absolute alike, for data and gradients
    of standard normal values.
    """

    geometry: type  # sample positions of the operators that have any
    forward: float
    backward: float


PRECISION = {
    "float16": Precision(np.float32, forward=1e-3, backward=2e-3),
    "float32": Precision(np.float32, forward=2e-6, backward=2e-5),
    "float64": Precision(np.float64, forward=1e-13, backward=1e-12),
}

#: Agreement with another implementation of the same arithmetic in float32: sums differ by their
#: order alone.
AGREEMENT = 1e-6
#: And with one that rounds sample positions differently (Paddle's roi_align is compiled with fused
#: multiply-adds): positions below 32 are 2e-6 apart, and neighbouring pixels differ freely.
AGREEMENT_FUSED = 4e-6


def assert_near(actual: Any, expected: Any, tolerance: float) -> None:
    """Compare arrays of equal shape; NaN equals NaN. Infinity is the overflow of float16."""
    actual = actual.asnumpy() if hasattr(actual, "asnumpy") else np.asarray(actual)
    with np.errstate(over="ignore"):
        expected = np.asarray(expected).astype(actual.dtype).astype(np.float64)
    np.testing.assert_allclose(actual.astype(np.float64), expected, tolerance, tolerance)


def assert_agrees(actual: Any, expected: Any, terms: Any, tolerance: float = AGREEMENT) -> None:
    """Compare within `tolerance` of the largest sum of the magnitudes of `terms`."""
    largest = float(np.abs(terms).max())
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * largest)


# ---- Sizes ---------------------------------------------------------------------------------------

#: Output channels around the edges of a block of 16.
CHANNELS = (1, 15, 16, 17, 33)
POOLED = ((1, 1), (2, 3), (7, 7), (14, 14))
#: Every combination costs minutes in the reference; each value meets each other kind here.
BLOCKS = (
    (1, (1, 1)),
    (15, (2, 3)),
    (16, (7, 7)),
    (17, (2, 3)),
    (33, (1, 1)),
    (33, (7, 7)),
    (1, (14, 14)),
    (17, (14, 14)),
)
SCALES = (1.0, 1 / 16, 0.3)
#: Images, rows, columns of a small map.
BATCH, HEIGHT, WIDTH = 2, 13, 18


def feature_map(channels: int, dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    """Standard normal values, shape (BATCH, channels, HEIGHT, WIDTH)."""
    values = np.random.RandomState(seed).randn(BATCH, channels, HEIGHT, WIDTH)
    return values.astype(dtype)


# ---- Boxes ---------------------------------------------------------------------------------------


def _random(seed: int) -> np.ndarray:
    rng = np.random.RandomState(seed)
    centre = rng.uniform((0, 0), (WIDTH, HEIGHT), (8, 2))
    half = np.exp(rng.uniform(np.log(0.3), np.log(WIDTH), (8, 2))) / 2
    return np.hstack([centre - half, centre + half])


#: Boxes x1 y1 x2 y2 by name, in cells of a HEIGHT x WIDTH map; roi_rows() makes them rows of rois.
BOXES = {
    "inside": np.array([[2, 3, 9, 8], [0, 0, 1, 1], [4.25, 5.75, 5, 6.5], [1.3, 2.1, 14.9, 11.7]]),
    "touching": np.array(
        [
            [0, 0, WIDTH - 1, HEIGHT - 1],
            [0, 0, WIDTH, HEIGHT],
            [WIDTH - 1, HEIGHT - 1, WIDTH, HEIGHT],
            [-1, -1, 0, 0],
            [WIDTH, HEIGHT, WIDTH + 1, HEIGHT + 1],
        ]
    ),
    "crossing": np.array(
        [[-4, 2, 5, 9], [3, -6, 9, 4], [12, 3, 25, 9], [5, 9, 11, 20], [-9, -9, 40, 40]]
    ),
    "outside": np.array([[-30, -30, -20, -20], [40, 2, 50, 9], [3, 40, 9, 60], [-9, 50, -5, 55]]),
    "ties": np.array([[0.5, 1.5, 7.5, 8.5], [2.5, 2.5, 2.5, 2.5], [-0.5, -1.5, 3.5, 4.5]]),
    "repeated": np.array([[2, 3, 9, 8]] * 5 + [[1, 1, 9, 9]] * 3),
    "small": np.array([[3, 4, 3, 4], [3.4, 4.6, 3.4, 4.6], [5, 5, 5.01, 9], [0, 0, 0, 0]]),
    "inverted": np.array(
        [[9, 8, 2, 3], [9, 3, 2, 8], [2, 8, 9, 3], [3.1, 4, 3, 5], [30, 2, -9, 9]]
    ),
    "random": _random(1),
}


def roi_rows(boxes: str, spatial_scale: float, dtype: Any = "float32") -> np.ndarray:
    """Rows [batch_index, x1, y1, x2, y2] in image coordinates, images taken in turn."""
    box = BOXES[boxes] / spatial_scale
    rows = np.hstack([np.arange(len(box))[:, None] % BATCH, box])
    return rows.astype(dtype)


def all_rois(spatial_scale: float, dtype: Any = "float32") -> np.ndarray:
    """Every box of BOXES, and again half a pixel off, with padding rows between."""
    rows = np.vstack([roi_rows(name, spatial_scale, dtype) for name in BOXES])
    half = rows + np.array([0, 0.5, 0.5, 0.5, 0.5], dtype)
    padding = np.array([[-1, 0, 0, 9, 9], [-1, -1, -1, -1, -1]], dtype)
    return np.vstack([padding[:1], rows, padding[1:], half[::2], padding[:1]])


#: The angles that rotated boxes are given in turn; none but 0 puts samples exactly on cells, where
#: rounding decides on which side derivatives are taken.
ANGLES = (0, 30, -40, 75, 137.5, -210)


def turned(rows: Any) -> np.ndarray:
    """Rows [batch_index, cx, cy, w, h, theta]: boxes of rows [batch_index, x1, y1, x2, y2], turned.

    The first keeps its direction. Finite coordinates stay finite.
    """
    rows = np.asarray(rows)
    index, low, high = np.split(rows.astype("float64"), [1, 3], axis=1)
    angles = np.resize(ANGLES, (len(rows), 1))
    with np.errstate(invalid="ignore"):
        boxes = np.hstack([(low + high) / 2, high - low, angles])
    boxes[np.isfinite(boxes)] = boxes[np.isfinite(boxes)].clip(-3e38, 3e38)
    dtype = rows.dtype if rows.dtype.kind == "f" else "float64"
    return np.hstack([index, boxes]).astype(dtype)


# ---- Operators -----------------------------------------------------------------------------------

Arguments = dict
#: Keyword arguments, and what the message says after "<operator>: ".
Refused = Tuple[Arguments, str]


class Recorded(NamedTuple):
    """Calls of another library's function of the same meaning, which tests/golden/ keeps."""

    library: str
    function: str
    theirs: Arguments
    ours: Arguments
    gradient: bool = True  # False where theirs is not that of its forward pass


@dataclass(frozen=True)
class Operator:
    """An operator: its names, its expected results, and the cases to try."""

    name: str  # gluon_roi.nd.<name>, gluon_roi.sym.<name>, the block gluon_roi.<name>
    forward: Callable[..., np.ndarray]  # the function of gluon_roi.reference
    backward: Callable[..., Any]  # its gradient
    arguments: tuple[Arguments, ...]  # keyword arguments after spatial_scale; defaults first
    rois_grad: bool  # has gradients with respect to rois
    sampled: bool  # takes samples, at positions of the type that `geometry` says
    linear: bool  # in data
    #: (output channels, pooled size, arguments) -> channels of data
    channels: Callable[[int, tuple[int, int], Arguments], int]
    #: MXNet's own operator: (data, rois, pooled size, spatial_scale, **arguments) -> output.
    mxnet: Callable[..., Any] | None = None
    mxnet_backward: bool = True  # whether that has a gradient
    #: (pooled size, arguments) -> whether that computes the same, where it is there.
    mxnet_has: Callable[[tuple[int, int], Arguments], bool] = lambda pooled, arguments: True
    coordinates: int = 4  # of a box; 5 for a rotated one
    several_maps: bool = False  # reads a list of maps: one map in the tests of all operators
    #: Box, spatial_scale, arguments and 2 x 2 bins: those of the ramp 0 to 15 on a map of 4 x 4.
    ramps: tuple[tuple[list, float, Arguments, list], ...] = ()
    #: Errors of its own parameters, for 27 channels and a pooled_size of 3 where they say no other.
    refused: tuple[Refused, ...] = ()
    recorded: tuple[Recorded, ...] = ()

    def in_mxnet(self, pooled: tuple[int, int], arguments: Arguments) -> bool:
        """Whether MXNet has an operator that computes the same."""
        return self.mxnet is not None and self.mxnet_has(pooled, arguments)

    def rois(self, rows: Any) -> np.ndarray:
        """Rows of this operator, of rows [batch_index, x1, y1, x2, y2]."""
        return turned(rows) if self.coordinates == 5 else np.asarray(rows)

    @property
    def function(self) -> Callable[..., Any]:
        """The function of arrays and symbols, which takes one map."""
        import gluon_roi

        return self.of(gluon_roi.nd)

    def of(self, namespace: Any) -> Callable[..., Any]:
        """The function of a namespace, such as F.gluon_roi."""
        function = getattr(namespace, self.name)
        return of_one_map(function) if self.several_maps else function

    def block(self, pooled_size: Any, spatial_scale: float, **arguments: Any) -> Any:
        """The block, which takes one map."""
        import gluon_roi

        block = getattr(gluon_roi, self.name)
        if not self.several_maps:
            return block(pooled_size, spatial_scale, **arguments)
        one_map = type(self.name, (block,), {"__call__": of_one_map(block.__call__, first=1)})
        return one_map(pooled_size, (spatial_scale,), **arguments)

    def takes(self, parameter: str) -> bool:
        """Whether it has a parameter of this name."""
        from gluon_roi import library

        return parameter in library.operators()[self.name].parameters

    def all_rois(self, spatial_scale: float, dtype: Any = "float32") -> np.ndarray:
        """all_rois() as rows of this operator."""
        return self.rois(all_rois(spatial_scale, dtype))

    def _geometry(self, dtype: Any) -> Arguments:
        return {"geometry": PRECISION[np.dtype(dtype).name].geometry} if self.sampled else {}

    def expected(
        self, data: np.ndarray, rois: Any, pooled: Any, scale: float, **arguments: Any
    ) -> np.ndarray:
        """The expected result for data of this type: (K, C', P, Q), float64."""
        return self.forward(data, rois, pooled, scale, **arguments, **self._geometry(data.dtype))

    def expected_gradients(
        self, d_out: Any, data: np.ndarray, rois: Any, pooled: Any, scale: float, **arguments: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """(d_data, d_rois) with ``rois_grad=True`` if the operator has it, otherwise d_rois = 0."""
        geometry = self._geometry(data.dtype)
        gradient = self.backward(d_out, data, rois, pooled, scale, **arguments, **geometry)
        return gradient if self.rois_grad else (gradient, np.zeros(np.shape(rois)))


def of_reference(name: str) -> Callable[..., Any]:
    """A function of gluon_roi.reference, looked up when it is called.

    The package needs MXNet, but code that only reads the rows may run without it.
    """

    def function(*args: Any, **arguments: Any) -> Any:
        from gluon_roi import reference

        return getattr(reference, name)(*args, **arguments)

    return function


def of_one_map(function: Callable[..., Any], first: int = 0) -> Callable[..., Any]:
    """Adapts a function of lists of maps and scales to one of each; `first` is the map's place."""

    def of_one(*args: Any, **arguments: Any) -> Any:
        given = list(args)
        if len(given) > first:
            given[first] = [given[first]]
        if len(given) > first + 3:
            given[first + 3] = (given[first + 3],)
        if "data" in arguments:
            arguments["data"] = [arguments["data"]]
        if "spatial_scale" in arguments:
            arguments["spatial_scale"] = (arguments["spatial_scale"],)
        return function(*given, **arguments)

    return of_one


def same_channels(wanted: int, pooled: tuple[int, int], arguments: Arguments) -> int:
    """Channels of data for so many of the output: every bin reads all of them."""
    return wanted


def group_channels(wanted: int, pooled: tuple[int, int], arguments: Arguments) -> int:
    """Channels of data for so many of the output: every bin, or group of bins, has its own."""
    group = arguments.get("group_size")
    return wanted * (group * group if group else pooled[0] * pooled[1])


#: Of operators that take samples, and of those that have box gradients.
BAD_SAMPLES: tuple[Refused, ...] = (
    ({"sampling_ratio": 1.5}, "argument sampling_ratio: expected an int, got '1.5'"),
    ({"aligned": "yes"}, "argument aligned: expected True or False, got 'yes'"),
)
BAD_ROIS_GRAD: Refused = (
    {"rois_grad": 2},
    "argument rois_grad: expected True or False, got '2'",
)
#: Of operators whose output has the channels of the map.
TOO_MANY_BINS: Refused = (
    {"pooled_size": (2**15, 2**15)},
    "argument pooled_size: expected at most 2147483647 elements for a row of the output, got 27 "
    "channels of 32768 * 32768",
)


def row_id(value: Any) -> str:
    """A readable name for pytest's parameters."""
    if isinstance(value, Operator):
        return value.name
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items()) or "defaults"
    if isinstance(value, tuple) and isinstance(value[0], Operator):
        return "-".join(map(row_id, value))
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def for_mxnet(rois: np.ndarray) -> np.ndarray:
    """The rows on which MXNet's operators are well defined.

    There are no padding rows (stale memory in its ROIAlign), and no empty or inverted boxes (it
    aborts the process if aligned).
    """
    sides = rois[:, 3:5] if rois.shape[1] == 6 else rois[:, 3:] - rois[:, 1:3]
    return rois[(rois[:, 0] >= 0) & (sides > 0).all(axis=1)]


def blocks_of(operator: Operator) -> tuple:
    """(output channels, pooled size) pairs; fewer channels if every bin has its own."""
    own = operator.channels(1, (7, 7), {}) > 1
    return tuple((min(c, 17) if own and p[0] > 7 else c, p) for c, p in BLOCKS)
