//! The passing of time.

use std::error::Error;
use std::time::Duration;

use inbox::OpenError;

use crate::database::Database;
use crate::failure::Failure;
use crate::world::{World, lock};

/// SQLSTATE `invalid_parameter_value`: the function that forgets days refuses the present one.
const REFUSED: &str = "22023";

impl<DB: Database> World<DB> {
    /// Advances time: moves the clock by which the inbox accepts and forgets messages, and forgets
    /// messages that are then too old. It shortens no wait, because backoffs, leases and
    /// `deliver_at` follow the database's clock.
    ///
    /// PostgreSQL forgets whole days, and never the current day by its own clock. If it would have
    /// to, it forgets nothing; the inbox refuses messages that are too old anyway.
    ///
    /// # Errors
    /// The database refuses or is unreachable.
    pub async fn advance(&self, by: Duration) -> Result<(), Failure> {
        let before = self.inbox_rows().await?;
        self.inbox.advance(by);
        match self.inbox.maintain().await {
            Ok(_) => {}
            Err(error) if is_of_the_present_day(&error) => {}
            Err(error) => return Err(Failure::during("maintain the inbox")(error)),
        }
        let kept = self.inbox_rows().await?;
        lock(&self.watched).expired.extend(before.into_iter().filter(|row| !kept.contains(row)));
        Ok(())
    }
}

/// Returns whether the database refused to forget its present day.
fn is_of_the_present_day(error: &OpenError) -> bool {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = source {
        let refusal = error.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
        if refusal.is_some_and(|refusal| refusal.code().as_deref() == Some(REFUSED)) {
            return true;
        }
        source = error.source();
    }
    false
}
