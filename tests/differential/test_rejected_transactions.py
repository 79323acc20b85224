"""A broker that takes no transactions."""

from tests.differential.world import World, scenario

SETTINGS = {"rejectTransactionMessage": "true"}


@scenario
def test_a_half_message_is_refused_and_the_local_transaction_not_run(world: World) -> None:
    """The broker's code and words reach the sender; plain messages go on."""
    topic = world.topic(queues=1)
    executed = []

    def execute(event: object) -> object:
        executed.append(event)
        return "COMMIT_MESSAGE"

    producer = world.transaction_producer(
        execute=execute, check=execute, options={"retryTimesWhenSendFailed": 0, "sendMsgTimeout": 60_000}
    )
    world.note("half", producer.outcome("send_in_transaction", topic=topic, body="half"))
    world.note("executed", len(executed))
    world.note("plain", producer.send(topic, "plain", queue=world.queue(topic, 0)))
