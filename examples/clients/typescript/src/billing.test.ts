// The client keeps what it promises, on the database of DATABASE_URL.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import {
  apply,
  ATTEMPTS_MAX,
  bill,
  CONSUMER,
  maintain,
  placeOrder,
  redrive,
  transaction,
  type Handler,
} from "./billing.js";
import { derivedId, read, Reject, type Message } from "./message.js";

const vectors = JSON.parse(readFileSync(new URL("../../vectors.json", import.meta.url), "utf8"));

async function connect(): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: process.env["DATABASE_URL"] });
  client.on("error", () => undefined);
  await client.connect();
  return client;
}

const admin = await connect();
const client = await connect();
await maintain(client);
after(() => Promise.all([admin.end(), client.end()]));

let last = Date.now() * 1000;
/** A number that no other test has used. */
const order = () => (last += 1);

function placed(number: number, customer = "ann"): Message {
  return {
    topic: "orders",
    payload: Buffer.from(JSON.stringify({ order: number, customer, cents: 1250 })),
    id: derivedId(Date.now(), [`order-${number}`]),
    kind: "order.placed",
    contentType: "application/json",
    key: customer,
    source: "/orders",
    madeAt: null,
    headers: {},
    problem: "",
  };
}

async function query(sql: string, ...values: unknown[]): Promise<unknown> {
  const { rows } = await admin.query<unknown[]>({ text: sql, values, rowMode: "array" });
  return rows[0]?.[0];
}

const invoices = async (number: number) =>
  Number(await query("SELECT count(*) FROM invoice WHERE order_id = $1", number));
const messages = async (topic: string, number: number) =>
  Number(
    await query(
      "SELECT count(*) FROM outbox_message WHERE topic = $1 AND convert_from(payload, 'UTF8')::jsonb ->> 'order' = $2",
      topic,
      String(number),
    ),
  );
const letter = async (message: Message) =>
  (await query(
    "SELECT to_jsonb(d) FROM inbox_dead_letter AS d WHERE consumer = $1 AND message_id = $2",
    CONSUMER,
    message.id,
  )) as Record<string, unknown>;

test("an_enqueue_commits_with_its_transaction", async () => {
  const [kept, lost] = [order(), order()];
  await transaction(client, () => placeOrder(client, kept, "ann", 1250));
  const failing = transaction(client, async () => {
    await placeOrder(client, lost, "ann", 1250);
    throw new Error("no stock");
  });
  await assert.rejects(failing, /no stock/);
  assert.equal(await messages("orders", kept), 1);
  assert.equal(await messages("orders", lost), 0);
  assert.equal(await query("SELECT id FROM orders WHERE id = $1", lost), undefined);
});

test("a_redelivery_has_one_effect", async () => {
  const number = order();
  const message = placed(number);
  assert.equal(await apply(client, message, bill), "new");
  assert.equal(await apply(client, message, bill), "duplicate");
  assert.equal(await invoices(number), 1);
  assert.equal(await messages("invoices", number), 1);
});

/** A handler that has its effect, and then loses its connection. */
const kill: Handler = async (tx, message) => {
  await bill(tx, message);
  const { rows } = await tx.query("SELECT pg_backend_pid() AS pid");
  await query("SELECT pg_terminate_backend($1, 10000)", rows[0].pid);
};

test("a_handler_that_is_killed_leaves_nothing", async () => {
  const number = order();
  const message = placed(number);
  const doomed = await connect();
  await assert.rejects(apply(doomed, message, kill));
  assert.equal(await invoices(number), 0);
  assert.equal(await apply(client, message, bill), "new");
  assert.equal(await invoices(number), 1);
});

test("a_swallowed_error_is_a_failure", async () => {
  const message = placed(order());
  const swallow = async (tx: pg.Client) => void (await tx.query("SELECT 1 / 0").catch(() => undefined));
  assert.equal(await apply(client, message, swallow), "again");
  assert.equal(await apply(client, message, bill), "new");
});

const ask = `INSERT INTO inbox_audit (actor, note, action, dead_letter, consumer)
  VALUES ('ann', 'prices are back', 'redrive', $1, $2)`;

/** Handlers that have their effect, end their transaction, and return. */
const ending = (...statements: string[]): Handler => {
  return async (tx, message) => {
    await bill(tx, message);
    for (const statement of statements) await tx.query(statement);
  };
};
const endings = [ending("ROLLBACK"), ending("ROLLBACK", "BEGIN")];

test("a_transaction_that_a_handler_ends_is_a_failure", async () => {
  const failed = "SELECT last_error FROM inbox_attempt WHERE consumer = $1 AND message_id = $2";
  for (const handler of endings) {
    const number = order();
    const message = placed(number);
    assert.equal(await apply(client, message, handler), "again");
    assert.match(String(await query(failed, CONSUMER, message.id)), /To undo an effect/);
    assert.equal(await invoices(number), 0);
    assert.equal(await apply(client, message, bill), "new");
    assert.equal(await invoices(number), 1);
  }
  const givenUp = placed(order());
  for (let attempt = 1; attempt < ATTEMPTS_MAX; attempt++) {
    assert.equal(await apply(client, givenUp, ending("ROLLBACK")), "again");
  }
  assert.equal(await apply(client, givenUp, ending("ROLLBACK")), "poison");

  // What it has committed has taken effect, and nothing more of the message will.
  const number = order();
  const message = placed(number);
  assert.equal(await apply(client, message, ending("COMMIT")), "again");
  assert.match(String(await query(failed, CONSUMER, message.id)), /leaves COMMIT to its caller/);
  assert.equal(await apply(client, message, bill), "duplicate");
  assert.equal(await invoices(number), 1);
});

test("a_redrive_whose_handler_ends_its_transaction_fails", async () => {
  const number = order();
  const message = placed(number);
  assert.equal(await apply(client, message, () => Promise.reject(new Reject("no"))), "rejected");
  for (const handler of endings) {
    await query(ask, (await letter(message))["id"], CONSUMER);
    assert.ok(await redrive(client, handler));
    const outcome = "SELECT outcome FROM inbox_audit WHERE dead_letter = $1 ORDER BY seq DESC LIMIT 1";
    assert.match(String(await query(outcome, (await letter(message))["id"])), /To undo an effect/);
    assert.equal((await letter(message))["resolution"], null);
    assert.equal(await invoices(number), 0);
  }
  await query(ask, (await letter(message))["id"], CONSUMER);
  assert.ok(await redrive(client, bill));
  assert.equal(await invoices(number), 1);
});

test("a_handler_that_hangs_loses_its_session", async () => {
  const limits: unknown[] = [];
  const hang: Handler = async (tx, message) => {
    const { rows } = await tx.query(
      "SELECT pg_backend_pid() AS pid, current_setting('idle_in_transaction_session_timeout') AS idle",
    );
    limits.push(rows[0].idle);
    await tx.query("SET LOCAL idle_in_transaction_session_timeout = '1ms'");
    while (await query("SELECT pid FROM pg_stat_activity WHERE pid = $1", rows[0].pid)) await sleep(10);
    await bill(tx, message);
  };
  const number = order();
  const [message, other] = [placed(number), placed(order())];
  assert.equal(await apply(client, other, () => Promise.reject(new Reject("no"))), "rejected");
  await query(ask, (await letter(other))["id"], CONSUMER);
  await assert.rejects(apply(await connect(), message, hang));
  await assert.rejects(redrive(await connect(), hang));
  assert.deepEqual(limits, ["1min", "1min"]);
  const counted = "SELECT attempts FROM inbox_attempt WHERE consumer = $1 AND message_id = $2";
  assert.equal(await query(counted, CONSUMER, message.id), undefined, "it is not the message's failure");
  assert.equal(await apply(client, message, bill), "new");
  assert.ok(await redrive(client, bill));
  assert.equal(await invoices(number), 1);
});

test("a_handler_that_always_fails_becomes_a_dead_letter", async () => {
  const message = placed(order());
  const fail = () => Promise.reject(new Error("the printer burns"));
  for (let attempt = 1; attempt < ATTEMPTS_MAX; attempt++) {
    assert.equal(await apply(client, message, fail), "again");
  }
  assert.equal(await apply(client, message, fail), "poison");
  assert.equal(await apply(client, message, fail), "dead_letter");
  const { reason, attempts, error, key } = await letter(message);
  assert.deepEqual([reason, attempts, key], ["poison", ATTEMPTS_MAX, "ann"]);
  assert.match(String(error), /the printer burns/);
});

test("a_refused_message_becomes_a_dead_letter", async () => {
  const message = placed(order());
  assert.equal(await apply(client, message, bill), "new");
  assert.equal(await apply(client, { ...message, payload: Buffer.from("{}") }, bill), "key_reused");
  assert.equal((await letter(message))["reason"], "key_reused");
  assert.equal(await apply(client, { ...message, id: derivedId(1_000, ["old"]) }, bill), "too_old");
  const cancelled = { ...placed(order()), kind: "order.cancelled" };
  assert.equal(await apply(client, cancelled, bill), "rejected", "a topic may have several kinds");
  const chunk = read("orders", { headers: { cloudEvents_chunkindex: "0" } } as never, Buffer.from("part"));
  assert.equal(await apply(client, chunk, bill), "malformed");
});

test("what_a_peer_writes_does_not_stop_the_consumer", async () => {
  // No index of PostgreSQL takes this key, even compressed.
  const long = Array.from({ length: 5_000 }, (_, at) => String.fromCharCode(0x4e00 + ((at * 7919) % 20_000)));
  const unknown = `customer ${order()}`;
  const fail = () => Promise.reject(new Reject(`no such\0${unknown}`));
  const parts = [
    { cloudEvents_time: "yesterday" },
    { cloudEvents_subject: long.join("") },
    { "na\0me": "a\0b" },
  ];
  for (const part of parts) {
    const headers = { cloudEvents_id: placed(order()).id, ...part };
    const bad = read("orders", { headers } as never, Buffer.from("{}"));
    assert.equal(await apply(client, bad, fail), "rejected");
  }
  const stored = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = $1 AND error LIKE $2";
  assert.equal(Number(await query(stored, CONSUMER, `%no such\ufffd${unknown}%`)), 3);
  assert.equal(await apply(client, placed(order()), bill), "new");
});

test("a_redrive_that_ends_its_process_is_given_up", async () => {
  const message = placed(order());
  const id = async () => (await letter(message))["id"];
  assert.equal(await apply(client, message, () => Promise.reject(new Reject("no"))), "rejected");
  await query(ask, await id(), CONSUMER);
  for (let process = 1; process <= 5; process++) await assert.rejects(redrive(await connect(), kill));
  assert.ok(!(await redrive(client, bill)), "the next process goes on");
  const outcome = await query("SELECT outcome FROM inbox_audit WHERE dead_letter = $1", await id());
  assert.match(String(outcome), /^five processes ended/);
  assert.equal((await letter(message))["resolution"], null);
  await query(ask, await id(), CONSUMER);
  assert.ok(await redrive(client, bill), "an operator may ask again");
  assert.equal((await letter(message))["resolution"], "applied");
});

test("a_redrive_takes_effect_once", async () => {
  const number = order();
  const message = placed(number, `customer-${number}`);
  await query("INSERT INTO blocked_customer VALUES ($1)", message.key);
  assert.equal(await apply(client, message, bill), "rejected");
  await query(ask, (await letter(message))["id"], CONSUMER);
  assert.ok(await redrive(client, bill));
  assert.equal((await letter(message))["resolution"], null);
  await query("DELETE FROM blocked_customer WHERE name = $1", message.key);
  await query(ask, (await letter(message))["id"], CONSUMER);
  assert.ok(await redrive(client, bill));
  assert.ok(!(await redrive(client, bill)));
  assert.equal((await letter(message))["resolution"], "applied");
  assert.equal(await apply(client, message, bill), "duplicate");
  assert.equal(await invoices(number), 1);
  const old = { ...message, id: derivedId(1_000, ["old"]) };
  assert.equal(await apply(client, old, bill), "too_old");
  await query(ask, (await letter(old))["id"], CONSUMER);
  assert.ok(await redrive(client, bill));
  const outcome = "SELECT outcome FROM inbox_audit WHERE dead_letter = $1 ORDER BY seq DESC LIMIT 1";
  assert.equal(await query(outcome, (await letter(old))["id"]), "it is refused: too_old");
  assert.ok(!(await redrive(client, bill)));
});

/** The properties of a delivery, as the vectors name them. */
interface Form {
  headers?: Record<string, string>;
  message_id?: string;
  content_type?: string;
  type?: string;
}

const propertiesOf = (form: Form) => ({
  headers: form.headers,
  messageId: form.message_id,
  contentType: form.content_type,
  type: form.type,
});

/** What is read of an id in a header, and in the property. */
function spelled(id: string): (string | null)[] {
  const places: Form[] = [{ headers: { cloudEvents_id: id } }, { message_id: id }];
  return places.map((form) => read("orders", propertiesOf(form), Buffer.alloc(0)).id);
}

test("the_shared_vectors_hold", async () => {
  for (const { milliseconds, parts, id } of vectors.derived_ids) {
    assert.equal(derivedId(milliseconds, parts), id);
  }
  for (const { kind, content_type, payload_base64, sha256 } of vectors.fingerprints) {
    const print = "SELECT encode(inbox_fingerprint($1, $2, $3), 'hex')";
    assert.equal(await query(print, kind, content_type, Buffer.from(payload_base64, "base64")), sha256);
  }
  for (const { id, canonical } of vectors.message_ids.accepted) {
    assert.deepEqual(spelled(id), [canonical, canonical], id);
  }
  for (const { id, why } of vectors.message_ids.not_ids) {
    assert.deepEqual(spelled(id), [null, null], why);
  }
  for (const { id } of vectors.message_ids.refused) {
    assert.equal(await apply(client, { ...placed(order()), id }, bill), "malformed");
  }
  for (const { message: sent, rabbitmq: form } of vectors.wires) {
    const found = read(form.routing_key, propertiesOf(form), Buffer.from(sent.payload_base64, "base64"));
    if (sent.chunk) {
      assert.match(found.problem, /chunk/);
      continue;
    }
    assert.deepEqual([found.id, found.kind, found.topic], [sent.id, sent.kind, sent.topic]);
    assert.deepEqual([found.key, found.source, found.madeAt], [sent.key, sent.source, sent.time]);
    const trace = ["traceparent", "tracestate"]
      .filter((name) => sent[name])
      .map((name) => [name, sent[name]]);
    assert.deepEqual(found.headers, { ...sent.headers, ...Object.fromEntries(trace) });
  }
  assert.ok(vectors.deliveries.length > 30);
  for (const { rabbitmq: form, message: expected, why } of vectors.deliveries) {
    const found = read(form.routing_key, propertiesOf(form), Buffer.from(form.body));
    if (expected === null) {
      assert.deepEqual([found.id, found.payload.toString()], [null, form.body], why);
      assert.notEqual(found.problem, "", why);
      continue;
    }
    const { payload_base64, content_type: contentType, ...others } = expected;
    const { id, kind, key, source, headers } = found;
    assert.deepEqual({ id, kind, key, source, headers }, others, why);
    const parts = [found.payload.toString("base64"), found.contentType, found.problem];
    assert.deepEqual(parts, [payload_base64, contentType, ""], why);
  }
  assert.ok(vectors.no_orders.length > 10);
  for (const { payload, why } of vectors.no_orders) {
    const message = { ...placed(order()), payload: Buffer.from(payload) };
    assert.equal(await apply(client, message, bill), "rejected", why);
  }
  const payload = Buffer.from(String(order()));
  for (const { rabbitmq: form, dead_letter_headers: headers, why } of vectors.unreadable) {
    const found = read(form.routing_key, propertiesOf(form), payload);
    assert.deepEqual([found.id, found.headers], [null, headers], why);
    for (let delivery = 1; delivery <= 2; delivery++)
      assert.equal(await apply(client, found, bill), "malformed");
  }
  assert.ok(vectors.unreadable.length > 5);
  const count = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = $1 AND payload = $2";
  const letters = Number(await query(count, CONSUMER, payload));
  assert.equal(letters, vectors.unreadable.length, "each is its own");
});
