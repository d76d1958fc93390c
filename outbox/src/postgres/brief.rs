//! Sessions that end after a question.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::runtime::Handle;

/// How long the goodbye may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// A session for one question or decision. It says goodbye when it is dropped: a server that finds
/// an encrypted connection just gone logs `Connection reset by peer`, once for each.
pub(super) struct Brief(Option<PgConnection>);

impl Brief {
    pub(super) fn new(connection: PgConnection) -> Self {
        Self(Some(connection))
    }

    /// The connection, for longer.
    pub(super) fn keep(mut self) -> PgConnection {
        present(self.0.take())
    }
}

/// Only [`Brief::keep`] and drop take it, and nothing comes after these.
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
        // Nobody waits for it: a server that is away would hold up whoever has its answer.
        if let (Some(connection), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(GOODBYE_MAX, connection.close()));
        }
    }
}
