"""Bills orders: the same producer and consumer with SQLAlchemy 2, in the session of the caller.

DATABASE_URL=postgresql+psycopg://… RABBITMQ_URL=amqp://… python billing_sqlalchemy.py
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pika
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from billing import ATTEMPTS_MAX, IDLE, IMPATIENT, QUEUE
from message import Message, Reject, clean, order_of, read

CONSUMER = os.environ.get("CONSUMER", "billing-sqlalchemy")
Handler = Callable[[Session, Message], None]
Sessions = sessionmaker[Session]


def one(session: Session, sql: str, **values: object) -> Any:
    return session.execute(text(sql), values).scalar()


def is_lost(error: Exception) -> bool:
    """Whether the connection failed, and not the message."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def maintain(sessions: Sessions) -> None:
    """Makes and forgets the days of the inbox. What it cannot do waits for the next hour."""
    with sessions.begin() as session:
        today = {"today": datetime.now(UTC).date()}
        for problem in session.scalars(text("SELECT inbox_maintain(:today)"), today):
            print(f"inbox: {problem}", file=sys.stderr, flush=True)


def handle(session: Session, message: Message, handler: Handler) -> None:
    """Runs a handler, then proves that its transaction is the one that admitted the message."""
    handler(session, message)
    if not session.in_transaction():
        raise RuntimeError("the handler ended its transaction: to undo an effect, raise an error")
    session.flush()
    # Fails also if the handler swallowed an error of the database: COMMIT would only roll back.
    one(session, "SELECT inbox_finish(:consumer, :id)", consumer=CONSUMER, id=message.id)


def apply(sessions: Sessions, message: Message, handler: Handler) -> str:
    """Has the effect of a message once. Any answer but `again` permits its acknowledgement."""
    content: dict[str, object] = {"id": message.id, "kind": message.kind, "type": message.content_type}
    content |= {"payload": message.payload, "source": message.source, "consumer": CONSUMER}
    reason, error = "malformed", message.problem
    if message.id:
        try:
            with sessions.begin() as session:
                admit = "SELECT inbox_admit(:consumer, :id, :kind, :type, :payload, :source) FROM " + IDLE
                reason = str(one(session, admit, **content))
                if reason == "new":
                    handle(session, message, handler)
            if reason in ("new", "duplicate", "dead_letter"):
                return reason
            error = f"the inbox refused it: {reason}"
        except Reject as refusal:
            reason, error = "rejected", clean(refusal)
        except Exception as failure:
            if is_lost(failure):
                raise
            reason, error = "poison", clean(repr(failure))
            with sessions.begin() as session:
                failed = "SELECT inbox_count_failure(:consumer, :id, :error)"
                attempts = one(session, failed, consumer=CONSUMER, id=message.id, error=error)
            if attempts < ATTEMPTS_MAX:
                return "again"
    with sessions.begin() as session:
        one(
            session,
            "SELECT inbox_store_dead_letter(:consumer, :id, :topic, :kind, :type, :payload, :reason, :error,"
            " :key, CAST(:headers AS jsonb), :source, :made_at)",
            **content,
            **{"topic": message.topic, "reason": reason, "error": error, "key": message.key},
            **{"headers": json.dumps(message.headers), "made_at": message.made_at},
        )
    return reason


def redrive(sessions: Sessions, handler: Handler) -> bool:
    """Carries out a redrive that an operator asked for (`relay dead requeue`), if there is one."""
    with sessions.begin() as session:
        request = one(session, "SELECT inbox_begin_redrive(:consumer)", consumer=CONSUMER)
    if request is None:
        return False
    take = "SELECT topic, payload, message_id, kind, content_type, key, source, NULL, headers"
    taken = text(take + " FROM inbox_take_redrive(:consumer, :request), " + IDLE)
    try:
        with sessions.begin() as session:
            row = session.execute(taken, {"consumer": CONSUMER, "request": request}).first()
            if row is not None:
                handle(session, Message(*row), handler)
    except Exception as error:
        if is_lost(error):
            raise
        with sessions.begin() as session:
            failed = "SELECT inbox_fail_redrive(:consumer, :request, :error)"
            one(session, failed, consumer=CONSUMER, request=request, error=clean(repr(error)))
    return True


def place_order(session: Session, order: int, customer: str, cents: int) -> UUID:
    """Stores an order and enqueues its event, in the transaction of the caller."""
    insert = "INSERT INTO orders VALUES (:order, :customer, :cents)"
    session.execute(text(insert), {"order": order, "customer": customer, "cents": cents})
    placed = json.dumps({"order": order, "customer": customer, "cents": cents})
    enqueue = (
        "SELECT outbox_enqueue_json('orders', CAST(:placed AS jsonb), key => :key, kind => 'order.placed')"
    )
    return UUID(str(one(session, enqueue, placed=placed, key=customer)))


def bill(session: Session, message: Message) -> None:
    """The handler: an invoice and its event, in the transaction of the inbox row."""
    if message.kind != "order.placed":
        raise Reject(f"no handler for {message.kind}")
    order, customer, cents = order_of(message)
    if one(session, "SELECT name FROM blocked_customer WHERE name = :name", name=customer):
        raise Reject(f"customer {customer} is blocked")
    insert = (
        "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES (:id, :order, :customer, :cents)"
    )
    row = {"id": message.id, "order": order, "customer": customer, "cents": cents}
    session.execute(text(insert), row)
    issued = json.dumps({"order": order})
    enqueue = (
        "SELECT outbox_enqueue_json('invoices', CAST(:i AS jsonb), key => :key, kind => 'invoice.issued')"
    )
    one(session, enqueue, i=issued, key=customer)


def consume(sessions: Sessions, handler: Handler) -> None:
    # Before the first delivery: on a database that refuses work, the process ends without one.
    maintain(sessions)
    redrive(sessions, handler)
    channel = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"])).channel()
    channel.queue_declare(CONSUMER, durable=True, arguments=QUEUE)  # It is bound to the relay's exchange.
    channel.basic_qos(prefetch_count=16)
    due, maintenance_due = 0.0, time.monotonic() + 3600
    for method, properties, payload in channel.consume(CONSUMER, inactivity_timeout=1):
        if time.monotonic() >= maintenance_due:
            maintain(sessions)
            maintenance_due = time.monotonic() + 3600
        if time.monotonic() >= due:
            while redrive(sessions, handler):
                channel.connection.process_data_events()  # Heartbeats.
            due = time.monotonic() + 5
        if method is not None:
            message = read(method.routing_key, properties, payload)
            pause = 0.5
            while (outcome := apply(sessions, message, handler)) == "again":
                channel.connection.sleep(pause := min(2 * pause, 60))
            channel.basic_ack(method.delivery_tag)  # After the commit, never before it.
            print(message.id, outcome, flush=True)
    raise ConnectionError("RabbitMQ ended the consumer")  # Its queue was deleted, or its node is gone.


if __name__ == "__main__":
    database = sessionmaker(create_engine(os.environ["DATABASE_URL"], connect_args=IMPATIENT))
    if sys.argv[1:2] == ["place"]:
        with database.begin() as session:
            print(place_order(session, int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
    else:
        consume(database, bill)
