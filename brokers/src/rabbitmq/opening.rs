//! Opens connections whose credential is renewed.

use std::sync::Arc;

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::renewal;
use super::unopened::OpenFailure;

impl Endpoint {
    /// Opens a connection that the broker shows as `<connection_name> <purpose>`. There is no
    /// automatic recovery: when a connection breaks, the outcome of unconfirmed messages is
    /// unknown, and only the caller knows what to send again.
    pub(super) async fn open(&self, purpose: &str) -> Result<Connection, OpenFailure> {
        let secrets = self.with_secrets().await?;
        let (client, end) = self.log_in(&secrets, purpose).await?;
        let client = Arc::new(client);
        let renewal = secrets.proof.and_then(|used| renewal::of(&client, self, used));
        Ok(Connection::new(client, end, renewal))
    }
}
