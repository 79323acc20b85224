"""What an application adds to what its consumer tells."""

from __future__ import annotations

import metaq
from metaq.admin import Admin
from tests.support import eventually


def test_an_application_adds_to_what_its_member_tells_and_changes_nothing_of_it(metaq_broker):
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic("telling-more")
    with (
        Admin(metaq_broker.namesrv) as admin,
        metaq.Consumer(metaq_broker.namesrv, group="telling-more", topics="telling-more") as consumer,
    ):
        counts = {"mine.count": "1"}
        consumer.tell(lambda: counts)
        consumer.tell(lambda: {"other": "x", "consumerGroup": "forged"})
        client = eventually(lambda: _member(admin), what="the member")
        told = admin.consumer_running_info("telling-more", client).state.properties
        assert (told["mine.count"], told["other"], told["consumerGroup"]) == ("1", "x", "telling-more")
        counts["mine.count"] = "2"
        assert admin.consumer_running_info("telling-more", client).state.properties["mine.count"] == "2"


def _member(admin):
    from metaq.admin.groups import GroupNotFound

    try:
        return next((one.client_id for one in admin.group_progress("telling-more").members), None)
    except GroupNotFound:
        return None
