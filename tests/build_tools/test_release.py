# SPDX-License-Identifier: Apache-2.0
"""What has to be right on the day of a release, and is easily forgotten until then."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import links
import pytest

import gluon_roi

ROOT = Path(__file__).resolve().parents[2]
#: Code, by the ends of names. (LICENSE holds for pages and data as well.)
CODE = (
    r"\.(py|pyi|c|h|cc|cu|sh|js|css|html|map|toml|cff|ya?ml)$|(^|/)(Makefile|CMakeLists.txt|run)$"
)


def test_every_file_of_code_names_its_licence():
    if not (ROOT / ".git").exists():
        pytest.skip("a checkout lists its files; this is none")
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    files = [name for name in listed if re.search(CODE, name)]
    assert len(files) > 300
    for name in files:
        head = (ROOT / name).read_text().splitlines()[:2]
        assert any("SPDX-License-Identifier: Apache-2.0" in line for line in head), name


def test_versions_agree():
    """The changelog and the citation name a date once a version has a tag."""
    version = re.escape(gluon_roi.__version__)
    citation, changes = (ROOT / "CITATION.cff").read_text(), (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^version: {version}$", citation, re.M)
    header = (ROOT / "src/include/gluon_roi.h").read_text()
    parts = re.findall(r"^#define GLUON_ROI_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
    assert ".".join(parts) == gluon_roi.__version__
    (date,) = re.findall(rf"^## \[{version}\] - (\d{{4}}-\d\d-\d\d|unreleased)$", changes, re.M)
    released = re.findall(r"^date-released: (.*)$", citation, re.M)
    assert released == ([] if date == "unreleased" else [date])
    if (ROOT / ".git").exists():
        tags = subprocess.check_output(["git", "tag"], cwd=ROOT, text=True).split()
        assert date != "unreleased" or f"v{gluon_roi.__version__}" not in tags


@pytest.mark.parametrize("repository", ["", "https://host.example/name"])
def test_description_has_no_link_into_the_checkout(repository, tmp_path):
    """A package index has only README.md."""
    for name in ("setup.py", "README.md", "build_tools", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(str(ROOT / name), str(tmp_path / name))
    (tmp_path / "gluon_roi").mkdir()
    shutil.copy(str(ROOT / "gluon_roi/_version.py"), str(tmp_path / "gluon_roi"))
    if repository:
        with open(tmp_path / "pyproject.toml", "a") as file:
            file.write(f'\n[project.urls]\nSource = "{repository}"\n')
    command = [sys.executable, "setup.py", "-q", "--long-description"]
    text = subprocess.check_output(command, cwd=tmp_path, text=True)
    assert "Region-of-interest" in text or "RoI operators" in text
    (tmp_path / "text.md").write_text(text)
    targets = [target for _, _, target in links.find(tmp_path / "text.md")]
    assert [target for target in targets if not target.startswith("https://")] == []
    pictures = re.findall(r"!\[.*\]\(https://host.example/name/raw/main/", text)
    assert bool(pictures) == bool(repository)


def test_readme_ends_where_the_site_begins():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert sum(not line.startswith("```") for line in lines) < 150
