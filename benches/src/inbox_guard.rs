//! A handler's transaction with the inbox, against the same transaction without.

use std::time::Instant;

use inbox::{Admission, Candidate, ConsumerName, Inbox, InboxOptions, Scope};
use message::{EventType, Message, MessageId, Topic};
use sqlx::{PgPool, Postgres};
use time::OffsetDateTime;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::Database;

/// How much.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Messages that the inbox remembers beforehand (default 1,000,000).
    #[arg(long)]
    remembered: Option<u32>,
}

/// Ids as their makers make them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// Made now, in order.
    TimeOrdered,
    /// Derived from a name and a stable time: anywhere within a day.
    Foreign,
}

/// One way to handle messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    /// Messages per transaction.
    batch: usize,
    /// Messages that were seen before, in hundredths.
    duplicates: usize,
    ids: Ids,
    guarded: bool,
}

const FRESH: Case = Case { batch: 1, duplicates: 0, ids: Ids::TimeOrdered, guarded: true };

fn cases() -> Vec<Case> {
    let bare = |batch| Case { batch, guarded: false, ..FRESH };
    let mut cases = vec![bare(1), FRESH];
    cases.push(Case { duplicates: 1, ..FRESH });
    cases.push(Case { duplicates: 100, ..FRESH });
    cases.push(Case { ids: Ids::Foreign, ..FRESH });
    for batch in [10, 100, 500] {
        cases.push(bare(batch));
        cases.push(Case { batch, ..FRESH });
        cases.push(Case { batch, duplicates: 100, ..FRESH });
    }
    cases.push(Case { batch: 100, ids: Ids::Foreign, ..FRESH });
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
            rates[which].push(measure(&inbox, &pool, case, run.options.quick).await?);
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
    let bare = |batch| rates(Case { batch, guarded: false, ..FRESH });
    let mut report = Report::new("inbox");
    report.table(
        format!("messages per second, one client, {remembered} messages remembered beforehand"),
        ["guard", "batch", "duplicates, %", "ids", "messages per second", "over bare of the same batch"],
        all.iter().map(|(case, figures)| {
            [
                if case.guarded { "inbox" } else { "bare" }.into(),
                case.batch.into(),
                case.duplicates.into(),
                if case.ids == Ids::Foreign { "foreign" } else { "time-ordered" }.into(),
                Spread::of(figures).into(),
                Spread::of_ratios(figures, bare(case.batch)).into(),
            ]
        }),
    );
    let ratio = |over: Case, under: &[f64]| Spread::of_ratios(rates(over), under).median;
    report.at_least("one by one: inbox / bare", 0.8, ratio(FRESH, bare(1)));
    let hundred = Case { batch: 100, ..FRESH };
    report.at_least("batch of 100 / one by one", 10.0, ratio(hundred, rates(FRESH)));
    for batch in [1, 100] {
        let fresh = rates(Case { batch, ..FRESH });
        let duplicates = Case { batch, duplicates: 100, ..FRESH };
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
        admit(inbox, &fresh(Ids::TimeOrdered, 1_000)?, false).await?;
    }
    Ok(())
}

/// One transaction; the effects of the fresh ones.
async fn admit(inbox: &Inbox<Postgres>, messages: &[Message], effects: bool) -> Result<(), Failure> {
    let consumer = consumer()?;
    let mut tx = inbox.begin().await?;
    let mut new = Vec::with_capacity(messages.len());
    if let [message] = messages {
        if let Admission::Fresh(_) = tx.admit(&consumer, &Scope::none(), message).await? {
            new.push(message);
        }
    } else {
        let candidates: Vec<_> =
            messages.iter().map(|message| Candidate { scope: Scope::none(), message }).collect();
        for (message, admission) in messages.iter().zip(tx.admit_batch(&consumer, &candidates).await?) {
            if let Admission::Fresh(_) = admission? {
                new.push(message);
            }
        }
    }
    if effects {
        for message in new {
            sqlx::query(EFFECT).bind(message.id.as_uuid()).execute(&mut **tx).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}

const EFFECT: &str = "INSERT INTO effect (id, cents) VALUES ($1, 100)";

async fn bare(pool: &PgPool, messages: &[Message]) -> Result<(), Failure> {
    let mut tx = pool.begin().await?;
    for message in messages {
        sqlx::query(EFFECT).bind(message.id.as_uuid()).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn measure(inbox: &Inbox<Postgres>, pool: &PgPool, case: Case, quick: bool) -> Result<f64, Failure> {
    let transactions = match (case.batch, quick) {
        (1, false) => 2_000,
        (1, true) => 100,
        (_, false) => 20_000 / case.batch,
        (_, true) => 2,
    };
    let messages = fresh(case.ids, transactions * case.batch)?;
    if case.guarded && case.duplicates > 0 {
        // Every n-th has been admitted before.
        let every = 100 / case.duplicates;
        let seen: Vec<Message> = messages.iter().step_by(every).cloned().collect();
        for some in seen.chunks(500) {
            admit(inbox, some, false).await?;
        }
    }
    sqlx::query("TRUNCATE effect").execute(pool).await?;
    let began = Instant::now();
    for some in messages.chunks(case.batch) {
        if case.guarded { admit(inbox, some, true).await? } else { bare(pool, some).await? }
    }
    let took = began.elapsed();
    Ok(messages.len() as f64 / took.as_secs_f64())
}
