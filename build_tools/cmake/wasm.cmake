# SPDX-License-Identifier: Apache-2.0
# For the explorer of the site (docs/explorer): one JavaScript file that carries the machine code, as
# pages of files cannot fetch another. It defines gluonRoi(), which returns a promise of the
# functions of gluon_roi.h.
file(READ src/include/gluon_roi.h header)
string(REGEX MATCHALL "  X[(][a-z_]+[)]|gluon_roi_[a-z_]+[(]void[)]" names "${header}")
list(TRANSFORM names REPLACE "  X.(.*)[)]" "gluon_roi_\\1_forward,_gluon_roi_\\1_backward")
list(TRANSFORM names REPLACE "[(]void[)]" "")
list(JOIN names ",_" names)
add_executable(gluon_roi $<TARGET_OBJECTS:kernels>)
set_target_properties(gluon_roi PROPERTIES SUFFIX .js)
target_link_options(gluon_roi PRIVATE -sSINGLE_FILE=1 -sMODULARIZE=1 -sEXPORT_NAME=gluonRoi
  -sENVIRONMENT=web -sFILESYSTEM=0 -sALLOW_MEMORY_GROWTH=1 -sEXPORTED_RUNTIME_METHODS=UTF8ToString
  "-sEXPORTED_FUNCTIONS=_malloc,_free,_${names}")
