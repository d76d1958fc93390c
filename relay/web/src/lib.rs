//! The page for operators, and the listener below it.
//!
//! | module | what it holds |
//! |---|---|
//! | `settings` | [`PageConfig`]: address, users and transport |
//! | [`listener`] | accepting connections within bounds; the program's other listener uses it too |
//! | `page` (feature `page`) | what is served, and to whom |

pub mod listener;
#[cfg(feature = "page")]
mod page;
mod settings;

#[cfg(feature = "page")]
pub use page::{
    BuildPageError, Own, Page, PageBody, PageError, PageOptions, RelayPage, check, check_settings,
};
pub use settings::{PageConfig, PageCredential, PageTls, PageUser, ProxyLogin};

/// The target of its log lines. A filter for `relay` also matches it.
const LOG: &str = "relay::web";
