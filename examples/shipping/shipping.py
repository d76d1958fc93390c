"""Ships orders: a service in another language than Rust, which the sagas of the shop call.

    DATABASE_URL=postgres://… RABBITMQ_URL=amqp://localhost python3 shipping.py

It needs the lines `inbox` and `outbox` of the schema in its database, and a relay that publishes
its replies (relay.toml). Debian: python3-pika, python3-psycopg2.

It ends at the first error of database or broker, and a supervisor restarts it: an unacknowledged
message comes again, and the inbox knows which messages took effect. A missing table, function,
right or day is such an error, because every message meets it.
"""

import json
import os
import sys
import uuid
from datetime import datetime, timezone

import pika
import psycopg2

REQUESTS = os.environ.get("SHIP", "ship")
REPLIES = os.environ.get("SHIPPED", "shipped")
GRAMS_MAX = 20_000
HOUR_SECONDS = 3_600
# Messages are accepted with ids of up to this age: their days have to be there.
ID_DAYS_MAX = 14
# An effect that hangs keeps its message from other processes for a minute: then its session ends.
IDLE = "set_config('idle_in_transaction_session_timeout', '60s', true)"
# RabbitMQ 4 drops a message of a quorum queue after 20 deliveries, which outages count as well.
QUEUE = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}

# No row of a parcel is unique by its request: the inbox alone keeps one from being made twice.
TABLES = """
CREATE TABLE IF NOT EXISTS parcel (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request text NOT NULL, order_id bigint NOT NULL, state text NOT NULL DEFAULT 'packed');
CREATE TABLE IF NOT EXISTS taken_back (request text PRIMARY KEY);
CREATE TABLE IF NOT EXISTS parked (reason text, properties text, payload bytea);
"""


class Unusable(Exception):
    """A message that no further attempt applies."""


def is_new(cursor, *message):
    """Admits a message, once: its id, kind, content type and payload. Waits for another transaction
    that applies the same one. The commit waits for the disk, whatever the server's settings are."""
    cursor.execute("SELECT inbox_admit('shipping', %s, %s, %s, %s) FROM " + IDLE, message)
    (verdict,) = cursor.fetchone()
    if verdict not in ("new", "duplicate", "dead_letter"):
        raise Unusable(verdict)
    return verdict == "new"


def ship(cursor, request, order, grams):
    """Packs a parcel, or refuses. The reply is what the saga's request returns."""
    cursor.execute("SELECT FROM taken_back WHERE request = %s", (request,))
    if cursor.rowcount == 1:
        return {"refused": "taken back before it came"}
    if grams > GRAMS_MAX:
        return {"refused": f"heavier than {GRAMS_MAX} g"}
    insert = "INSERT INTO parcel (request, order_id) VALUES (%s, %s) RETURNING id"
    cursor.execute(insert, (request, order))
    return {"parcel": cursor.fetchone()[0]}


def unship(cursor, request, _order, _grams):
    """Stops the parcel. A request that has not come yet will be refused."""
    cursor.execute("INSERT INTO taken_back VALUES (%s) ON CONFLICT DO NOTHING", (request,))
    cursor.execute("UPDATE parcel SET state = 'stopped' WHERE request = %s", (request,))


# No text with a NUL goes into a database: a ValueError. SQLSTATE 22xxx, the class of errors of
# the outbox's functions, too, is about values. 42xxx (a missing table, function or right) and 55000
# (a missing day) are about the set-up: every message would meet them, so none may be acknowledged.
UNUSABLE = (Unusable, ValueError, psycopg2.DataError)


EFFECTS = {"order.ship": ship, "order.unship": unship}


def apply(cursor, properties, payload):
    """Admits the message, has its effect and enqueues its reply."""
    headers = properties.headers or {}
    try:
        message_id, kind = str(headers["cloudEvents_id"]), headers["cloudEvents_type"]
        request, effect = str(headers["saga-key"]), EFFECTS[kind]
        # The reply needs them as they came.
        saga = {name: str(value) for name, value in headers.items() if name.startswith("saga-")}
        uuid.UUID(message_id)
        body = json.loads(payload)
        order, grams = int(body["order"]), int(body["grams"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unusable(f"not a request: {error!r}") from error
    content_type = properties.content_type or "application/octet-stream"
    if not is_new(cursor, message_id, kind, content_type, payload):
        return f"{request}: a duplicate"
    # A request and its cancellation see each other, in whichever order and process they come.
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (request,))
    reply = effect(cursor, request, order, grams)
    if reply is not None:
        cursor.execute(
            "SELECT outbox_enqueue_json(topic => %s, payload => %s, key => %s, kind => 'order.shipped',"
            " headers => %s)",
            (REPLIES, json.dumps(reply), f"order-{order}", json.dumps(saga)),
        )
    # Fails if the transaction has failed, or is another one: COMMIT would report success.
    cursor.execute("SELECT inbox_finish('shipping', %s)", (message_id,))
    return f"{request}: {'taken back' if reply is None else json.dumps(reply)}"


def park(database, properties, payload, reason):
    """Keeps a message for a person. Nothing of it took effect."""
    with database, database.cursor() as cursor:
        row = (repr(str(reason)), json.dumps(vars(properties), default=str), payload)
        cursor.execute("INSERT INTO parked VALUES (%s, %s, %s)", row)
    return f"parked: {reason}".splitlines()[0]


def main():
    database = psycopg2.connect(os.environ["DATABASE_URL"])
    with database, database.cursor() as cursor:
        cursor.execute(TABLES)
    broker = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"]))
    channel = broker.channel()
    channel.queue_declare(REQUESTS, durable=True, arguments=QUEUE)

    def maintain():
        # An inbox row lies in the day of its message's id; the days have to be there, and old ones
        # are forgotten. What fails is repeated in an hour.
        with database, database.cursor() as cursor:
            today = datetime.now(timezone.utc).date()
            cursor.execute("SELECT inbox_maintain(%s, %s)", (today, ID_DAYS_MAX))
            for (problem,) in cursor.fetchall():
                print(f"inbox: {problem}", file=sys.stderr, flush=True)
        broker.call_later(HOUR_SECONDS, maintain)

    def on_message(channel, method, properties, payload):
        try:
            # One transaction: commits at its end, rolls back after an exception.
            with database, database.cursor() as cursor:
                told = apply(cursor, properties, payload)
        except UNUSABLE as error:
            told = park(database, properties, payload, error)
        # Only now: before the commit, a crash would lose the message.
        channel.basic_ack(method.delivery_tag)
        print(told, flush=True)

    maintain()
    channel.basic_qos(prefetch_count=16)
    channel.basic_consume(REQUESTS, on_message)
    channel.start_consuming()


if __name__ == "__main__":
    main()
