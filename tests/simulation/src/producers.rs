//! Producers: their transactions overlap, and commit in a different order from that of their rows.

use std::sync::Arc;
use std::time::Duration;

use checker::{Enqueued, Operation, Outcome};
use message::{EventType, Message, MessageId, OrderingKey, Topic};
use tokio::time::Instant;

use crate::fleet::OVERSIZE;
use crate::inbox::content;
use crate::schedule::{Defect, Draft, Ending, Schedule, Transaction};
use crate::world::{EPOCH, World};

/// Runs all transactions of the schedule, and returns the operations for the checker.
pub(crate) async fn produce(world: Arc<World>, schedule: Schedule) -> Vec<Operation> {
    let start = world.lock().start;
    let mut steps = steps(&schedule);
    steps.sort_by_key(|step| step.at);
    let mut operations: Vec<Operation> = (0..schedule.transactions.len())
        .map(|index| Operation { id: Arc::from(format!("transaction {index}")), ..Operation::default() })
        .collect();
    let mut rows: Vec<Vec<i64>> = vec![Vec::new(); operations.len()];
    // The history in which each transaction began: it ends with that history.
    let mut histories = vec![0; operations.len()];
    for (tick, step) in (0..).zip(steps) {
        tokio::time::sleep_until(start + Duration::from_millis(step.at.into())).await;
        let operation = &mut operations[step.transaction];
        let mut state = world.lock();
        match step.act {
            Act::Begin => {
                operation.started = Some(tick);
                histories[step.transaction] = state.outbox.history;
            }
            Act::Enqueue(_) if histories[step.transaction] != state.outbox.history => {}
            Act::End(_) if histories[step.transaction] != state.outbox.history => {
                (operation.outcome, operation.ended) = (Outcome::Failed, Some(tick));
            }
            Act::Enqueue(draft) => {
                let Some(message) = message(draft, start, schedule.seed) else { continue };
                state.names.insert(message.id, (draft.number, draft.defect));
                operation.messages.push(Enqueued {
                    id: message.id.as_uuid(),
                    seq: None,
                    out_of_turn: draft.deliver_after.is_some(),
                    content: content(&message),
                });
                let deliver_at =
                    draft.deliver_after.map(|after| Instant::now() + Duration::from_millis(after.into()));
                rows[step.transaction].push(state.outbox.insert(message, deliver_at));
            }
            Act::End(ending) => {
                let rows = &rows[step.transaction];
                let is_committed = matches!(ending, Ending::Committed | Ending::Unknown { committed: true });
                if is_committed {
                    state.outbox.commit(rows);
                } else {
                    state.outbox.roll_back(rows);
                }
                state.note(format_args!("{} ends: {ending:?}, rows {rows:?}", operation.id));
                operation.outcome = match ending {
                    Ending::Committed => Outcome::Ok,
                    Ending::RolledBack => Outcome::Failed,
                    Ending::Unknown { .. } => Outcome::Unknown,
                };
                operation.ended = (operation.outcome != Outcome::Unknown).then_some(tick);
            }
        }
    }
    operations
}

struct Step<'a> {
    at: u32,
    transaction: usize,
    act: Act<'a>,
}

enum Act<'a> {
    Begin,
    Enqueue(&'a Draft),
    End(Ending),
}

fn steps(schedule: &Schedule) -> Vec<Step<'_>> {
    fn of_one((transaction, plan): (usize, &Transaction)) -> Vec<Step<'_>> {
        let step = |at, act| Step { at, transaction, act };
        let mut steps = vec![step(plan.begins_at, Act::Begin)];
        steps.extend(plan.messages.iter().map(|draft| step(draft.enqueued_at, Act::Enqueue(draft))));
        steps.push(step(plan.ends_at, Act::End(plan.ending)));
        steps
    }
    schedule.transactions.iter().enumerate().flat_map(of_one).collect()
}

fn message(draft: &Draft, start: Instant, seed: u64) -> Option<Message> {
    let Draft { number, key, topic, defect, .. } = draft;
    // The schedule would reach a nearer time and accept the message.
    let days = Duration::from_secs(2 * 86_400);
    let ahead = if *defect == Defect::FromTheFuture { days } else { Duration::ZERO };
    let generated_at = EPOCH + start.elapsed() + ahead;
    let id = MessageId::derived(generated_at, [seed.to_be_bytes(), u64::from(*number).to_be_bytes()]).ok()?;
    let topic = Topic::new(format!("t{topic}")).ok()?;
    let payload = match defect {
        Defect::Oversize => vec![b'x'; OVERSIZE],
        _ => format!("m{number}").into_bytes(),
    };
    let mut message = Message::new(topic, EventType::new("simulated").ok()?, payload).with_id(id);
    message.time = generated_at;
    if let Some(key) = key {
        message = message.with_key(OrderingKey::new(format!("k{key}")).ok()?);
    }
    Some(message)
}
