"""One pipeline through every client: Python enqueues, the relay publishes to RabbitMQ, and a consumer
in each language applies every message once, although its process is killed in the middle of a
handler again and again and the relay sends every message a second time. Before that, each consumer
is started on a database that refuses work, and on an older schema.

    python pipeline.py databases NAME…   creates a database for the tests of each client
    python pipeline.py run               runs the pipeline, and prints `ok` or `not ok` for each promise

Environment: OUTBOX_POSTGRES_URL, OUTBOX_RABBITMQ_URL, RELAY (the program), CLIENTS_BUILD (a folder
with the program `billing-go`; logs are written there). The other clients are built in their folders.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pika
import psycopg
from psycopg.sql import SQL, Identifier

CLIENTS = Path(__file__).parent.parent
sys.path.insert(0, str(CLIENTS / "python"))
from billing import QUEUE, place_order  # noqa: E402
from message import derived_id  # noqa: E402

BUILD = Path(os.environ["CLIENTS_BUILD"])
RELAY = os.environ["RELAY"]
ROUNDS = 3
ORDERS_AT_ONCE = 40
CUSTOMERS = [f"customer-{number}" for number in range(20)]
BLOCKED = CUSTOMERS[0]
PATIENCE_SECONDS = 300
STARTS = 3
UNAPPLIED = 20  # More than a consumer takes at once.


def commands() -> dict[str, list[str]]:
    """The program of each consumer."""
    java = CLIENTS / "java" / "target"
    classes = f"{java / 'classes'}:{(java / 'classpath').read_text().strip()}"
    return {
        "python": [sys.executable, str(CLIENTS / "python" / "billing.py")],
        "sqlalchemy": [sys.executable, str(CLIENTS / "python" / "billing_sqlalchemy.py")],
        "typescript": ["node", str(CLIENTS / "typescript" / "dist" / "billing.js")],
        "go": [str(BUILD / "billing-go")],
        "jdbc": ["java", "-Xmx128m", "-cp", classes, "billing.JdbcBilling"],
        "spring": ["java", "-Xmx128m", "-cp", classes, "billing.SpringBilling"],
    }


def database_url(name: str, scheme: str = "postgres") -> str:
    parts = urlsplit(os.environ["OUTBOX_POSTGRES_URL"])
    return urlunsplit((scheme, parts.netloc, f"/clients_{name}", parts.query, ""))


def create_database(name: str) -> None:
    """Creates a database with the tables of outbox, inbox and business. Replaces one of this name."""
    with psycopg.connect(os.environ["OUTBOX_POSTGRES_URL"], autocommit=True) as admin:
        database = Identifier(f"clients_{name}")
        admin.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database))
        admin.execute(SQL("CREATE DATABASE {}").format(database))
    environment = os.environ | {"RELAY_DATABASE_URL": database_url(name)}
    up = [RELAY, "migrate", "up", "--line", "outbox", "--line", "inbox"]
    subprocess.run(up, env=environment, check=True, stdout=subprocess.DEVNULL)
    with psycopg.connect(database_url(name), autocommit=True) as connection:
        connection.execute((CLIENTS / "tables.sql").read_bytes())


def eventually(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_SECONDS} s for {what}")
        time.sleep(0.1)


class Consumer:
    """A consumer in one language: its process, its database and its queue."""

    def __init__(self, language: str, command: list[str], run: str) -> None:
        self.language, self.command = language, command
        self.name = f"billing-{language}-{run}"
        create_database(f"pipeline_{language}")
        self.url = database_url(f"pipeline_{language}")
        self.database = psycopg.connect(self.url, autocommit=True)
        self.log = BUILD / f"{language}.log"
        self.log.write_bytes(b"")
        self.kills = 0
        self.exit_code: int | None = None
        self.counted: list[str] = []
        self.older: list[str] = []

    def start(self) -> None:
        self.process = self.spawn(self.name, self.log)

    def spawn(self, name: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts a process that consumes the queue of this name."""
        scheme = "postgresql+psycopg" if self.language == "sqlalchemy" else "postgres"
        environment = os.environ | {
            "CONSUMER": name,
            "DATABASE_URL": database_url(f"pipeline_{self.language}", scheme),
            "RABBITMQ_URL": os.environ["OUTBOX_RABBITMQ_URL"],
        }
        with log.open("ab") as output:
            return subprocess.Popen(self.command, env=environment, stdout=output, stderr=output)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self.database.execute(sql.encode(), values).fetchall()

    def ends(self, name: str, log: Path) -> bool:
        """Whether a process ends by itself, with an error."""
        process = self.spawn(name, log)
        try:
            return process.wait(PATIENCE_SECONDS / 10) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False

    def meet_an_older_schema(self, name: str) -> None:
        """Starts a process on a schema without a function that it calls, as before an upgrade. It has to
        end, and to name the function."""
        log = BUILD / f"{self.language}-older.log"
        log.write_bytes(b"")
        self.database.execute("ALTER FUNCTION inbox_maintain(date, integer) RENAME TO inbox_not_yet")
        if not self.ends(name, log):
            self.older.append("a process went on")
        self.database.execute("ALTER FUNCTION inbox_not_yet(date, integer) RENAME TO inbox_maintain")
        if "inbox_maintain" not in log.read_text():
            self.older.append(f"the missing function is not named in {log}")

    def meet_a_refusal(self, broker: pika.BlockingConnection) -> None:
        """Starts processes on a database that permits logins and no change, like one that is no longer
        the primary, and one on an older schema. They have to end, and RabbitMQ must not have counted a
        delivery: it drops a message after some. Afterwards they do their work."""
        name, log = f"{self.name}-refused", BUILD / f"{self.language}-refused.log"
        log.write_bytes(b"")
        channel = broker.channel()
        channel.queue_declare(name, durable=True, arguments=QUEUE)
        payload = json.dumps({"order": 0, "customer": BLOCKED, "cents": 0}).encode()
        for number in range(UNAPPLIED):
            message = derived_id(time.time_ns() // 1_000_000, name, str(number))
            headers = {"cloudEvents_id": str(message), "cloudEvents_type": "order.placed"}
            properties = pika.BasicProperties(
                headers=headers, delivery_mode=2, content_type="application/json"
            )
            channel.basic_publish("", name, payload, properties)
        database = Identifier(f"clients_pipeline_{self.language}")
        self.database.execute(
            SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(database)
        )
        for _ in range(STARTS):
            if not self.ends(name, log):
                self.counted.append("a process went on")
        self.database.execute(SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(database))
        self.meet_an_older_schema(name)
        taker = broker.channel()
        arrived = 0
        for method, _, _ in taker.consume(name, inactivity_timeout=PATIENCE_SECONDS / 10):
            arrived += method is not None
            if method is None or method.redelivered:
                self.counted.append(f"a delivery was counted, or is gone: {method}")
            if method is None or arrived == UNAPPLIED:
                break
        taker.close()
        process = self.spawn(name, log)
        refused = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = %s AND reason = 'rejected'"
        try:
            eventually(
                f"the messages in {self.language}", lambda: self.query(refused, name) == [(UNAPPLIED,)]
            )
        finally:
            process.kill()
            process.wait()
            channel.queue_delete(name)
            channel.close()

    def kill_in_the_middle(self, place_orders: Callable[[], None]) -> None:
        """Kills the process while a handler has admitted a message and waits to write its invoice."""
        waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with psycopg.connect(self.url) as blocker:
            blocker.execute("LOCK TABLE invoice IN ACCESS EXCLUSIVE MODE")
            place_orders()
            eventually(f"a handler in {self.language}", lambda: len(self.query(waits)) > 0)
            self.process.kill()
            self.process.wait()
        self.kills += 1
        self.start()

    def lose_the_session(self, place_orders: Callable[[], None]) -> None:
        """Ends the sessions of the process while a handler waits, as a restart of the server does.
        The process has to end by itself, with an error."""
        waits = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with psycopg.connect(self.url) as blocker:
            blocker.execute("LOCK TABLE invoice IN ACCESS EXCLUSIVE MODE")
            place_orders()
            eventually(f"a handler in {self.language}", lambda: len(self.query("SELECT " + waits)) > 0)
            self.query("SELECT pg_terminate_backend(pid) " + waits)
            try:
                self.exit_code = self.process.wait(PATIENCE_SECONDS / 10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.start()

    def applied(self) -> int:
        sql = "SELECT count(*) FROM inbox_message WHERE consumer = %s AND dead_letter IS NULL"
        return int(self.query(sql, self.name)[0][0])

    def dead(self) -> int:
        sql = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = %s AND resolution IS NULL"
        return int(self.query(sql, self.name)[0][0])

    def has_applied(self, messages: int) -> bool:
        return self.applied() >= messages

    def has_all(self, messages: int) -> bool:
        return self.applied() + self.dead() >= messages

    def outcomes(self, outcome: str) -> int:
        return sum(line.endswith(f" {outcome}") for line in self.log.read_text().splitlines())


def configuration(consumers: list[Consumer], run: str) -> Path:
    text = f"""
[[pipeline]]
name = "orders"
[pipeline.database]
url = "{database_url("pipeline_orders")}"
allow_plaintext = true
[pipeline.rabbitmq]
url = "{os.environ["OUTBOX_RABBITMQ_URL"]}"
exchange = "clients-{run}"
"""
    for consumer in consumers:
        text += f"""
[[verify.inbox]]
consumer = "{consumer.name}"
url = "{consumer.url}"
allow_plaintext = true
effects = "SELECT message_id FROM invoice"
"""
    path = BUILD / "relay.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def relay(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [RELAY, *arguments],
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(f"$ relay {' '.join(arguments)}\n{done.stdout}", flush=True)
    return done


def produce(connection: psycopg.Connection[Any], orders: range, committed: dict[str, int]) -> None:
    """Places orders, some of which are rolled back. Notes the id of each message that committed."""
    for order in orders:
        customer, is_kept = random.choice(CUSTOMERS), order % 7 != 0
        with connection.transaction(force_rollback=not is_kept):
            message = place_order(connection, order, customer, order * 100)
        if is_kept:
            committed[str(message)] = order


def check(consumer: Consumer, committed: dict[str, int]) -> dict[str, str]:
    """Returns each promise that was checked, and what contradicts it, or an empty text."""
    invoices = consumer.query("SELECT message_id::text, order_id, customer FROM invoice ORDER BY id")
    ids = [row[0] for row in invoices]
    of_customers: dict[str, list[int]] = {customer: [] for customer in CUSTOMERS}
    for _, order, customer in invoices:
        of_customers[customer].append(order)
    unordered = [
        name for name, orders in of_customers.items() if name != BLOCKED and orders != sorted(orders)
    ]
    sql = (
        "SELECT convert_from(payload, 'UTF8')::jsonb ->> 'order' FROM outbox_message WHERE topic = 'invoices'"
    )
    events = sorted(int(row[0]) for row in consumer.query(sql))
    lost, twice = set(committed) - set(ids), len(ids) - len(set(ids))
    wrong = {id for id, order, _ in invoices if committed.get(id) != order}
    duplicates = consumer.outcomes("duplicate")
    faults = {
        "every_message_has_one_effect": lost or twice or wrong,
        "the_order_of_keys_is_kept": unordered,
        "events_of_handlers_commit_with_their_effects": events != sorted(committed.values()),
        "handlers_were_killed_and_messages_came_again": consumer.kills < ROUNDS
        or duplicates < len(committed) / 2,
        "a_database_that_refuses_counts_no_delivery": consumer.counted,
        "an_older_schema_ends_the_process": consumer.older,
        "a_lost_session_ends_the_process": not consumer.exit_code and f"exit code {consumer.exit_code}",
        "dead_letters_were_redriven": consumer.outcomes("rejected") == 0 or consumer.dead() > 0,
    }
    return {name: f"{fault} (see {consumer.log})" if fault else "" for name, fault in faults.items()}


def run() -> bool:
    run = f"{time.time_ns() // 1_000_000:x}"
    create_database("pipeline_orders")
    consumers = [Consumer(language, command, run) for language, command in commands().items()]
    config = configuration(consumers, run)
    parameters = pika.URLParameters(os.environ["OUTBOX_RABBITMQ_URL"])
    parameters.heartbeat = 0  # It is idle for minutes.
    channel = pika.BlockingConnection(parameters).channel()
    channel.exchange_declare(f"clients-{run}", "direct", durable=True)
    for consumer in consumers:
        channel.queue_declare(consumer.name, durable=True, arguments=QUEUE)
        channel.queue_bind(consumer.name, f"clients-{run}", "orders")
        consumer.database.execute("INSERT INTO blocked_customer VALUES (%s)", [BLOCKED])
        consumer.meet_a_refusal(channel.connection)
        consumer.start()
    committed: dict[str, int] = {}
    with (BUILD / "relay.log").open("wb") as log:
        publishing = subprocess.Popen([RELAY, "run", "--config", str(config)], stdout=log, stderr=log)
    try:
        with psycopg.connect(database_url("pipeline_orders"), autocommit=True) as orders:
            for part, consumer in enumerate(consumers * ROUNDS):
                numbers = range(part * ORDERS_AT_ONCE, (part + 1) * ORDERS_AT_ONCE)
                consumer.kill_in_the_middle(partial(produce, orders, numbers, committed))
            for part, consumer in enumerate(consumers, start=len(consumers) * ROUNDS):
                numbers = range(part * ORDERS_AT_ONCE, (part + 1) * ORDERS_AT_ONCE)
                consumer.lose_the_session(partial(produce, orders, numbers, committed))
        for consumer in consumers:
            eventually(f"all messages in {consumer.language}", partial(consumer.has_all, len(committed)))
        # Every message once more: none may have an effect.
        again = relay(
            "replay", "--all", "--yes", "--note", "a test", "--actor", "pipeline", "--config", str(config)
        )
        assert again.returncode == 0, again.stdout
        for consumer in consumers:
            consumer.database.execute("DELETE FROM blocked_customer")
            requeue = (
                "dead",
                "requeue",
                "--consumer",
                consumer.name,
                "--yes",
                "--actor",
                "pipeline",
                "--note",
                "paid",
            )
            done = relay(*requeue, RELAY_INBOX_URL=consumer.url)
            assert done.returncode == 0, done.stdout
        for consumer in consumers:
            eventually(f"the redrives in {consumer.language}", partial(consumer.has_applied, len(committed)))
            eventually(f"an empty queue of {consumer.language}", partial(is_empty, channel, consumer.name))
        verified = relay("verify", "--config", str(config), "--grace", "5s")
    finally:
        publishing.terminate()
        for consumer in consumers:
            consumer.process.kill()
            consumer.process.wait()
        publishing.wait()
        for consumer in consumers:
            channel.queue_delete(consumer.name)
        channel.exchange_delete(f"clients-{run}")
    promises = {
        f"pipeline/{consumer.language}/{name}": fault
        for consumer in consumers
        for name, fault in check(consumer, committed).items()
    }
    is_proven = verified.returncode == 0
    promises["pipeline/relay_verify_finds_nothing"] = "" if is_proven else f"exit code {verified.returncode}"
    for name, fault in promises.items():
        print(f"not ok {name}: {fault}" if fault else f"ok {name}")
    print(json.dumps({"messages": len(committed), "kills": sum(consumer.kills for consumer in consumers)}))
    return not any(promises.values())


def is_empty(channel: Any, queue: str) -> bool:
    return int(channel.queue_declare(queue, passive=True).method.message_count) == 0


if __name__ == "__main__":
    if sys.argv[1] == "databases":
        for name in sys.argv[2:]:
            create_database(name)
    else:
        sys.exit(0 if run() else 1)
