"""MetaQ 1.x over HTTP for asyncio: the classes of `metaq.metaq1.http` with `await` where those wait."""

from metaq.metaq1.http.consuming_async import HttpMessageConsumer
from metaq.metaq1.http.producing_async import HttpMessageProducer
from metaq.metaq1.http.sessions_async import HttpMessageSessionFactory

__all__ = ["HttpMessageConsumer", "HttpMessageProducer", "HttpMessageSessionFactory"]
