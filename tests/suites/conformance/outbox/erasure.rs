//! Erasing messages: what may go, what must stay, and what others see of it afterwards.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use inbox::{Admission, ConsumerName, Inbox, InboxOptions, Tenant};
use message::Message;
use migrations::{Line, Migrator};
use operate::erase::{ErasureReport, Goals, Subject, erase, look};
use operate::replay::{ReplayFilter, plan};
use operate::{OperateError, Operator, PipelineConfig, Places, Role, Signed};
use outbox::NewMessage;
use outbox_log::{ExceptionChange, ExceptionState, Parked, RelayName};
use sqlx::Postgres;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::outbox::retention::{Relay, parked, rows};
use crate::outbox::support::{Database, TestDialect, inbox_config, pipeline, relay};

tests::cases! { "outbox/erasure/{on}/{case}":
    every {
        published_messages_lose_their_content_and_keep_their_place,
        what_any_relay_may_still_publish_is_left,
        a_pipeline_that_has_never_led_keeps_its_messages,
        what_a_consumer_has_still_to_apply_is_left,
        rows_that_lead_to_an_inbox_that_is_away_are_left,
        an_erasure_for_one_pipeline_finds_the_results_of_others,
        a_dead_message_is_discarded_only_on_demand,
        a_message_that_two_relays_have_parked_is_one,
        what_is_only_parked_is_erased_with_its_error,
        an_erased_row_is_never_published,
        an_erasure_continues_where_it_was_stopped,
    }
    on_postgres { a_relay_has_no_right_to_erase }
}

const KEY: &str = "customer-7";
/// Rows of the subject whose content is still there.
const WITH_CONTENT: &str = "SELECT count(*) FROM outbox_message WHERE key = 'customer-7' OR length(payload) > 0 AND \
    content_type = 'application/vnd.outbox.erased' OR key IS NULL AND headers IS NOT NULL";
const ERASED: &str = "SELECT count(*) FROM outbox_message WHERE content_type = 'application/vnd.outbox.erased' \
    AND length(payload) = 0 AND key IS NULL AND headers IS NULL AND traceparent IS NULL";

fn of(count: i32, key: &str) -> impl Iterator<Item = NewMessage> {
    (0..count).map(move |n| NewMessage::new("orders").key(key).header("name", "Ann").json(&n))
}

fn subject() -> Subject {
    Subject { key: KEY.to_owned(), topic: None, tenant: None, discard: false, unapplied: false }
}

/// An operator who erases in one log, as the owner of its tables.
struct Scene {
    pipeline: PipelineConfig,
    places: Places,
    signed: Signed,
}

impl Scene {
    fn at(url: &str) -> Self {
        let pipeline = pipeline(&relay(), url);
        let places = Places::new().outbox(&pipeline);
        let operator = Operator::new("ann", Role::Operator);
        Self { pipeline, places, signed: Signed { operator, note: String::from("request 4711") } }
    }

    fn goals(&self) -> Goals<'_> {
        let pipelines = std::slice::from_ref(&self.pipeline);
        Goals { places: &self.places, pipelines, configured: pipelines, tables: &[] }
    }

    async fn look(&self, subject: &Subject) -> ErasureReport {
        look(&self.goals(), &self.signed.operator, subject, &|_| ()).await.unwrap()
    }

    async fn erase(&self, subject: &Subject) -> ErasureReport {
        let stop = CancellationToken::new();
        erase(&self.goals(), &self.signed, subject, &stop, &|_| ()).await.unwrap()
    }
}

/// Returns what is left, by reason.
fn left(report: &ErasureReport) -> Vec<(&'static str, u64)> {
    report.parts.iter().flat_map(|part| part.left.iter().map(|(why, count)| (*why, *count))).collect()
}

/// Goal: the content of published messages goes, and nothing else: rows, ids, the cursor and other
/// messages stay, and neither a replay nor a comparison trips over it. Oracle: the rows, read with
/// plain SQL; the plan of a replay; the rows as `relay verify` reads them; the audit, without the
/// key.
async fn published_messages_lose_their_content_and_keep_their_place<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(of(3, KEY).chain(of(2, "customer-8")).chain(of(2, KEY))).await;
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    let cursor = "SELECT count(DISTINCT cursor) FROM outbox_relay";
    let scene = Scene::at(&db.url);

    let looked = scene.look(&subject()).await;
    assert_eq!((looked.erased, looked.left, looked.dry_run), (5, 0, true), "{looked:?}");
    assert_eq!(db.number(ERASED).await, 0, "a look changes nothing");
    assert_eq!(db.number("SELECT count(*) FROM outbox_operation").await, 0);

    let report = scene.erase(&subject()).await;
    assert_eq!((report.erased, report.left), (5, 0), "{report:?}");
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((db.number(ERASED).await, db.number(WITH_CONTENT).await), (5, 0));
    assert_eq!((db.rows().await, db.number(cursor).await), (7, 1));
    assert_eq!(db.number("SELECT count(*) FROM outbox_message WHERE key = 'customer-8'").await, 2);
    assert_eq!(main.pass(&[]).await.len(), 0, "nothing is read again");

    let planned = plan(&scene.places, &scene.signed.operator, &ReplayFilter::default()).await.unwrap();
    assert_eq!((planned.chosen, planned.skipped.get("edited")), (2, Some(&5)), "{planned:?}");
    let seen = rows(db).await.page(Uuid::nil(), Uuid::max(), 100).await.unwrap();
    assert_eq!(seen.iter().filter(|row| row.edited).count(), 5, "a comparison excuses them");

    let operations = "SELECT count(*) FROM outbox_operation WHERE action IN ('erase', 'erased') AND actor = 'ann' \
        AND note = 'request 4711'";
    assert_eq!(db.number(operations).await, 2);
    let named = "SELECT (SELECT count(*) FROM outbox_operation WHERE selection LIKE '%customer-7%') \
        + (SELECT count(*) FROM outbox_audit WHERE coalesce(selection, '') LIKE '%customer-7%')";
    assert_eq!(db.number(named).await, 0, "no audit names the key");
    let again = scene.erase(&subject()).await;
    assert!(again.is_whole() && again.parts.is_empty(), "{again:?}");
}

/// Goal: a message that one relay has not passed, or has parked, is left, whatever the others did.
/// Oracle: the rows, and the reasons in the report.
async fn what_any_relay_may_still_publish_is_left<DB: TestDialect>(db: &Database<DB>) {
    let slow = RelayName::new("slow").unwrap();
    db.enqueue(of(2, KEY)).await;
    let mut other = Relay::new(db, &slow).await;
    let entries = other.follower.all().await;
    other.pass(&[ExceptionChange::Park(parked(&entries[1], ExceptionState::Held))]).await;
    db.enqueue(of(1, KEY)).await;
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    db.enqueue(of(1, KEY)).await;
    let scene = Scene::at(&db.url);
    for report in [scene.look(&subject()).await, scene.erase(&subject()).await] {
        assert_eq!((report.erased, report.left), (1, 3), "{report:?}");
        assert_eq!(left(&report), [("held", 1), ("not published yet", 2)], "{report:?}");
        assert!(!report.is_whole());
    }
    let kept = "SELECT count(*) FROM outbox_message WHERE key = 'customer-7' AND length(payload) > 0";
    assert_eq!((db.number(ERASED).await, db.number(kept).await), (1, 3));

    other.pass(&[ExceptionChange::Resolve(entries[1].id)]).await;
    main.pass(&[]).await;
    let report = scene.erase(&subject()).await;
    assert_eq!((report.erased, report.left), (3, 0), "{report:?}");
    assert_eq!((db.number(ERASED).await, db.number(WITH_CONTENT).await), (4, 0));
}

/// Returns another URL of the same database.
fn spelled_otherwise<DB: TestDialect>(db: &Database<DB>) -> String {
    let other = match &db.directory {
        Some(directory) => {
            let linked = directory.path().join("linked");
            std::os::unix::fs::symlink(directory.path(), &linked).unwrap();
            db.url.replace(directory.path().to_str().unwrap(), linked.to_str().unwrap())
        }
        None => db.url.replace("127.0.0.1", "localhost"),
    };
    assert_ne!(other, db.url);
    other
}

/// Goal: an erasure for one pipeline erases nothing that another configured one, which has never
/// led, has still to publish, however the location is spelled. If it is unknown whether that one
/// reads this log, nothing is erased. Oracle: the rows, and the reasons in the report.
async fn a_pipeline_that_has_never_led_keeps_its_messages<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(of(2, KEY)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    let scene = Scene::at(&db.url);
    let second = RelayName::new("second").unwrap();
    let stop = CancellationToken::new();
    for url in [db.url.clone(), spelled_otherwise(db)] {
        let configured = [scene.pipeline.clone(), pipeline(&second, &url)];
        let places = configured.iter().fold(Places::new(), Places::outbox);
        let goals = Goals { places: &places, configured: &configured, ..scene.goals() };
        let report = erase(&goals, &scene.signed, &subject(), &stop, &|_| ()).await.unwrap();
        assert_eq!((report.erased, left(&report)), (0, vec![("not published yet", 2)]), "{url}: {report:?}");
    }
    let configured = [scene.pipeline.clone(), pipeline(&second, &spelled_nowhere(db))];
    let places = configured.iter().fold(Places::new(), Places::outbox);
    let goals = Goals { places: &places, configured: &configured, ..scene.goals() };
    let report = erase(&goals, &scene.signed, &subject(), &stop, &|_| ()).await.unwrap();
    let unknown =
        |error: &OperateError| error.to_string().contains("whether second reads this log is unknown");
    assert!(report.erased == 0 && report.errors.iter().any(unknown), "{report:?}");
    assert_eq!(db.number(ERASED).await, 0);

    Relay::new(db, &second).await.pass(&[]).await;
    let report = scene.erase(&subject()).await;
    assert_eq!((report.erased, report.left), (2, 0), "{report:?}");
}

/// Opens an inbox in the database, whose result is what its consumer has learnt of the subject.
async fn inbox_in<DB: TestDialect>(db: &Database<DB>) -> Inbox<DB> {
    let mut admin = db.admin.acquire().await.unwrap();
    Migrator::<DB>::new(Line::Inbox).up(&mut admin).await.unwrap();
    drop(admin);
    Inbox::open(db.admin.clone(), InboxOptions::default()).await.unwrap()
}

async fn apply<DB: TestDialect>(inbox: &Inbox<DB>, consumer: &str, message: &Message) {
    let mut tx = inbox.begin().await.unwrap();
    let tenant = Tenant::new("acme").unwrap();
    let admitted = tx.admit(&ConsumerName::new(consumer).unwrap(), &tenant, message).await.unwrap();
    let Admission::Fresh(guard) = admitted else { panic!("a new message") };
    guard.complete(&mut tx, b"Ann").await.unwrap();
    drop(tx.commit().await.unwrap());
}

/// Goal: a row stays until every configured consumer that is to apply its message has done so, or
/// has it among its dead letters: the result that comes later could not be found without the row.
/// The erasure waits neither for consumers of other topics or pipelines nor for messages that an
/// inbox no longer accepts. Oracle: the rows, the results, and the reasons in the report.
async fn what_a_consumer_has_still_to_apply_is_left<DB: TestDialect>(db: &Database<DB>) {
    let applied = inbox_in(db).await;
    db.enqueue(of(3, KEY)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.pass(&[]).await;
    let messages: Vec<&Message> = entries.iter().map(|entry| entry.message.as_ref().unwrap()).collect();
    apply(&applied, "billing", messages[0]).await;
    let is_sqlite = DB::DIALECT == migrations::Dialect::Sqlite;
    store_letter(db, "billing", messages[1], "").await;
    let mut scene = Scene::at(&db.url);
    for (consumer, pipelines, topics) in [
        ("billing", &[][..], &["orders"][..]),
        ("returns", &[], &["returns"]),
        ("shipping", &["parcels"], &[]),
    ] {
        scene.places = scene.places.inbox(&inbox_config(&db.url, consumer, pipelines, topics)).await;
    }
    assert_eq!(scene.places.away(), []);
    for (report, messages_erased) in [
        (scene.look(&subject()).await, 2),
        (scene.erase(&subject()).await, 2),
        (scene.erase(&subject()).await, 0),
    ] {
        let erased: u64 =
            report.parts.iter().filter(|part| part.what == "messages").map(|part| part.erased).sum();
        assert_eq!((erased, left(&report)), (messages_erased, vec![("not applied yet", 1)]), "{report:?}");
        assert!(!report.is_whole());
    }
    let results = "SELECT count(*) FROM inbox_message WHERE result IS NOT NULL";
    assert_eq!((db.number(ERASED).await, db.number(results).await), (2, 0));

    apply(&applied, "billing", messages[2]).await;
    assert_eq!(db.number(results).await, 1);
    let report = scene.erase(&subject()).await;
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((db.number(ERASED).await, db.number(results).await), (3, 0));

    // An operator need not wait, and an erasure does not wait for a message that the inbox no
    // longer accepts.
    for is_old in [false, true] {
        db.enqueue(of(1, KEY)).await;
        main.pass(&[]).await;
        assert_eq!(left(&scene.look(&subject()).await), [("not applied yet", 1)]);
        if is_old {
            // In the first hour of a day the memory begins a day earlier.
            let days = if is_sqlite { "16 * 86400000000" } else { "interval '16 days'" };
            db.run(&format!("UPDATE inbox_retention SET retained_from = retained_from + {days}")).await;
            scene.places = Places::new().outbox(&scene.pipeline);
            scene.places = scene.places.inbox(&inbox_config(&db.url, "billing", &[], &["orders"])).await;
        }
        let asked = Subject { unapplied: !is_old, ..subject() };
        let report = scene.erase(&asked).await;
        assert!(report.is_whole() && report.erased == 1, "{report:?}");
    }
    scene.places.close().await;
}

/// Stores a dead letter of a message. It is closed with a resolution, unless that is empty.
async fn store_letter<DB: TestDialect>(
    db: &Database<DB>,
    consumer: &str,
    message: &Message,
    resolution: &str,
) {
    let bytes = if DB::DIALECT == migrations::Dialect::Sqlite { "x'00'" } else { "'\\x00'" };
    let letter = format!(
        "INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, headers, \
         payload, reason, error, attempts, origin, resolution, resolved_at) \
         SELECT '019f0000-0000-7000-8000-000000000001', '{consumer}', '', '{id}', {fingerprint}, '{id}', 'orders', \
         {key}, '[]', {bytes}, 'poison', 'x', 1, 'orders/0', nullif('{resolution}', ''), \
         CASE WHEN '{resolution}' <> '' THEN (SELECT max(retained_from) FROM inbox_retention) END",
        id = message.id,
        fingerprint = bytes.replace("00", &"00".repeat(32)),
        key = if resolution.is_empty() { "NULL" } else { "'customer-7'" },
    );
    db.run(&letter).await;
}

/// Goal: rows that lead to results in an inbox that does not answer stay, and the report says so;
/// the same command finds the results later. An inbox of other pipelines keeps nothing, and is not
/// reported. Oracle: the rows, the results, and the reasons in the report.
async fn rows_that_lead_to_an_inbox_that_is_away_are_left<DB: TestDialect>(db: &Database<DB>) {
    let applied = inbox_in(db).await;
    db.enqueue(of(3, KEY)).await;
    let entries = Relay::new(db, &relay()).await.pass(&[]).await;
    for entry in &entries {
        apply(&applied, "billing", entry.message.as_ref().unwrap()).await;
    }
    let results = "SELECT count(*) FROM inbox_message WHERE result IS NOT NULL";
    let nowhere = spelled_nowhere(db);
    let mut scene = Scene::at(&db.url);
    let parcels = inbox_config(&nowhere, "shipping", &["parcels"], &[]);
    for inbox in [inbox_config(&db.url, "billing", &[], &[]), parcels.clone()] {
        scene.places = scene.places.inbox(&inbox).await;
    }
    let mail = inbox_config(&nowhere, "mail", &[], &["mails"]);
    scene.places = scene.places.inbox(&mail).await;
    for (report, erased) in [(scene.look(&subject()).await, 3), (scene.erase(&subject()).await, 3)] {
        assert_eq!(
            (report.erased, left(&report)),
            (erased, vec![("an inbox does not answer", 3)]),
            "{report:?}"
        );
        assert!(report.parts.iter().all(|part| part.what == "results" || part.erased == 0), "{report:?}");
        let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
        assert!(errors.len() == 1 && errors[0].starts_with("inbox of mail: "), "{errors:?}");
    }
    let kept = "SELECT count(*) FROM outbox_message WHERE key = 'customer-7'";
    assert_eq!((db.number(ERASED).await, db.number(kept).await, db.number(results).await), (0, 3, 0));

    scene.places = Scene::at(&db.url).places.inbox(&parcels).await;
    scene.places = scene.places.inbox(&inbox_config(&db.url, "mail", &[], &["mails"])).await;
    let report = scene.erase(&subject()).await;
    assert!(report.is_whole() && report.erased == 3, "{report:?}");
}

/// Goal: where two pipelines read one outbox, an erasure for one of them erases no row that leads
/// to a result which a consumer of the other one has still to store, and erases those that it has
/// stored. Dead letters of the other one stay: their keys lead to them. Oracle: the tables.
async fn an_erasure_for_one_pipeline_finds_the_results_of_others<DB: TestDialect>(db: &Database<DB>) {
    let applied = inbox_in(db).await;
    let second = RelayName::new("second").unwrap();
    db.enqueue(of(2, KEY)).await;
    let entries = Relay::new(db, &relay()).await.pass(&[]).await;
    Relay::new(db, &second).await.pass(&[]).await;
    let messages: Vec<&Message> = entries.iter().map(|entry| entry.message.as_ref().unwrap()).collect();
    apply(&applied, "mail", messages[0]).await;
    store_letter(db, "other", messages[0], "discarded").await;
    let mut scene = Scene::at(&db.url);
    let configured = [scene.pipeline.clone(), pipeline(&second, &db.url)];
    scene.places = scene.places.outbox(&configured[1]);
    scene.places = scene.places.inbox(&inbox_config(&db.url, "mail", &["second"], &[])).await;
    let goals = Goals { configured: &configured, ..scene.goals() };
    let stop = CancellationToken::new();
    let report = erase(&goals, &scene.signed, &subject(), &stop, &|_| ()).await.unwrap();
    assert_eq!((report.erased, left(&report)), (2, vec![("not applied yet", 1)]), "{report:?}");
    let results = "SELECT count(*) FROM inbox_message WHERE result IS NOT NULL";
    let letters = "SELECT count(*) FROM inbox_dead_letter WHERE key = 'customer-7'";
    assert_eq!((db.number(ERASED).await, db.number(results).await, db.number(letters).await), (1, 0, 1));
    scene.places.close().await;
}

/// Returns the URL of a database that does not exist.
fn spelled_nowhere<DB: TestDialect>(db: &Database<DB>) -> String {
    match &db.directory {
        Some(directory) => db.url.replace(directory.path().to_str().unwrap(), "/nowhere"),
        None => db.url.replace("127.0.0.1", "nowhere.invalid"),
    }
}

/// Goal: a dead message is dropped only by an operator who says so, with its copy and what edits
/// have kept of it. Oracle: the tables, and the audit.
async fn a_dead_message_is_discarded_only_on_demand<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(of(2, KEY)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    main.pass(&[ExceptionChange::Park(parked(&entries[0], ExceptionState::Dead))]).await;
    db.run(&format!(
        "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note, selection, payload_before, \
         digest_before, error) VALUES ('bob', 'main', {}, '{}', 'edit', 'a test', 'key=customer-7', \
         CAST('Ann' AS {}), 'd', 'Ann is unknown')",
        entries[0].id.0,
        entries[0].message_id(),
        if DB::DIALECT == migrations::Dialect::Sqlite { "BLOB" } else { "bytea" },
    ))
    .await;
    // A relay that was forgotten leaves its audit.
    db.run(&format!(
        "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note, selection) \
         VALUES ('bob', 'gone', {}, '{}', 'requeue', 'a test', 'key=customer-7')",
        entries[0].id.0,
        entries[0].message_id(),
    ))
    .await;
    let scene = Scene::at(&db.url);
    let report = scene.erase(&subject()).await;
    assert_eq!((report.erased, left(&report)), (1, vec![("dead", 1)]), "{report:?}");
    let content = "SELECT count(*) FROM outbox_audit WHERE payload_before IS NOT NULL OR digest_before IS NOT NULL \
        OR error IS NOT NULL OR selection = 'key=customer-7'";
    assert_eq!(db.number(content).await, 2, "the dead message may still leave");

    let discard = Subject { discard: true, ..subject() };
    let looked = scene.look(&discard).await;
    assert_eq!((looked.erased, looked.parts[0].discarded), (1, 1), "{looked:?}");
    assert_eq!(left(&looked), [("discarded", 1)], "{looked:?}");
    // Its exception keeps the key until the relay removes it.
    let report = scene.erase(&discard).await;
    assert_eq!((report.erased, report.parts[0].discarded), (1, 1), "{report:?}");
    assert_eq!(left(&report), [("discarded", 1)], "{report:?}");
    assert_eq!((db.number(ERASED).await, db.number(WITH_CONTENT).await, db.number(content).await), (2, 0, 0));
    let copies = "SELECT count(*) FROM outbox_parked WHERE length(payload) > 0 OR headers IS NOT NULL \
        OR content_type <> 'application/vnd.outbox.erased'";
    assert_eq!(db.number(copies).await, 0, "a copy is recognised as erased, too");
    let discards = "SELECT count(*) FROM outbox_audit WHERE action = 'discard' AND actor = 'ann'";
    assert_eq!(db.number(discards).await, 1);
    assert_eq!(left(&scene.erase(&discard).await), [("discarded", 1)]);
    main.pass(&[ExceptionChange::Resolve(entries[0].id)]).await;
    assert!(scene.erase(&discard).await.is_whole());
}

/// Goal: a look with `--discard` tells what the erasure does, and a message that two relays have
/// parked is one. Oracle: both reports.
async fn a_message_that_two_relays_have_parked_is_one<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(of(1, KEY)).await;
    for name in [relay(), RelayName::new("second").unwrap()] {
        let mut relay = Relay::new(db, &name).await;
        let entries = relay.follower.all().await;
        relay.pass(&[ExceptionChange::Park(parked(&entries[0], ExceptionState::Dead))]).await;
    }
    let scene = Scene::at(&db.url);
    let discard = Subject { discard: true, ..subject() };
    for report in [scene.look(&discard).await, scene.erase(&discard).await] {
        assert_eq!((report.erased, report.parts[0].discarded), (1, 1), "{report:?}");
        assert_eq!(left(&report), [("discarded", 1)], "{report:?}");
    }
    assert_eq!(db.number(ERASED).await, 1);
}

/// Goal: a dead message whose row retention has removed loses its copy, and the error that the
/// audit keeps of it. Oracle: the tables.
async fn what_is_only_parked_is_erased_with_its_error<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(of(1, KEY)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    let dead =
        Parked { error: Some(String::from("Ann is unknown")), ..parked(&entries[0], ExceptionState::Dead) };
    main.pass(&[ExceptionChange::Park(dead)]).await;
    db.run("DELETE FROM outbox_message").await;
    let discard = Subject { discard: true, ..subject() };
    let report = Scene::at(&db.url).erase(&discard).await;
    assert_eq!((report.erased, left(&report)), (1, vec![("discarded", 1)]), "{report:?}");
    assert_eq!(db.number("SELECT count(*) FROM outbox_audit WHERE action = 'discard'").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM outbox_audit WHERE error IS NOT NULL").await, 0);
    let copies = "SELECT count(*) FROM outbox_parked WHERE content_type = 'application/vnd.outbox.erased'";
    assert_eq!(db.number(copies).await, 1);
}

/// Goal: a relay that begins later, or after `relay forget`, publishes no empty message in the
/// place of an erased one. Oracle: the entries that it reads.
async fn an_erased_row_is_never_published<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(of(1, KEY).chain(of(1, "customer-8"))).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    assert!(Scene::at(&db.url).erase(&subject()).await.is_whole());
    let late = RelayName::new("late").unwrap();
    let entries = Relay::new(db, &late).await.pass(&[]).await;
    let problem = entries[0].message.as_ref().unwrap_err().problem.clone();
    assert!(problem.contains("erased by an operator"), "{problem}");
    assert!(entries[1].message.is_ok());
}

/// Goal: an erasure is in transactions of at most 500 rows, and one that was stopped is continued
/// by the same command. Oracle: the rows when it was stopped after the first transaction, and at
/// the end.
async fn an_erasure_continues_where_it_was_stopped<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(of(1_300, KEY)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    let scene = Scene::at(&db.url);
    let stop = CancellationToken::new();
    // Reported before the rows of a step are erased.
    let stopping = |_| stop.cancel();
    let report = erase(&scene.goals(), &scene.signed, &subject(), &stop, &stopping).await.unwrap();
    assert!(report.stopped && !report.is_whole(), "{report:?}");
    let first = db.number(ERASED).await;
    assert!((1..=500).contains(&first), "{first} rows in one transaction");
    let report = scene.erase(&subject()).await;
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((report.erased.cast_signed() + first, db.number(ERASED).await), (1_300, 1_300));
}

/// A relay's role reads the log and appends to its audit. Nothing that it runs can rewrite
/// messages.
async fn a_relay_has_no_right_to_erase(db: &Database<Postgres>) {
    db.enqueue(of(1, KEY)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    let report = Scene::at(&db.relay_url()).erase(&subject()).await;
    assert_eq!((report.erased, report.errors.len()), (0, 1), "{report:?}");
    assert!(report.errors[0].to_string().contains("permission denied"), "{report:?}");
    assert_eq!(db.number(ERASED).await, 0);
}
