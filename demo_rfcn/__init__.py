# SPDX-License-Identifier: Apache-2.0
"""R-FCN in Gluon on the operators of `gluon_roi`: training, evaluation, pictures, export."""
