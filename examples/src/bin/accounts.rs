//! Accounts with cqrs-es: each event of an account and the message about it commit together.
//!
//! ```console
//! $ export DATABASE_URL=postgres://…
//! $ cargo run -p examples --bin accounts ann open
//! $ cargo run -p examples --bin accounts ann deposit 1250
//! $ cargo run -p examples --bin accounts            # all accounts, from their events
//! ```

use std::env;

use anyhow::{Context as _, bail};
use cqrs_es::AggregateError;
use examples::accounts::events::TABLE;
use examples::accounts::{Command, all_cents, cents, execute};
use examples::database::prepared;
use examples::setting::Failure;
use migrations::Line;
use outbox::Outbox;
use sqlx::{PgPool, Postgres};

/// Executes a command in a transaction of its own. Returns the cents of the account after it.
async fn run(pool: &PgPool, account: &str, command: Command) -> Result<i64, Failure> {
    let outbox = Outbox::<Postgres>::new();
    loop {
        let mut tx = outbox.begin(pool).await?;
        match execute(&mut tx, account, command).await {
            Ok(()) => {}
            // Another command of the account was faster. Its events may change what this one does.
            Err(AggregateError::AggregateConflict) => {
                tx.rollback().await?;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        let cents = cents(&mut tx, account).await?;
        tx.commit().await?;
        return Ok(cents);
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    #[cfg(feature = "crash-points")]
    message::crash_points::arm_from_environment()?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let pool = prepared(&[Line::Outbox], TABLE).await?;
    let number =
        |text: &str| text.parse::<i64>().with_context(|| format!("{text:?} is not a number of cents"));
    let asked = match arguments[..] {
        [] => None,
        [account, "open"] => Some((account, Command::Open)),
        [account, "deposit", cents] => Some((account, Command::Deposit(number(cents)?))),
        [account, "withdraw", cents] => Some((account, Command::Withdraw(number(cents)?))),
        _ => bail!("usage: accounts [ACCOUNT open | ACCOUNT deposit CENTS | ACCOUNT withdraw CENTS]"),
    };
    if let Some((account, command)) = asked {
        println!("{account}: {} cents", run(&pool, account, command).await?);
        return Ok(());
    }
    let mut tx = Outbox::<Postgres>::new().begin(&pool).await?;
    for (account, cents) in all_cents(&mut tx).await? {
        println!("{account}: {cents} cents");
    }
    Ok(())
}
