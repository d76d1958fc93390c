//! Rows of every size: at a limit, above it, and larger than the relay's memory bound.

use std::collections::BTreeSet;
use std::sync::Arc;

use message::{
    EventType, HEADER_VALUE_BYTES_MAX, HEADERS_MAX, Message, OrderingKey, Source, TEXT_BYTES_MAX, Topic,
};
use outbox_log::admin::{self, ChosenEntry, Decision, LogAdmin, OperatorDecision};
use outbox_log::{EntryId, ExceptionState, LogOptions, RelayName};
use sqlx::{Postgres, Sqlite};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};

tests::cases! { "{case}/{on}":
    postgres rabbitmq {
        rows_of_every_size_leave_or_are_dead = rows_of_every_size_leave_or_are_dead::<Postgres>,
    }
    sqlite kafka_mock {
        rows_of_every_size_leave_or_are_dead = rows_of_every_size_leave_or_are_dead::<Sqlite>,
    }
    night postgres rabbitmq {
        a_row_larger_than_memory_costs_its_own_key = a_row_larger_than_memory_costs_its_own_key::<Postgres>,
        small_headers_are_counted_as_what_they_take,
    }
    night sqlite kafka_mock {
        a_row_larger_than_memory_costs_its_own_key = a_row_larger_than_memory_costs_its_own_key::<Sqlite>,
    }
}

const RELAY: &str = "orders";
/// Payload of a row written with plain SQL, in bytes.
pub(crate) const PAYLOAD_BYTES: u64 = 150 << 20;
/// Maximum memory of a process in bytes: less than one copy of that payload.
pub(crate) const MEMORY_BYTES: u64 = 96 << 20;

/// The limit in [`rows_of_every_size_leave_or_are_dead`]. It is small, so that a payload a hundred
/// times as large is still quick.
const LIMIT_BYTES: usize = 32 << 10;

/// A row written with plain SQL, named by its key.
struct Row {
    key: String,
    /// A column besides topic, key and payload.
    column: Option<(&'static str, String)>,
    payload_bytes: usize,
    expected: Expected,
}

/// The expected outcome of a row.
enum Expected {
    Leaves,
    /// Dead with an error that contains this text.
    Dead(String),
    /// Parked until it is due.
    Waits,
    /// Refused by the database with an error that contains this text.
    Refused(&'static str),
}

impl Row {
    fn of(key: impl Into<String>, expected: Expected) -> Self {
        Self { key: key.into(), column: None, payload_bytes: 1, expected }
    }

    fn with(key: &str, column: &'static str, value: String, expected: Expected) -> Self {
        Self { column: Some((column, value)), ..Self::of(key, expected) }
    }

    fn with_payload(key: &str, payload_bytes: usize, expected: Expected) -> Self {
        Self { payload_bytes, ..Self::of(key, expected) }
    }

    fn statement<DB: Dialect>(&self, topic: &str) -> String {
        let (column, value) = self.column.as_ref().map_or(("kind", "NULL"), |(name, value)| (*name, value));
        let value = if value == "NULL" { String::from(value) } else { format!("'{value}'") };
        let payload = "0".repeat(self.payload_bytes);
        let payload = match DB::NAME {
            "SQLite" => format!("CAST('{payload}' AS BLOB)"),
            _ => format!("convert_to('{payload}', 'UTF8')"),
        };
        let key = &self.key;
        format!(
            "INSERT INTO outbox_message (topic, key, {column}, payload) VALUES ('{topic}', '{key}', {value}, {payload})"
        )
    }
}

/// Returns rows at each limit of a row, just above it, and a hundred times above it.
fn rows(topic: &str) -> Result<Vec<Row>, Failure> {
    use Expected::{Dead, Leaves, Refused};
    let dead = |text: &str| Dead(text.to_owned());
    let text = |bytes| "x".repeat(bytes);
    let value = |bytes| format!(r#"{{"h":"{}"}}"#, text(bytes));
    let name = |bytes| format!(r#"{{"{}":"v"}}"#, text(bytes));
    let many = |count| {
        let headers: Vec<_> = (0..count).map(|n| format!(r#""{n:03x}":"""#)).collect();
        format!("{{{}}}", headers.join(","))
    };
    // The largest payload that fits beside the envelope.
    let key = "payload at the limit";
    let mut message = Message::new(Topic::new(topic)?, EventType::new(topic)?, "")
        .with_key(OrderingKey::new(key)?)
        .with_content_type(message::ContentType::json());
    message.source = Source::new(format!("/{RELAY}"))?;
    let largest = LIMIT_BYTES - message.wire_bytes();
    Ok(vec![
        Row::with_payload("payload of nothing", 0, Leaves),
        Row::with_payload(key, largest, Leaves),
        Row::with_payload(
            "payload above limits",
            largest + 1,
            Dead(format!("has {} bytes", LIMIT_BYTES + 1)),
        ),
        Row::with_payload("payload far above", 100 * LIMIT_BYTES, dead("a payload of 3276800 bytes; ")),
        Row::with("value at the limit", "headers", value(HEADER_VALUE_BYTES_MAX), Leaves),
        Row::with(
            "value above",
            "headers",
            value(HEADER_VALUE_BYTES_MAX + 1),
            dead("has 8193 bytes; the limit is 8192"),
        ),
        Row::with("value far above", "headers", value(100 * HEADER_VALUE_BYTES_MAX), dead("headers of 8192")),
        Row::with(
            "name of nothing",
            "headers",
            name(0),
            dead("header name is empty; give it 1 to 255 bytes"),
        ),
        Row::with("name at the limit", "headers", name(TEXT_BYTES_MAX), Leaves),
        Row::with("name above", "headers", name(TEXT_BYTES_MAX + 1), dead("has 256 bytes; the limit is 255")),
        Row::with(
            "name far above",
            "headers",
            name(100 * TEXT_BYTES_MAX),
            dead("has 25500 bytes; the limit is 255"),
        ),
        Row::with("headers at the limit", "headers", many(HEADERS_MAX), Leaves),
        Row::with(
            "headers above",
            "headers",
            many(HEADERS_MAX + 1),
            dead("there are more than 1000 headers"),
        ),
        Row::with("headers far above", "headers", many(100 * HEADERS_MAX), dead("bytes as JSON; ")),
        Row::with("kind at the limit", "kind", text(TEXT_BYTES_MAX), Leaves),
        Row::with("kind above", "kind", text(TEXT_BYTES_MAX + 1), Refused("kind_has_1_to_255_bytes")),
        Row::with("type at the limit", "content_type", text(TEXT_BYTES_MAX), Leaves),
        Row::with(
            "type above",
            "content_type",
            text(TEXT_BYTES_MAX + 1),
            Refused("content_type_has_1_to_255_bytes"),
        ),
        Row::with("parent far above", "traceparent", text(5_500), Leaves),
        Row::with("state far above", "tracestate", text(100 * HEADER_VALUE_BYTES_MAX), Leaves),
        Row::of(text(TEXT_BYTES_MAX), Leaves),
        Row::of(text(TEXT_BYTES_MAX + 1), Refused("key_has_1_to_255_bytes")),
        Row::of(text(100 * TEXT_BYTES_MAX), Refused("key_has_1_to_255_bytes")),
        Row::of("", Refused("key_has_1_to_255_bytes")),
        Row::of("neighbour", Leaves),
    ])
}

/// Returns rows with the earliest and the latest times.
fn times<DB: Dialect>() -> Vec<Row> {
    use Expected::{Dead, Leaves, Refused, Waits};
    let time = |year: &str, micros: i64| match DB::NAME {
        "SQLite" => micros.to_string(),
        _ => format!("{year}-01-01T00:00:00Z"),
    };
    let (first, last) = (time("1970", 0), time("9999", 253_370_764_800_000_000));
    let before = time("1969", -31_536_000_000_000);
    let id = |millis: &str| format!("{millis}-7000-8000-000000000001");
    vec![
        Row::with("enqueued in 1970", "enqueued_at", first.clone(), Leaves),
        Row::with("enqueued in 9999", "enqueued_at", last.clone(), Leaves),
        Row::with("enqueued before", "enqueued_at", before.clone(), Refused("enqueued_at_is_finite")),
        Row::with("due since 1970", "deliver_at", first, Leaves),
        Row::with("due in 9999", "deliver_at", last, Waits),
        Row::with("due before", "deliver_at", before, Refused("deliver_at_is_finite")),
        Row::with("made in 1970", "message_id", id("00000000-0000"), Leaves),
        Row::with("made in 10889", "message_id", id("ffffffff-ffff"), Dead(String::from("9999"))),
    ]
}

/// Goal: G7, a row written with plain SQL is published or is dead with a reason, whatever the size
/// of each part and whatever its times, and blocks only its own key. Oracle: the records that a
/// plain client finds in the topic, with their lengths; the errors of the other rows state length
/// and limit; the peak of the relay's memory.
async fn rows_of_every_size_leave_or_are_dead<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let topic = &workload.topic;
    let rows: Vec<Row> = rows(topic)?.into_iter().chain(times::<DB>()).collect();
    for row in &rows {
        let stored = workload.database.execute(&row.statement::<DB>(topic)).await;
        match (&row.expected, stored) {
            (Expected::Refused(limit), Err(failure)) => {
                assert!(failure.to_string().contains(limit), "{}: {failure}", row.key);
            }
            (Expected::Refused(limit), Ok(())) => panic!("{} passed {limit}", row.key),
            (_, stored) => stored?,
        }
    }
    let long =
        workload.database.execute(&Row::of("any", Expected::Leaves).statement::<DB>(&"t".repeat(256))).await;
    assert!(long.is_err_and(|failure| failure.to_string().contains("topic_has_1_to_255_bytes")));

    let url = workload.database.relay_url()?;
    let more = format!("message_bytes_max = {LIMIT_BYTES}\n");
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), &more)?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    let leaves = rows.iter().filter(|row| matches!(row.expected, Expected::Leaves));
    let mut expected: Vec<_> = leaves.map(|row| (row.key.clone(), row.payload_bytes)).collect();
    let records = workload.broker.drain(topic, expected.len()).await?;
    let subject = |record: &harness::plain::PlainRecord| {
        let mut headers = record.headers.iter();
        let subject = headers.find(|(name, _)| name.ends_with("subject"));
        subject.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let mut found: Vec<_> = records.iter().map(|record| (subject(record), record.payload.len())).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);

    let admin = admin::open(url.as_str(), Source::new("/test")?, LogOptions::default())?;
    let reasons: Vec<_> = rows
        .iter()
        .filter_map(
            |row| if let Expected::Dead(text) = &row.expected { Some((&row.key, text)) } else { None },
        )
        .collect();
    let name = RelayName::new(RELAY)?;
    let dead = eventually("the others are dead", || async {
        let dead = admin.list(&name, ExceptionState::Dead, EntryId(0), 100).await?;
        Ok((dead.len() >= reasons.len()).then_some(dead))
    })
    .await?;
    for entry in &dead {
        let (key, error) = (entry.key.clone().unwrap_or_default(), entry.error.clone().unwrap_or_default());
        let reason = reasons.iter().find(|(row, _)| **row == key).map(|(_, text)| text.as_str());
        assert!(reason.is_some_and(|text| error.contains(text)), "{key}: {error}, and not {reason:?}");
        assert!(error.len() < 500, "{key}: {error}");
    }
    assert_eq!(dead.len(), reasons.len());
    check(&mut relay)?;
    relay.stop().await
}

/// Goal: for the memory bound, headers of a few bytes count as much as the memory that they occupy.
/// Oracle: the kernel's peak while a thousand rows with the maximum number of headers wait for
/// their topic, and all of them arrive in the end.
async fn small_headers_are_counted_as_what_they_take(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    const ROWS: usize = 1_000;
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let topic = &workload.topic;
    workload
        .database
        .execute(&format!(
            "INSERT INTO outbox_message (topic, key, headers, payload)
             SELECT '{topic}', 'key-' || n, headers, '' FROM generate_series(1, {ROWS}) AS n,
                (SELECT jsonb_object_agg('h' || h, '') AS headers FROM generate_series(1, {HEADERS_MAX}) AS h) AS many"
        ))
        .await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    // On a busy machine the relay may lose its lease and publish unstored messages again.
    let mut ids = BTreeSet::new();
    while ids.len() < ROWS {
        ids.extend(workload.broker.drain(topic, 1).await?.into_iter().map(|record| record.message_id));
    }
    // More than `MEMORY_BYTES`: headers of a few bytes take more memory than the lengths that bound
    // them. A batch ends at 2 MiB of JSON, in which a header has 11 bytes here. Decoded, it takes
    // 28, and up to three batches are in memory. The window counts all 28. RabbitMQ's client adds
    // its tables, with up to 256 bytes for a header, of several windows of 8 MiB. The highest peak
    // that was measured, beside other cases, is 127 MiB.
    let peak = relay.memory_peak()?;
    assert!(peak < 160 << 20, "the relay took {} MiB", peak >> 20);
    relay.stop().await
}

/// Goal: G7 and the memory bound. A row written with plain SQL that is far larger than any message
/// blocks only its own key, even when it is scheduled, when an operator requeues it, and when
/// another relay takes over. Oracle: the effect of another key; the dead row with length and limit;
/// the kernel's peak of the relay's memory, below one copy of the payload.
async fn a_row_larger_than_memory_costs_its_own_key<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let (payload, due) = match DB::NAME {
        "SQLite" => {
            (format!("zeroblob({PAYLOAD_BYTES})"), "CAST(unixepoch('subsec') * 1000000 + 1000000 AS INTEGER)")
        }
        _ => (
            format!("convert_to(repeat('0', {PAYLOAD_BYTES}), 'UTF8')"),
            "clock_timestamp() + interval '1 s'",
        ),
    };
    let topic = &workload.topic;
    let columns = "INSERT INTO outbox_message (topic, key, payload, deliver_at)";
    for values in
        [format!("('{topic}', 'large', {payload}, NULL)"), format!("('{topic}', 'later', {payload}, {due})")]
    {
        workload.database.execute(&format!("{columns} VALUES {values}")).await?;
    }
    workload.place("small").await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let consumer = workload.consume().await?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    workload.applied(1).await?;
    let admin = admin::open(url.as_str(), Source::new("/test")?, LogOptions::default())?;
    dead(admin.as_ref(), 1).await?;
    check(&mut relay)?;

    // The key of the large row waits behind it. The requeued row is read again from the parked
    // rows.
    workload.place("large").await?;
    decide(admin.as_ref(), EntryId(1), Decision::Requeue).await?;
    dead(admin.as_ref(), 2).await?;
    workload.place("small").await?;
    workload.applied(2).await?;
    check(&mut relay)?;

    // A successor reads the parked rows.
    relay.stop().await?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    workload.place("small").await?;
    workload.applied(3).await?;
    for id in [1, 2] {
        decide(admin.as_ref(), EntryId(id), Decision::Discard).await?;
    }
    workload.settled().await?;
    check(&mut relay)?;
    consumer.stop().await?;
    relay.stop().await
}

/// Waits until this many rows are dead after their last requeue, each with its length and the
/// limit.
async fn dead(admin: &dyn LogAdmin, count: usize) -> Outcome {
    let name = RelayName::new(RELAY)?;
    let dead = eventually("the rows are dead", || async {
        let dead = admin.list(&name, ExceptionState::Dead, EntryId(0), 10).await?;
        Ok((dead.len() >= count).then_some(dead))
    })
    .await?;
    for entry in dead {
        let error = entry.error.unwrap_or_default();
        assert!(error.contains(&format!("a payload of {PAYLOAD_BYTES} bytes")), "{error}");
        assert!(
            error.contains("message_bytes_max) takes at most") || error.contains("payload_bytes_max) takes"),
            "{error}"
        );
        assert_eq!(entry.payload_bytes, PAYLOAD_BYTES);
    }
    Ok(())
}

async fn decide(admin: &dyn LogAdmin, id: EntryId, decision: Decision) -> Outcome {
    let (actor, note) = (String::from("test"), String::from("a test"));
    let decree = OperatorDecision { decision, signature: outbox::Signature::new(actor, note) };
    let name = RelayName::new(RELAY)?;
    let dead = admin.list(&name, ExceptionState::Dead, EntryId(id.0 - 1), 1).await?;
    let chosen = ChosenEntry::from(dead.first().ok_or("it is not dead")?);
    for verdict in admin.decide(&name, &[chosen], decree).await? {
        verdict?;
    }
    Ok(())
}

/// Checks that the relay runs, and that its peak memory is below the size of one payload.
fn check(relay: &mut RelayProcess) -> Result<(), Failure> {
    assert!(relay.has_ended()?.is_none(), "the relay has ended: {}", relay.log()?);
    let peak = relay.memory_peak()?;
    assert!(peak < MEMORY_BYTES, "the relay took {} MiB", peak >> 20);
    Ok(())
}
