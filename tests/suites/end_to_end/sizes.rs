//! Rows that are larger than the relay itself may be.

use std::sync::Arc;

use outbox::admin::{self, ChosenEntry, Decision, LogAdmin, OperatorDecision};
use outbox::log::{EntryId, ExceptionState, LogOptions, RelayName};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};

const RELAY: &str = "orders";
/// The payload of a row of plain SQL.
const PAYLOAD_BYTES: u64 = 150 << 20;
/// Less than one copy of it.
const MEMORY_BYTES: u64 = 96 << 20;

/// Goal: G7 and the bound of memory, a row of plain SQL that is far larger than any message costs
/// its own key only, also when it is scheduled, when an operator requeues it, and when another
/// relay takes over. Oracle: the effect of another key; the row among the dead with length and
/// limit; the kernel's peak of the relay's memory, below one copy of the payload.
pub(crate) async fn a_row_larger_than_memory_costs_its_own_key<DB: Dialect>(
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
    let admin = admin::open(url.as_str(), message::Source::new("/test")?, LogOptions::default())?;
    dead(admin.as_ref(), 1).await?;
    check(&mut relay)?;

    // Behind it, its key waits; the requeued one is read again from where it is parked.
    workload.place("large").await?;
    decide(admin.as_ref(), EntryId(1), Decision::Requeue).await?;
    dead(admin.as_ref(), 2).await?;
    workload.place("small").await?;
    workload.applied(2).await?;
    check(&mut relay)?;

    // A successor reads what is parked.
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

/// Waits until so many rows are dead after their last requeue, each with its length and the limit.
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
    let decree = OperatorDecision { decision, actor, note, selection: None };
    let name = RelayName::new(RELAY)?;
    let dead = admin.list(&name, ExceptionState::Dead, EntryId(id.0 - 1), 1).await?;
    let chosen = ChosenEntry::from(dead.first().ok_or("it is not dead")?);
    for verdict in admin.decide(&name, &[chosen], decree).await? {
        verdict?;
    }
    Ok(())
}

/// The relay runs, and never had room for one of the payloads.
fn check(relay: &mut RelayProcess) -> Result<(), Failure> {
    assert!(relay.has_ended()?.is_none(), "the relay has ended: {}", relay.log()?);
    let peak = relay.memory_peak()?;
    assert!(peak < MEMORY_BYTES, "the relay took {} MiB", peak >> 20);
    Ok(())
}
