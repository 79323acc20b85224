"""Typed headers of RocketMQ 4.9's requests and responses: one class each, in modules by subject.

Protocol code writes `headers.X`, whichever module X is in.
"""

from metaq.wire.headers.accounts import *  # noqa: F403
from metaq.wire.headers.administration import *  # noqa: F403
from metaq.wire.headers.codec import *  # noqa: F403
from metaq.wire.headers.name_servers import *  # noqa: F403
from metaq.wire.headers.reading import *  # noqa: F403
from metaq.wire.headers.sending import *  # noqa: F403
from metaq.wire.headers.staging import *  # noqa: F403
