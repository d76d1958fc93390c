"""Bills orders that a relay posts: a webhook in Python, with the inbox of `billing.py` behind it.

    DATABASE_URL=postgres://… SECRET_FILE=webhook-secret PORT=8090 python webhook.py

A proxy in front of it ends TLS. Each request has a connection to the database of its own: in a service
with much traffic, take it from a pool.
"""

import base64
import hashlib
import hmac
import os
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import psycopg

from billing import IMPATIENT, Connection, Handler, bill, maintain, take_effect
from message import CHUNK, Message, Reject, clean, is_event, open_event, read_id

BYTES_MAX = 16 << 20
TOLERANCE_SECONDS = 300
# No statement takes as long as `request_timeout_ms` of the relay, which is 10 s by default.
LIMITS = IMPATIENT | {"connect_timeout": 3, "options": "-c statement_timeout=8s"}


def is_signed(headers: Mapping[str, str], body: bytes, secrets: list[str]) -> bool:
    """Whether one of the secrets signed the request, within five minutes (Standard Webhooks).

    Names of headers are in lower case.
    """
    sent_at = headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > TOLERANCE_SECONDS:
        return False
    signed = f"{headers.get('webhook-id', '')}.{sent_at}.".encode() + body
    given = [part.encode() for part in headers.get("webhook-signature", "").split()]
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        wanted = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
        if any(hmac.compare_digest(wanted, signature) for signature in given):
            return True
    return False


def read(headers: Mapping[str, str], body: bytes) -> Message:
    """Reads a CloudEvent from a request, in binary or structured mode."""
    events = {name[3:]: clean(unquote(value)) for name, value in headers.items() if name.startswith("ce-")}
    content_type, payload = clean(headers.get("content-type", "application/octet-stream")), body
    try:
        if is_event(content_type) and "id" not in events:
            # Only the body is signed: it says everything, and other headers nothing.
            events, _, payload = open_event(body)
            content_type = events.get("datacontenttype", "application/octet-stream")
        if CHUNK & events.keys():
            raise ValueError("a chunk of a larger message")
        if "" in (events.get("type"), events.get("source")):
            raise ValueError("its type or its source is empty")
        # Only this id is signed. With another one, a request that was sent once could be sent again.
        message_id = read_id(events.get("id", ""))
        if headers.get("webhook-id") != str(message_id):
            raise ValueError("its id is not the signed one")
        topic = events.get("topic", "orders")
        origin = (events.get("subject") or None, events.get("source", "/unknown"), events.get("time"))
        return Message(topic, payload, message_id, events.get("type", topic), content_type, *origin)
    except (ValueError, TypeError, RecursionError) as error:
        return Message(events.get("topic", "orders"), body, problem=clean(error))


def receive(connection: Connection, message: Message, handler: Handler) -> tuple[int, str]:
    """Has the effect of a message once. Returns the status that says what became of it, and why."""
    if message.id is None:
        return 422, message.problem
    try:
        verdict = take_effect(connection, message, handler)
    except Reject as refusal:
        return 422, clean(refusal)  # The relay makes it a dead letter.
    except Exception as failure:
        # Without a database no message can be handled: the topic pauses. Otherwise only its key waits.
        return (503 if connection.broken else 500), clean(repr(failure))
    answers = {"new": 204, "duplicate": 200, "dead_letter": 200}
    return answers.get(verdict, 422), f"the inbox says {verdict}"


def answer(headers: Mapping[str, str], body: bytes, handler: Handler) -> tuple[int, str]:
    try:
        # Read each time: a secret that is added or removed counts from the next request on.
        words = Path(os.environ["SECRET_FILE"]).read_text().split()
        secrets = [word for word in words if word.startswith("whsec_")]
        if not secrets:
            return 503, "SECRET_FILE has no secret"
        if not is_signed(headers, body, secrets):
            return 401, "no valid signature, or its time is not now"
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, **LIMITS) as connection:
            return receive(connection, read(headers, body), handler)
    except (OSError, ValueError, psycopg.OperationalError) as failure:
        return 503, clean(failure)  # No message can be handled now: the topic pauses.


def server(address: tuple[str, int], handler: Handler) -> ThreadingHTTPServer:
    class Endpoint(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # Connections are kept.
        timeout = 60

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            # Without either, there is no body.
            length = headers.get("content-length", "" if "transfer-encoding" in headers else "0")
            if length.isdecimal() and len(length) < 10 and int(length) <= BYTES_MAX:
                status, why = answer(headers, self.rfile.read(int(length)), handler)
            else:
                self.close_connection = True
                status, why = 413, f"a body of {length or 'unknown'} bytes"
            self.send_response(status)
            if status != 204:
                self.send_header("content-length", "0")
            self.end_headers()
            print(headers.get("webhook-id"), status, why, file=sys.stderr, flush=True)

        def log_message(self, format: str, *arguments: object) -> None:
            """A request has its line already."""

    return ThreadingHTTPServer(address, Endpoint)


def maintain_hourly() -> None:
    while True:
        time.sleep(3600)
        try:
            with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, **IMPATIENT) as connection:
                maintain(connection)
        except psycopg.Error as error:
            print(f"the inbox was not maintained: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, **IMPATIENT) as database:
        maintain(database)
    threading.Thread(target=maintain_hourly, daemon=True).start()
    server(("127.0.0.1", int(os.environ.get("PORT", "8090"))), bill).serve_forever()
