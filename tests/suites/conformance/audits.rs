//! The audit as operators read it: filters, one line for each decision, and exports.

use std::num::NonZeroU32;

use inbox::{Inbox, InboxOptions, Signature};
use operate::audit::{AuditFilter, AuditLine, AuditQuery, AuditSource, Audited, read};
use operate::dead::{Filter, States};
use operate::export::{AuditExport, DeadExport, ExportFormat};
use operate::{NamedTables, Operator, Places, Role, named_tables};
use outbox_log::RelayName;
use serde_json::Value;
use tests::{Database, Dialect, Failure, Outcome, Stage};
use time::{Duration, OffsetDateTime};

use crate::audit::{days_ago, dead_letter};
use crate::outbox::support::{inbox_config, pipeline};

tests::cases! { "audits/{on}/{case}":
    databases {
        filters_find_decisions_however_many_follow,
        a_large_decision_hides_no_earlier_one,
        an_export_is_whole_and_says_what_is_missing,
        a_decision_that_goes_on_meanwhile_is_exported,
    }
}

/// Rows that follow the decisions that the cases search: more than one read returns.
const FOLLOWING: usize = 1_200;
/// Decisions about keys: more than a list of decisions reads.
const KEYS: usize = 10_000;

/// Stores the decisions of several operators about messages of two topics, two days ago: three of
/// one decision by ann about the topic `orders`, with a formula as note, which no spreadsheet may
/// run; two by bob, one for each message; two pauses by ann; a discarded dead letter of `orders` by
/// eve, of today; a key by dan. Then many edits by cy, of today.
async fn store<DB: Dialect>(db: &Database<DB>) -> Outcome {
    for (topic, count) in [("orders", 3), ("bills", 1)] {
        for number in 0..count {
            db.append(topic, &format!("key-{number}"), "{}").await?;
        }
    }
    let before = days_ago::<DB>(2);
    let columns = "outbox_audit (actor, relay, id, message_id, action, note, selection, at)";
    let of_message = "FROM outbox_message AS m WHERE";
    db.execute(&format!(
        "INSERT INTO {columns} SELECT 'ann', 'main', m.id, m.message_id, 'discard', '=cmd()', \
         'topic=orders: 3 chosen', {before} {of_message} m.topic = 'orders'"
    ))
    .await?;
    db.execute(&format!(
        "INSERT INTO {columns} SELECT 'bob', 'main', m.id, m.message_id, 'requeue', 'again', NULL, {before} \
         {of_message} m.key = 'key-0' ORDER BY m.id"
    ))
    .await?;
    for topic in ["orders", "bills"] {
        db.execute(&format!(
            "INSERT INTO outbox_operation (actor, relay, action, selection, note, at) \
             VALUES ('ann', 'main', 'pause', 'topic {topic}', 'look first', {before})"
        ))
        .await?;
    }
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await?;
    let letter = dead_letter(&inbox, "no price").await?;
    let by_eve =
        Signature { actor: String::from("eve"), note: String::from("sent by hand"), selection: None };
    inbox.discard(letter, &by_eve).await?;
    db.execute(
        "INSERT INTO idempotency_audit (actor, note, action, scope, operation, key) \
         VALUES ('dan', 'x', 'release', 't', 'POST /orders', 'k')",
    )
    .await?;
    db.execute(&format!(
        "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note) \
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {FOLLOWING}) \
         SELECT 'cy', 'main', m.id, m.message_id, 'edit', 'no. ' || n \
         FROM n CROSS JOIN (SELECT id, message_id FROM outbox_message ORDER BY id DESC LIMIT 1) AS m"
    ))
    .await
}

/// The places of an operator: an outbox, the inbox twice, the databases of keys and sagas, and a
/// pipeline whose database does not exist.
struct Scene {
    places: Places,
    tables: Vec<NamedTables>,
    operator: Operator,
}

impl Scene {
    async fn open<DB: Dialect>(db: &Database<DB>) -> Result<Self, Failure> {
        let inbox = inbox_config(&db.url, "billing", &[], &[]);
        let main = pipeline(&RelayName::new("main")?, &db.url);
        let gone = pipeline(&RelayName::new("gone")?, "sqlite:/nowhere/at/all.db");
        let places = Places::new().outbox(&main).outbox(&gone).inbox(&inbox).await.inbox(&inbox).await;
        let tables = named_tables(&[main], &[inbox]);
        Ok(Self { places, tables, operator: Operator::new("vic", Role::Viewer) })
    }

    async fn read(&self, filter: AuditFilter, is_each: bool) -> Result<Audited, Failure> {
        let limit = NonZeroU32::MIN.saturating_add(99);
        let query = AuditQuery { filter, is_each, limit };
        let audited = read(&self.places, &self.tables, &self.operator, &query).await?;
        let [gone] = &audited.away[..] else { return Err(format!("{:?}", audited.away).into()) };
        assert!(gone.to_string().starts_with("gone: "), "{gone}");
        Ok(audited)
    }

    /// Returns actor, action and number of messages of each line, sorted.
    async fn shown(&self, filter: AuditFilter) -> Result<Vec<String>, Failure> {
        let shown = |line: &AuditLine| format!("{} {} {}", line.actor, line.action, line.messages);
        let mut lines: Vec<String> = self.read(filter, false).await?.lines.iter().map(shown).collect();
        lines.sort();
        Ok(lines)
    }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Goal: an operator finds a decision by its author, its action, its topic and its time, however
/// many were taken since, as one line with its count; and learns which database did not answer.
/// Oracle: the lines of each filter, and the errors.
async fn filters_find_decisions_however_many_follow<DB: Dialect>(stage: Stage) -> Outcome {
    let db = Database::<DB>::migrated(&stage).await?;
    store(&db).await?;
    let scene = Scene::open(&db).await?;
    let all = AuditFilter::default;
    let by_ann = AuditFilter { actor: some("ann"), ..all() };
    assert_eq!(scene.shown(by_ann.clone()).await?, ["ann discard 3", "ann pause 0", "ann pause 0"]);
    let each = scene.read(AuditFilter { action: some("discard"), ..by_ann }, true).await?;
    assert_eq!(each.lines.iter().map(|line| line.messages).collect::<Vec<_>>(), [1, 1, 1]);
    let of_orders = AuditFilter { topic: some("orders"), ..all() };
    let expected = ["ann discard 3", "ann pause 0", "bob requeue 1", "eve discard 1"];
    assert_eq!(scene.shown(of_orders.clone()).await?, expected);
    let of_bills = AuditFilter { topic: some("bills"), actor: some("bob"), ..all() };
    assert_eq!(scene.shown(of_bills).await?, ["bob requeue 1"]);
    assert_eq!(scene.shown(AuditFilter { topic: some("none"), ..all() }).await?, [""; 0]);
    let yesterday = OffsetDateTime::now_utc() - Duration::DAY;
    let recent = AuditFilter { from: Some(yesterday), ..of_orders.clone() };
    assert_eq!(scene.shown(recent).await?, ["eve discard 1"]);
    let old = AuditFilter { to: Some(yesterday), ..of_orders };
    assert_eq!(scene.shown(old).await?, expected[..3]);
    let released = scene.read(AuditFilter { action: some("release"), ..all() }, false).await?;
    let [line] = &released.lines[..] else { return Err(format!("{released:?}").into()) };
    assert_eq!((line.source, line.owner.as_str()), (AuditSource::Keys, "t, POST /orders"));
    // Without a filter, the latest ones.
    let latest = scene.read(all(), false).await?;
    assert_eq!((latest.lines.len(), latest.searched_back_to), (100, None));
    let wrong = AuditQuery {
        filter: AuditFilter { action: some("burn"), ..all() },
        ..AuditQuery::latest(NonZeroU32::MIN)
    };
    assert!(read(&scene.places, &[], &scene.operator, &wrong).await.is_err());
    scene.places.close().await;
    Ok(())
}

/// Messages of each large decision: more than any read of rows covers.
const LARGE: u64 = 75_000;

/// Goal: after decisions about 150,000 messages, made by two operators at once, each is one line
/// with its exact number, the earlier ones are there, and filters find them at once. Oracle: the
/// lines without and with filters, none of them with a lower bound as its number.
async fn a_large_decision_hides_no_earlier_one<DB>(stage: Stage) -> Outcome
where
    DB: Dialect + inbox::Dialect,
{
    let db = Database::<DB>::migrated(&stage).await?;
    db.append("orders", "key-1", "{}").await?;
    let columns = "outbox_audit (actor, relay, id, message_id, action, note, selection, decision)";
    let row = "'main', m.id, m.message_id, 'requeue', 'a test'";
    let cast = if DB::DIALECT == migrations::Dialect::Sqlite { "" } else { "::uuid" };
    let early = "019f0000-0000-7000-8000-00000000000a";
    db.execute(&format!(
        "INSERT INTO {columns} SELECT 'cy', {row}, 'all: 1 chosen', '{early}'{cast} FROM outbox_message AS m"
    ))
    .await?;
    let one = "019f0000-0000-7000-8000-00000000000b";
    let other = "019f0000-0000-7000-8000-00000000000c";
    // Two operators take turns of 500 rows; the first turn has one row less.
    let rows = 2 * LARGE - 1;
    db.execute(&format!(
        "INSERT INTO {columns} WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows}) \
         SELECT CASE WHEN n / 500 % 2 = 0 THEN 'ann' ELSE 'bob' END, {row}, 'all: {LARGE} chosen', \
         (CASE WHEN n / 500 % 2 = 0 THEN '{one}' ELSE '{other}' END){cast} \
         FROM n CROSS JOIN outbox_message AS m ORDER BY n",
    ))
    .await?;
    let scene = Scene::open(&db).await?;
    let ann = format!("ann requeue {}", LARGE - 1);
    let bob = format!("bob requeue {LARGE}");
    let all = [ann.clone(), bob.clone(), String::from("cy requeue 1")];
    let latest = scene.read(AuditFilter::default(), false).await?;
    assert!(latest.lines.iter().all(|line| !line.messages_is_at_least), "{latest:?}");
    assert_eq!(latest.searched_back_to, None);
    assert_eq!(scene.shown(AuditFilter::default()).await?, all);
    let by = |actor| AuditFilter { actor: some(actor), ..AuditFilter::default() };
    assert_eq!(scene.shown(by("bob")).await?, [bob]);
    assert_eq!(scene.shown(by("cy")).await?, [all[2].clone()]);
    assert_eq!(scene.shown(by("eve")).await?, [""; 0]);
    let recent = OffsetDateTime::now_utc() - Duration::HOUR;
    assert_eq!(scene.shown(AuditFilter { from: Some(recent), ..AuditFilter::default() }).await?, all);
    scene.places.close().await;
    Ok(())
}

/// Goal: an export has every decision once, including those of an inbox that is configured twice,
/// and names the database that did not answer. No cell of its CSV is a formula. Oracle: the rows of
/// both formats; the size of each part, which is bounded.
async fn an_export_is_whole_and_says_what_is_missing<DB: Dialect>(stage: Stage) -> Outcome {
    let db = Database::<DB>::migrated(&stage).await?;
    store(&db).await?;
    let audit = async |format, is_each| {
        let Scene { places, tables, operator } = Scene::open(&db).await?;
        let mut export =
            AuditExport::new(places, tables, &operator, AuditFilter::default(), is_each, format)?;
        let (mut file, mut largest) = (String::new(), 0);
        while let Some(part) = export.next().await {
            largest = largest.max(part.lines().count());
            file.push_str(&part);
        }
        assert!(largest <= 501, "{largest} rows at once");
        assert_eq!(export.missing().len(), 1, "{:?}", export.missing());
        Ok::<_, Failure>(file)
    };
    // Three and two decisions about messages, two pauses, a dead letter, a key.
    for (is_each, others) in [(false, 3 + 2 + 1 + 1), (true, 5 + 2 + 1 + 1)] {
        let json: Value = serde_json::from_str(&audit(ExportFormat::Json, is_each).await?)?;
        let lines = json["decisions"].as_array().ok_or("no decisions")?;
        assert_eq!(lines.len(), FOLLOWING + others, "{is_each}");
        assert!(json["missing"][0].as_str().is_some_and(|text| text.starts_with("gone: ")), "{json}");
        let csv = audit(ExportFormat::Csv, is_each).await?;
        assert_eq!(csv.matches("\r\n").count(), 1 + FOLLOWING + others + 1);
        assert!(csv.starts_with("at,actor,action,source,owner,messages,"), "{csv}");
        assert!(csv.contains(",'=cmd(),") && !csv.contains(",=cmd()"), "no formula");
        let last = csv.lines().last().unwrap_or_default();
        assert!(last.starts_with(",,missing,") && last.contains("gone: "), "{last}");
    }
    db.execute(&format!(
        "INSERT INTO idempotency_audit (actor, note, action, scope, operation, key) \
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {KEYS}) \
         SELECT 'dan', 'x', 'release', 't', 'POST /orders', 'k-' || n FROM n"
    ))
    .await?;
    let csv = audit(ExportFormat::Csv, false).await?;
    assert_eq!(csv.matches(",release,keys,").count(), KEYS + 1);
    let Scene { places, operator, .. } = Scene::open(&db).await?;
    let mut export =
        DeadExport::new(places, &operator, Filter::default(), vec![States::Closed], ExportFormat::Json)?;
    let mut file = String::new();
    while let Some(part) = export.next().await {
        file.push_str(&part);
    }
    let json: Value = serde_json::from_str(&file)?;
    let messages = json["messages"].as_array().ok_or("no messages")?;
    assert_eq!(messages.len(), 1, "{json}");
    assert_eq!((&messages[0]["topic"], &messages[0]["error"]), (&"orders".into(), &"no price".into()));
    assert_eq!(json["missing"].as_array().map(Vec::len), Some(1), "{json}");
    Ok(())
}

/// Goal: an export has a decision that is carried out while it reads, although the first slice had
/// no row of it. Oracle: the lines of two decisions, one of which gets a row between the slices.
async fn a_decision_that_goes_on_meanwhile_is_exported<DB: Dialect>(stage: Stage) -> Outcome {
    let db = Database::<DB>::migrated(&stage).await?;
    db.append("orders", "key-1", "{}").await?;
    let cast = if DB::DIALECT == migrations::Dialect::Sqlite { "" } else { "::uuid" };
    let decide = async |actor: &str, decision: char, rows: usize| {
        db.execute(&format!(
            "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note, selection, decision) \
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows}) \
             SELECT '{actor}', 'main', m.id, m.message_id, 'requeue', 'a test', 'all: 2000 chosen', \
             '019f0000-0000-7000-8000-00000000000{decision}'{cast} FROM n CROSS JOIN outbox_message AS m"
        ))
        .await
    };
    decide("ann", 'a', 1).await?;
    decide("bob", 'b', 1_500).await?;
    let Scene { places, tables, operator } = Scene::open(&db).await?;
    let filter = AuditFilter::default();
    let mut export = AuditExport::new(places, tables, &operator, filter, false, ExportFormat::Csv)?;
    let mut file = String::new();
    // The head, and the first slice: rows of bob's decision.
    for _ in 0..2 {
        file.push_str(&export.next().await.ok_or("nothing is exported")?);
    }
    decide("ann", 'a', 1).await?;
    while let Some(part) = export.next().await {
        file.push_str(&part);
    }
    let count =
        |actor: &str| file.lines().filter(|line| line.contains(&format!(",{actor},requeue,"))).count();
    assert_eq!([count("ann"), count("bob")], [1, 1], "{file}");
    Ok(())
}
