//! The cost of one decision about many dead messages: sessions, and round trips to the server.

use operate::dead::{Bulk, Change, Filter, Progress, select};
use operate::{Operator, Places, Role, Signed};
use outbox_log::RelayName;
use sqlx::Postgres;
use sqlx::postgres::PgConnectOptions;
use tests::log_capture::LogCapture;
use tests::{Database, Dialect, Failure, Outcome, Stage};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::outbox::support::{inbox_config, pipeline};

tests::cases! { "bulk/{on}/{case}":
    postgres {
        a_requeue_in_an_outbox_is_one_session_and_few_round_trips = of_outbox,
        a_requeue_in_an_inbox_is_two_sessions_and_few_round_trips = of_inbox,
    }
}

/// Number of messages of one transaction.
const PART: usize = 500;
/// Numbers of dead messages: a little more than one part, and a little more than four parts.
const FEW: usize = PART + 9;
const MANY: usize = 4 * PART + 9;
/// Sessions of an outbox.
const OUTBOX_SESSIONS: usize = 1;
/// Sessions of an inbox: the first one finds the primary.
const INBOX_SESSIONS: usize = 2;
/// Maximum round trips of a part. In an outbox: begin, settings, locks, edits, the change, the
/// audit, commit. In an inbox: begin, settings, locks, requests with their audit, commit, and what
/// a pool asks of a connection.
const PART_MAX: usize = 8;
/// Maximum round trips to open the session and to choose the messages.
const OTHERS_MAX: usize = 40;

/// The cost of a decision.
#[derive(Debug)]
struct Cost {
    sessions: usize,
    round_trips: Vec<String>,
}

/// A database whose operators' sessions are recorded.
struct Scene {
    db: Database<Postgres>,
    capture: LogCapture,
    port: u16,
}

impl Scene {
    async fn open(stage: &Stage) -> Result<Self, Failure> {
        let db = Database::<Postgres>::migrated(stage).await?;
        let options: PgConnectOptions = db.url.parse()?;
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let (capture, port) = LogCapture::before(stage, &server).await?;
        Ok(Self { db, capture, port })
    }

    /// Returns the URL of a role at the listener, without TLS.
    fn url(&self, role: tests::Role) -> Result<String, Failure> {
        let url = <Postgres as Dialect>::url_of(role, &self.db.url)?;
        let options: PgConnectOptions = url.parse()?;
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let url = url.replacen(&server, &format!("127.0.0.1:{}", self.port), 1);
        let first = if url.contains('?') { '&' } else { '?' };
        Ok(format!("{url}{first}sslmode=disable"))
    }

    /// Requeues all dead messages of these places. Returns what that cost.
    async fn requeue(&self, open: impl AsyncFnOnce() -> Places, count: usize) -> Result<Cost, Failure> {
        drop(self.capture.take());
        let before = self.capture.sessions();
        let places = open().await;
        let operator = Operator::new("ann", Role::Operator);
        let change = Change::Requeue { accept_late: false };
        let selected = select(&places, &operator, &Filter::default(), &change, None).await?;
        assert_eq!((selected.count(), &selected.away[..]), (count as u64, &[][..]));
        let signed = Signed { operator, note: String::from("prices are back") };
        let stop = CancellationToken::new();
        let bulk =
            Bulk { places: &places, signed: &signed, change: &change, id: Uuid::now_v7(), stop: &stop };
        let mut told = Vec::new();
        let report = selected.carry_out(&bulk, |Progress { processed, .. }| told.push(processed)).await?;
        places.close().await;
        assert_eq!((report.refusals.first(), report.error), (None, None));
        assert_eq!((report.done, report.refused, report.unknown), (count as u64, 0, 0));
        assert_eq!(told.len(), count.div_ceil(PART) + 1, "progress after each part: {told:?}");
        let sessions = self.capture.sessions() - before;
        Ok(Cost { sessions, round_trips: self.capture.take() })
    }
}

/// Compares the costs of a few messages and of many with the cost of a part.
fn assert_bounded(few: &Cost, many: &Cost, sessions: usize, audit: &str) {
    for (cost, messages) in [(few, FEW), (many, MANY)] {
        assert_eq!(cost.sessions, sessions, "{messages} messages: {cost:#?}");
        let parts = messages.div_ceil(PART);
        let audited = cost.round_trips.iter().filter(|said| said.contains(audit)).count();
        assert_eq!(audited, parts, "the audit of {messages} messages: {cost:#?}");
        assert!(cost.round_trips.len() <= OTHERS_MAX + PART_MAX * parts, "{messages} messages: {cost:#?}");
    }
    let more = many.round_trips.len() - few.round_trips.len();
    let parts = MANY.div_ceil(PART) - FEW.div_ceil(PART);
    assert!(more <= PART_MAX * parts, "{more} for {parts} parts more: {many:#?}");
}

/// Goal: an operator's decision about very many dead messages takes seconds, also far from the
/// server. Oracle: the connections and the round trips that a listener before the server records.
async fn of_outbox(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let orders = pipeline(&RelayName::new("orders")?, &scene.url(tests::Role::Relay)?);
    let mut costs = Vec::new();
    for count in [FEW, MANY] {
        scene
            .db
            .execute(&format!(
                "DELETE FROM outbox_exception; \
                 INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, fault, attempts) \
                 SELECT 'orders', n, gen_random_uuid(), 'parcels', 'key-' || n, 'dead', \
                 'the carrier refused parcel ' || n, 'message', 1 FROM generate_series(1, {count}) AS n"
            ))
            .await?;
        costs.push(scene.requeue(async || Places::new().outbox(&orders), count).await?);
        let left = "SELECT count(*) FROM outbox_exception WHERE state = 'dead'";
        assert_eq!(scene.db.integer(left).await?, 0);
    }
    assert_bounded(&costs[0], &costs[1], OUTBOX_SESSIONS, "INSERT INTO outbox_audit");
    Ok(())
}

/// Goal and oracle as [`of_outbox`], for requests to the consumers of an inbox.
async fn of_inbox(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let mut costs = Vec::new();
    for count in [FEW, MANY] {
        scene
            .db
            .execute(&format!(
                "INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, \
                 kind, source, content_type, headers, payload, reason, error, attempts, origin) \
                 SELECT gen_random_uuid(), 'billing-{count}', '', s.id, sha256(s.id::text::bytea), s.id, 'invoices', \
                 'account-7', 'invoice.issued', '/shop', 'application/json', '[]', '1', 'poison', \
                 'the account is closed', 10, 'invoices/0' \
                 FROM (SELECT outbox_new_message_id() AS id FROM generate_series(1, {count})) AS s"
            ))
            .await?;
        let url = scene.url(tests::Role::Consumer)?;
        let billing = inbox_config(&url, &format!("billing-{count}"), &[], &[]);
        costs.push(scene.requeue(async || Places::new().inbox(&billing).await, count).await?);
    }
    assert_bounded(&costs[0], &costs[1], INBOX_SESSIONS, "INSERT INTO inbox_audit");
    Ok(())
}
