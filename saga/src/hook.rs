//! A hook for tests: pauses a worker at a crash point, or has it vanish there.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Called with the saga's id and the place; the future that it returns is waited for, and `true`
/// has the worker vanish as if its process had ended: it stores nothing any more, and its lease
/// expires.
pub type Hook = Arc<dyn Fn(&str, &'static str) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;
