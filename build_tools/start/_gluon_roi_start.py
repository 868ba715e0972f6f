# SPDX-License-Identifier: Apache-2.0
"""Run by gluon_roi.pth at each start of Python, so that ``import mxnet`` may come first.

This module is a finder. When mxnet or gluoncv is first imported, it hands over to
gluon_roi/_compat.py. Until then nothing else is imported; Python takes 0.2 ms longer to start.
"""

import os
import sys


def find_spec(name, path=None, target=None):
    if name not in ("mxnet", "gluoncv"):
        return None
    from importlib.util import module_from_spec, spec_from_file_location

    # Loaded by path, because importing gluon_roi imports mxnet. The package lies beside this file,
    # or elsewhere if the install is editable.
    folders = (os.path.dirname(__file__), *sys.path)
    files = (os.path.abspath(os.path.join(f, "gluon_roi", "_compat.py")) for f in folders)
    file = next(filter(os.path.isfile, files), None)
    if file is None:
        # The package has been removed, but this file was left behind.
        sys.meta_path.remove(sys.modules[__name__])
        return None
    spec = spec_from_file_location("gluon_roi._compat", file)
    assert spec and spec.loader
    compat = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(compat)
    compat.install()
    return compat.finder.find_spec(name, path, target)


if os.environ.get("GLUON_ROI_COMPAT") != "0":
    sys.meta_path.insert(0, sys.modules[__name__])
