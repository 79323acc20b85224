"""Pictures of terminals, as rich records them."""

from __future__ import annotations

import re

from rich.console import Console


def svg_of(console: Console, title: str, unique_id: str | None = None) -> str:
    """Return what a console has recorded, as SVG. Args: unique_id: the begin of its names of styles; None: by the content."""
    drawn = console.export_svg(title=title, unique_id=unique_id)
    # Without fonts from elsewhere: the picture is to show nobody that it is looked at. And with the blanks before numbers.
    drawn = re.sub(r"@font-face \{.*?\}\n?", "", drawn, flags=re.DOTALL).replace("Fira Code, ", "")
    return drawn.replace("<svg ", '<svg xml:space="preserve" ', 1)
