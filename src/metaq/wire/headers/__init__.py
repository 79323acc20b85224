"""Typed headers: one class per request or response of reference section 2, by subject.

Each name has its home in the module of its subject; protocol code writes `headers.X`, whichever that is.
"""

from metaq.wire.headers.administration import *  # noqa: F403
from metaq.wire.headers.clients import *  # noqa: F403
from metaq.wire.headers.codec import *  # noqa: F403
from metaq.wire.headers.name_servers import *  # noqa: F403
from metaq.wire.headers.reading import *  # noqa: F403
from metaq.wire.headers.sending import *  # noqa: F403
from metaq.wire.headers.staging import *  # noqa: F403
from metaq.wire.headers.transactions import *  # noqa: F403
