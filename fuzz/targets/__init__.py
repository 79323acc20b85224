"""All targets by name. A new parser or server: a `Target` in the module that fits, and its module in `_LISTS` if that is new.

Those whose name begins with `process-` start servers as processes; the others run here, and coverage can guide them.
"""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import frames

_LISTS = (frames,)
TARGETS: dict[str, Target] = {target.name: target for module in _LISTS for target in module.TARGETS}
