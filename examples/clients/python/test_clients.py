"""Both clients keep what they promise, on the database of DATABASE_URL."""

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString, Protocol
from uuid import UUID

import psycopg
import pytest
from pika.spec import BasicProperties
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

import billing
import billing_sqlalchemy
from message import Message, Reject, derived_id, read

VECTORS = json.loads((Path(__file__).parent.parent / "vectors.json").read_text())
URL = os.environ["DATABASE_URL"]
LOST = "(?i)terminat|clos|connection"
ASK: LiteralString = (
    "INSERT INTO inbox_audit (actor, note, action, dead_letter, consumer)"
    " VALUES ('ann', 'prices are back', 'redrive', %s, %s)"
)
# A key that no index of PostgreSQL takes, even compressed.
LONG = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(5_000))


class Client(Protocol):
    """What the tests use of a client."""

    consumer: str

    def apply(self, message: Message, handler: Callable[[Any, Message], None] | None = None) -> str: ...
    def redrive(self, handler: Callable[[Any, Message], None] | None = None) -> bool: ...
    def place(self, order: int, *, fails: bool = False) -> None: ...
    def swallow(self, tx: Any, message: Message) -> None: ...
    def bill(self, tx: Any, message: Message) -> None: ...
    def one(self, tx: Any, sql: LiteralString) -> Any: ...
    def run(self, tx: Any, sql: LiteralString) -> None: ...
    def endings(self) -> list[Callable[[Any], object]]: ...


class Psycopg:
    consumer = billing.CONSUMER

    def __init__(self) -> None:
        self.connection = psycopg.connect(URL, autocommit=True)
        billing.maintain(self.connection)

    def apply(self, message: Message, handler: Callable[[Any, Message], None] | None = None) -> str:
        return billing.apply(self.connection, message, handler or billing.bill)

    def redrive(self, handler: Callable[[Any, Message], None] | None = None) -> bool:
        return billing.redrive(self.connection, handler or billing.bill)

    def place(self, order: int, *, fails: bool = False) -> None:
        with self.connection.transaction(force_rollback=fails):
            billing.place_order(self.connection, order, "ann", 1250)

    def swallow(self, tx: psycopg.Connection[Any], message: Message) -> None:
        try:
            tx.execute("SELECT 1 / 0")
        except psycopg.Error:
            pass

    def bill(self, tx: psycopg.Connection[Any], message: Message) -> None:
        billing.bill(tx, message)

    def one(self, tx: psycopg.Connection[Any], sql: LiteralString) -> Any:
        return billing.one(tx, sql)

    def run(self, tx: psycopg.Connection[Any], sql: LiteralString) -> None:
        tx.execute(sql)

    def endings(self) -> list[Callable[[psycopg.Connection[Any]], object]]:
        def roll_back(tx: psycopg.Connection[Any]) -> None:
            raise psycopg.Rollback

        return [roll_back, lambda tx: self.run(tx, "ROLLBACK"), lambda tx: self.run(tx, "ROLLBACK; BEGIN")]


class SqlAlchemy:
    consumer = billing_sqlalchemy.CONSUMER

    def __init__(self) -> None:
        self.engine: Engine = create_engine(URL.replace("postgres://", "postgresql+psycopg://", 1))
        self.sessions = sessionmaker(self.engine)
        billing_sqlalchemy.maintain(self.sessions)

    def apply(self, message: Message, handler: Callable[[Any, Message], None] | None = None) -> str:
        return billing_sqlalchemy.apply(self.sessions, message, handler or billing_sqlalchemy.bill)

    def redrive(self, handler: Callable[[Any, Message], None] | None = None) -> bool:
        return billing_sqlalchemy.redrive(self.sessions, handler or billing_sqlalchemy.bill)

    def place(self, order: int, *, fails: bool = False) -> None:
        with self.sessions() as session:
            billing_sqlalchemy.place_order(session, order, "ann", 1250)
            if not fails:
                session.commit()

    def swallow(self, tx: Session, message: Message) -> None:
        try:
            tx.execute(text("SELECT 1 / 0"))
        except Exception:
            pass

    def bill(self, tx: Session, message: Message) -> None:
        billing_sqlalchemy.bill(tx, message)

    def one(self, tx: Session, sql: LiteralString) -> Any:
        return billing_sqlalchemy.one(tx, sql)

    def run(self, tx: Session, sql: LiteralString) -> None:
        tx.execute(text(sql))

    def endings(self) -> list[Callable[[Session], object]]:
        return [Session.rollback, Session.close, lambda tx: self.run(tx, "ROLLBACK")]


@pytest.fixture(params=[Psycopg, SqlAlchemy], ids=["python", "sqlalchemy"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    client: Client = request.param()
    yield client


def query(sql: LiteralString, *values: object) -> Any:
    with psycopg.connect(URL, autocommit=True) as connection:
        cursor = connection.execute(sql, values)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def order() -> int:
    """A number that no other test has used."""
    return time.time_ns() // 1000


def placed(number: int, *, customer: str = "ann") -> Message:
    payload = json.dumps({"order": number, "customer": customer, "cents": 1250}).encode()
    id = derived_id(time.time_ns() // 1_000_000, f"order-{number}")
    return Message("orders", payload, id, "order.placed", "application/json", customer, "/orders")


def invoices(number: int) -> int:
    return int(query("SELECT count(*) FROM invoice WHERE order_id = %s", number))


def letter(client: Client, message: Message) -> Any:
    find = "SELECT to_jsonb(d) FROM inbox_dead_letter AS d WHERE consumer = %s AND message_id = %s"
    return query(find, client.consumer, message.id)


def test_an_enqueue_commits_with_its_transaction(client: Client) -> None:
    kept, lost = order(), order() + 1
    client.place(kept)
    client.place(lost, fails=True)
    find = "SELECT count(*) FROM outbox_message WHERE convert_from(payload, 'UTF8')::jsonb ->> 'order' = %s"
    for number, count in ((kept, 1), (lost, 0)):
        assert query("SELECT count(*) FROM orders WHERE id = %s", number) == count
        assert query(find, str(number)) == count


def test_a_redelivery_has_one_effect(client: Client) -> None:
    number = order()
    message = placed(number)
    assert [client.apply(message) for _ in range(3)] == ["new", "duplicate", "duplicate"]
    assert invoices(number) == 1
    issued = "SELECT count(*) FROM outbox_message WHERE topic = 'invoices'"
    issued += " AND convert_from(payload, 'UTF8')::jsonb ->> 'order' = %s"
    assert query(issued, str(number)) == 1


def killing(client: Client) -> Callable[[Any, Message], None]:
    """A handler that has its effect, and then loses its connection."""

    def kill(tx: Any, message: Message) -> None:
        client.bill(tx, message)
        query("SELECT pg_terminate_backend(%s, 10000)", client.one(tx, "SELECT pg_backend_pid()"))

    return kill


def test_a_handler_that_is_killed_leaves_nothing(client: Client) -> None:
    number = order()
    message = placed(number)
    with pytest.raises(Exception, match=LOST):
        client.apply(message, killing(client))
    assert invoices(number) == 0
    assert type(client)().apply(message) == "new"
    assert invoices(number) == 1


def test_a_swallowed_error_is_a_failure(client: Client) -> None:
    message = placed(order())
    assert client.apply(message, client.swallow) == "again"
    assert client.apply(message) == "new"


def ending(client: Client, end: Callable[[Any], object]) -> Callable[[Any, Message], None]:
    """A handler that has its effect, ends its transaction, and returns."""

    def run(tx: Any, message: Message) -> None:
        client.bill(tx, message)
        end(tx)

    return run


def test_a_transaction_that_a_handler_ends_is_a_failure(client: Client) -> None:
    failed = "SELECT last_error FROM inbox_attempt WHERE consumer = %s AND message_id = %s"
    for end in client.endings():
        number = order()
        message = placed(number)
        assert client.apply(message, ending(client, end)) == "again"
        assert "to undo an effect" in query(failed, client.consumer, message.id).lower()
        assert invoices(number) == 0
        assert client.apply(message) == "new"
        assert invoices(number) == 1

    given_up = placed(order())
    roll_back = ending(client, client.endings()[0])
    outcomes = [client.apply(given_up, roll_back) for _ in range(billing.ATTEMPTS_MAX)]
    assert outcomes == ["again"] * (billing.ATTEMPTS_MAX - 1) + ["poison"]

    # What it has committed has taken effect, and nothing more of the message will.
    number = order()
    message = placed(number)
    commit = ending(client, lambda tx: client.run(tx, "COMMIT"))
    assert client.apply(message, commit) == "again"
    assert "leaves COMMIT to its caller" in query(failed, client.consumer, message.id)
    assert client.apply(message) == "duplicate"
    assert invoices(number) == 1


def test_a_redrive_whose_handler_ends_its_transaction_fails(client: Client) -> None:
    number = order()
    message = placed(number, customer=f"customer-{number}")
    query("INSERT INTO blocked_customer VALUES (%s)", message.key)
    assert client.apply(message) == "rejected"
    query("DELETE FROM blocked_customer WHERE name = %s", message.key)
    for end in client.endings():
        query(ASK, letter(client, message)["id"], client.consumer)
        assert client.redrive(ending(client, end))
        outcome = "SELECT outcome FROM inbox_audit WHERE dead_letter = %s ORDER BY seq DESC LIMIT 1"
        assert "to undo an effect" in query(outcome, letter(client, message)["id"]).lower()
        assert letter(client, message)["resolution"] is None
        assert invoices(number) == 0
    query(ASK, letter(client, message)["id"], client.consumer)
    assert client.redrive()
    assert invoices(number) == 1


def test_a_handler_that_hangs_loses_its_session(client: Client) -> None:
    limits: list[str] = []

    def hang(tx: Any, message: Message) -> None:
        limits.append(client.one(tx, "SHOW idle_in_transaction_session_timeout"))
        pid = client.one(tx, "SELECT pg_backend_pid()")
        client.run(tx, "SET LOCAL idle_in_transaction_session_timeout = '1ms'")
        while query("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid):
            time.sleep(0.01)
        client.bill(tx, message)

    def reject(tx: Any, message: Message) -> None:
        raise Reject("no")

    number = order()
    message, other = placed(number), placed(number + 1)
    assert client.apply(other, reject) == "rejected"
    query(ASK, letter(client, other)["id"], client.consumer)
    with pytest.raises(Exception, match=LOST):
        client.apply(message, hang)
    with pytest.raises(Exception, match=LOST):
        type(client)().redrive(hang)
    assert limits == ["1min", "1min"]
    client = type(client)()
    counted = "SELECT count(*) FROM inbox_attempt WHERE consumer = %s AND message_id = %s"
    assert query(counted, client.consumer, message.id) == 0, "it is not the message's failure"
    assert client.apply(message) == "new"
    assert client.redrive()
    assert (invoices(number), invoices(number + 1)) == (1, 1)


def test_a_handler_that_always_fails_becomes_a_dead_letter(client: Client) -> None:
    message = placed(order())

    def fail(tx: Any, message: Message) -> None:
        raise RuntimeError("the printer burns")

    outcomes = [client.apply(message, fail) for _ in range(billing.ATTEMPTS_MAX + 1)]
    assert outcomes == ["again"] * (billing.ATTEMPTS_MAX - 1) + ["poison", "dead_letter"]
    found = letter(client, message)
    assert (found["reason"], found["attempts"], found["key"]) == ("poison", billing.ATTEMPTS_MAX, "ann")
    assert "the printer burns" in found["error"]


def test_a_refused_message_becomes_a_dead_letter(client: Client) -> None:
    message = placed(order())
    assert client.apply(message) == "new"
    other = Message("orders", b"{}", message.id, "order.placed", "application/json", "ann", "/orders")
    assert client.apply(other) == "key_reused"
    assert letter(client, message)["reason"] == "key_reused"
    old = Message("orders", b"{}", derived_id(1_000, "old"), "order.placed")
    assert client.apply(old) == "too_old"
    payload = placed(order()).payload
    cancelled = Message("orders", payload, placed(order()).id, "order.cancelled", "application/json", "ann")
    assert client.apply(cancelled) == "rejected", "a topic may have several kinds"
    chunk = read("orders", BasicProperties(headers={"cloudEvents_chunkindex": "0"}), b"part")
    assert client.apply(chunk) == "malformed"


def test_what_a_peer_writes_does_not_stop_the_consumer(client: Client) -> None:
    unknown = f"customer {order()}"

    def fail(tx: Any, message: Message) -> None:
        raise Reject("no such\0" + unknown)

    for name, value in (("cloudEvents_time", "yesterday"), ("cloudEvents_subject", LONG), ("na\0me", "a\0b")):
        headers = {"cloudEvents_id": str(placed(order()).id), name: value}
        bad = read("orders", BasicProperties(headers=headers), b"{}")
        assert client.apply(bad, fail) == "rejected"
    stored = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = %s AND error LIKE %s"
    assert query(stored, client.consumer, f"no such\ufffd{unknown}%") == 3
    assert client.apply(placed(order())) == "new"


def test_a_redrive_takes_effect_once(client: Client) -> None:
    number = order()
    customer = f"customer-{number}"
    message = placed(number, customer=customer)
    query("INSERT INTO blocked_customer VALUES (%s)", customer)
    assert client.apply(message) == "rejected"
    query(ASK, letter(client, message)["id"], client.consumer)
    assert client.redrive()
    assert letter(client, message)["resolution"] is None, "the handler refuses it again"
    query("DELETE FROM blocked_customer WHERE name = %s", customer)
    query(ASK, letter(client, message)["id"], client.consumer)
    assert client.redrive()
    assert not client.redrive()
    assert letter(client, message)["resolution"] == "applied"
    assert client.apply(message) == "duplicate"
    assert invoices(number) == 1
    old = Message("orders", b"{}", derived_id(1_000, "old"), "order.placed")
    assert client.apply(old) == "too_old"
    query(ASK, letter(client, old)["id"], client.consumer)
    assert client.redrive()
    outcome = "SELECT outcome FROM inbox_audit WHERE dead_letter = %s ORDER BY seq DESC LIMIT 1"
    assert query(outcome, letter(client, old)["id"]) == "it is refused: too_old"
    assert not client.redrive()


def test_a_redrive_that_ends_its_process_is_given_up(client: Client) -> None:
    message = placed(order(), customer=f"customer-{order()}")
    query("INSERT INTO blocked_customer VALUES (%s)", message.key)
    assert client.apply(message) == "rejected"
    query("DELETE FROM blocked_customer WHERE name = %s", message.key)
    query(ASK, letter(client, message)["id"], client.consumer)
    for _ in range(5):
        with pytest.raises(Exception, match=LOST):
            client.redrive(killing(client))
        client = type(client)()
    assert not client.redrive(), "the next process goes on"
    outcome = query("SELECT outcome FROM inbox_audit WHERE dead_letter = %s", letter(client, message)["id"])
    assert outcome.startswith("five processes ended")
    assert letter(client, message)["resolution"] is None
    query(ASK, letter(client, message)["id"], client.consumer)
    assert client.redrive(), "an operator may ask again"
    assert letter(client, message)["resolution"] == "applied"


def spelled(id: str) -> list[UUID | None]:
    """What is read of an id in a header, and in the property."""
    places = BasicProperties(headers={"cloudEvents_id": id}), BasicProperties(message_id=id)
    return [read("orders", place, b"").id for place in places]


def test_the_shared_vectors_hold(client: Client) -> None:
    for vector in VECTORS["derived_ids"]:
        assert str(derived_id(vector["milliseconds"], *vector["parts"])) == vector["id"]
    for vector in VECTORS["fingerprints"]:
        payload = base64.b64decode(vector["payload_base64"])
        print_ = query(
            "SELECT encode(inbox_fingerprint(%s, %s, %s), 'hex')",
            vector["kind"],
            vector["content_type"],
            payload,
        )
        assert print_ == vector["sha256"]
    ids = VECTORS["message_ids"]
    for vector in ids["accepted"]:
        assert spelled(vector["id"]) == [UUID(vector["canonical"])] * 2, vector["id"]
    for vector in ids["not_ids"]:
        assert spelled(vector["id"]) == [None] * 2, vector["why"]
    for vector in ids["refused"]:
        message = Message("orders", b"", UUID(vector["id"]), "order.placed")
        assert client.apply(message) == "malformed"
    for wire in VECTORS["wires"]:
        sent, form = wire["message"], wire["rabbitmq"]
        names = ("message_id", "type", "content_type", "timestamp", "delivery_mode", "headers")
        properties = BasicProperties(**{name: form[name] for name in names})
        message = read(form["routing_key"], properties, base64.b64decode(sent["payload_base64"]))
        if "chunk" in sent:
            assert message.id is None and "chunk" in message.problem
            continue
        assert (str(message.id), message.kind, message.topic) == (sent["id"], sent["kind"], sent["topic"])
        assert (message.key, message.source, message.made_at) == (sent["key"], sent["source"], sent["time"])
        trace = {name: sent[name] for name in ("traceparent", "tracestate") if sent[name]}
        assert message.headers == sent["headers"] | trace
    assert len(VECTORS["deliveries"]) > 30
    for vector in VECTORS["deliveries"]:
        form, expected = vector["rabbitmq"], vector["message"]
        given = ("message_id", "type", "content_type", "headers")
        properties = BasicProperties(**{name: form[name] for name in given if name in form})
        message = read(form["routing_key"], properties, form["body"].encode())
        if expected is None:
            assert (message.id, message.payload) == (None, form["body"].encode()), vector["why"]
            assert message.problem, vector["why"]
            continue
        assert (str(message.id), message.problem) == (expected["id"], ""), vector["why"]
        assert (message.kind, message.key) == (expected["kind"], expected["key"]), vector["why"]
        origin = (expected["source"], expected["content_type"])
        assert (message.source, message.content_type) == origin, vector["why"]
        payload = base64.b64decode(expected["payload_base64"])
        assert (message.payload, message.headers) == (payload, expected["headers"]), vector["why"]
    assert len(VECTORS["no_orders"]) > 10
    for vector in VECTORS["no_orders"]:
        message = replace(placed(order()), payload=vector["payload"].encode())
        assert client.apply(message) == "rejected", vector["why"]
    count = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = %s AND payload = %s"
    payload = str(order()).encode()
    for vector in VECTORS["unreadable"]:
        form = vector["rabbitmq"]
        properties = BasicProperties(headers=form["headers"], message_id=form.get("message_id"))
        message = read(form["routing_key"], properties, payload)
        assert (message.id, message.headers) == (None, vector["dead_letter_headers"]), vector["why"]
        assert [client.apply(message) for _ in range(2)] == ["malformed"] * 2
    assert query(count, client.consumer, payload) == len(VECTORS["unreadable"]) > 5, "each is its own"
