"""Bills orders: a producer and a consumer in Python, with psycopg 3 and RabbitMQ.

    DATABASE_URL=postgres://… RABBITMQ_URL=amqp://… python billing.py [place ORDER CUSTOMER CENTS]

It ends at the first error of database or broker, and a supervisor starts it again.
"""

import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, LiteralString
from uuid import UUID

import pika
import psycopg
from psycopg.types.json import Jsonb

from message import Message, Reject, clean, order_of, read

CONSUMER = os.environ.get("CONSUMER", "billing-python")
ATTEMPTS_MAX = 10
# One active consumer keeps the order of keys. RabbitMQ 4 drops a message of a quorum queue after 20
# deliveries, and each start of this process can be one: the limit is out of reach.
QUEUE = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000, "x-single-active-consumer": True}
# A server that disappears silently is noticed after a minute.
IMPATIENT: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 60_000}
# A handler that hangs keeps its message from other processes for a minute: then its session is ended.
IDLE: LiteralString = "set_config('idle_in_transaction_session_timeout', '60s', true)"
Connection = psycopg.Connection[tuple[Any, ...]]
Handler = Callable[[Connection, Message], None]


def one(connection: Connection, sql: LiteralString, *values: object) -> Any:
    row = connection.execute(sql, values).fetchone()
    return row and row[0]


def maintain(connection: Connection) -> None:
    """Makes and forgets the days of the inbox. What it cannot do waits for the next hour."""
    for problem in connection.execute("SELECT inbox_maintain(%s)", [datetime.now(UTC).date()]):
        print(f"inbox: {problem[0]}", file=sys.stderr, flush=True)


def handle(connection: Connection, message: Message, handler: Handler) -> None:
    """Runs a handler, then proves that its transaction is the one that admitted the message."""
    try:
        handler(connection, message)
    except psycopg.Rollback as end:  # `transaction()` rolls back, and raises nothing.
        raise RuntimeError("the handler raised Rollback: to undo an effect, raise another error") from end
    # Fails also if the handler swallowed an error of the database: COMMIT would only roll back.
    connection.execute("SELECT inbox_finish(%s, %s)", [CONSUMER, message.id])


def take_effect(connection: Connection, message: Message, handler: Handler) -> str:
    """Admits a message and runs its handler, in a transaction. Returns the answer of the inbox."""
    content = (message.id, message.kind, message.content_type, message.payload, message.source)
    admit = "SELECT inbox_admit(%s, %s, %s, %s, %s, %s) FROM " + IDLE
    with connection.transaction():
        verdict = str(one(connection, admit, CONSUMER, *content))
        if verdict == "new":
            handle(connection, message, handler)
    return verdict


def apply(connection: Connection, message: Message, handler: Handler) -> str:
    """Has the effect of a message once. Any answer but `again` permits its acknowledgement."""
    reason, error = "malformed", message.problem
    if message.id:
        try:
            reason = take_effect(connection, message, handler)
            if reason in ("new", "duplicate", "dead_letter"):
                return reason
            error = f"the inbox refused it: {reason}"
        except Reject as refusal:
            reason, error = "rejected", clean(refusal)
        except Exception as failure:
            if connection.broken:  # Not the message's fault.
                raise
            reason, error = "poison", clean(repr(failure))
            counted = [CONSUMER, message.id, error]
            if one(connection, "SELECT inbox_count_failure(%s, %s, %s)", *counted) < ATTEMPTS_MAX:
                return "again"
    store = "SELECT inbox_store_dead_letter(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    content = (message.id, message.topic, message.kind, message.content_type, message.payload)
    origin = (message.key, Jsonb(message.headers), message.source, message.made_at)
    one(connection, store, CONSUMER, *content, reason, error, *origin)
    return reason


def redrive(connection: Connection, handler: Handler) -> bool:
    """Carries out a redrive that an operator asked for (`relay dead requeue`), if there is one."""
    if (request := one(connection, "SELECT inbox_begin_redrive(%s)", CONSUMER)) is None:
        return False
    take = "SELECT topic, payload, message_id, kind, content_type, key, source, NULL, headers"
    take += " FROM inbox_take_redrive(%s, %s), " + IDLE
    try:
        with connection.transaction():
            row = connection.execute(take, [CONSUMER, request]).fetchone()
            if row is not None:
                handle(connection, Message(*row), handler)
    except Exception as error:
        if connection.broken:
            raise
        one(connection, "SELECT inbox_fail_redrive(%s, %s, %s)", CONSUMER, request, clean(repr(error)))
    return True


def place_order(connection: Connection, order: int, customer: str, cents: int) -> UUID:
    """Stores an order and enqueues its event, in the transaction of the caller."""
    connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", [order, customer, cents])
    placed = Jsonb({"order": order, "customer": customer, "cents": cents})
    enqueue = "SELECT outbox_enqueue_json('orders', %s, key => %s, kind => 'order.placed')"
    return UUID(str(one(connection, enqueue, placed, customer)))


def bill(connection: Connection, message: Message) -> None:
    """The handler: an invoice and its event, in the transaction of the inbox row."""
    if message.kind != "order.placed":
        raise Reject(f"no handler for {message.kind}")
    order, customer, cents = order_of(message)
    if one(connection, "SELECT name FROM blocked_customer WHERE name = %s", customer):
        raise Reject(f"customer {customer} is blocked")
    insert = "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES (%s, %s, %s, %s)"
    connection.execute(insert, [message.id, order, customer, cents])
    enqueue = "SELECT outbox_enqueue_json('invoices', %s, key => %s, kind => 'invoice.issued')"
    one(connection, enqueue, Jsonb({"order": order}), customer)


def consume(connection: Connection, handler: Handler) -> None:
    # Before the first delivery: on a database that refuses work, the process ends without one.
    maintain(connection)
    redrive(connection, handler)
    channel = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"])).channel()
    channel.queue_declare(CONSUMER, durable=True, arguments=QUEUE)  # It is bound to the relay's exchange.
    channel.basic_qos(prefetch_count=16)
    due, maintenance_due = 0.0, time.monotonic() + 3600
    for method, properties, payload in channel.consume(CONSUMER, inactivity_timeout=1):
        if time.monotonic() >= maintenance_due:
            maintain(connection)
            maintenance_due = time.monotonic() + 3600
        if time.monotonic() >= due:
            while redrive(connection, handler):
                channel.connection.process_data_events()  # Heartbeats.
            due = time.monotonic() + 5
        if method is not None:
            message = read(method.routing_key, properties, payload)
            pause = 0.5
            while (outcome := apply(connection, message, handler)) == "again":
                channel.connection.sleep(pause := min(2 * pause, 60))
            channel.basic_ack(method.delivery_tag)  # After the commit, never before it.
            print(message.id, outcome, flush=True)
    raise ConnectionError("RabbitMQ ended the consumer")  # Its queue was deleted, or its node is gone.


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, **IMPATIENT) as database:
        if sys.argv[1:2] == ["place"]:
            with database.transaction():
                print(place_order(database, int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
        else:
            consume(database, bill)
