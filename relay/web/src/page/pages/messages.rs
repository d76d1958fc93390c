//! Messages: finding one.

use maud::html;

use super::super::answer::Html;
use super::super::layout::{Frame, Tab, find};

/// `GET /messages`.
pub(crate) async fn show() -> Html {
    let body = html! {
        p class="lead" { "One message, from its outbox to its consumers." }
        div class="card" { (find("find-here", "Find any message"))
            p class="faint" { "By its message id, its position in the log, or the id of its dead letter." }
        }
    };
    Html(Frame::new(Tab::Messages, "Messages").page(&body))
}
