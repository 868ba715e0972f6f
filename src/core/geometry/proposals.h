// SPDX-License-Identifier: Apache-2.0
// Proposals of a region proposal network: anchors, and the decoding of predicted boxes.
//
// The order of operations is that of MXNet's Proposal and MultiProposal, in which x2 is the last
// pixel of a box, whose width is therefore x2 - x1 + 1.
#pragma once
#include <math.h>  // declares sqrt and floor for float outside of std, like CUDA and unlike cmath

#include "elementary.h"

namespace gluon_roi {

// x1, y1, x2, y2.
template <class A>
struct Corners {
  A edge[4];
};

// The anchor of a ratio (height / width) and a scale at cell (0, 0), rounded as in py-faster-rcnn:
// the ratio, then the scale, is applied to a box of stride x stride pixels.
template <class A>
HOST_DEVICE Corners<A> anchor_of(int32_t stride, A ratio, A scale) {
  const A size = static_cast<A>(stride), middle = A(0.5) * (size - 1);
  const A base = floor(sqrt(floor(size * size / ratio)) + A(0.5));
  const A width = base * scale;
  const A height = floor(width / scale * ratio + A(0.5)) * scale;
  const A across = A(0.5) * (width - 1), down = A(0.5) * (height - 1);
  return {{middle - across, middle - down, middle + across, middle + down}};
}

// A row of im_info, in pixels of the network's input.
template <class A>
struct ImageInfo {
  A height, width, smallest;  // smallest: minimum side of a box
  int64_t rows, columns;      // cells of the map that lie on the image
};

// Clamps to [0, last]. NaN stays NaN.
template <class A>
HOST_DEVICE A clip_to(A value, A last) {
  const A low = last < value ? last : value;
  return low < 0 ? A(0) : low;
}

// Applies predicted deltas to one axis of an anchor: the centre of [first, last] is shifted by
// `shift` times the length, and the length is scaled by exp(growth). 0.5 is a double because MXNet
// computes half the length in float64.
template <class A>
HOST_DEVICE void decode_axis(A* first, A* last, A shift, A growth) {
  const A length = *last - *first + 1;
  const A center = static_cast<A>(*first + 0.5 * (length - 1.0));
  const A new_center = shift * length + center;
  const A new_length = exponential(growth) * length;
  *first = static_cast<A>(new_center - 0.5 * (new_length - 1.0));
  *last = static_cast<A>(new_center + 0.5 * (new_length - 1.0));
}

// Applies four predicted deltas to an anchor, and clips the box to the image. With `corners`
// (iou_loss) the deltas are offsets of the corners in pixels.
template <class A>
HOST_DEVICE Corners<A> decode_box(Corners<A> box, const A* deltas, bool corners,
                                  const ImageInfo<A>& image) {
  if (corners) {
    for (int i = 0; i < 4; ++i) box.edge[i] += deltas[i];
  } else {
    for (int i = 0; i < 2; ++i)
      decode_axis(&box.edge[i], &box.edge[i + 2], deltas[i], deltas[i + 2]);
  }
  for (int i = 0; i < 4; ++i) {
    box.edge[i] = clip_to(box.edge[i], (i % 2 == 0 ? image.width : image.height) - 1);
  }
  return box;
}

// Extends a box that is too small or NaN by half of the minimum side in each direction. Returns
// whether it was too small.
template <class A>
HOST_DEVICE bool grow_small(Corners<A>* box, A smallest) {
  const A width = box->edge[2] - box->edge[0] + 1, height = box->edge[3] - box->edge[1] + 1;
  if (width >= smallest && height >= smallest) return false;
  for (int i = 0; i < 4; ++i) box->edge[i] += i < 2 ? -(smallest / 2) : smallest / 2;
  return true;
}

}  // namespace gluon_roi
