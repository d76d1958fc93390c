//! A consumer whose effect is in another system: a payment service and a provider that honours
//! keys.

use tests::eventually::when;
use tests::{Backend, Outcome, Stage, eventually};

use crate::placed::Placed;
use crate::program::{self, Running};
use crate::provider::Provider;

tests::cases! { "payments_rabbitmq/postgres/{case}":
    anywhere + postgres rabbitmq { killed_in_the_middle_it_charges_once = charges_once }
}

/// Goal: a service that is killed after its provider made the charges, but before it received the
/// answers, charges no customer twice. Oracle: the provider's book; the payments.
async fn charges_once(stage: Stage) -> Outcome {
    let orders = Placed::relayed(&stage, Backend::Rabbitmq).await?;

    let provider = Provider::start(&stage).await?;
    provider.answer(false);
    let broker_url = Backend::Rabbitmq.address()?;
    let settings = [
        ("DATABASE_URL", orders.database.url.as_str()),
        ("RABBITMQ_URL", &broker_url),
        ("TOPIC", &orders.topic),
        ("PROVIDER", &provider.address),
        ("LEASE_SECONDS", "1"),
        ("PAYMENTS", "2"),
    ];
    let service = Running::start(&stage, "payments_rabbitmq", &settings)?;
    eventually("both charges are made", || async { Ok(when(provider.book().charges.len() == 2)) }).await?;
    service.kill().await?;
    let before = provider.book();
    assert_eq!(orders.database.texts("SELECT order_id::text FROM payment").await?, [""; 0]);

    provider.answer(true);
    let printed = program::example("payments_rabbitmq", &settings).await?;
    let database = orders.stop().await?;
    let book = provider.book();
    assert_eq!(book.charges.len(), 2, "one charge for each order: {book:?}");
    for charge in &book.charges {
        let order = if charge.cents == "1250" { 1 } else { 2 };
        assert!(printed.contains(&format!("order {order}: {}", charge.answer)), "{printed:?} {book:?}");
        assert!(
            book.calls_with(&charge.key) > before.calls_with(&charge.key),
            "asked again, with the same key: {book:?}"
        );
    }
    assert_eq!(printed.last().map(String::as_str), Some("2 payments"));
    let taken_over = database.texts("SELECT key FROM idempotency_key WHERE attempt > 1").await?;
    assert_eq!(taken_over.len(), 2, "the lease of the killed service expired, and each key was taken over");
    Ok(())
}
