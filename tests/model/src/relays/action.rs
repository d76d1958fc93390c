//! The actions that can happen next, and the states that follow.

use stateright::Model;

use super::breakage::Breakage;
use super::leader::first_of_each_key;
use super::state::{Leader, Relay, State, Transaction};
use super::{Relays, promise};
use crate::sets::Entry;

/// One step of one participant. Relays are numbered 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A producer takes the next id.
    Begin(Entry),
    /// A producer's transaction commits.
    Commit(Entry),
    /// A producer's transaction is rolled back.
    RollBack(Entry),
    /// The lease expires by the database's clock; its holder may not notice.
    Expire,
    /// A relay is granted the lease and loads the cursor.
    Acquire(usize),
    /// A relay reads to the end of a difference. The set is fixed when the difference is opened, so
    /// one step stands for all pages.
    Read(usize),
    /// A relay sends the message at this place of its run.
    Send(usize, Entry),
    /// The broker accepts the message at this place of a relay's run.
    Arrive(usize, Entry),
    /// The broker accepts a message from a connection that its relay has abandoned.
    ArriveLate(usize, usize),
    /// A relay gets the confirmation of the message at this place.
    Confirm(usize, Entry),
    /// A relay's session breaks, and a new one begins.
    LoseSession(usize),
    /// A relay stores its cursor. With a stale epoch it learns that it has lost the lease.
    Checkpoint(usize),
    /// A relay crashes.
    Crash(usize),
    /// The consumer handles its next delivery, commits and acknowledges.
    Consume,
    /// The consumer handles its next delivery, commits, and crashes before it acknowledges.
    ConsumeAndCrash,
    /// The consumer acknowledges its next delivery without having committed. Only with the
    /// breakage.
    AcknowledgeEarly,
    /// The consumer commits what it acknowledged early.
    CommitLate,
    /// The consumer crashes before it commits what it acknowledged early.
    CrashBeforeCommit,
}

impl Model for Relays {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.keys.len())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.producer_actions(state, actions);
        for (relay, role) in state.relays.iter().enumerate() {
            match role {
                Relay::Standby if state.lease.is_free && state.lease.epoch < self.epochs_max => {
                    actions.push(Action::Acquire(relay));
                }
                Relay::Standby => {}
                Relay::Leading(leader) => self.leader_actions(relay, leader, state, actions),
            }
            if state.log.len() < self.log_max {
                let first = first_of_each_key(self, &state.stragglers[relay]);
                actions.extend(first.into_iter().map(|place| Action::ArriveLate(relay, place)));
            }
        }
        if !state.lease.is_free && state.lease.epoch < self.epochs_max {
            actions.push(Action::Expire);
        }
        self.consumer_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(entry) => self.begin(&mut state, entry),
            Action::Commit(entry) => state.transactions[usize::from(entry)] = Transaction::Committed,
            Action::RollBack(entry) => state.transactions[usize::from(entry)] = Transaction::RolledBack,
            Action::Expire => state.lease.is_free = true,
            Action::Acquire(relay) => {
                state.lease.epoch += 1;
                state.lease.is_free = false;
                state.relays[relay] = Relay::Leading(Leader::new(state.lease.epoch, state.cursor));
            }
            Action::ArriveLate(relay, place) => {
                let entry = state.stragglers[relay].remove(place);
                state.log.push(entry);
            }
            Action::Consume | Action::ConsumeAndCrash | Action::CommitLate => {
                self.consume(&mut state, action);
            }
            Action::AcknowledgeEarly => {
                state.acked_early = Some(state.log[state.acknowledged]);
                state.acknowledged += 1;
            }
            Action::CrashBeforeCommit => {
                state.acked_early = None;
                state.faults += 1;
            }
            Action::Read(relay)
            | Action::Send(relay, _)
            | Action::Arrive(relay, _)
            | Action::Confirm(relay, _)
            | Action::LoseSession(relay)
            | Action::Checkpoint(relay)
            | Action::Crash(relay) => self.lead(&mut state, relay, action)?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        promise::properties()
    }
}

impl Relays {
    fn producer_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let unborn = state.transactions.iter().position(|transaction| *transaction == Transaction::Unborn);
        actions.extend(unborn.map(|entry| Action::Begin(entry as Entry)));
        for (entry, transaction) in state.transactions.iter().enumerate() {
            if *transaction == Transaction::Open {
                actions.extend([Action::Commit(entry as Entry), Action::RollBack(entry as Entry)]);
            }
        }
    }

    fn leader_actions(&self, relay: usize, leader: &Leader, state: &State, actions: &mut Vec<Action>) {
        if leader.next_read(self, state).is_some() {
            actions.push(Action::Read(relay));
        }
        let places = 0..leader.run.len() as Entry;
        let may_send = places.filter(|place| leader.may_send(self, *place));
        actions.extend(may_send.map(|place| Action::Send(relay, place)));
        if state.log.len() < self.log_max {
            actions.extend(leader.arriving(self).into_iter().map(|place| Action::Arrive(relay, place)));
        }
        let to_confirm = leader.arrived.without(leader.confirmed).iter();
        actions.extend(to_confirm.map(|place| Action::Confirm(relay, place)));
        if leader.checkpoint(self.breakage).is_some() {
            actions.push(Action::Checkpoint(relay));
        }
        if state.faults < self.faults_max {
            actions.push(Action::Crash(relay));
            if leader.sent != leader.confirmed {
                actions.push(Action::LoseSession(relay));
            }
        }
    }

    fn consumer_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.acked_early.is_some() {
            actions.extend([Action::CommitLate, Action::CrashBeforeCommit]);
        } else if state.acknowledged < state.log.len() {
            if self.breakage == Breakage::AckBeforeCommit {
                actions.push(Action::AcknowledgeEarly);
                return;
            }
            actions.push(Action::Consume);
            if state.faults < self.faults_max {
                actions.push(Action::ConsumeAndCrash);
            }
        }
    }

    fn begin(&self, state: &mut State, entry: Entry) {
        let index = usize::from(entry);
        state.transactions[index] = Transaction::Open;
        let same_key = state.visible().iter().filter(|other| self.key(*other) == self.key(entry));
        state.before[index] = same_key.fold(state.before[index], crate::sets::Set::with);
    }

    fn consume(&self, state: &mut State, action: Action) {
        let entry = match action {
            Action::CommitLate => state.acked_early.take(),
            _ => state.log.get(state.acknowledged).copied(),
        };
        let Some(entry) = entry else { return };
        if !state.inbox.has(entry) || self.breakage == Breakage::GuardOff {
            state.effects[usize::from(entry)] += 1;
        }
        state.inbox = state.inbox.with(entry);
        match action {
            Action::Consume => state.acknowledged += 1,
            Action::ConsumeAndCrash => state.faults += 1,
            _ => {}
        }
    }

    fn lead(&self, state: &mut State, relay: usize, action: Action) -> Option<()> {
        let Relay::Leading(mut leader) = state.relays[relay].clone() else { return None };
        let is_over = leader.epoch != state.lease.epoch;
        match action {
            Action::Read(_) => leader.read(self, state),
            Action::Send(_, place) => {
                leader.sent = leader.sent.with(place);
                if self.breakage == Breakage::ConfirmIgnored {
                    leader.confirmed = leader.confirmed.with(place);
                }
            }
            Action::Arrive(_, place) => {
                leader.arrived = leader.arrived.with(place);
                state.log.push(leader.run[usize::from(place)].entry);
                state.zombie_published |= is_over;
            }
            Action::Confirm(_, place) => leader.confirmed = leader.confirmed.with(place),
            Action::LoseSession(_) => {
                state.faults += 1;
                state.stragglers[relay] = leader.in_flight();
                leader.reconnect();
            }
            Action::Crash(_) => {
                state.faults += 1;
                state.stragglers[relay] = leader.in_flight();
                state.relays[relay] = Relay::Standby;
                return Some(());
            }
            _ => {
                let (settled, cursor) = leader.checkpoint(self.breakage)?;
                if is_over && self.breakage != Breakage::CheckpointWithoutEpoch {
                    state.stragglers[relay] = leader.in_flight();
                    state.relays[relay] = Relay::Standby;
                    return Some(());
                }
                state.stale_checkpoint |= is_over;
                state.cursor = cursor;
                leader.advance(settled, cursor);
            }
        }
        state.relays[relay] = Relay::Leading(leader);
        Some(())
    }
}
