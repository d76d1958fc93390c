"""Bills orders: a producer and a consumer in Python, with psycopg 3 and RabbitMQ.

    DATABASE_URL=postgres://… RABBITMQ_URL=amqp://… python billing.py [place ORDER CUSTOMER CENTS]

It ends at the first error of database or broker, and a supervisor starts it again.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, LiteralString
from uuid import UUID

import pika
import psycopg
from pika.spec import BasicProperties
from psycopg.types.json import Jsonb

CONSUMER = os.environ.get("CONSUMER", "billing-python")
ATTEMPTS_MAX = 10
# One active consumer keeps the order of keys. RabbitMQ 4 drops a message of a quorum queue after 20
# deliveries, and each start of this process can be one: the limit is out of reach.
QUEUE = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000, "x-single-active-consumer": True}
# A server that disappears silently is noticed after a minute.
IMPATIENT: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 60_000}
Connection = psycopg.Connection[tuple[Any, ...]]


class Reject(Exception):
    """A message that no further attempt helps."""


@dataclass(frozen=True)
class Message:
    """A message as it arrived. Without an id it is malformed, and `problem` says why."""

    topic: str
    payload: bytes
    id: UUID | None = None
    kind: str | None = None
    content_type: str = "application/octet-stream"
    key: str | None = None
    source: str = "/unknown"
    made_at: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def derived_id(milliseconds: int, *parts: str) -> UUID:
    """The id of a business fact: the same time and parts always give the same one."""
    hashed = hashlib.sha256(b"".join(len(p.encode()).to_bytes(8, "big") + p.encode() for p in parts))
    octets = bytearray(milliseconds.to_bytes(6, "big") + hashed.digest()[:10])
    octets[6] = octets[6] & 0x0F | 0x70
    octets[8] = octets[8] & 0x3F | 0x80
    return UUID(bytes=bytes(octets))


def clean(text: object) -> str:
    """Replaces what PostgreSQL does not store in a text: NUL, and half a surrogate pair."""
    return str(text).replace("\0", "\ufffd").encode(errors="replace").decode()


def read(topic: str, properties: BasicProperties, payload: bytes) -> Message:
    """Reads a CloudEvent from the properties of a delivery."""
    topic = clean(topic)
    arrived = {clean(name): clean(value) for name, value in (properties.headers or {}).items()}
    events = {name[12:]: value for name, value in arrived.items() if name.startswith("cloudEvents_")}
    free = {name: value for name, value in arrived.items() if not name.startswith("cloudEvents_")}
    try:
        if "chunkindex" in events:
            raise ValueError("a chunk of a larger message")
        message_id = UUID(events.get("id") or clean(properties.message_id or ""))
        content_type = clean(properties.content_type or "application/octet-stream")
        origin = (events.get("subject"), events.get("source", "/unknown"), events.get("time"))
        return Message(topic, payload, message_id, events.get("type") or topic, content_type, *origin, free)
    except ValueError as error:
        arrived["amqp.message_id"] = clean(properties.message_id)
        return Message(topic, payload, headers=arrived, problem=clean(error))


Handler = Callable[[Connection, Message], None]


def one(connection: Connection, sql: LiteralString, *values: object) -> Any:
    row = connection.execute(sql, values).fetchone()
    return row and row[0]


def maintain(connection: Connection) -> None:
    """Makes and forgets the days of the inbox. What it cannot do waits for the next hour."""
    for problem in connection.execute("SELECT inbox_maintain(%s)", [datetime.now(UTC).date()]):
        print(f"inbox: {problem[0]}", file=sys.stderr, flush=True)


def handle(connection: Connection, message: Message, handler: Handler) -> None:
    handler(connection, message)
    # Fails if the handler swallowed an error of the database: COMMIT would only roll back.
    connection.execute("SELECT 1")


def apply(connection: Connection, message: Message, handler: Handler) -> str:
    """Has the effect of a message once. Any answer but `again` permits its acknowledgement."""
    reason, error = "malformed", message.problem
    if message.id:
        try:
            with connection.transaction():
                row = (message.id, message.kind, message.content_type, message.payload, message.source)
                reason = str(one(connection, "SELECT inbox_admit(%s, %s, %s, %s, %s, %s)", CONSUMER, *row))
                if reason == "new":
                    handle(connection, message, handler)
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
    take += " FROM inbox_take_redrive(%s, %s)"
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
    order = json.loads(message.payload)
    customer = order["customer"]
    if one(connection, "SELECT name FROM blocked_customer WHERE name = %s", customer):
        raise Reject(f"customer {customer} is blocked")
    insert = "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES (%s, %s, %s, %s)"
    connection.execute(insert, [message.id, order["order"], customer, order["cents"]])
    enqueue = "SELECT outbox_enqueue_json('invoices', %s, key => %s, kind => 'invoice.issued')"
    one(connection, enqueue, Jsonb({"order": order["order"]}), customer)


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
