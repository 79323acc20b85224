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

    url: str = option("", "Target to which messages are posted, a URL with `http://` or `https://`. Required.")
    group: str = option("", "Consumer group that the webhook consumes as. Default: the name of the webhook.")
    topics: str = option(
        "", "Topics whose messages are posted, separated by `,` or as a list. Required.", aliases=("topic",)
    )
    tags: str = option(
        "",
        "Post only messages with one of these tags, such as `paid`; two bars separate several. Empty: all messages. Not with filter.",
        aliases=("tag",),
    )
    filter: str = option(
        "",
        "Post only messages whose properties match this SQL92 filter, such as `amount > 10`. Empty: all messages. Not with tags.",
    )
    start: str = option(
        "latest",
        "Where a group without committed offsets begins: at the oldest message (`earliest`), or at new ones (`latest`).",
        choices=("earliest", "latest"),
        aliases=("from",),
    )
    format: str = option(RAW, "Format of the requests (see below).", choices=FORMATS)
    batch: int = option(
        1,
        "Largest number of messages in one request; more than 1 only with the formats `json` and `cloudevents-structured`.",
        low=1,
        high=1000,
    )
    ordered: bool = option(False, "Post the messages of each queue in order, one request at a time.")
    concurrency: int = option(8, "Largest number of requests in progress at the same time.", low=1, high=256)
    timeout_seconds: float = option(
        10.0, "Seconds that one attempt to post may take.", low=0.1, high=300, aliases=("timeout",)
    )
    retries: int | None = option(
        None,
        "Number of retries after which a message becomes a dead letter. Default: 16, with ordered no limit.",
        low=0,
        high=1000,
    )
    pause_failures: int = option(
        5, "Number of different messages that must fail in a row until consumption pauses.", low=1, high=10_000
    )
    pause_least_seconds: float = option(
        1.0,
        "Seconds of the first pause; each further failed attempt doubles it, up to pauseMostSeconds.",
        low=0.01,
        high=3600,
    )
    pause_most_seconds: float = option(60.0, "Seconds of the longest pause.", low=0.01, high=86_400)
    retry_after_most_seconds: float = option(
        300.0,
        "Seconds of the longest pause that a `Retry-After` in the response of the target may cause.",
        low=0,
        high=86_400,
    )
    redirects: int = option(
        0, "Number of redirects (307, 308) that are followed for one request. 0: none.", low=0, high=REDIRECTS_MAX
    )
    allow_networks: str = option(
        "",
        "Networks that the target may be in besides public addresses, such as `10.0.0.0/8`, separated by `,` or as a list.",
    )
    secret_files: str = option(
        "",
        "Paths of files with secrets, separated by `,` or as a list; each request is signed with all of them. Empty: requests are not signed.",
    )
    headers_file: str = option(
        "", "Path of a file with additional header fields, such as Authorization, one `Name: value` per line."
    )
    ca_file: str = option(
        "",
        "Path of a PEM file with the certificates by which the certificate of an https target is verified. Default: those of the system.",
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
