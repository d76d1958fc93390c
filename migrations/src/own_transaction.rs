//! Whether a transaction is still the one that was begun.
//!
//! A `begin()` inside of a transaction (a savepoint) that is dropped before its answer, or that the
//! database refuses, makes sqlx end the *outer* transaction. Its handle stays usable, each later
//! statement commits by itself, and `commit()` succeeds. A ROLLBACK or COMMIT that is written as
//! SQL does the same on the server, and the client does not notice.
//!
//! So whoever stores something that is true only together with the transaction's other rows looks
//! for two signs: the client counts itself inside a transaction ([`Backend::is_open`]), and the
//! mark that was set with BEGIN is there ([`Backend::is_marked`], or a condition of the statement
//! itself). The inbox and the idempotency keys have marks of their own, which say more.
//!
//! [`Backend::is_open`]: crate::Backend::is_open
//! [`Backend::is_marked`]: crate::Backend::is_marked

/// Why a transaction is over.
pub const ENDED: &str = "its transaction is over, and later statements would commit by themselves: a begin() inside of \
    it was dropped before its answer or refused, or it was ended by a COMMIT or ROLLBACK in SQL";

/// Sets the mark on PostgreSQL, for the message that begins the transaction; before its BEGIN.
pub const MARK: &str = "SET LOCAL outbox.transaction = 'own'";
