//! The history for the checker.

use std::collections::HashSet;
use std::sync::Arc;

use checker::{
    Consumer, Content, DeadLetter, Effect, Forgotten, History, InboxRow, Leak, LeakKind, Occurrence,
    Operation, OutboxRow, Parked, ParkedEntry, TopicRead,
};
use message::MessageId;
use outbox_log::ExceptionState;

use crate::inbox::content;
use crate::outbox::OutboxTables;
use crate::world::State;

/// Returns everything that was observed.
pub(crate) fn history(state: &State, mut operations: Vec<Operation>, is_quiet: bool) -> History {
    let given_back: HashSet<_> = state.outbox.given_back.iter().map(|id| id.as_uuid()).collect();
    for message in operations.iter_mut().flat_map(|operation| &mut operation.messages) {
        message.out_of_turn |= given_back.contains(&message.id);
    }
    History {
        quiet: is_quiet,
        operations: Some(operations),
        business: None,
        outbox: Some(rows(state)),
        parked: Some(parked(state)),
        removed: Some(removed(state)),
        forgotten: forgotten(state),
        topic_read: Some(topic_read(state)),
        consumers: vec![consumer(state)],
        leases: Some(state.outbox.leases.clone()),
        leaks: Some(leaks(state)),
        sagas: None,
    }
}

/// Returns the messages that were lost when the database was reset to an earlier state.
fn forgotten(state: &State) -> Forgotten {
    let messages = state.outbox.undone.iter().map(|id| id.as_uuid());
    Forgotten { messages: messages.collect(), rows: Vec::new() }
}

/// Returns the content that is compared: an edited message must differ from its producer's, so its
/// payload is left out.
fn known(state: &State, id: MessageId, content: Content) -> Content {
    if state.outbox.edited.contains(&id) { Content { payload: None, ..content } } else { content }
}

fn rows(state: &State) -> Vec<OutboxRow> {
    let committed = state.outbox.rows.iter().filter(|(_, row)| row.commit.is_some() && !row.is_removed);
    let row = |(id, row): (&i64, &_)| {
        let row: &crate::outbox::Row = row;
        OutboxRow {
            id: row.message.id.as_uuid(),
            position: *id,
            topic: Some(Arc::from(row.message.topic.as_str())),
            passed: Some(OutboxTables::is_passed(&state.outbox.relay.cursor, *id, row)),
            content: known(state, row.message.id, content(&row.message)),
            ..OutboxRow::default()
        }
    };
    committed.map(row).collect()
}

fn removed(state: &State) -> Vec<uuid::Uuid> {
    let removed = state.outbox.rows.values().filter(|row| row.is_removed);
    removed.map(|row| row.message.id.as_uuid()).collect()
}

fn parked(state: &State) -> Vec<Parked> {
    let parked_as = |word| match word {
        ExceptionState::Scheduled => ParkedEntry::Scheduled,
        ExceptionState::Retrying => ParkedEntry::Retrying,
        ExceptionState::Held => ParkedEntry::Held,
        ExceptionState::Dead => ParkedEntry::Dead,
        ExceptionState::Discarded => ParkedEntry::Discarded,
    };
    let exceptions = state.outbox.exceptions.iter().filter_map(|(id, exception)| {
        let row = state.outbox.rows.get(&id.0)?;
        Some(Parked { id: row.message.id.as_uuid(), state: parked_as(exception.parked.state) })
    });
    let discarded = state.outbox.discarded.iter();
    let discarded = discarded.map(|id| Parked { id: id.as_uuid(), state: ParkedEntry::Discarded });
    exceptions.chain(discarded).collect()
}

fn topic_read(state: &State) -> TopicRead {
    let occurrence = |message: &message::Message| Occurrence {
        id: Some(message.id.as_uuid()),
        place: Arc::from("log"),
        content: known(state, message.id, content(message)),
    };
    TopicRead {
        ordered: true,
        complete: true,
        occurrences: state.broker.log.iter().map(occurrence).collect(),
    }
}

fn consumer(state: &State) -> Consumer {
    let inbox = state.inbox.rows.iter().map(|(id, row)| InboxRow {
        id: id.as_uuid(),
        scope: Arc::from(""),
        content: known(state, *id, row.content.clone()),
    });
    let effects = state.inbox.effects.iter().map(|(id, content)| Effect {
        id: id.as_uuid(),
        scope: Arc::from(""),
        content: known(state, *id, content.clone()),
    });
    let dead = state.inbox.dead.iter().map(|id| DeadLetter { id: Some(id.as_uuid()), scope: Arc::from("") });
    Consumer {
        name: Arc::from("billing"),
        topics: None,
        ordered: state.broker.group.is_key_exclusive(),
        inbox: Some(inbox.collect()),
        expired: None,
        effects: Some(effects.collect()),
        dead_letters: Some(dead.collect()),
    }
}

/// Returns the resources that were not released although everything was stopped in an orderly way.
/// A lease expires on its own, so it is not a leak.
fn leaks(state: &State) -> Vec<Leak> {
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let counts = [
        (LeakKind::Task, tasks, "tasks"),
        (LeakKind::Transaction, state.inbox.locks_len(), "rows locked by transactions of consumers"),
        (LeakKind::Connection, state.broker.sessions_len(), "sessions of publishers"),
        (LeakKind::Delivery, state.broker.group.unsettled_len(), "deliveries"),
    ];
    let left = counts.into_iter().filter(|(_, count, _)| *count > 0);
    left.map(|(kind, count, what)| Leak { kind, what: Arc::from(format!("{count} {what}")) }).collect()
}
