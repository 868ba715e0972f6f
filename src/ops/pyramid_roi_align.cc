// The loops are ROIAlign's: AlignOnMaps, in roi_align.cc and roi_align.cu.
#include "pyramid_roi_align.h"

#include "../bindings/c.h"

GLUON_ROI_OPERATOR(PyramidROIAlign, pyramid_roi_align)
