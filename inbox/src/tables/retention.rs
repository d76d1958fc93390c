//! The time from which an inbox remembers ids.

use migrations::query::Query;

use super::Tables;
use crate::dialect::{Dialect, Reading};
use crate::rows;

impl<DB: Dialect> Tables<DB> {
    /// Reads the clock and the beginning of memory.
    pub(crate) async fn read_clock(&self, connection: &mut DB::Connection) -> Result<Reading, sqlx::Error> {
        rows::reading(&Query::<DB>::new(&self.shared.clock).one(connection).await?)
    }
}
