//! Operators' reads of a database whose host has disappeared: no packet arrives, and no connection
//! ends. Every case waits for a time limit to pass.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use brokers::Secret;
use inbox::{
    Admission, ConsumerName, DeadLetterId, DeadLetterQuery, Inbox, InboxOptions, RedriveOptions, Signature,
    Tenant,
};
use message::{EventType, Message, MessageId, Topic};
use operate::verify::{Compared, Comparison, Progress, Range, Reading};
use operate::{InboxConfig, OperateError, OperateErrorKind, Operator, Places, Role};
use proxy::{Conditions, End, Flow, Pass, Proxy};
use sqlx::Postgres;
use sqlx::postgres::PgConnectOptions;
use tests::{Database, Dialect, Failure, Outcome, Stage};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::outbox::support::{pipeline, relay};

tests::cases! { "operators/{on}/{case}":
    night postgres {
        no_call_to_an_inbox_waits_for_a_host_that_is_gone = each_call,
        an_inbox_whose_host_is_gone_is_named_with_the_time = consumers,
        a_comparison_ends_when_the_host_of_an_inbox_is_gone = comparison,
        a_slow_statement_of_effects_ends_only_with_its_host = effects,
    }
}

/// The limit of a call in these cases, where it can be set.
const LIMIT: Duration = Duration::from_secs(1);
/// Longer than any limit; what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(200);

/// A database with an inbox, and a proxy in front of it that can lose packets.
struct Scene {
    db: Database<Postgres>,
    wire: Arc<Proxy>,
    /// The database's URL through that proxy.
    url: String,
    /// The limit of a call of a comparison.
    limit: Duration,
}

impl Scene {
    async fn open(stage: &Stage) -> Result<Self, Failure> {
        let db = Database::<Postgres>::migrated(stage).await?;
        let inbox = Inbox::open(db.consumer.clone(), InboxOptions::default()).await?;
        let mut tx = inbox.begin().await?;
        let message = Message::new(Topic::new("orders")?, EventType::new("order.placed")?, "one");
        let admission = tx.admit(&consumer()?, &Tenant::none(), &message).await?;
        assert!(matches!(admission, Admission::Fresh(_)));
        drop(tx.commit().await?);
        let options: PgConnectOptions = db.url.parse()?;
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let wire = Arc::new(Proxy::start(0, server.as_str()).await?);
        let url = db.url.replace(&server, &wire.address().to_string());
        assert_ne!(url, db.url, "the URL names {server}");
        Ok(Self { db, wire, url, limit: LIMIT })
    }

    fn inbox(&self, effects: Option<&str>) -> Result<InboxConfig, Failure> {
        Ok(InboxConfig {
            effects: effects.map(str::to_owned),
            ..InboxConfig::new(consumer()?, Secret::Text(self.url.clone().into()))
        })
    }

    /// Compares the outbox with the inbox.
    async fn compare(
        &self,
        effects: Option<&str>,
        progress: Box<dyn Progress>,
    ) -> Result<Result<Compared, OperateError>, Failure> {
        let pipeline = pipeline(&relay(), &self.db.url);
        let comparison = Comparison {
            pipeline: &pipeline,
            inboxes: vec![self.inbox(effects)?],
            topics: BTreeSet::new(),
            range: Range::new(OffsetDateTime::now_utc(), None, None),
            grace: self.limit,
            findings_max: 1,
            reading: Reading::new(NonZeroU32::MAX, self.limit, progress),
        };
        let ended = tokio::time::timeout(PATIENCE, Box::pin(comparison.run(&viewer()))).await;
        Ok(ended.map_err(|_| "the comparison waits for a host that is gone")?)
    }

    /// Checks what an operator needs to know: which database, how long, and what to do.
    fn assert_told(&self, error: &OperateError, how_long: &str) {
        let text = error.to_string();
        let place = self.wire.address().to_string();
        assert!(text.contains(&place) && text.contains(how_long), "{text}");
        assert_eq!(error.kind(), OperateErrorKind::Unavailable, "{text}");
        assert!(error.help().is_some_and(|help| help.contains("again")), "{error:?}");
    }
}

fn consumer() -> Result<ConsumerName, Failure> {
    Ok(ConsumerName::new("billing")?)
}

fn viewer() -> Operator {
    Operator::new("ann", Role::Viewer)
}

/// Goal: no call of an operator to an inbox waits forever. Oracle: each fails within its limit,
/// with an error that permits another try; and none of the decisions was stored.
async fn each_call(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    // With one connection, the call gets the one that answered before its host disappeared.
    let (pool, wire) = crate::proxied::pool(&scene.db.url, 1).await;
    let options = InboxOptions::default().call_timeout(LIMIT);
    let inbox = Inbox::open(pool, options).await?;
    let query = DeadLetterQuery::default();
    let letter = DeadLetterId(Uuid::now_v7());
    let many = NonZeroU32::MIN;
    let signature = Signature { actor: "ann".into(), note: "a test".into(), selection: None };
    macro_rules! silent {
        ($what:literal, $call:expr) => {{
            tests::eventually("the database answers", || async {
                Ok(inbox.known(Uuid::nil()).await.ok().map(drop))
            })
            .await?;
            tests::eventually("its connection is back in the pool", || async {
                Ok((inbox.pool().num_idle() == 1).then_some(()))
            })
            .await?;
            wire.abandon(End::Server);
            let ended = tokio::time::timeout(Duration::from_secs(30), $call).await;
            let error = ended.map_err(|_| concat!($what, " waits for ever"))?.err();
            wire.end_abandonment();
            error.ok_or(concat!($what, " got an answer"))?
        }};
    }
    let none = Tenant::none();
    let name = consumer()?;
    for error in [
        silent!("dead_letters", inbox.dead_letters(&query)),
        silent!("dead_letter_by_id", inbox.dead_letter_by_id(letter)),
        silent!("known", inbox.known(Uuid::nil())),
        silent!("outcome", inbox.outcome(&name, &none, MessageId::new())),
        silent!("activity", inbox.activity(LIMIT)),
        silent!("incomplete", inbox.incomplete(many)),
        silent!("decisions", inbox.decisions(many)),
    ] {
        assert!(error.is_transient(), "{error:?}");
    }
    for error in [
        silent!("request_redrive", inbox.request_redrive(letter, RedriveOptions::default(), &signature)),
        silent!("discard", inbox.discard(letter, &signature)),
    ] {
        assert!(matches!(&error, inbox::RedriveError::Store(error) if error.is_transient()), "{error:?}");
    }
    assert_eq!(scene.db.integer("SELECT count(*) FROM inbox_audit").await?, 0);
    inbox.pool().close().await;
    Ok(())
}

/// Goal: the list of consumers names the database that does not answer, and the next command
/// succeeds once another host answers there. Oracle: the error, and the time to close; the line of
/// the consumer.
async fn consumers(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let inbox = scene.inbox(None)?;
    let operator = viewer();
    let places = Places::new().inbox(&inbox).await;
    scene.wire.abandon(End::Server);
    let searches = operate::consumers::Searches::default();
    let looking = operate::consumers::consumers(&places, &operator, &searches);
    let (lines, away) = tokio::time::timeout(PATIENCE, looking).await.map_err(|_| "it waits for ever")??;
    assert_eq!((lines.len(), away.len()), (0, 1), "{away:?}");
    scene.assert_told(&away[0], "no answer within 30s");
    tokio::time::timeout(PATIENCE, places.close()).await.map_err(|_| "it never closes")?;

    let places = Places::new().inbox(&inbox).await;
    let (mut lines, away) = operate::consumers::consumers(&places, &operator, &searches).await?;
    assert_eq!(away, [], "the new host answers");
    let activity = lines.pop().and_then(|line| line.activity);
    assert_eq!(activity.map(|activity| activity.applied), Some(1));
    places.close().await;
    scene.wire.end_abandonment();
    Ok(())
}

/// Removes the host of the inbox once part of it has been read.
struct Removing(Arc<Proxy>);

impl Progress for Removing {
    fn say(&self, _: String) {}

    fn rows(&self, from: &'static str, _: usize) {
        if from == "inbox" {
            self.0.abandon(End::Server);
        }
    }

    fn waiting(&self, _: usize, _: Duration) {}
}

/// Goal: `relay verify` ends when a database no longer answers in the middle of it. Oracle: the
/// error.
async fn comparison(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let removing = Removing(Arc::clone(&scene.wire));
    let error = scene.compare(None, Box::new(removing)).await?.err().ok_or("it succeeded")?;
    scene.assert_told(&error, "no answer within 21s");
    scene.wire.end_abandonment();
    Ok(())
}

/// Reports nothing.
struct Quiet;

impl Progress for Quiet {
    fn say(&self, _: String) {}
    fn rows(&self, _: &'static str, _: usize) {}
    fn waiting(&self, _: usize, _: Duration) {}
}

/// Goal: the operator's own statement may take any time, but does not wait for a host that has
/// disappeared. Oracle: the comparison may fail, because there is no broker, but not because a
/// statement takes longer than the limit of a call, even if no connection is left to check the
/// server with. With lost packets, it fails because of the statement.
async fn effects(stage: Stage) -> Outcome {
    let mut scene = Scene::open(&stage).await?;
    let admin = scene.url.clone();
    // Beside other cases, the calls before the statement may take longer than a second.
    scene.limit = 5 * LIMIT;
    // The limit of a database does not apply to administrators.
    scene.url = <Postgres as Dialect>::url_of(tests::Role::Consumer, &admin)?;
    let slow = "SELECT gen_random_uuid() FROM pg_sleep(50)";
    let name = scene.db.texts("SELECT quote_ident(current_database())").await?.concat();
    let limiting = async {
        let runs = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() \
            AND datname = current_database() AND query LIKE '%pg_sleep(50)%'";
        for (limit, running) in [(0, 1), (-1, 0)] {
            tests::eventually("the statement runs, then ends", || async {
                Ok((scene.db.integer(runs).await? == running).then_some(()))
            })
            .await?;
            scene.db.execute(&format!("ALTER DATABASE {name} CONNECTION LIMIT {limit}")).await?;
        }
        Ok::<_, Failure>(())
    };
    let (ended, limited) = tokio::join!(scene.compare(Some(slow), Box::new(Quiet)), limiting);
    let ended = ended?.map(drop);
    limited.map_err(|failure| format!("{failure}; the comparison: {ended:?}"))?;
    if let Err(error) = ended {
        assert!(!error.to_string().contains("effects"), "{error}");
    }
    scene.url = admin;

    let endless = "pid <> pg_backend_pid() AND datname = current_database() AND query LIKE '%pg_sleep(900)%'";
    let losing = async {
        let runs = format!("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND {endless}");
        tests::eventually("the statement runs", || async {
            Ok((scene.db.integer(&runs).await? == 1).then_some(()))
        })
        .await?;
        let lost = Flow { pass: Pass::Lose, ..Flow::default() };
        scene.wire.set(Conditions { requests: lost, answers: lost, refuse: false });
        Ok::<_, Failure>(())
    };
    let effects = Some("SELECT gen_random_uuid() FROM pg_sleep(900)");
    let (ended, lost) = tokio::join!(scene.compare(effects, Box::new(Quiet)), losing);
    scene.wire.heal();
    let end = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {endless}");
    scene.db.integer(&end).await?;
    let ended = ended?.map(drop);
    lost.map_err(|failure| format!("{failure}; the comparison: {ended:?}"))?;
    scene.assert_told(&ended.err().ok_or("it succeeded")?, "no row of the effects within 25s");
    Ok(())
}
