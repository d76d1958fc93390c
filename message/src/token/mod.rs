//! Tokens, which identify a message or request permanently, and the ways to generate them.
//!
//! | module | what it holds |
//! |---|---|
//! | `pair` | [`Token`]: an identity and the time it was made at |
//! | `drift` | [`DriftWindow`], [`Drift`]: windows of accepted times, and reasons to refuse a token |
//! | `clock` | [`Clock`]: the clocks of generators |
//! | `generator` | [`IdGenerator`]: the trait of generators of message ids |
//! | `monotonic` | [`Monotonic`]: ids that ascend in one process |
//! | `process` | [`ProcessIds`]: the generator of this process |
//! | `node` | [`NodeTerm`], [`NodeIdGenerator`]: ids that name a numbered node |
//! | `transaction` | [`TransactionStamp`]: ids that name a database transaction |
//!
//! Ids of a business fact are made by [`MessageId::derived`](crate::MessageId::derived).
//! `docs/tokens.md` says which kind to choose. ADR 12 describes how tokens, message ids and
//! idempotency keys relate.

mod clock;
mod drift;
mod generator;
mod monotonic;
mod node;
mod pair;
mod process;
mod transaction;

pub use clock::{Clock, SystemClock};
pub use drift::{AcceptedTimes, Drift, DriftWindow, ScheduledTooFar};
pub use generator::{IdGenerator, MintError};
pub use monotonic::Monotonic;
pub use node::{NodeIdGenerator, NodeTerm, Stale};
pub use pair::Token;
pub use process::ProcessIds;
pub use transaction::TransactionStamp;
