//! Replays: which messages are chosen, and which of them are sent.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use brokers::memory::Broker;
use message::{MaxInFlightPerKey, Topic};
use operate::replay::{ReplayFilter, ReplayOptions, ReplayPlan, ReplayReport, has_begun, plan};
use operate::story::story;
use operate::{OperateErrorKind, Operator, Places, Role, Signed};
use outbox_log::read_only::ReadOnly;
use outbox_log::{ExceptionChange, ExceptionState, reconcile};
use sqlx::{Connection as _, Executor as _, PgConnection, Postgres};
use uuid::Uuid;

use crate::outbox::retention::{Relay, messages, parked};
use crate::outbox::shared_ids::{made_ago, set_sequence, shared};
use crate::outbox::support::{Database, TestDialect, pipeline, relay};

tests::cases! { "outbox/replays/{on}/{case}":
    every {
        a_message_that_leaves_after_the_plan_is_not_sent,
        a_form_that_is_sent_again_after_another_one_replays_nothing,
    }
    on_postgres {
        of_two_rows_with_one_id_only_the_named_message_is_sent,
        no_row_is_skipped_where_a_batch_ends_between_two_rows_of_one_id,
        a_form_that_is_sent_twice_at_once_names_the_replay_that_may_run,
        a_log_without_a_segment_is_named_by_whoever_reads_all_of_it,
    }
}

/// An operator who replays the messages of a log into a broker in memory.
struct Scene {
    broker: Broker,
    places: Places,
    signed: Signed,
}

impl Scene {
    fn of<DB: TestDialect>(db: &Database<DB>) -> Self {
        let pipeline = pipeline(&relay(), &db.relay_url());
        let broker = Broker::new();
        let connector = Arc::new(broker.connector(MaxInFlightPerKey::Pipelined));
        let places = Places::new().outbox(&pipeline).connected_to(connector);
        let operator = Operator::new("ann", Role::Operator);
        Self { broker, places, signed: Signed { operator, note: String::from("a test") } }
    }

    async fn plan(&self, filter: &ReplayFilter) -> ReplayPlan {
        plan(&self.places, &self.signed.operator, filter).await.unwrap()
    }

    async fn carry_out(&self, plan: &ReplayPlan) -> ReplayReport {
        plan.carry_out(&self.places, &self.signed, &ReplayOptions::default(), |_| ()).await.unwrap()
    }

    /// Returns the keys of everything that the broker has stored, in its order.
    fn keys(&self) -> Vec<String> {
        let stored = self.broker.log(&Topic::new("orders").unwrap());
        stored.iter().map(|message| message.key.as_ref().unwrap().as_str().to_owned()).collect()
    }
}

/// Goal: a replay sends the messages that its plan has counted. A parked message that is published
/// in between is not sent, and does not hide that a planned one was removed. Oracle: the broker's
/// log, and the report.
async fn a_message_that_leaves_after_the_plan_is_not_sent<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(10)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    let park = |place: usize| ExceptionChange::Park(parked(&entries[place], ExceptionState::Dead));
    main.pass(&[park(3), park(4)]).await;
    let scene = Scene::of(db);

    let planned = scene.plan(&ReplayFilter::default()).await;
    assert_eq!(planned.chosen, 8);
    main.pass(&[ExceptionChange::Resolve(entries[3].id)]).await;
    let report = scene.carry_out(&planned).await;
    assert_eq!((report.published, report.error.map(|error| error.to_string())), (8, None));
    let expected = ["key-0", "key-1", "key-2", "key-5", "key-6", "key-7", "key-8", "key-9"];
    assert_eq!(scene.keys(), expected);

    let planned = scene.plan(&ReplayFilter::default()).await;
    assert_eq!(planned.chosen, 9);
    main.pass(&[ExceptionChange::Resolve(entries[4].id)]).await;
    db.run("DELETE FROM outbox_message WHERE key = 'key-0'").await;
    let report = scene.carry_out(&planned).await;
    assert_eq!(report.published, 8);
    let error = report.error.unwrap().to_string();
    assert!(error.contains("1 of 9 planned messages"), "{error}");
    assert_eq!(scene.keys()[8..], ["key-1", "key-2", "key-3", "key-5", "key-6", "key-7", "key-8", "key-9"]);
}

/// Goal: a message that an operator names is sent, and not another one that has got its id after a
/// sequence was set back. Oracle: the broker's log.
async fn of_two_rows_with_one_id_only_the_named_message_is_sent(db: &Database<Postgres>) {
    db.enqueue(made_ago(3, 0..10)).await;
    let mut main = Relay::new(db, &relay()).await;
    let named = main.follower.all().await.remove(4).message_id();
    main.pass(&[]).await;
    set_sequence(db, 4).await;
    db.enqueue(made_ago(0, 10..12)).await;
    assert_eq!(Relay::new(db, &relay()).await.pass(&[]).await.len(), 2);
    assert_eq!(shared(db).await, 2, "every relay has passed the rows, so they keep their ids");
    let scene = Scene::of(db);
    let filter = ReplayFilter { ids: vec![named.parse().unwrap()], ..ReplayFilter::default() };
    let planned = scene.plan(&filter).await;
    assert_eq!(planned.chosen, 1);
    assert_eq!(scene.carry_out(&planned).await.published, 1);
    assert_eq!(scene.keys(), ["4"]);
}

/// A batch of the log has 1,000 rows.
async fn no_row_is_skipped_where_a_batch_ends_between_two_rows_of_one_id(db: &Database<Postgres>) {
    db.enqueue(made_ago(3, 0..1_001)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    set_sequence(db, 999).await;
    db.enqueue(made_ago(0, 1_001..1_002)).await;
    assert_eq!(Relay::new(db, &relay()).await.pass(&[]).await.len(), 1);
    assert_eq!(shared(db).await, 1);
    let scene = Scene::of(db);
    let planned = scene.plan(&ReplayFilter::default()).await;
    assert_eq!(planned.chosen, 1_002);
    assert_eq!(scene.carry_out(&planned).await.published, 1_002);
}

/// Goal: a form begins one replay, also when another form was sent in between. Oracle: the broker's
/// log. Nothing but the audit remembers the forms, as in a process that has not seen them.
async fn a_form_that_is_sent_again_after_another_one_replays_nothing<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(3)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    let scene = Scene::of(db);
    let planned = scene.plan(&ReplayFilter::default()).await;
    let first = Uuid::now_v7();
    let second = Uuid::now_v7();
    for form in [first, second] {
        assert!(!has_begun(&scene.places, form).await.unwrap());
        let options = ReplayOptions::default().form(Some(form));
        planned.carry_out(&scene.places, &scene.signed, &options, |_| ()).await.unwrap();
        assert!(has_begun(&scene.places, form).await.unwrap());
    }
    let sent = scene.keys();
    let options = ReplayOptions::default().form(Some(first));
    let again = planned.carry_out(&scene.places, &scene.signed, &options, |_| ()).await;
    assert_eq!(again.unwrap_err().kind(), OperateErrorKind::Conflict);
    assert_eq!(scene.keys(), sent);
}

/// Goal: of two requests with one form, the one that notes it last does not claim that nothing was
/// sent: the other one has counted before, and replays. Oracle: the broker's log, and the error. A
/// trigger holds the note of one operator.
async fn a_form_that_is_sent_twice_at_once_names_the_replay_that_may_run(db: &Database<Postgres>) {
    db.enqueue(messages(3)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    db.admin
        .execute(
            "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NEW.actor = 'bob' THEN PERFORM pg_advisory_xact_lock(44); END IF; RETURN NEW; END $$; \
             CREATE TRIGGER waits BEFORE INSERT ON outbox_operation FOR EACH ROW \
             EXECUTE FUNCTION wait_for_the_test()",
        )
        .await
        .unwrap();
    let mut gate = PgConnection::connect(&db.url).await.unwrap();
    gate.execute("SELECT pg_advisory_lock(44)").await.unwrap();
    let scene = Scene::of(db);
    let bob = Signed { operator: Operator::new("bob", Role::Operator), note: String::from("a test") };
    let planned = scene.plan(&ReplayFilter::default()).await;
    let options = ReplayOptions::default().form(Some(Uuid::now_v7()));
    let late = planned.carry_out(&scene.places, &bob, &options, |_| ());
    let early = async {
        let waiting =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 44";
        while db.number(waiting).await == 0 {
            tokio::task::yield_now().await;
        }
        let report = planned.carry_out(&scene.places, &scene.signed, &options, |_| ()).await.unwrap();
        gate.execute("SELECT pg_advisory_unlock(44)").await.unwrap();
        report
    };
    let ended = tokio::join!(late, early);
    assert_eq!((ended.1.published, scene.keys().len()), (3, 3), "one of them replays");
    let error = ended.0.unwrap_err();
    let text = format!("{error}; {}", error.help().unwrap());
    assert_eq!(error.kind(), OperateErrorKind::Conflict);
    assert!(text.contains("another request may be replaying"), "{text}");
    assert!(text.contains("this request sent nothing") && text.contains("relay audit"), "{text}");
    gate.close().await.unwrap();
}

/// Goal: nothing that needs the whole log answers from seven of its eight segments: a replay would
/// send too little, a comparison would report phantoms, and a message of the segment would seem
/// never to have existed; a replay that has begun does not call its messages deleted. Oracle: the
/// errors name the segment, and none comes once it is attached.
async fn a_log_without_a_segment_is_named_by_whoever_reads_all_of_it(db: &Database<Postgres>) {
    db.enqueue(messages(3)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    let scene = Scene::of(db);
    let unknown = Uuid::now_v7().to_string().parse().unwrap();
    let told = async || {
        let ReadOnly::Postgres(connection) = ReadOnly::open(&db.url, true, "a test").await.unwrap() else {
            panic!("not PostgreSQL")
        };
        let planned = plan(&scene.places, &scene.signed.operator, &ReplayFilter::default()).await;
        let compared = reconcile::postgres(connection, None, &relay()).await;
        let shown = story(&scene.places, &scene.signed.operator, &unknown).await;
        [
            planned.err().map(|error| error.to_string()),
            compared.err().map(|error| error.to_string()),
            shown.err().map(|error| error.to_string()),
        ]
    };
    let planned = scene.plan(&ReplayFilter::default()).await;
    let number = "SELECT right(tableoid::regclass::text, 1)::bigint FROM outbox_message LIMIT 1";
    let number = db.number(number).await;
    db.run(&format!("ALTER TABLE outbox_message DETACH PARTITION outbox_message_{number}")).await;
    let begun = planned.carry_out(&scene.places, &scene.signed, &ReplayOptions::default(), |_| ()).await;
    let error = begun.unwrap().error.unwrap().to_string();
    assert!(error.contains(&format!("is read without outbox_message_{number}")), "{error}");
    let attach = format!("PARTITION outbox_message_{number} FOR VALUES IN ({number})");
    db.run(&format!("ALTER TABLE outbox_message ATTACH {attach}")).await;
    db.run("ALTER TABLE outbox_message DETACH PARTITION outbox_message_5").await;
    for error in told().await.map(Option::unwrap) {
        assert!(error.contains("is read without outbox_message_5"), "{error}");
    }
    db.run("ALTER TABLE outbox_message ATTACH PARTITION outbox_message_5 FOR VALUES IN (5)").await;
    let [planned, compared, shown] = told().await;
    assert_eq!((planned, compared), (None, None));
    assert!(shown.is_some_and(|error| error.contains("in none of the searched outboxes")));
}
