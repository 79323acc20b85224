"""Whether the cluster has accounts, and whether a visitor's keys are one of them."""

from __future__ import annotations

from typing import Final

from metaq.admin.brokers import BrokerNotFound, masters
from metaq.client.conversation.administration import GetRuntime
from metaq.client.conversation.call import FAULTS
from metaq.client.identity.options import ClientOptions, client_options
from metaq.client.shared.core import ClientCore
from metaq.errors import AccessDenied, ConfigError, MetaqError, NoRoute

BROKERS_ASKED: Final = 3
KEY_CHARS_MAX: Final = 256


class NotProven(MetaqError):
    """Nobody could be asked whether an account exists."""


async def prove(core: ClientCore) -> None:
    """Ask something that every account may ask, as the account of these connections, or as nobody.

    Raises AccessDenied: no such account, or a wrong secret key; NotProven: no broker answers.
    """
    try:
        addresses = list((await masters(core)).values())[:BROKERS_ASKED]
    except AccessDenied:
        raise
    except (BrokerNotFound, NoRoute, *FAULTS) as error:
        raise NotProven(str(error)) from None
    last: MetaqError | None = None
    for address in addresses:
        try:
            await core.ask(address, GetRuntime())
            return
        except AccessDenied:
            raise
        except FAULTS as error:
            last = error
    raise NotProven(str(last))


def visitor_options(own: ClientOptions, access_key: str, secret_key: str) -> ClientOptions:
    """Return the options of a visitor's client: TLS and all else as the dashboard's own. Raises ConfigError: these can be no keys."""
    from msgspec import structs

    for what, text in (("access key", access_key), ("secret key", secret_key)):
        if not text:
            raise ConfigError(f"the {what} is missing")
        if len(text) > KEY_CHARS_MAX:
            raise ConfigError(f"the {what} has more than {KEY_CHARS_MAX} characters")
    credentials = client_options(access_key=access_key, secret_key=secret_key, tls=False).credentials
    return structs.replace(own, credentials=credentials)
