//! The code of `docs/operations/tracing.md`.

use outbox_toolkit::inbox::{Consumer, HandlerError, Inbox, Tx};
use outbox_toolkit::message::Subscriber;
use outbox_toolkit::otel::Joined;
use outbox_toolkit::otel::CurrentSpan;
use outbox_toolkit::outbox::Outbox;

use crate::order::OrderPlaced;
use crate::setting::Failure;

fn producer() -> Outbox<sqlx::Postgres> {
    let outbox: Outbox<sqlx::Postgres> = Outbox::builder().capture(CurrentSpan).build();
    outbox
}

async fn bill(_: &mut Tx, _: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

async fn consumer(
    inbox: Inbox<sqlx::Postgres>,
    subscriber: impl Subscriber,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    Consumer::builder(inbox, "billing").join_traces(Joined).on(bill).subscribe(subscriber).run(shutdown).await?;
    Ok(())
}
