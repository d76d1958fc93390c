//! Each kind of damage, and cases that only look like damage.

use std::collections::BTreeMap;

use super::*;

const ID: Uuid = Uuid::from_u128(100);

fn copies() -> Option<Copies> {
    Some(Copies { times: 1, fingerprint: vec![1], differ: false })
}

fn good() -> Seen {
    let stored = Stored {
        stage: Stage::Passed,
        topic: "orders".into(),
        kind: "placed".into(),
        fingerprint: vec![1],
        edited: false,
    };
    let applied = Applied { remembered: copies(), effects: 1, unfinished: None };
    Seen { id: ID, outbox: Some(stored), broker: copies(), position: Some((2, 7)), inboxes: vec![applied] }
}

fn context() -> Context {
    let inbox = InboxContext { has_effects: true, ..InboxContext::default() };
    Context {
        outbox_from: Some(Uuid::from_u128(1)),
        broker_from: Some(BTreeMap::new()),
        inboxes: vec![inbox],
        ..Context::default()
    }
}

fn wrong(change: impl FnOnce(&mut Seen)) -> Vec<(Place, Kind)> {
    let mut seen = good();
    change(&mut seen);
    reconcile(&seen, &context()).unwrap().wrong
}

fn at(seen: &mut Seen, stage: Stage) {
    seen.outbox.as_mut().unwrap().stage = stage;
}

#[test]
fn a_message_that_took_effect_once_is_fine() {
    assert_eq!(
        reconcile(&good(), &context()),
        Some(Reconciled { fate: Some(MessageState::Published), wrong: vec![], waits: vec![] })
    );
}

#[test]
fn each_kind_of_damage_is_named_with_its_place() {
    let inbox = Place::Inbox(0);
    assert_eq!(wrong(|seen| seen.broker = None), [(Place::Broker, Kind::Unpublished)]);
    assert_eq!(wrong(|seen| seen.inboxes[0] = Applied::default()), [(inbox, Kind::Unapplied)]);
    assert_eq!(wrong(|seen| seen.inboxes[0].effects = 0), [(inbox, Kind::Effectless)]);
    assert_eq!(wrong(|seen| seen.inboxes[0].remembered = None), [(inbox, Kind::Unremembered)]);
    assert_eq!(wrong(|seen| seen.inboxes[0].effects = 2), [(inbox, Kind::Doubled)]);
    let everywhere = [(Place::Broker, Kind::Phantom), (inbox, Kind::Phantom)];
    assert_eq!(wrong(|seen| seen.outbox = None), everywhere);
    assert_eq!(
        wrong(|seen| seen.broker.as_mut().unwrap().fingerprint = vec![2]),
        [(Place::Broker, Kind::Altered)]
    );
    assert_eq!(wrong(|seen| seen.broker.as_mut().unwrap().differ = true), [(Place::Broker, Kind::Altered)]);
    let altered = |seen: &mut Seen| seen.inboxes[0].remembered.as_mut().unwrap().fingerprint = vec![2];
    assert_eq!(wrong(altered), [(inbox, Kind::Altered)]);
}

#[test]
fn nothing_is_missing_in_an_inbox_that_no_consumer_has_opened() {
    let mut context = context();
    context.inboxes[0].is_unopened = true;
    let mut seen = good();
    seen.inboxes[0] = Applied::default();
    assert_eq!(reconcile(&seen, &context).unwrap().wrong, []);
    seen.inboxes[0].effects = 1;
    assert_eq!(reconcile(&seen, &context).unwrap().wrong, [(Place::Inbox(0), Kind::Unremembered)]);
}

#[test]
fn effects_are_missed_only_of_the_kinds_that_were_read() {
    let mut seen = good();
    seen.inboxes[0].effects = 0;
    let of_kinds = |kinds: &[&str]| {
        let mut context = context();
        context.inboxes[0].effects_kinds = kinds.iter().map(|kind| String::from(*kind)).collect();
        reconcile(&seen, &context).unwrap().wrong
    };
    assert_eq!(of_kinds(&["placed"]), [(Place::Inbox(0), Kind::Effectless)]);
    assert_eq!(of_kinds(&["cancelled"]), []);
}

#[test]
fn what_is_on_its_way_or_where_an_operator_sees_it_is_not_missing() {
    let nowhere = |stage| {
        wrong(|seen| {
            at(seen, stage);
            seen.broker = None;
            seen.inboxes[0] = Applied::default();
        })
    };
    for stage in [Stage::Ahead, Stage::Beside(ExceptionState::Retrying), Stage::Beside(ExceptionState::Dead)]
    {
        assert_eq!(nowhere(stage), [], "{stage:?}");
    }
    assert_eq!(nowhere(Stage::Passed), [(Place::Broker, Kind::Unpublished)]);
    assert_eq!(
        wrong(|seen| seen.inboxes[0] = Applied { unfinished: Some(Unfinished::Closed), ..Applied::default() }),
        []
    );
}

#[test]
fn what_a_group_has_not_come_to_is_not_missing() {
    let unapplied = Seen { inboxes: vec![Applied::default()], ..good() };
    let reconciled = |seen: &Seen, topic: &str, partitions: &[(i32, i64)]| {
        let mut context = context();
        let partitions = partitions.iter().copied().collect();
        context.inboxes[0].committed = Some(BTreeMap::from([(topic.to_owned(), partitions)]));
        let reconciled = reconcile(seen, &context).unwrap();
        (reconciled.wrong.len(), reconciled.waits)
    };
    for waits in [&[(2, 7)][..], &[(2, 0)], &[(1, 100)]] {
        assert_eq!(reconciled(&unapplied, "orders", waits), (0, vec![0]), "{waits:?}");
    }
    // The group has passed it, the group has committed nothing of the topic, or its position is
    // unknown.
    assert_eq!(reconciled(&unapplied, "orders", &[(2, 8)]), (1, vec![]));
    assert_eq!(reconciled(&unapplied, "orders", &[]), (1, vec![]));
    assert_eq!(reconciled(&unapplied, "invoices", &[(2, 7)]), (1, vec![]));
    let nowhere = Seen { position: None, ..unapplied };
    assert_eq!(reconciled(&nowhere, "orders", &[(2, 7)]), (1, vec![]));
    // An effect that the inbox does not remember cannot be explained by a consumer that is behind.
    let unremembered = Applied { effects: 1, ..Applied::default() };
    assert_eq!(reconciled(&Seen { inboxes: vec![unremembered], ..good() }, "orders", &[(2, 7)]), (1, vec![]));
}

#[test]
fn an_edited_message_may_be_there_in_either_version() {
    let edited = |seen: &mut Seen| {
        seen.outbox.as_mut().unwrap().edited = true;
        seen.broker.as_mut().unwrap().differ = true;
        seen.inboxes[0].remembered.as_mut().unwrap().fingerprint = vec![2];
    };
    assert_eq!(wrong(edited), []);
}

#[test]
fn one_effect_for_each_scope_is_not_doubled() {
    let scopes = |effects| {
        wrong(|seen| {
            seen.inboxes[0].remembered.as_mut().unwrap().times = 2;
            seen.inboxes[0].effects = effects;
        })
    };
    assert_eq!((scopes(2), scopes(3)), (vec![], vec![(Place::Inbox(0), Kind::Doubled)]));
}

#[test]
fn nothing_is_said_of_what_lies_outside() {
    let mut seen = good();
    let other = Context { topics: BTreeSet::from([String::from("invoices")]), ..context() };
    assert_eq!(reconcile(&seen, &other), None);
    // This consumer does not apply the topic.
    seen.inboxes[0] = Applied::default();
    let mut narrow = context();
    narrow.inboxes[0].topics = BTreeSet::from([String::from("invoices")]);
    assert_eq!(reconcile(&seen, &narrow).unwrap().wrong, []);
    // Forgotten by retention, and not read at the broker.
    let mut forgetful = context();
    forgetful.inboxes[0].remembers_from = Some(Uuid::from_u128(101));
    let topic = seen.outbox.as_ref().unwrap().topic.clone();
    forgetful.broker_from = Some(BTreeMap::from([(topic, Uuid::from_u128(101))]));
    seen.broker = None;
    assert_eq!(reconcile(&seen, &forgetful).unwrap().wrong, []);
    // Only another topic was cut.
    forgetful.broker_from = Some(BTreeMap::from([(String::from("another"), Uuid::max())]));
    assert_eq!(reconcile(&seen, &forgetful).unwrap().wrong, [(Place::Broker, Kind::Unpublished)]);
    // Older than the outbox.
    seen.outbox = None;
    let pruned = Context { outbox_from: Some(Uuid::from_u128(101)), ..context() };
    assert_eq!(reconcile(&seen, &pruned), None);
}

#[test]
fn nothing_is_expected_of_what_an_operator_gave_up() {
    let nowhere = |seen: &mut Seen| (seen.broker, seen.inboxes[0]) = (None, Applied::default());
    let mut seen = good();
    nowhere(&mut seen);
    for stage in [Stage::Discarded, Stage::Beside(ExceptionState::Discarded)] {
        at(&mut seen, stage);
        let reconciled = reconcile(&seen, &context()).unwrap();
        assert_eq!((reconciled.fate, reconciled.wrong), (Some(MessageState::Discarded), vec![]), "{stage:?}");
    }
    // A broker without a readable log shows neither state.
    at(&mut seen, Stage::Discarded);
    let unread = Context { broker_from: None, ..context() };
    assert_eq!(reconcile(&seen, &unread).unwrap().wrong, []);
    // Published again: the cursor was set back, or the decision is another relay's.
    at(&mut seen, Stage::Passed);
    assert_eq!(reconcile(&seen, &context()).unwrap().wrong, [(Place::Broker, Kind::Unpublished)]);
}

#[test]
fn what_was_given_up_and_is_at_the_broker_all_the_same_is_owed_to_consumers() {
    let mut seen = good();
    at(&mut seen, Stage::Discarded);
    assert_eq!(reconcile(&seen, &context()).unwrap().fate, Some(MessageState::Published));
    seen.inboxes[0] = Applied::default();
    assert_eq!(reconcile(&seen, &context()).unwrap().wrong, [(Place::Inbox(0), Kind::Unapplied)]);
}
