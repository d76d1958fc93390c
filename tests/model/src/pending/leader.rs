//! The work of a process that believes that it leads.

use super::action::Action;
use super::state::{Leader, MESSAGES_MAX, Process, State, Writer};
use super::{Breakage, Pending};
use crate::sets::{Entry, Set};

impl Leader {
    /// Creates a leader that has a lease and nothing else yet.
    pub(super) fn granted(epoch: u8, run: u8) -> Self {
        Self {
            epoch,
            run,
            look: None,
            highest: 0,
            known: Set::default(),
            ids: [0; MESSAGES_MAX],
            sent: Set::default(),
            confirmed: Set::default(),
        }
    }

    /// Returns whether it is the message's turn.
    fn may_send(&self, model: &Pending, message: Entry) -> bool {
        let id = |message: Entry| self.ids[usize::from(message)];
        let mut others = self.known.iter().filter(|other| model.key(*other) == model.key(message));
        !self.sent.has(message)
            && others.all(|other| match model.breakage {
                Breakage::AnyOrder => !self.sent.has(other) || self.confirmed.has(other),
                Breakage::NotOneByOne => id(other) >= id(message) || self.sent.has(other),
                _ => id(other) >= id(message) || self.confirmed.has(other),
            })
    }

    /// Returns the messages whose pending rows the next checkpoint deletes.
    fn settled(&self, model: &Pending) -> Set {
        let is_early = model.breakage == Breakage::DeletedWhenSent;
        if is_early { self.sent } else { self.confirmed }
    }

    /// Forgets messages whose pending rows are deleted.
    fn forget(&mut self, messages: Set) {
        for message in messages.iter().map(usize::from) {
            self.ids[message] = 0;
        }
        self.known = self.known.without(messages);
        self.sent = self.sent.without(messages);
        self.confirmed = self.confirmed.without(messages);
    }
}

impl Pending {
    pub(super) fn leader_actions(
        &self,
        number: usize,
        leader: &Leader,
        state: &State,
        actions: &mut Vec<Action>,
    ) {
        let may_fail = state.faults < self.faults_max;
        match leader.look {
            None if self.has_gaps => actions.push(Action::BeginLook(number)),
            None => actions.push(Action::Look(number, None)),
            Some(open) => {
                let has_committed = |transaction: &Entry| {
                    self.of(usize::from(*transaction)).is_within(state.database.committed)
                };
                let left_out = open.iter().filter(has_committed).map(Some);
                actions.extend(left_out.chain([None]).map(|left_out| Action::Look(number, left_out)));
            }
        }
        let may_send = leader.known.iter().filter(|message| leader.may_send(self, *message));
        actions.extend(may_send.map(|message| Action::Send(number, message)));
        let unconfirmed = leader.sent.without(leader.confirmed).iter();
        let has_arrived = unconfirmed.filter(|message| state.effects.has(*message));
        actions.extend(has_arrived.map(|message| Action::Confirm(number, message)));
        if leader.settled(self) != Set::default() {
            actions.push(Action::Store(number));
            actions.extend(may_fail.then_some(Action::StoreUnheard(number)));
        }
    }

    /// Returns the leader if its session still exists. Otherwise it has noticed that.
    fn in_session<'s>(&self, process: &'s mut Process, run: u8) -> Option<&'s mut Leader> {
        let leader = process.leader()?;
        if self.breakage == Breakage::GoesOnAfterBreak {
            leader.run = run;
        }
        if leader.run == run {
            return process.leader();
        }
        *process = Process::Standby;
        None
    }

    pub(super) fn begin_look(&self, state: &mut State, number: usize) {
        let Some(leader) = self.in_session(&mut state.processes[number], state.run) else { return };
        let writers = state.writers.iter().zip(0..);
        let open = writers.filter(|(writer, _)| matches!(writer, Writer::Open(1..)));
        leader.look = Some(open.fold(Set::default(), |open, (_, transaction)| open.with(transaction)));
    }

    /// Reads the lowest pending ids, in one statement.
    pub(super) fn look(&self, state: &mut State, number: usize, left_out: Option<Entry>) {
        let database = &state.database;
        let Some(leader) = self.in_session(&mut state.processes[number], state.run) else { return };
        let left_out = left_out.map_or(Set::default(), |transaction| self.of(usize::from(transaction)));
        let shown = database.pending.without(left_out);
        state.has_left_out |= shown != database.pending;
        let id = |message: &Entry| database.ids[usize::from(*message)];
        let from = if self.breakage == Breakage::LookGoesOn { leader.highest } else { 0 };
        let mut page: Vec<Entry> = shown.iter().filter(|message| id(message) > from).collect();
        page.sort_unstable_by_key(id);
        page.truncate(self.page);
        let needs_two = self.has_gaps && self.breakage != Breakage::OneLook;
        let before = leader.highest;
        if self.has_gaps || self.breakage == Breakage::LookGoesOn {
            leader.highest = page.last().map_or(from, id);
        }
        leader.look = None;
        for message in page.into_iter().filter(|message| !needs_two || id(message) <= before) {
            let is_above = |sent: Entry| leader.ids[usize::from(sent)] > id(&message);
            let is_late = !leader.known.has(message) && leader.sent.iter().any(is_above);
            state.has_come_late |= is_late;
            leader.known = leader.known.with(message);
            leader.ids[usize::from(message)] = id(&message);
        }
    }

    /// Stores a checkpoint: deletes the pending rows of what is settled. `is_heard` without an
    /// answer means that the session has broken after the commit.
    pub(super) fn store(&self, state: &mut State, number: usize, is_heard: bool) {
        let Some(leader) = self.in_session(&mut state.processes[number], state.run) else { return };
        if leader.epoch != state.database.epoch && self.breakage != Breakage::NoEpoch {
            state.has_fenced = true;
            state.processes[number] = Process::Standby;
            return;
        }
        let settled = leader.settled(self);
        let ids: Vec<u8> = settled.iter().map(|message| leader.ids[usize::from(message)]).collect();
        if is_heard {
            leader.forget(settled);
        } else if self.breakage != Breakage::GoesOnAfterBreak {
            state.processes[number] = Process::Standby;
        }
        let pending = state.database.pending;
        let is_deleted = |message: &Entry| ids.contains(&state.database.ids[usize::from(*message)]);
        let deleted = pending.iter().filter(is_deleted).fold(Set::default(), Set::with);
        state.database.pending = pending.without(deleted);
    }
}
