"""The Python client of MetaQ 1.x over HTTP, for programs that reach its brokers only so: by the gateway of a broker of MetaQ
(docs/metaq1-http.md), or by the plug-in jettyBroker of the original. Needs pymetaq[http-client].

    from metaq.metaq1 import Message
    from metaq.metaq1.http import HttpClientConfig, HttpMessageSessionFactory

    with HttpMessageSessionFactory(HttpClientConfig(server_url="http://127.0.0.1:8120")) as factory:
        factory.create_producer().send_message(Message("test", b"hello"), "0-1")

`metaq.metaq1.http.aio` has the same for asyncio. Messages, listeners, offset storages and errors are those of `metaq.metaq1`.

How it is built: `links` sends the commands of `metaq.wire.metaq1` as requests and makes its answers of theirs. So all above it is the
code of the other session factories; what a gateway does not tell, partitions, its users name.
"""

try:
    from metaq.metaq1.http import aio
    from metaq.metaq1.http.config import HttpClientConfig
    from metaq.metaq1.http.consuming import HttpMessageConsumer
    from metaq.metaq1.http.producing import HttpMessageProducer
    from metaq.metaq1.http.sessions import HttpMessageSessionFactory
except ModuleNotFoundError as missing:
    if missing.name != "httpx":
        raise
    raise ModuleNotFoundError(
        "metaq.metaq1.http needs the package httpx: pip install 'pymetaq[http-client]'", name=missing.name
    ) from None
from metaq.model.acl.secret import Secret

__all__ = [
    "HttpClientConfig",
    "HttpMessageConsumer",
    "HttpMessageProducer",
    "HttpMessageSessionFactory",
    "Secret",
    "aio",
]
