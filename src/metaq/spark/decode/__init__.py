"""Bodies as columns: JSON and UTF-8, whatever a body holds.

Each function gives a Column over `body`: a struct of the fields and of `_corrupt binary`, which is null where the body
decoded, and is the body where it did not; then all fields are null. `expand` makes columns of the struct.
"""

from __future__ import annotations

from metaq.spark.decode.columns import CORRUPT, expand
from metaq.spark.decode.json_text import json
from metaq.spark.decode.utf8 import text

__all__ = ["CORRUPT", "expand", "json", "text"]
