"""What the mirror is told, and what does not fit."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.pipelines.configuration import configure
from metaq.pipelines.mirror import options as mirror_options
from metaq.spark.sink import settings as sink_settings

GIVEN = {"nameServers": "a:1;c:1", "to": "b:1", "topics": "orders", "folder": "f"}


def test_clusters_are_called_by_their_name_servers_in_whatever_order():
    """Or as one says."""
    options = configure(
        "mirror", GIVEN | {"topics": ["orders", "payments"], "rename": "orders:orders2", "groups": "g, h"}
    ).options
    assert (options.source_mark, options.target_mark) == ("a:1;c:1", "b:1")
    assert configure("mirror", GIVEN | {"nameServers": " c:1; a:1"}).options.source_mark == "a:1;c:1"
    assert [options.target_topic(topic) for topic in options.topics_read] == ["orders2", "payments"]
    assert options.group_names == ["g", "h"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"to": ""}, "to is missing"),
        ({"folder": ""}, "folder is missing"),
        ({"topics": ""}, "give topics or topicPattern"),
        ({"topicPattern": "o*"}, "give topics or topicPattern"),
        ({"rename": "orders"}, "need pairs like"),
        ({"rename": "payments:p"}, "which is not among the topics"),
        ({"rename": "orders:a,orders:b"}, "names orders twice"),
        ({"topics": "%RETRY%g"}, r"%RETRY%g is a topic of brokers.*rename = '%RETRY%g:NEW'"),
        ({"rename": "orders:a b"}, "rename: "),
        ({"groups": "a b"}, "groups: "),
        ({"sourceName": "a/b"}, "no blank, comma or slash"),
        ({"to": "c:1;a:1"}, "copied into itself for ever"),
        ({"delivery": "twice"}, "delivery=twice: allowed are"),
        ({"topicc": "x"}, "the nearest is topic"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(more, text):
    """Before anything is started."""
    with pytest.raises(ConfigError, match=text):
        configure("mirror", GIVEN | more)


def test_one_cluster_may_have_copies_under_other_names():
    """And a retry topic an ordinary name."""
    configure("mirror", GIVEN | {"to": "a:1;c:1", "rename": "orders:copies"})
    configure("mirror", GIVEN | {"topics": "%RETRY%g", "rename": "%RETRY%g:retries-of-g"})


def test_the_deliveries_are_the_sinks():
    """The options are read without the modules that do the work."""
    assert (mirror_options.EFFECTIVELY_ONCE, mirror_options.AT_LEAST_ONCE) == (
        sink_settings.EFFECTIVELY_ONCE,
        sink_settings.AT_LEAST_ONCE,
    )
