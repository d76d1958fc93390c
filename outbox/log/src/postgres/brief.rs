//! Sessions that end after one query or decision.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::runtime::Handle;

/// Maximum duration of closing.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// A session for one query or decision. It is closed properly when it is dropped: otherwise the
/// server logs `Connection reset by peer` for each encrypted connection that disappears.
pub(crate) struct Brief(Option<PgConnection>);

impl Brief {
    pub(super) fn new(connection: PgConnection) -> Self {
        Self(Some(connection))
    }

    /// Returns the connection, for longer use.
    pub(super) fn keep(mut self) -> PgConnection {
        present(self.0.take())
    }
}

/// Only [`Brief::keep`] and drop take the connection, and both consume the value.
#[track_caller]
fn present<T>(connection: Option<T>) -> T {
    match connection {
        Some(connection) => connection,
        None => unreachable!("taken while it is in use"),
    }
}

impl Deref for Brief {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        present(self.0.as_ref())
    }
}

impl DerefMut for Brief {
    fn deref_mut(&mut self) -> &mut PgConnection {
        present(self.0.as_mut())
    }
}

impl Drop for Brief {
    fn drop(&mut self) {
        // Closed in the background: an unavailable server must not delay a caller that already has
        // its answer.
        if let (Some(connection), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(GOODBYE_MAX, connection.close()));
        }
    }
}
