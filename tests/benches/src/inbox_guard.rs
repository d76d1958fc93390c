//! A handler's transaction with the inbox, against the same transaction without the inbox.

use std::time::Instant;

use inbox::{Admission, Candidate, ConsumerName, Inbox, InboxOptions, InboxTransaction, Tenant};
use message::{EventType, Message, MessageId, Topic};
use sqlx::{PgConnection, PgPool, Postgres};
use time::OffsetDateTime;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::Database;

/// The size of the measurement.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Messages that the inbox remembers beforehand (default 1,000,000).
    #[arg(long)]
    remembered: Option<u32>,
}

/// The kind of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// Created now, in order.
    TimeOrdered,
    /// Derived from a name and a stable time: anywhere within a day.
    Foreign,
}

/// The way in which the effects are guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guarding {
    /// Only a transaction with the effects.
    Bare,
    /// With the inbox; each transaction begins with a new BEGIN.
    Begun,
    /// With the inbox; the commit of each transaction begins the next one.
    Chained,
}

/// The way in which a handler applies the effects of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effects {
    /// A statement for each message.
    OneByOne,
    /// One statement for all messages.
    AtOnce,
}

/// One way to handle messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    guarding: Guarding,
    effects: Effects,
    /// Messages per transaction.
    batch: usize,
    /// Percentage of messages that were admitted before.
    duplicates: usize,
    ids: Ids,
}

const FRESH: Case = Case {
    guarding: Guarding::Begun,
    effects: Effects::OneByOne,
    batch: 1,
    duplicates: 0,
    ids: Ids::TimeOrdered,
};
const CHAINED: Case = Case { guarding: Guarding::Chained, ..FRESH };
const HUNDRED: Case = Case { batch: 100, effects: Effects::AtOnce, ..FRESH };

impl Case {
    /// Returns the same case without the inbox.
    fn bare(self) -> Self {
        Self { batch: self.batch, effects: self.effects, guarding: Guarding::Bare, ..FRESH }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = vec![FRESH.bare(), FRESH, CHAINED];
    cases.push(Case { duplicates: 1, ..FRESH });
    cases.push(Case { duplicates: 100, ..FRESH });
    cases.push(Case { ids: Ids::Foreign, ..FRESH });
    for batch in [10, 100, 500] {
        let fresh = Case { batch, ..FRESH };
        cases.extend([fresh.bare(), fresh, Case { duplicates: 100, ..fresh }]);
    }
    cases.push(Case { batch: 100, ids: Ids::Foreign, ..FRESH });
    cases.extend([HUNDRED.bare(), HUNDRED]);
    cases
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let remembered = args.remembered.unwrap_or(if run.options.quick { 1_000 } else { 1_000_000 });
    let rounds = run.options.rounds(5);
    let database = Database::create().await?;
    database.run("CREATE TABLE effect (id uuid NOT NULL, cents bigint NOT NULL)").await?;
    let pool = outbox::pool::<Postgres>(&database.url).await?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let cases = cases();
    let progress = run.progress(cases.len() * rounds + 1)?;
    progress.set_message(format!("{remembered} messages beforehand"));
    remember(&inbox, remembered).await?;
    progress.inc(1);
    let mut rates = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for turn in 0..cases.len() {
            let which = (turn + round) % cases.len();
            let case = cases[which];
            progress.set_message(format!("{case:?}"));
            // In a task, like a handler: the main thread would have to be woken for each answer.
            let measured = tokio::spawn(measure(inbox.clone(), pool.clone(), case, run.options.quick));
            rates[which].push(measured.await??);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    drop(inbox);
    pool.close().await;
    database.drop().await?;
    let all: Vec<(Case, Vec<f64>)> = cases.into_iter().zip(rates).collect();
    Ok(report(&all, remembered))
}

fn report(all: &[(Case, Vec<f64>)], remembered: u32) -> Report {
    let none = Vec::new();
    let rates = |case: Case| all.iter().find(|(other, _)| *other == case).map_or(&none, |(_, rates)| rates);
    let mut report = Report::new("inbox");
    report.table(
        format!("messages per second, one client, {remembered} messages remembered beforehand"),
        [
            "guard",
            "batch",
            "effects",
            "duplicates, %",
            "ids",
            "messages per second",
            "over bare of the same batch",
        ],
        all.iter().map(|(case, figures)| {
            [
                match case.guarding {
                    Guarding::Bare => "bare",
                    Guarding::Begun => "inbox",
                    Guarding::Chained => "inbox, chained",
                }
                .into(),
                case.batch.into(),
                if case.effects == Effects::AtOnce { "at once" } else { "one by one" }.into(),
                case.duplicates.into(),
                if case.ids == Ids::Foreign { "foreign" } else { "time-ordered" }.into(),
                Spread::of(figures).into(),
                Spread::of_ratios(figures, rates(case.bare())).into(),
            ]
        }),
    );
    let ratio = |over: Case, under: Case| Spread::of_ratios(rates(over), rates(under)).median;
    report.at_least("one by one: inbox, chained / bare", 0.8, ratio(CHAINED, FRESH.bare()));
    report.at_least("batch of 100, effects at once / one by one", 10.0, ratio(HUNDRED, CHAINED));
    for batch in [1, 100] {
        let fresh = Case { batch, ..FRESH };
        let duplicates = Case { duplicates: 100, ..fresh };
        report.at_least(format!("batch of {batch}: all duplicates / fresh"), 1.0, ratio(duplicates, fresh));
    }
    report
}

fn consumer() -> Result<ConsumerName, Failure> {
    Ok(ConsumerName::new("bench")?)
}

fn fresh(ids: Ids, count: usize) -> Result<Vec<Message>, Failure> {
    let day = OffsetDateTime::now_utc() - time::Duration::days(1);
    let one = |number: usize| -> Result<Message, Failure> {
        let mut message =
            Message::new(Topic::new("orders")?, EventType::new("order.placed")?, vec![b'x'; 256]);
        if ids == Ids::Foreign {
            let at = day + time::Duration::seconds(i64::try_from(number * 7_919 % 86_400)?);
            message.id = MessageId::derived(at, [message.id.as_uuid().as_bytes()])?;
        }
        Ok(message)
    };
    (0..count).map(one).collect()
}

async fn remember(inbox: &Inbox<Postgres>, count: u32) -> Result<(), Failure> {
    for _ in 0..count / 1_000 {
        let mut tx = inbox.begin().await?;
        admit(&mut tx, &fresh(Ids::TimeOrdered, 1_000)?).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// Admits messages and returns the fresh ones.
async fn admit<'m>(
    tx: &mut InboxTransaction<Postgres>,
    messages: &'m [Message],
) -> Result<Vec<&'m Message>, Failure> {
    let consumer = consumer()?;
    if let [message] = messages {
        let admission = tx.admit(&consumer, &Tenant::none(), message).await?;
        return Ok(if let Admission::Fresh(_) = admission { vec![message] } else { Vec::new() });
    }
    let candidates: Vec<_> =
        messages.iter().map(|message| Candidate { tenant: Tenant::none(), message }).collect();
    let mut new = Vec::with_capacity(messages.len());
    for (message, admission) in messages.iter().zip(tx.admit_batch(&consumer, &candidates).await?) {
        if let Admission::Fresh(_) = admission? {
            new.push(message);
        }
    }
    Ok(new)
}

async fn apply(
    connection: &mut PgConnection,
    effects: Effects,
    messages: impl Iterator<Item = &Message>,
) -> Result<(), Failure> {
    const ONE: &str = "INSERT INTO effect (id, cents) VALUES ($1, 100)";
    const ALL: &str = "INSERT INTO effect (id, cents) SELECT id, 100 FROM unnest($1::uuid[]) AS id";
    if effects == Effects::AtOnce {
        let ids: Vec<_> = messages.map(|message| message.id.as_uuid()).collect();
        sqlx::query(ALL).bind(ids).execute(connection).await?;
        return Ok(());
    }
    for message in messages {
        sqlx::query(ONE).bind(message.id.as_uuid()).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn measure(inbox: Inbox<Postgres>, pool: PgPool, case: Case, quick: bool) -> Result<f64, Failure> {
    let transactions = match (case.batch, quick) {
        (1, false) => 2_000,
        (1, true) => 100,
        (_, false) => 20_000 / case.batch,
        (_, true) => 2,
    };
    let messages = fresh(case.ids, transactions * case.batch)?;
    if case.guarding != Guarding::Bare && case.duplicates > 0 {
        // Every n-th message is admitted beforehand.
        let every = 100 / case.duplicates;
        let seen: Vec<Message> = messages.iter().step_by(every).cloned().collect();
        for some in seen.chunks(500) {
            let mut tx = inbox.begin().await?;
            admit(&mut tx, some).await?;
            tx.commit().await?;
        }
    }
    sqlx::query("TRUNCATE effect").execute(&pool).await?;
    let began = Instant::now();
    let mut next = None;
    for some in messages.chunks(case.batch) {
        if case.guarding == Guarding::Bare {
            let mut tx = pool.begin().await?;
            apply(&mut tx, case.effects, some.iter()).await?;
            tx.commit().await?;
            continue;
        }
        let mut tx = match next.take() {
            Some(tx) => tx,
            None => inbox.begin().await?,
        };
        let new = admit(&mut tx, some).await?;
        apply(&mut tx, case.effects, new.into_iter()).await?;
        if case.guarding == Guarding::Chained {
            next = tx.commit_and_chain().await?.1;
        } else {
            tx.commit().await?;
        }
    }
    let took = began.elapsed();
    Ok(messages.len() as f64 / took.as_secs_f64())
}
