"""`metaq meta1`: what concerns clients of MetaQ 1.x alone."""

from __future__ import annotations

import typer

from metaq.cli import meta1_tx

app = typer.Typer(help="Look after clients of MetaQ 1.x.", no_args_is_help=True)
app.add_typer(meta1_tx.app, name="tx")


@app.callback()
def meta1() -> None:
    """Look after clients of MetaQ 1.x."""
