//! The producers' database and the consumers'.

/// Two databases on one PostgreSQL server, or two SQLite files. Reached directly, past every proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// Business rows and outbox.
    pub producers: String,
    /// Inbox and effects.
    pub consumers: String,
    /// Accounts, the rows that producers contend for: table `account`, column `name` in `account-0`
    /// up to this number less one. A producer locks them in ascending order of their names.
    pub accounts: u32,
}

impl Database {
    /// The name of an account.
    #[must_use]
    pub fn account(number: u32) -> String {
        format!("account-{number}")
    }
}
