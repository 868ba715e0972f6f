# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for `make docs`; build_tools/build_docs.py collects the pages."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gluon_roi  # noqa: E402

project = "gluon_roi"
version = release = gluon_roi.__version__
language = "en"

# napoleon reads numpydoc's form; unlike numpydoc itself it accepts Gluon's sections.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
napoleon_google_docstring = False
napoleon_use_param = napoleon_use_rtype = False
napoleon_custom_sections = [("Inputs", "params_style"), ("Outputs", "params_style")]
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
maximum_signature_line_length = 80
add_module_names = True
toc_object_entries = False
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]  # classes of pictures
highlight_language = "default"  # Python where it is Python, otherwise plain

# A reference in a docstring has to lead somewhere, except those to MXNet and to Python.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(mxnet|mx|np|numpy|contextlib|pathlib|collections)\..*")]

html_theme = "furo"
html_title = f"gluon_roi {release}"
html_show_sphinx = html_show_copyright = html_copy_source = False
html_static_path = html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
