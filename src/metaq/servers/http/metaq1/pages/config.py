"""`/config`: the text of the configuration file, without secrets; and `POST /reload-config`."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.metaq1.service import Metaq1Service
from metaq.model.access import Action, Caller
from metaq.model.reload import ReloadedFile
from metaq.saved import Saving
from metaq.servers.http.answers import json_answer
from metaq.servers.http.metaq1.pages.answers import ANY_JSON, Guarded, either, html_answer, wants_json
from metaq.servers.http.metaq1.pages.html import element
from metaq.servers.http.operations import JSON, TEXT, Content, Operation
from metaq.servers.http.requests import when_ready

DONE: Final = "Reload config successfully."
"""The original's answer."""
_SECRET: Final = re.compile(
    r"(?im)^(\s*[;#]*\s*[^=:\n]*(?:password|passwd|secret|token|credential|private)[^=:\n]*[=:]\s*)\S.*$"
)
_IN_URL: Final = re.compile(r"(?i)([a-z][a-z0-9+.-]*://[^\s/@:]*):[^\s@]+@")
HIDDEN: Final = "(hidden)"


def without_secrets(text: str) -> str:
    """Return a configuration's text with the values hidden of keys that name secrets, also in comments, and passwords in URLs."""
    return _IN_URL.sub(rf"\1:{HIDDEN}@", _SECRET.sub(rf"\1{HIDDEN}", text))


class ConfigPages:
    """The pages. Args: guarded: lets callers in."""

    def __init__(self, broker: Broker, metaq1: Metaq1Service, guarded: Guarded) -> None:
        self._broker, self._settings, self._guarded = broker, metaq1.settings, guarded
        self._loaded_ms = broker.clock.now_ms()
        metaq1.settings.watch(lambda _topics: self._note())

    def _note(self) -> None:
        self._loaded_ms = self._broker.clock.now_ms()

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="metaq1Config", method="GET", path="/config", text="Show the configuration file, without secrets.",
                run=self._guarded.page(self._config, Action.ADMINISTER), answers={200: Content(JSON, ANY_JSON)},
            ),
            Operation(
                name="metaq1Reload", method="POST", path="/reload-config", text="Read the configuration file again.",
                run=self._guarded.page(self._reload, Action.ADMINISTER), answers={200: Content(JSON, ReloadedFile)}, administers=True,
            ),
        ]  # fmt: skip

    def text(self) -> str:
        """Return the configuration's text."""
        return without_secrets(self._settings.text.decode("utf-8", "replace"))

    async def _config(self, request: Request) -> Response:
        text, seconds = self.text(), (self._broker.clock.now_ms() - self._loaded_ms) // 1000
        value = {"config": text, "lastLoaded": f"{seconds} s ago"}
        button = element("form", element("button", "Read it again"), method="post", action="/reload-config")
        return either(
            request,
            value,
            "Configuration",
            lambda: (element("p", f"Loaded {seconds} s ago."), button, element("pre", text)),
        )

    async def _reload(self, request: Request) -> Response:
        caller = self._guarded.callers.of(request)
        outcome: ReloadedFile = await when_ready(lambda: self._ask(caller))
        if wants_json(request):
            return json_answer(outcome)
        if "html" not in request.headers.get("accept", ""):
            return Response(DONE, media_type=TEXT)
        lists = [
            part
            for title, lines in (
                ("Changed", outcome.changed),
                ("Not in force", outcome.waiting),
                ("Warnings", outcome.warnings),
            )
            if lines
            for part in (element("h2", title), element("ul", *(element("li", line) for line in lines)))
        ]
        return html_answer("Configuration", element("p", DONE), *lists)

    def _ask(self, caller: Caller) -> ReloadedFile:
        asked = self._broker.reloading.ask(caller)
        raise Saving(asked, then=asked.outcome)
