//! A hook for tests: pauses a worker at a crash point, or ends it there.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Called with the saga's id and the crash point. The worker awaits the returned future. `true`
/// ends the worker as if its process had ended: it stores nothing more, and its lease expires.
pub type Hook = Arc<dyn Fn(&str, &'static str) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;
