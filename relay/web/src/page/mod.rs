//! The page for operators: an interface to [`operate`], like the command line.
//!
//! Its numbers come from the databases, so every relay process shows the same picture, whether it
//! leads or not. Only a pipeline that this process cannot run is shown by this process alone. The
//! page works without scripts; with them it updates by server-sent events.
//!
//! Each request passes `gate`. The `Host` must be a known name, and requests that change something
//! must come from the page itself. Only the login form is served without credentials. In an
//! application the page has no login: the application names the user of each request. So does a
//! proxy with a login, in headers that are believed from it alone. Each response
//! has a policy that runs no foreign script. What a role may do is decided by `operate` in each
//! call; a view that hides a button protects nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | `serve`, `tls` | the listener with its bounds, and its certificate |
//! | `app` | state shared by the handlers, and the routes |
//! | `gate`, `guard` | the checks of each request; their decisions, pure |
//! | `users`, `session`, `login` | the page's own login: the users, the cookie, the form |
//! | `sessions` | sessions that were ended before their time |
//! | `proxied` | people whom a proxy has logged in |
//! | `embedded`, `application`, `forms`, `following` | the page in an application: the service, its login, its forms, the queries behind it |
//! | `observe`, `beside`, `samples`, `plot` | shared queries of the databases, the last hour, plots |
//! | `bulks`, `surveys` | decisions that this process carries out, recent counts |
//! | `jobs` | the doctor, comparisons and replays, in separate tasks |
//! | `stream`, `exports` | server-sent events, lists as files |
//! | `answer`, `advice`, `fields`, `address` | errors and their advice, forms and addresses |
//! | `context`, `layout`, `text` | the frame of every page, texts from outside |
//! | `links` | the dashboard and the runbook |
//! | `list` | lists: rows on a screen, cards on a phone |
//! | `trouble` | what is wrong, worst first |
//! | `pages` | one file for each page |

mod address;
mod advice;
mod again;
mod answer;
mod app;
mod application;
mod beside;
mod bulks;
mod context;
mod embedded;
mod exports;
mod fields;
mod following;
mod forms;
mod gate;
mod guard;
mod jobs;
mod layout;
mod links;
mod list;
mod login;
mod observe;
mod pages;
mod plot;
mod proxied;
mod samples;
mod serve;
mod session;
mod sessions;
mod stream;
mod surveys;
mod text;
mod tls;
mod toned;
mod trouble;
mod users;

use std::collections::BTreeMap;

use tokio::sync::watch;

pub use embedded::{BuildPageError, PageBody, PageOptions, RelayPage};
pub use serve::{Page, PageError, check, check_settings};

use engine::Status;

/// The status of the pipelines that this process runs, by name.
pub type Own = BTreeMap<String, watch::Receiver<Status>>;
