#!/usr/bin/env python3
"""Sends one request many times at once, and counts the outcomes.

The client knows nothing of the toolkit and uses only Python's standard library. It starts the example `orders_api`:

    storm.py PROGRAM --rounds 1000 --clients 100

DATABASE_URL names an empty PostgreSQL database. Exits with 1 if a promise was broken.
"""

import argparse
import collections
import http.client
import json
import os
import subprocess
import sys
import threading
import time

PATIENCE_SECONDS = 30


class Service:
    """The example service, on a free port."""

    def __init__(self, program):
        environment = dict(os.environ, LISTEN="127.0.0.1:0")
        environment.pop("OUTBOX_CRASH_POINTS", None)
        self.process = subprocess.Popen([program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on http://"):
            sys.exit(f"the service did not start: {line!r}")
        self.address = line.strip().removeprefix("listening on http://")

    def end(self):
        self.process.kill()
        self.process.wait()


class Answer(collections.namedtuple("Answer", "status replayed body retry_after")):
    pass


def send(connection, key, body, tenant="tenant-1"):
    headers = {"Authorization": f"Bearer {tenant}", "Content-Type": "application/json", "Idempotency-Key": f'"{key}"'}
    connection.request("POST", "/orders", body=body, headers=headers)
    response = connection.getresponse()
    replayed = response.getheader("Idempotency-Replayed") == "true"
    return Answer(response.status, replayed, response.read(), response.getheader("Retry-After"))


def count(address):
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    connection.request("GET", "/")
    orders, messages = connection.getresponse().read().decode().split(", ")
    return int(orders.split()[0]), int(messages.split()[0])


def rounds(arguments):
    """Sends the same request with the same key from all clients at the same moment, in every round."""
    service = Service(arguments.program)
    before, _ = count(service.address)
    start = threading.Barrier(arguments.clients)
    answers = [[None] * arguments.clients for _ in range(arguments.rounds)]

    def client(number):
        connection = http.client.HTTPConnection(service.address, timeout=300)
        for index in range(arguments.rounds):
            start.wait()
            answers[index][number] = send(connection, f"{os.getpid()}-{index}", json.dumps({"cents": index}))

    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(arguments.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    total = collections.Counter()
    broken = 0
    for answers_of_round in answers:
        kinds = collections.Counter()
        bodies = set()
        for answer in answers_of_round:
            if answer.status == 201:
                kinds["replayed" if answer.replayed else "executed"] += 1
                bodies.add(answer.body)
            elif answer.status == 409 and answer.retry_after:
                kinds["in flight"] += 1
            else:
                kinds[f"status {answer.status}"] += 1
        total += kinds
        if kinds["executed"] != 1 or len(bodies) != 1 or set(kinds) - {"executed", "replayed", "in flight"}:
            broken += 1
            print(f"broken round: {dict(kinds)}, {len(bodies)} different bodies")
    orders, messages = count(service.address)
    service.end()
    print(f"{arguments.rounds} rounds of {arguments.clients} requests in {took:.0f} s: {dict(total)}")
    print(f"{orders - before} orders, {messages - before} messages, {broken} broken rounds")
    return broken == 0 and orders - before == messages - before == arguments.rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=100)
    arguments = parser.parse_args()
    sys.exit(0 if rounds(arguments) else 1)


if __name__ == "__main__":
    main()
