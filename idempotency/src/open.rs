//! Opens the table of idempotency keys.

use std::sync::{Arc, Weak};

use message::SteadyClock;
use migrations::{Line, Migrator};
use outbox::{Bounded, StoreError};
use sqlx::Pool;

use crate::error::ClaimError;
use crate::handle::{IdempotencyKeys, Inner};
use crate::maintenance;
use crate::options::KeyOptions;
use crate::store::{KeyStore, KeyTables};

impl<DB: KeyStore> IdempotencyKeys<DB> {
    /// Opens an existing table.
    ///
    /// # Errors
    /// [`ClaimError`]: an option is out of bounds, the schema does not match (the error names the
    /// command to run), or the database is unavailable. Run it to its end.
    pub async fn open(pool: Pool<DB>, options: KeyOptions) -> Result<Self, ClaimError> {
        options.check()?;
        let KeyOptions { retention, audit_retention, schema, maintain_every, call_timeout, .. } = options;
        let db = Bounded::new(pool, call_timeout);
        // Boxed, otherwise every caller's future would contain it twice.
        let look = Box::pin(async {
            let mut connection = db.acquire().await.map_err(StoreError::during("give a connection"))?;
            let lines = Migrator::<DB>::new(Line::Idempotency).schema(schema.clone());
            lines.check(&mut connection).await.map_err(ClaimError::from)
        });
        db.any(look).await.map_err(StoreError::during("check its tables"))??;
        Ok(Self::of(Arc::new_cyclic(|keys| Inner {
            db,
            clock: SteadyClock::start(),
            tables: KeyTables::new(schema.as_ref()),
            retention,
            audit_retention,
            #[cfg(feature = "http")]
            waiters: crate::http::waiting::Waiters::new(options.waiters_max, options.waiters_per_key_max),
            maintenance: maintenance::spawn(Weak::clone(keys), maintain_every),
        })))
    }
}
