//! Accounts whose events and messages commit together: real processes, at once and killed.

use std::os::unix::process::ExitStatusExt as _;

use futures_util::future::join_all;
use outbox::crash_points::{AFTER_COMMIT, AFTER_ENQUEUE, BEFORE_COMMIT, BEFORE_ENQUEUE};
use sqlx::Postgres;
use tests::{Database, Failure, Outcome, Stage};
use tokio::process::Command;

use crate::program;

tests::cases! { "accounts/postgres/{case}":
    postgres {
        an_event_and_its_message_are_committed_together = together,
        a_kill_at_any_point_parts_no_event_from_its_message = killed,
        commands_at_once_take_effect_one_after_the_other = at_once,
    }
}

/// The accounts of a database.
struct Bank {
    database: Database<Postgres>,
}

impl Bank {
    async fn open(stage: &Stage) -> Result<Self, Failure> {
        let bank = Self { database: Database::<Postgres>::empty(stage).await? };
        assert_eq!(bank.does(&["ann", "open"]).await?, ["ann: 0 cents"]);
        Ok(bank)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command, Failure> {
        let mut command = Command::new(program::path("accounts")?);
        command.args(arguments).env("DATABASE_URL", &self.database.url);
        Ok(command)
    }

    /// Runs the program. Returns what it prints.
    async fn does(&self, arguments: &[&str]) -> Result<Vec<String>, Failure> {
        program::lines(self.command(arguments)?).await
    }

    /// Demands that each event of an account has one message, with its content and in its order,
    /// and that no sequence is missing. Returns how many there are.
    async fn agrees(&self, account: &str) -> Result<usize, Failure> {
        let events = format!(
            "SELECT sequence || ' ' || kind || ' ' || payload FROM event WHERE aggregate_id = '{account}'
                ORDER BY sequence"
        );
        let messages = format!(
            "SELECT (headers->>'sequence') || ' ' || kind || ' ' || convert_from(payload, 'UTF8')::jsonb
                FROM outbox_message WHERE topic = 'accounts' AND key = '{account}' ORDER BY id"
        );
        let events = self.database.texts(&events).await?;
        assert_eq!(self.database.texts(&messages).await?, events, "messages and events of {account}");
        for (number, event) in (1..).zip(&events) {
            assert!(event.starts_with(&format!("{number} ")), "{events:?}");
        }
        Ok(events.len())
    }
}

/// Goal: events and messages agree, and a refused command leaves neither. Oracle: the tables; what
/// the program prints from all events.
async fn together(stage: Stage) -> Outcome {
    let bank = Bank::open(&stage).await?;
    assert_eq!(bank.does(&["ann", "deposit", "1250"]).await?, ["ann: 1250 cents"]);
    assert_eq!(bank.does(&["ann", "withdraw", "250"]).await?, ["ann: 1000 cents"]);
    for refused in [&["ann", "withdraw", "1001"][..], &["ann", "open"], &["bob", "deposit", "1"]] {
        assert!(bank.does(refused).await.is_err(), "{refused:?}");
    }
    assert_eq!(bank.does(&["bob", "open"]).await?, ["bob: 0 cents"]);
    assert_eq!((bank.agrees("ann").await?, bank.agrees("bob").await?), (3, 1));
    assert_eq!(bank.does(&[]).await?, ["ann: 1000 cents", "bob: 0 cents"]);
    let kinds = "SELECT DISTINCT kind FROM outbox_message ORDER BY kind";
    let expected = ["account.deposited", "account.opened", "account.withdrawn"];
    assert_eq!(bank.database.texts(kinds).await?, expected);
    Ok(())
}

/// Goal: a process that is killed before, between or after its writes leaves an event with its
/// message, or neither. Oracle: the tables; the balance.
async fn killed(stage: Stage) -> Outcome {
    let bank = Bank::open(&stage).await?;
    for point in [BEFORE_ENQUEUE, AFTER_ENQUEUE, BEFORE_COMMIT, AFTER_COMMIT] {
        let before = bank.agrees("ann").await?;
        let mut doomed = bank.command(&["ann", "deposit", "1"])?;
        let output = doomed.env("OUTBOX_CRASH_POINTS", point).output().await?;
        assert_eq!(output.status.signal(), Some(6), "{point}: {output:?}");
        let committed = usize::from(point == AFTER_COMMIT);
        assert_eq!(bank.agrees("ann").await?, before + committed, "{point}");
    }
    assert_eq!(bank.does(&["ann", "deposit", "1"]).await?, ["ann: 2 cents"]);
    Ok(())
}

/// Goal: of commands at once, none is lost, and the messages leave in the order of the events.
/// Oracle: the tables; the balances that the processes printed are those of a sequence.
async fn at_once(stage: Stage) -> Outcome {
    let bank = Bank::open(&stage).await?;
    let deposits = join_all((0..8).map(|_| bank.does(&["ann", "deposit", "1"]))).await;
    let mut printed = Vec::new();
    for deposit in deposits {
        printed.extend(deposit?);
    }
    printed.sort_unstable();
    let expected: Vec<_> = (1..=8).map(|cents| format!("ann: {cents} cents")).collect();
    assert_eq!(printed, expected);
    assert_eq!(bank.agrees("ann").await?, 9);
    Ok(())
}
