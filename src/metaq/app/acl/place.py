"""Where a server looks for its file of accounts if no option names it."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Final

ACL_FILE: Final = "plain_acl.yml"
"""RocketMQ's name for the file of accounts."""


def acl_path(file: str | None, environment: Mapping[str, str]) -> str:
    """Return where the main file is looked for if `aclPath` does not say it.

    It is the first place that has one, or the first place: beside the configuration file, `conf` in ROCKETMQ_HOME, or here.

    Args:
        file: the configuration file; None without one.
        environment: of the process.
    """
    places = [pathlib.Path(file).resolve().parent] if file is not None else []
    if home := environment.get("ROCKETMQ_HOME"):
        places.append(pathlib.Path(home) / "conf")
    found = [place / ACL_FILE for place in places or [pathlib.Path.cwd()]]
    return str(next((path for path in found if path.is_file()), found[0]))
