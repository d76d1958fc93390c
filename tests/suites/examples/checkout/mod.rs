//! The checkout: a shop, a bank and a shipping service that is not written in Rust. Each is a real
//! process with its own database, and is killed again and again.
//!
//! | module | contents |
//! |---|---|
//! | [`services`] | the processes, which can be started, killed and restarted |
//! | [`orders`] | the orders and their expected outcomes |
//! | [`books`] | the books of all three, and the check that they add up |

mod books;
mod orders;
mod services;

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use proxy::{Conditions, Flow, Pass};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tests::eventually::when;
use tests::{Failure, Outcome, Stage, eventually};
use tokio::time::sleep;

use self::orders::{Order, orders};
use self::services::{Process, Services};
use crate::program;

tests::cases! { "checkout/{on}/{case}":
    postgres rabbitmq, if program::python_with_clients {
        a_kill_at_any_time_has_no_second_effect = killed_at_any_time,
        a_kill_at_each_point_of_a_saga_has_no_second_effect = killed_in_sagas,
        a_kill_at_each_point_of_a_message_has_no_second_effect = killed_in_messages,
        a_request_whose_reply_comes_too_late_is_taken_back = taken_back,
        a_request_that_was_taken_back_before_is_refused = taken_back_before,
        two_shippings_at_once_leave_no_parcel_of_what_is_taken_back = taken_back_at_once,
    }
}

const OUTBOX: [&str; 4] =
    ["outbox::before_enqueue", "outbox::after_enqueue", "outbox::before_commit", "outbox::after_commit"];
/// The crash points that these messages reach. None of the messages is split into chunks.
const RELAY: [&str; 6] = [
    "relay::after_read",
    "relay::before_publish",
    "relay::after_publish",
    "relay::after_confirm",
    "relay::before_checkpoint",
    "relay::after_checkpoint",
];

/// Number of orders placed while processes are killed, and number of kills.
const ORDERS: i64 = 24;
const KILLS: usize = 24;
const SEED: u64 = 20;
/// Maximum time between two kills, and before a process is restarted.
const PAUSE_MS: u64 = 500;
const DOWN_MS: u64 = 200;

/// Goal: whichever process is killed at whatever time, and whichever answer of the bank is lost,
/// each order is reserved, charged and shipped once, or is undone. Oracle: the books of all three.
async fn killed_at_any_time(stage: Stage) -> Outcome {
    let services = Services::start(&stage).await?;
    let orders = orders(ORDERS);
    let mut random = SmallRng::seed_from_u64(SEED);
    let placing = async {
        for order in &orders {
            services.place(order).await?;
            sleep(Duration::from_millis(PAUSE_MS / 2)).await;
        }
        Outcome::Ok(())
    };
    let killing = async {
        for _ in 0..KILLS {
            sleep(Duration::from_millis(random.random_range(0..PAUSE_MS))).await;
            let down = Duration::from_millis(random.random_range(0..DOWN_MS));
            match Process::ALL.get(random.random_range(0..=Process::ALL.len())) {
                Some(process) => {
                    services.kill(*process).await?;
                    sleep(down).await;
                    services.run(*process, None).await?;
                }
                None => {
                    let answers = Flow { pass: Pass::Lose, ..Flow::default() };
                    services.bank.set(Conditions { answers, ..Conditions::default() });
                    sleep(down).await;
                    services.bank.heal();
                }
            }
        }
        Outcome::Ok(())
    };
    tokio::try_join!(placing, killing)?;
    services.settled(orders.len()).await?;
    books::add_up(&services, &orders).await
}

/// Query for the number of unfinished sagas that a shop has claimed.
const IN_HAND: &str = "SELECT count(*) FROM saga WHERE worker IS NOT NULL AND ended_at IS NULL";

/// Goal: a shop that ends at any crash point of its libraries neither repeats an effect nor loses
/// one. Each point is reached with the work that the previous shop left. Oracle: the books.
async fn killed_in_sagas(stage: Stage) -> Outcome {
    let left = killed_at(stage, saga::crash_points::ALL.to_vec()).await?;
    assert!(left > 0, "no shop died with a saga in its hand");
    Ok(())
}

/// Goal: the same for the points of inbox, outbox and relay. Oracle: as above.
async fn killed_in_messages(stage: Stage) -> Outcome {
    killed_at(stage, [&inbox::crash_points::ALL[..], &OUTBOX, &RELAY].concat()).await.map(drop)
}

/// Shops that crash one after the other. An inbox dead-letters a message after five processes have
/// ended while handling it, so a shop that stays alive settles what the others have left.
const CRASHES_IN_A_ROW: usize = 4;

/// Does the same at any crash points. Returns how many sagas the shops had claimed when they died.
async fn killed_at(stage: Stage, points: Vec<&'static str>) -> Result<i64, Failure> {
    let services = Services::start(&stage).await?;
    let mut placed: Vec<Order> = Vec::new();
    let (count, mut left) = (i64::try_from(2 * points.len())?, 0);
    for (crashes, (pair, point)) in orders(count).chunks(2).zip(points).enumerate() {
        services.kill(Process::Shop).await?;
        if crashes > 0 && crashes % CRASHES_IN_A_ROW == 0 {
            lives_until_settled(&services, &placed).await?;
            services.kill(Process::Shop).await?;
        }
        placed.extend_from_slice(pair);
        services.run(Process::Shop, Some(point)).await?;
        let place = async {
            // This includes orders that an earlier shop may have accepted without an answer.
            for order in &placed {
                services.place(order).await?;
            }
            std::future::pending::<Outcome>().await
        };
        let ended = tokio::select! {
            ended = services.shop_ended() => ended?,
            failed = place => return failed.map(|()| 0),
        };
        assert_eq!(ended.signal(), Some(6), "{point}: ended at its crash point");
        left += services.shop.integer(IN_HAND).await?;
    }
    lives_until_settled(&services, &placed).await?;
    books::add_up(&services, &placed).await?;
    Ok(left)
}

/// Runs a shop until all orders are settled, and places those that an earlier one may not have
/// received.
async fn lives_until_settled(services: &Services, placed: &[Order]) -> Outcome {
    services.run(Process::Shop, None).await?;
    for order in placed {
        services.place(order).await?;
    }
    services.settled(placed.len()).await
}

/// Goal: shipping refuses a request that was taken back before it arrived, and the order is undone.
/// Oracle: the books.
async fn taken_back_before(stage: Stage) -> Outcome {
    let services = Services::start(&stage).await?;
    let order = orders(1).remove(0);
    services.take_back(&order).await?;
    // The tables that shipping itself creates may not exist yet.
    eventually("shipping has applied the taking back", || async {
        Ok(when(services.shipping.integer("SELECT count(*) FROM inbox_message").await? == 1))
    })
    .await?;
    services.place(&order).await?;
    services.settled(1).await?;
    assert_eq!(services.shop.texts("SELECT state FROM orders").await?, ["cancelled"]);
    assert_eq!(services.shop.texts("SELECT reason FROM saga").await?, ["taken back before it came"]);
    assert_eq!(services.shipping.integer("SELECT count(*) FROM parcel").await?, 0, "no parcel");
    Ok(())
}

/// Requests that are cancelled at the same time.
const AT_ONCE: i64 = 200;

/// Goal: one of two shipping processes gets a request while the other gets the message that cancels
/// it, and neither leaves a parcel on its way. Oracle: the books of shipping.
async fn taken_back_at_once(stage: Stage) -> Outcome {
    let services = Services::start(&stage).await?;
    services.run(Process::Shipping, None).await?;
    services.tell_shipping(1..=AT_ONCE, &["order.ship", "order.unship"]).await?;
    eventually("both have applied everything", || async {
        let applied = services.shipping.integer("SELECT count(*) FROM inbox_message").await?;
        Ok(when(applied == 2 * AT_ONCE))
    })
    .await?;
    let packed = services.shipping.integer("SELECT count(*) FROM parcel WHERE state = 'packed'").await?;
    assert_eq!(packed, 0, "parcels on their way that were taken back");
    assert_eq!(services.shipping.integer("SELECT count(*) FROM taken_back").await?, AT_ONCE);
    Ok(())
}

/// Goal: shipping is unreachable for longer than the saga waits. It then finds the request and the
/// message that cancels it, and leaves no parcel on its way; its late reply changes nothing.
/// Oracle: the books.
async fn taken_back(stage: Stage) -> Outcome {
    let services = Services::start(&stage).await?;
    services.kill(Process::Shipping).await?;
    services.kill(Process::Shop).await?;
    services.run_impatient_shop().await?;
    let order = orders(1).remove(0);
    services.place(&order).await?;
    services.settled(1).await?;

    services.run(Process::Shipping, None).await?;
    eventually("the late reply has come", || async {
        Ok(when(services.shop.integer("SELECT count(*) FROM inbox_message").await? == 1))
    })
    .await?;
    eventually("the parcel is stopped", || async {
        let parcels = services.shipping.texts("SELECT order_id || ' ' || state FROM parcel").await?;
        Ok(when(parcels == ["1 stopped"]))
    })
    .await?;
    assert_eq!(services.shop.texts("SELECT state FROM orders").await?, ["cancelled"]);
    assert_eq!(services.shop.integer("SELECT count(*) FROM hold").await?, 0, "the stock is free again");
    assert_eq!(services.shop.texts("SELECT state FROM saga").await?, ["undone"]);
    let refunded = [format!("checkout/1/charge {} -{}", order.cents, order.cents)];
    assert_eq!(services.bank_book.texts(books::MOVEMENTS).await?, refunded);
    Ok(())
}
