//! Carries the faults out when they are due.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outbox_log::ExceptionState;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fault::{Decision, FaultKind, Moment};
use crate::fleet::Fleet;
use crate::process::ProcessId;
use crate::schedule::{MISSING, Schedule};
use crate::world::{State, World, pass};

/// Injects all faults. Returns the tasks that resume paused processes.
pub(crate) async fn harm(world: &Arc<World>, schedule: &Schedule, fleet: &Fleet) -> JoinSet<()> {
    let start = world.lock().start;
    let mut pauses = JoinSet::new();
    for fault in &schedule.faults {
        tokio::time::sleep_until(start + Duration::from_millis(fault.at.into())).await;
        world.lock().note(format_args!("** {:?}", fault.kind));
        match fault.kind {
            FaultKind::Crash { slot, turns } => fleet.with(slot, |process, _| process.die_after(turns)),
            FaultKind::Stop { slot } => fleet.with(slot, |_, stop| stop.cancel()),
            FaultKind::Pause { slot, for_ms } => fleet.with(slot, |process, _| {
                process.pause();
                let process = Arc::clone(process);
                pauses.spawn(async move {
                    pass(for_ms.into()).await;
                    process.resume();
                });
            }),
            kind => {
                world.lock().suffer(kind);
                // Waiters check whether anything has changed.
                world.log_changed.notify_waiters();
            }
        }
    }
    pauses
}

impl State {
    fn suffer(&mut self, kind: FaultKind) {
        let until = |for_ms: u32| Instant::now() + Duration::from_millis(for_ms.into());
        match kind {
            FaultKind::Database { call, is_applied } => self.armed.calls.push((call, is_applied)),
            FaultKind::DatabaseSlow { call, for_ms, is_before } => {
                self.armed.slow.push((call, for_ms, is_before));
            }
            FaultKind::DatabaseDown { for_ms } => self.outbox.down_until = Some(until(for_ms)),
            FaultKind::Sever => self.sever_all(),
            FaultKind::BrokerDown { for_ms } => {
                self.sever_all();
                self.broker.group.leave_all();
                self.broker.down_until = Some(until(for_ms));
            }
            FaultKind::LoseReceipt { is_stored } => self.armed.receipts.push(is_stored),
            FaultKind::Refuse => self.armed.refusals += 1,
            FaultKind::TopicBusy { topic, for_ms } => {
                self.broker.topics_down.insert(topic, (until(for_ms), false));
            }
            FaultKind::TopicMissing { topic, for_ms } => {
                self.broker.topics_down.insert(topic, (until(for_ms), true));
            }
            FaultKind::TopicSilent { topic, for_ms, is_stored } => {
                self.broker.silence.begin(topic, until(for_ms), is_stored);
            }
            FaultKind::TopicSlow { topic, for_ms, room } => {
                self.broker.endpoints.slow(topic, until(for_ms), room);
            }
            FaultKind::TopicFails { topic, for_ms } => self.broker.endpoints.fails(topic, until(for_ms)),
            FaultKind::TopicWaits { topic, for_ms } => self.broker.endpoints.waits(topic, until(for_ms)),
            FaultKind::KeySlow { key, by_ms } => {
                self.broker.slow = Some((format!("k{key}"), Duration::from_millis(by_ms.into())));
            }
            FaultKind::Rebalance { part } => self.rebalance(part),
            FaultKind::SubscriptionsLost => self.broker.group.leave_all(),
            FaultKind::SettleLost { is_applied } => self.armed.settlements.push(is_applied),
            FaultKind::Replay { len } => {
                let from = self.broker.log.len().saturating_sub(len.into());
                self.broker.group.replay(from);
            }
            FaultKind::Commit { fault } => self.armed.commits.push(fault),
            FaultKind::Inbox { after } => self.armed.inbox.push(after),
            FaultKind::InboxDown { for_ms } => self.inbox.down_until = Some(until(for_ms)),
            FaultKind::Handler { fault } => self.armed.handlers.push(fault),
            FaultKind::Operator { decision } => self.decide(decision),
            FaultKind::Retention => self.remove_settled(),
            FaultKind::Backup => self.back_up(),
            FaultKind::Restore { is_pooled } => self.restore(is_pooled),
            FaultKind::Zombie { moment, for_ms } => self.armed.stalls.push((moment, for_ms)),
            // These concern a process, not the world.
            FaultKind::Crash { .. } | FaultKind::Pause { .. } | FaultKind::Stop { .. } => {}
        }
    }

    /// Suspends a process at this point of its work, if that was planned. Returns whether it was:
    /// then the task must yield, or it would finish its poll first.
    pub(crate) fn stall(&mut self, process: ProcessId, moment: Moment) -> bool {
        let Some(at) = self.armed.stalls.iter().position(|(armed, _)| *armed == moment) else { return false };
        let (_, for_ms) = self.armed.stalls.swap_remove(at);
        let Some(life) = self.lives.get(&process).map(Arc::clone) else { return false };
        self.note(format_args!("{process} stands still for {for_ms} ms: {moment:?}"));
        life.pause();
        self.armed.resuming.spawn(async move {
            pass(for_ms.into()).await;
            life.resume();
        });
        true
    }

    /// Lets an operator decide about the first dead entry, if there is one.
    pub(crate) fn decide(&mut self, decision: Decision) {
        let Some(id) = self.outbox.first_dead() else { return };
        let Some(message) = self.outbox.rows.get(&id.0).map(|row| row.message.id) else { return };
        let name = self.name(message);
        self.note(format_args!("operator: {decision:?} m{name}"));
        let Some(aside) = self.outbox.exceptions.get_mut(&id) else { return };
        aside.due_at = Some(Instant::now());
        match decision {
            Decision::Requeue => {
                aside.parked.state = ExceptionState::Retrying;
                aside.parked.attempts = 0;
            }
            Decision::Edit => {
                aside.parked.state = ExceptionState::Retrying;
                aside.parked.attempts = 0;
                if let Some(copy) = &mut aside.copy {
                    copy.payload = Bytes::from(format!("edited m{name}"));
                }
                self.outbox.edited.insert(message);
            }
            Decision::Discard => {
                aside.parked.state = ExceptionState::Discarded;
                self.outbox.discarded.insert(message);
            }
        }
    }

    /// Ends all faults, except that the missing topic stays missing.
    pub(crate) fn heal(&mut self) {
        self.note(format_args!("healed"));
        self.armed = Default::default();
        self.outbox.down_until = None;
        self.inbox.down_until = None;
        self.broker.down_until = None;
        self.broker.endpoints.heal();
        self.broker.slow = None;
        self.broker.topics_down.retain(|topic, _| *topic == MISSING);
    }

    /// Creates the missing topic.
    pub(crate) fn create_missing_topic(&mut self) {
        self.note(format_args!("topic t{MISSING} is created"));
        self.broker.topics_down.clear();
    }
}
