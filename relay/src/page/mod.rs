//! The page for operators: a skin over [`operate`](crate::operate), as the command line is one.
//!
//! Its numbers come from the databases, so every relay process gives the same picture, whether
//! it leads or not; only a pipeline that this process cannot run is told by this one alone. It
//! reads without scripts; with them it follows by server-sent events.
//!
//! Each request passes `gate`: the `Host` must be a known name, requests that change something must
//! come from the page itself, nothing but the login form is answered without credentials, and each
//! answer has a policy that runs no foreign script. What a role may do is decided below, by
//! `operate`, in each call; a view that hides a button protects nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | `serve`, `tls` | the listener with its bounds, its certificate |
//! | `app` | what the handlers share, and the routes |
//! | `gate`, `guard` | what each request must pass; the decisions, pure |
//! | `users`, `session`, `login` | who may use it, the cookie, the form |
//! | `observe`, `samples`, `plot` | one look at the databases for all readers, the last hour, plots |
//! | `stream` | server-sent events |
//! | `answer`, `fields`, `address` | errors, forms and addresses |
//! | `layout`, `text` | the frame of every page, texts from outside |
//! | `pages` | one file for each page |

mod address;
mod answer;
mod app;
mod fields;
mod gate;
mod guard;
mod layout;
mod login;
mod observe;
mod pages;
mod plot;
mod samples;
mod serve;
mod session;
mod stream;
mod text;
mod tls;
mod users;

use std::collections::BTreeMap;

use tokio::sync::watch;

pub use serve::{Page, PageError, check, check_settings};

use engine::Status;

/// The pipelines of a process by their names, as it runs them.
pub type Own = BTreeMap<String, watch::Receiver<Status>>;
