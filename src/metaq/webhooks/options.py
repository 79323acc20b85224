"""Options of a webhook: keys of its section in a TOML file, and flags of `metaq webhook run`.

    [webhooks.billing]
    url = "https://shop.example/hooks/orders"
    topics = ["orders", "refunds"]
    tags = "paid || refunded"
    secretFiles = "billing.secret"

The section's name is the group's, unless `group` says otherwise.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaq.client.consumer.options import USUAL
from metaq.errors import ConfigError
from metaq.model.filters.sql import Sql
from metaq.named_file import read_named
from metaq.option_table import OptionTable, nearest, option
from metaq.webhooks.addresses import parsed_networks
from metaq.webhooks.content import FORMATS, RAW, SEVERAL
from metaq.webhooks.outage import PauseRules
from metaq.webhooks.signing import Secret, read_secrets
from metaq.webhooks.target_options import REDIRECTS_MAX, TargetOptions
from metaq.webhooks.url import TargetUrl

SECTION: Final = "webhooks"
_FILE_BYTES_MAX: Final = 1 << 20
_HEADERS_BYTES_MAX: Final = 16 << 10
_FIELD_CHARS: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_OURS: Final = ("webhook-", "metaq-", "ce-")
_OF_HTTP: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "upgrade"}
)


@dataclass(frozen=True, kw_only=True)
class WebhookOptions(OptionTable):
    """A consumer group that is pushed to a URL."""

    url: str = option("", "Where messages are posted to, `http://` or `https://`; required.")
    group: str = option("", "The consumer group; by default it is called as the webhook.")
    topics: str = option("", "Topics, `,`-separated or a list; required.", aliases=("topic",))
    tags: str = option(
        "", "Only messages with one of these tags, `paid`, or several with two bars between them.", aliases=("tag",)
    )
    filter: str = option("", "Only messages whose properties fit this SQL filter, such as `amount > 10`.")
    start: str = option(
        "latest", "Where a group without progress begins.", choices=("earliest", "latest"), aliases=("from",)
    )
    format: str = option(RAW, "How messages are written (see below).", choices=FORMATS)
    batch: int = option(
        1, "Most messages of one request; above 1 with `json` and `cloudevents-structured`.", low=1, high=1000
    )
    ordered: bool = option(False, "Post one message of a queue at a time, in order.")
    concurrency: int = option(8, "Most requests at a time.", low=1, high=256)
    timeout_seconds: float = option(10.0, "For a whole attempt, s.", low=0.1, high=300, aliases=("timeout",))
    retries: int | None = option(
        None,
        "Retries of a message until it is a dead letter; by default 16, with `ordered` without limit.",
        low=0,
        high=1000,
    )
    pause_failures: int = option(
        5, "Consumption pauses when so many different messages have failed in a row.", low=1, high=10_000
    )
    pause_least_seconds: float = option(
        1.0, "The first pause, s; it doubles with each probe that fails.", low=0.01, high=3600
    )
    pause_most_seconds: float = option(60.0, "The longest pause, s.", low=0.01, high=86_400)
    retry_after_most_seconds: float = option(
        300.0, "The longest pause that a target's `Retry-After` makes, s.", low=0, high=86_400
    )
    redirects: int = option(0, "Redirects (307, 308) that are followed; 0: none is.", low=0, high=REDIRECTS_MAX)
    allow_networks: str = option(
        "",
        "Networks besides public addresses that the target may be in, `,`-separated or a list, such as `10.0.0.0/8`.",
    )
    secret_files: str = option(
        "", "Files with the secrets that requests are signed with, `,`-separated or a list; all of them sign."
    )
    headers_file: str = option("", "File with more header fields, `Name: value` in each line, such as Authorization.")
    ca_file: str = option(
        "", "File of the certificates that an https target's is checked with, PEM; by default the system's."
    )

    def check(self, name: str) -> Plan:
        """Return the webhook that these options describe, its files read. Raises ConfigError."""
        topics = _listed(self.topics)
        if not topics:
            raise ConfigError("topics is missing: which messages are posted")
        if self.tags and self.filter:
            raise ConfigError(
                "tags and filter: give one of them; a filter can ask for tags: TAGS = 'paid' AND amount > 10"
            )
        if self.batch > 1 and self.format not in SEVERAL:
            raise ConfigError(
                f"batch={self.batch} with format={self.format}: its requests have one message each; several at a time have "
                f"{' and '.join(sorted(SEVERAL))}"
            )
        if self.pause_least_seconds > self.pause_most_seconds:
            raise ConfigError("pauseLeastSeconds is longer than pauseMostSeconds")
        expression: str | Sql = Sql(self.filter) if self.filter else self.tags or "*"
        retries = 16 if self.retries is None and not self.ordered else self.retries
        return Plan(
            name=name,
            options=self,
            url=TargetUrl.of(self.url),
            group=self.group or name,
            topics=dict.fromkeys(topics, expression),
            retries=retries,
            secrets=read_secrets(_listed(self.secret_files)),
            target=TargetOptions(
                timeout=self.timeout_seconds,
                connections=self.concurrency,
                redirects=self.redirects,
                allowed=parsed_networks(_listed(self.allow_networks)),
                retry_after_max=self.retry_after_most_seconds,
                headers=_read_headers(self.headers_file) if self.headers_file else (),
            ),
            pauses=PauseRules(self.pause_failures, self.pause_least_seconds, self.pause_most_seconds),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A webhook, checked. Its repr shows no secret."""

    name: str
    options: WebhookOptions
    url: TargetUrl
    group: str
    topics: Mapping[str, str | Sql]
    retries: int | None
    secrets: tuple[Secret, ...]
    target: TargetOptions
    pauses: PauseRules

    def __repr__(self) -> str:
        return f"<Plan of webhook {self.name}: group {self.group} to {self.url}>"

    @property
    def commit_interval(self) -> float:
        """Seconds between two commits of the group's progress: what was delivered since then comes twice after a kill -9."""
        return min(1.0, USUAL.persist)


def of_mapping(name: str, pairs: Mapping[str, Any], where: str = "") -> Plan:
    """Return a webhook of keys and values in any spelling. Raises ConfigError, which names the webhook.

    Args: where: the file that they are of.
    """
    place = f"webhook {name}{f' in {where}' if where else ''}"
    spellings = WebhookOptions.spellings()
    flat: dict[str, Any] = {}
    for key, value in pairs.items():
        if key not in spellings:
            raise ConfigError(f"{place}: there is no option {key:.60}{nearest(key, spellings)}")
        if spellings[key] in flat:
            raise ConfigError(f"{place}: {key} is there twice, in two spellings")
        flat[spellings[key]] = _joined(place, key, value)
    try:
        return WebhookOptions.read(flat)[0].check(name)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def of_file(path: str | Path, names: Collection[str] = ()) -> list[Plan]:
    """Return the webhooks of a TOML file, or those of them that are named.

    Other sections are not looked at: they may be a broker's, in one metaq.toml. Relative paths in it are of the folder that the file
    is in. Raises ConfigError.
    """
    try:
        document = tomllib.loads(read_named(path, _FILE_BYTES_MAX, "the configuration").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the configuration {path} is no TOML: {error}") from None
    sections = document.get(SECTION)
    if not isinstance(sections, dict) or not sections:
        raise ConfigError(f"{path} has no section [{SECTION}.NAME]")
    if wrong := [one for one, pairs in sections.items() if not isinstance(pairs, dict)]:
        raise ConfigError(f"{path}: {wrong[0]} stands in [{SECTION}]: a webhook has a section [{SECTION}.NAME]")
    if unknown := sorted(set(names) - set(sections)):
        raise ConfigError(f"{path} has no webhook {unknown[0]}{nearest(unknown[0], sections)}")
    chosen = [name for name in sections if not names or name in names]
    folder = Path(path).absolute().parent
    plans = [of_mapping(name, _placed(sections[name], folder), str(path)) for name in chosen]
    by_group: dict[str, str] = {}
    for plan in plans:
        other = by_group.setdefault(plan.group, plan.name)
        if other != plan.name:
            raise ConfigError(
                f"{path}: webhooks {other} and {plan.name} are both group {plan.group}: they would share its messages; give each its own"
            )
    return plans


_PATHS: Final = frozenset({"secret_files", "headers_file", "ca_file"})


def _placed(pairs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make relative paths of a file absolute."""
    spellings = WebhookOptions.spellings()
    return {
        key: [str(folder / one) for one in _listed(_joined("", key, value))]
        if spellings.get(key) in _PATHS and isinstance(value, str | list)
        else value
        for key, value in pairs.items()
    }


def _joined(place: str, key: str, value: Any) -> Any:
    """Return a value as a text could give it: a list joined by commas."""
    if not isinstance(value, list):
        return value
    if wrong := [one for one in value if not isinstance(one, str) or "," in one]:
        raise ConfigError(f"{place}: {key}: {wrong[0]!r:.60} is no text without commas")
    return ",".join(value)


def _listed(text: str) -> list[str]:
    return [one for part in text.split(",") if (one := part.strip())]


def _read_headers(path: str) -> tuple[tuple[str, str], ...]:
    """Return header fields of a file. Raises ConfigError, which shows none of their values."""
    try:
        lines = read_named(path, _HEADERS_BYTES_MAX, "headersFile:").decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"headersFile: {path} has other characters than ASCII") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon or not name or not _FIELD_CHARS.issuperset(name) or not value.isprintable():
            raise ConfigError(f"headersFile: {path}, line {number}: need `Name: value`")
        if name in _OF_HTTP or name.startswith(_OURS):
            raise ConfigError(f"headersFile: {path}, line {number}: {name} is set by the webhook itself")
        found.append((name, value))
    return tuple(found)
