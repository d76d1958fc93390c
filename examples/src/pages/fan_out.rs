//! The code of `docs/operations/fan-out.md`.

use outbox_toolkit::{Filter, Relay, Rule, shutdown_signal};
use sqlx::PgPool;

use crate::setting::Failure;

async fn stream(pool: PgPool) -> Result<(), Failure> {
    let orders = Rule { topics: vec!["orders*".into()], ..Rule::default() };
    let relay = Relay::builder(&pool)
        .name("stream")
        .filter(Filter::any_of(vec![orders])?)
        .kafka(["127.0.0.1:9092"])?
        .build()?;
    relay.run(shutdown_signal()).await;
    Ok(())
}
