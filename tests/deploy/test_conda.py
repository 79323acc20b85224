"""The conda recipe has the version and the dependencies of pyproject.toml."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RECIPE = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())
NAMES = {"isal": "python-isal"}
"""PyPI's name → conda-forge's, where they differ."""


def as_conda(lines):
    found = set()
    for line in lines:
        name, bounds = re.fullmatch(r"([\w-]+)(.*)", line).groups()
        found.add(f"{NAMES.get(name, name)} {bounds}")
    return found


def test_it_builds_this_version_from_its_source_distribution():
    project = PROJECT["project"]
    assert RECIPE["schema_version"] == 1
    assert RECIPE["context"]["version"] == project["version"]
    assert RECIPE["package"] == {"name": project["name"], "version": "${{ version }}"}
    path = RECIPE["source"]["path"].replace("${{ version }}", project["version"])
    assert (
        path == f"../../dist/{project['version']}/pymetaq-{project['version']}.tar.gz"
    )  # where `make release` puts it


def test_its_dependencies_are_ours():
    requirements, project = RECIPE["requirements"], PROJECT["project"]
    assert set(requirements["run"]) == {f"python {project['requires-python']}", *as_conda(project["dependencies"])}
    assert set(requirements["host"]) == {"python", "pip", *as_conda(PROJECT["build-system"]["requires"])}


def test_its_commands_are_ours():
    scripts = [f"{name} = {place}" for name, place in PROJECT["project"]["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == scripts
    assert RECIPE["about"]["license"] == PROJECT["project"]["license"]
    assert RECIPE["about"]["summary"] == PROJECT["project"]["description"]
