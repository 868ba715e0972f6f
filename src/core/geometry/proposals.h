// SPDX-License-Identifier: Apache-2.0
// Proposals of a region proposal network: anchors, and boxes that the network moves.
//
// The order of operations is that of MXNet's Proposal and MultiProposal, in which boxes end at
// their last pixel: one from x1 to x2 is x2 - x1 + 1 wide.
#pragma once
#include <math.h>  // unlike cmath, it has exp and sqrt of float outside of std, as CUDA has

#include "../types.h"

namespace gluon_roi {

// x1, y1, x2, y2.
template <class A>
struct Corners {
  A edge[4];
};

// The anchor of a ratio (height / width) and a scale at the cell at 0, rounded as py-faster-rcnn
// does: a cell of stride x stride pixels takes the ratio, then the scale.
template <class A>
HOST_DEVICE Corners<A> anchor_of(int32_t stride, A ratio, A scale) {
  const A size = static_cast<A>(stride), middle = A(0.5) * (size - 1);
  const A base = floor(sqrt(floor(size * size / ratio)) + A(0.5));
  const A width = base * scale;
  const A height = floor(width / scale * ratio + A(0.5)) * scale;
  const A across = A(0.5) * (width - 1), down = A(0.5) * (height - 1);
  return {{middle - across, middle - down, middle + across, middle + down}};
}

// What a row of im_info says of an image, in pixels of the network's input.
template <class A>
struct ImageInfo {
  A height, width, smallest;  // smallest: side of the smallest box
  int64_t rows, columns;      // cells of the map that lie on the image
};

// NaN stays NaN.
template <class A>
HOST_DEVICE A clipped(A value, A last) {
  const A low = last < value ? last : value;
  return low < 0 ? A(0) : low;
}

// One axis of a box: an anchor from `first` to `last`, moved by `shift` times its length and grown
// by exp(growth). 0.5 is a double: MXNet computes the reach in float64.
template <class A>
HOST_DEVICE void move_axis(A* first, A* last, A shift, A growth) {
  const A length = *last - *first + 1;
  const A center = static_cast<A>(*first + 0.5 * (length - 1.0));
  const A moved = shift * length + center;
  const A grown = static_cast<A>(exp(growth)) * length;
  *first = static_cast<A>(moved - 0.5 * (grown - 1.0));
  *last = static_cast<A>(moved + 0.5 * (grown - 1.0));
}

// An anchor moved by four deltas, and clipped to the image. With `corners` deltas move the corners,
// by pixels (iou_loss).
template <class A>
HOST_DEVICE Corners<A> decoded(Corners<A> box, const A* deltas, bool corners,
                               const ImageInfo<A>& image) {
  if (corners) {
    for (int i = 0; i < 4; ++i) box.edge[i] += deltas[i];
  } else {
    for (int i = 0; i < 2; ++i) move_axis(&box.edge[i], &box.edge[i + 2], deltas[i], deltas[i + 2]);
  }
  for (int i = 0; i < 4; ++i) {
    box.edge[i] = clipped(box.edge[i], (i % 2 == 0 ? image.width : image.height) - 1);
  }
  return box;
}

// Grows a box that is too small, or NaN, by half of the smallest side in each direction. Returns
// whether it was.
template <class A>
HOST_DEVICE bool grow_small(Corners<A>* box, A smallest) {
  const A width = box->edge[2] - box->edge[0] + 1, height = box->edge[3] - box->edge[1] + 1;
  if (width >= smallest && height >= smallest) return false;
  for (int i = 0; i < 4; ++i) box->edge[i] += i < 2 ? -(smallest / 2) : smallest / 2;
  return true;
}

}  // namespace gluon_roi
