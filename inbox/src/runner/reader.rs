//! Reads deliveries: adopts messages of foreign producers, and finds the tenant of each message.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use message::{Delivery, ForeignMessage, Malformed, Message, error_text as texts};

use crate::ids::Tenant;

/// A function that returns the tenant of a message.
type TenantOf = Arc<dyn Fn(&Message) -> Result<Tenant, String> + Send + Sync>;

/// A function that reads a message of a foreign producer.
type Foreign = Arc<dyn Fn(&Malformed) -> Result<ForeignMessage, String> + Send + Sync>;

/// Maximum bytes of the reason why a foreign message could not be read.
const PROBLEM_BYTES_MAX: usize = 2_048;

/// How a consumer reads its deliveries.
pub(super) struct Reader {
    pub(super) tenant_of: TenantOf,
    pub(super) foreign: Option<Foreign>,
}

impl Default for Reader {
    /// Returns a reader without tenants, which adopts nothing.
    fn default() -> Self {
        Self { tenant_of: Arc::new(|_: &Message| Ok(Tenant::none())), foreign: None }
    }
}

impl Reader {
    /// Returns the tenant of a message, or why it is unknown.
    pub(super) fn tenant(&self, message: &Message) -> Result<Tenant, String> {
        let tenant = catch_unwind(AssertUnwindSafe(|| (self.tenant_of)(message)))
            .unwrap_or_else(|_| Err(String::from("the function for tenants panicked")));
        tenant.map_err(|problem| match &message.chunk {
            Some(chunk) => {
                let number = chunk.index() + 1;
                let count = chunk.count();
                format!(
                    "{problem}; this is chunk {number} of {count}: only envelope and headers are those of \
                     the whole message, so the function for tenants must not read the payload"
                )
            }
            None => problem,
        })
    }

    /// Reads a malformed delivery as a foreign producer's message, if the consumer can.
    pub(super) fn adopt(&self, delivery: &mut Delivery) {
        let (Err(malformed), Some(foreign)) = (&mut delivery.message, &self.foreign) else { return };
        if malformed.is_cut {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| foreign(malformed))) {
            Ok(Ok(message)) => delivery.message = Ok(message.into()),
            Ok(Err(problem)) => malformed.problem = foreign_problem(&problem, &malformed.problem),
            Err(_) => malformed.problem.push_str("; the function for foreign messages panicked"),
        }
    }
}

/// Returns the error of a delivery that the reader of foreign messages refused.
fn foreign_problem(problem: &str, envelope: &str) -> String {
    texts::storable(&format!("{problem} (its envelope: {envelope})"), PROBLEM_BYTES_MAX)
}
