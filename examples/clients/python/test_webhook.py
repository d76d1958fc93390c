"""The webhook keeps what it promises, on the database of DATABASE_URL."""

import base64
import hashlib
import hmac
import http.client
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

import billing
import webhook
from billing import Connection
from message import Message, Reject, derived_id
from test_clients import invoices, order, query

KEY = secrets.token_bytes(32)


class Receiver:
    """A receiver on a port of its own, and the relay's part: signed requests."""

    def __init__(self) -> None:
        self.server = webhook.server(("127.0.0.1", 0), self.handle)
        self.handler: billing.Handler = billing.bill
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def handle(self, connection: Connection, message: Message) -> None:
        self.handler(connection, message)

    def post(
        self,
        number: int,
        id: UUID,
        *,
        key: bytes = KEY,
        at: float = 0,
        body: bytes | None = None,
        **changed: str | None,
    ) -> int:
        if body is None:
            body = json.dumps({"order": number, "customer": "ann", "cents": 1250}).encode()
        sent_at = str(int(at or time.time()))
        signed = f"{id}.{sent_at}.".encode() + body
        mac = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        headers: dict[str, str | None] = {
            "webhook-id": str(id),
            "webhook-timestamp": sent_at,
            "webhook-signature": f"v1,eA== v1,{mac}",
        }
        headers |= {"ce-id": str(id), "ce-type": "order.placed", "ce-topic": "orders", "ce-source": "/orders"}
        headers |= {"content-type": "application/json"} | {n.replace("_", "-"): v for n, v in changed.items()}
        sent = {name: value for name, value in headers.items() if value is not None}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        connection.request("POST", "/orders", body, sent)
        status = connection.getresponse().status
        connection.close()
        return status


def fresh(number: int) -> UUID:
    return derived_id(time.time_ns() // 1_000_000, f"order-{number}")


@pytest.fixture(params=["webhook"])
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    secret = tmp_path / "secret"
    other = base64.b64encode(secrets.token_bytes(32)).decode()
    secret.write_text(f"# new\nwhsec_{other}\nwhsec_{base64.b64encode(KEY).decode()}\n")
    monkeypatch.setenv("SECRET_FILE", str(secret))
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        billing.maintain(connection)
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def test_a_repeated_request_has_one_effect(receiver: Receiver) -> None:
    number = order()
    id = fresh(number)
    assert [receiver.post(number, id) for _ in range(3)] == [204, 200, 200]
    assert invoices(number) == 1
    assert receiver.post(number + 1, id) == 422, "another content under this id"
    assert receiver.post(number, derived_id(1_000, "old")) == 422, "older than the inbox remembers"
    assert invoices(number) == 1


def test_what_is_no_order_is_refused_for_good(receiver: Receiver) -> None:
    wrong = [b"", b"\x00\xff", b"{}", b"[]", b"1", b"[" * 100_000]
    for customer, cents in [(b"null", b"1"), (b'"ada"', b"12.9"), (b'"ada"', b"true"), (b'"ada"', b"1e999")]:
        wrong.append(b'{"order":1,"customer":%b,"cents":%b}' % (customer, cents))
    wrong.append(b'{"order":9223372036854775808,"customer":"ada","cents":1}')
    for body in wrong:
        assert receiver.post(order(), fresh(order()), body=body) == 422


def test_only_what_was_signed_has_an_effect(receiver: Receiver) -> None:
    number = order()
    id = fresh(number)
    assert receiver.post(number, id, key=b"another one") == 401
    assert receiver.post(number, id, at=time.time() - 400) == 401
    assert receiver.post(number, id, webhook_timestamp="now") == 401
    assert receiver.post(number, id, webhook_signature="") == 401
    assert receiver.post(number, id, ce_id=str(fresh(number + 1))) == 422
    assert receiver.post(number, id, ce_chunkindex="0") == 422
    assert receiver.post(number, id, ce_chunkcount="2") == 422
    assert receiver.post(number, id, ce_id="") == 422
    assert receiver.post(number, id, ce_type="") == 422
    assert invoices(number) == 0
    assert receiver.post(number, id) == 204
    assert receiver.post(number, id, ce_id=f"{{{id}}}".upper()) == 200, "the same id in another spelling"


def test_an_event_in_the_body_says_everything(receiver: Receiver) -> None:
    number = order()
    id = fresh(number)
    event: dict[str, object] = {
        "specversion": "1.0",
        "id": str(id),
        "source": "/orders",
        "type": "order.placed",
        "topic": "orders",
        "data": {"order": number, "customer": "ann", "cents": 1250},
    }

    def post(event: dict[str, object], kind: str) -> int:
        body = json.dumps(event).encode()
        form = "application/cloudevents+json; charset=utf-8"
        return receiver.post(number, id, body=body, content_type=form, ce_id=None, ce_type=kind)

    assert post(event | {"id": str(fresh(number + 1))}, "order.placed") == 422, "it is not the signed one"
    assert post(event | {"type": "order.cancelled"}, "order.placed") == 422, "the header is not signed"
    assert invoices(number) == 0
    assert [post(event, "order.cancelled") for _ in range(2)] == [204, 200]
    assert invoices(number) == 1


def test_a_failure_leaves_nothing_and_says_whose_it_is(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = order()
    id = fresh(number)

    def swallow(connection: Connection, message: Message) -> None:
        billing.bill(connection, message)
        try:
            connection.execute("SELECT 1 / 0")
        except psycopg.Error:
            pass

    def roll_back(connection: Connection, message: Message) -> None:
        billing.bill(connection, message)
        connection.execute("ROLLBACK")

    def raise_rollback(connection: Connection, message: Message) -> None:
        billing.bill(connection, message)
        raise psycopg.Rollback

    def die(connection: Connection, message: Message) -> None:
        billing.bill(connection, message)
        query("SELECT pg_terminate_backend(%s, 10000)", connection.info.backend_pid)

    def reject(connection: Connection, message: Message) -> None:
        raise Reject("no such customer")

    handlers: list[tuple[Any, int]] = [(swallow, 500), (roll_back, 500), (raise_rollback, 500)]
    for handler, status in handlers + [(die, 503), (reject, 422)]:
        receiver.handler = handler
        assert receiver.post(number, id) == status
        assert invoices(number) == 0
    receiver.handler = billing.bill
    with monkeypatch.context() as patch:
        patch.setenv("DATABASE_URL", "postgres://127.0.0.1:1/nowhere")
        assert receiver.post(number, id) == 503
    with monkeypatch.context() as patch:
        patch.setenv("SECRET_FILE", "/nowhere")
        assert receiver.post(number, id) == 503
    assert receiver.post(number, id) == 204
    assert invoices(number) == 1


def test_attributes_are_decoded(receiver: Receiver) -> None:
    id = fresh(1)
    headers = {
        "webhook-id": str(id),
        "ce-id": str(id),
        "ce-subject": "J%C3%BCrgen%20%25",
        "ce-type": "order.placed",
    }
    message = webhook.read(headers, b"{}")
    assert (message.id, message.key, message.kind) == (id, "Jürgen %", "order.placed")
    assert message.content_type == "application/octet-stream"
