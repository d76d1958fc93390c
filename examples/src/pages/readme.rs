//! The code of `README.md`.

use crate::setting::Failure;

struct Database;
struct Broker;

impl Database {
    async fn commit(&self, _order: i64) -> Result<(), Failure> {
        Ok(())
    }
}

impl Broker {
    async fn send(&self, _event: i64) -> Result<(), Failure> {
        Ok(())
    }
}

async fn twice(db: Database, kafka: Broker, order: i64, order_placed: i64) -> Result<(), Failure> {
    db.commit(order).await?;
    kafka.send(order_placed).await?; // the process dies here: the order exists, nobody ever bills it
    Ok(())
}
