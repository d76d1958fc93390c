//! The frame of every page, and shared parts.

use std::time::Duration;

use axum::http::Uri;
use maud::{DOCTYPE, Markup, html};
use operate::audit::OBSERVER_GRANT;
use operate::seconds::{age, text as rfc3339};
use operate::{OperateError, Operator, Role};
use time::OffsetDateTime;

use super::address::to;
use super::context::{self, Nav};
use super::forms;
pub(crate) use super::text::count;
use super::text::{beginning, breakable, plain};
use super::toned::Toned;

/// Maximum number of characters of a name or an error in a table. The style cuts what a cell has no
/// room for.
const CELL_CHARS_MAX: usize = 300;

/// Number of characters and of lines above which a text is collapsed.
const FOLDED_CHARS: usize = 400;
const FOLDED_LINES: usize = 6;

/// How long a page says what its reader has decided. Later it may not be true any more: the page is
/// reloaded after changes, and its address is copied and kept.
const TOLD_FOR: time::Duration = time::Duration::MINUTE;

/// Number of characters of a text that fits into a narrow column.
const ROW_CHARS: usize = 12;

/// htmx runs no code from a page, sends requests only to this page's host and adds no style.
const HTMX_CONFIG: &str = r#"{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyEnabled":false,"historyCacheSize":0}"#;

/// The pages of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Overview,
    Dead,
    Held,
    Messages,
    Topics,
    Consumers,
    Keys,
    Sagas,
    Audit,
    None,
}

impl Tab {
    /// Returns the page of the navigation that the current request belongs to.
    pub(crate) fn current() -> Self {
        context::current().map_or(Self::None, |context| Self::of_path(&context.path))
    }

    /// Returns the page of the navigation that a path belongs to.
    pub(crate) fn of_path(path: &str) -> Self {
        match path.split('/').nth(1).unwrap_or_default() {
            "dead" | "decision" => Self::Dead,
            "held" => Self::Held,
            "message" | "messages" => Self::Messages,
            "topics" => Self::Topics,
            "consumers" => Self::Consumers,
            "keys" => Self::Keys,
            "saga" | "sagas" => Self::Sagas,
            "audit" => Self::Audit,
            _ => Self::None,
        }
    }

    /// Renders the button that leads to this page of the navigation; nothing without one.
    pub(crate) fn way_back(self) -> Markup {
        let known = TABS.iter().find(|(tab, ..)| *tab == self);
        html! { @if let Some((_, path, name)) = known { a class="button" href=(to(path)) { (name) } } }
    }
}

const TABS: [(Tab, &str, &str); 9] = [
    (Tab::Overview, "/", "Overview"),
    (Tab::Dead, "/dead", "Dead letters"),
    (Tab::Held, "/held", "Held"),
    (Tab::Messages, "/messages", "Messages"),
    (Tab::Topics, "/topics", "Topics"),
    (Tab::Consumers, "/consumers", "Consumers"),
    (Tab::Keys, "/keys", "Keys"),
    (Tab::Sagas, "/sagas", "Sagas"),
    (Tab::Audit, "/audit", "Audit"),
];

/// The clock of times that are not from a database: databases have several, the page has one.
const CLOCK: &str = "“As of”, and “since” on cards, are by the clock of this process";

/// The frame of a page.
pub(crate) struct Frame<'a> {
    tab: Tab,
    title: &'a str,
    /// Whether the first sentence of the page is its visible heading.
    is_headed_by_lead: bool,
    /// The address to reload after a change.
    live: Option<String>,
    /// The time of the data that it shows.
    at: OffsetDateTime,
}

impl<'a> Frame<'a> {
    /// Creates a page for the user of the current request.
    pub(crate) fn new(tab: Tab, title: &'a str) -> Self {
        Self { tab, title, is_headed_by_lead: false, live: None, at: OffsetDateTime::now_utc() }
    }

    /// Hides the title, which screen readers still read: the first sentence says more.
    pub(crate) fn headed_by_its_lead(self) -> Self {
        Self { is_headed_by_lead: true, ..self }
    }

    /// Sets the time of the data that the page shows; the default is now.
    pub(crate) fn taken_at(self, at: OffsetDateTime) -> Self {
        Self { at, ..self }
    }

    /// Reloads the page after each change while the work that it shows is running.
    pub(crate) fn live_while(self, is_running: bool, uri: &Uri) -> Self {
        if is_running { self.live(uri) } else { self }
    }

    /// Reloads the page from this address after each change.
    pub(crate) fn live(self, uri: &Uri) -> Self {
        Self { live: uri.path_and_query().map(|it| to(it.as_str())), ..self }
    }

    /// Renders the complete page.
    pub(crate) fn page(&self, body: &Markup) -> Markup {
        let heading = html! {
            h1 class=[self.is_headed_by_lead.then_some("hidden")] { (plain(self.title)) }
        };
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="htmx-config" content=(HTMX_CONFIG);
                    title { (plain(self.title)) " · relay" }
                    link rel="icon" href=(to("/assets/icon.svg")) type="image/svg+xml";
                    link rel="stylesheet" href=(to("/assets/page.css"));
                    script src=(to("/assets/htmx.js")) defer {}
                    script src=(to("/assets/page.js")) defer {}
                }
                body {
                    a class="skip" href="#content" { "Skip to the content" }
                    header class="top" { (self.top()) }
                    p class="stale" id="stale" role="status" hidden {}
                    main id="content" tabindex="-1" {
                        @match &self.live {
                            Some(uri) => {
                                div id="live" hx-get=(uri) hx-trigger="relay:change from:body"
                                    hx-select="#live" hx-select-oob="#pages,#as-of" hx-target="#live" hx-swap="outerHTML" {
                                    (heading)
                                    (body)
                                }
                            }
                            None => { (heading) (body) }
                        }
                    }
                    footer { "relay " (env!("CARGO_PKG_VERSION")) " · times are UTC · " (CLOCK) }
                }
            }
        }
    }

    fn top(&self) -> Markup {
        let Some(context) = context::current() else {
            return html! { div class="bar" { a class="brand" href=(to("/")) { "relay" } } };
        };
        let operator = &context.operator;
        let nav = **context.nav.borrow();
        html! {
            div class="bar" {
                a class="brand" href=(to("/")) { "relay" }
                (self.time())
                @if self.live.is_some() {
                    button class="follow" id="follow" type="button" data-events=(to("/events")) aria-pressed="true" hidden { "Live" }
                }
                (find("find", "Find a message"))
                a class="find-link" href=(to("/messages")) aria-label="Find a message" {
                    // Its own size and colours: it is readable before its style arrives.
                    svg viewBox="0 0 16 16" width="18" height="18" fill="none" stroke="currentColor" stroke-width="1.8" aria-hidden="true" {
                        circle cx="6.5" cy="6.5" r="4.5" {}
                        path d="M10 10l4.5 4.5" {}
                    }
                }
                details class="who" id="who" {
                    summary { span class="who-name" { (plain(operator.name())) } " " span class="badge" { (operator.role().as_str()) } }
                    @if context.has_logout {
                        form method="post" action=(to("/logout")) { button { "Log out" } }
                    }
                }
            }
            (self.pages(nav))
        }
    }

    /// Renders the time of the data on the page. Its age in milliseconds is for the script, which
    /// counts on from it without a clock.
    fn time(&self) -> Markup {
        let age = (OffsetDateTime::now_utc() - self.at).whole_milliseconds().max(0);
        html! {
            span class="as-of" id="as-of" data-age=(age) title=(CLOCK) {
                span class="wide" { "As of " } time datetime=(rfc3339(self.at)) { (clock(self.at)) }
                span class="wide" { " UTC" } span class="age" {}
            }
        }
    }

    fn pages(&self, nav: Nav) -> Markup {
        html! {
            nav id="pages" aria-label="Pages" {
                @for (tab, path, name) in TABS {
                    a id={ "to-" (path.trim_start_matches('/')) } href=(to(path)) aria-current=[(tab == self.tab).then_some("page")] {
                        (name)
                        @if let Some(badge) = nav.of(tab) {
                            " " span class={ "count " (badge.kind) } title=[badge.title] { (badge.text) }
                        }
                    }
                }
            }
        }
    }
}

impl Nav {
    /// Returns the badge of a tab, if there is something to count.
    fn of(self, tab: Tab) -> Option<Badge> {
        let (kind, count) = match tab {
            Tab::Dead => ("bad", self.dead),
            Tab::Held => ("warn", self.held),
            Tab::Keys => ("warn", self.keys),
            Tab::Sagas => ("warn", self.sagas),
            _ => return None,
        };
        let title = count.is_denied.then(|| denied("the database user may not read all of them"));
        // A right that is missing by design is no warning.
        let kind = if count.is_only_denied() { "" } else { kind };
        Some(Badge { kind, text: count.text()?, title })
    }
}

/// The count of a tab.
struct Badge {
    /// Its colour; none if nothing is wrong.
    kind: &'static str,
    text: String,
    title: Option<String>,
}

/// Adds the grant that the database user lacks to the refusal to read keys or sagas.
pub(crate) fn denied(refusal: &str) -> String {
    format!("{refusal}; to see them: {OBSERVER_GRANT}")
}

/// Returns the value of the field `done` in the address to which the form of a decision leads: what
/// was decided, and when.
pub(crate) fn decided_now(action: &str) -> String {
    format!("{action}-{}", OffsetDateTime::now_utc().unix_timestamp())
}

/// Returns what a field `done` says was decided; `None` if that is no longer news.
pub(crate) fn just_decided(done: &str) -> Option<&str> {
    let (action, at) = done.rsplit_once('-')?;
    let at = OffsetDateTime::from_unix_timestamp(at.parse().ok()?).ok()?;
    // The clock of the process that decided may be ahead of this one's.
    ((OffsetDateTime::now_utc() - at).abs() <= TOLD_FOR).then_some(action)
}

/// Renders what a decision has done, on the page that its form led to.
pub(crate) fn done(what: Option<String>) -> Markup {
    html! { @if let Some(what) = what { p class="notice good" role="status" { (what) } } }
}

/// Renders the form that finds a message by an id, or messages by an ordering key.
pub(crate) fn find(class: &str, label: &str) -> Markup {
    html! {
        form class=(class) method="get" action=(to("/message")) role="search" aria-label=(label) {
            input name="id" type="search" required maxlength="255" placeholder="Message id or key"
                aria-label="Message id, position in the log, id of the dead letter, or ordering key";
            button { "Find" }
        }
    }
}

/// Renders the field that proves where a form was made, or names the user that it was made for.
pub(crate) fn form_token() -> Markup {
    let Some(context) = context::current() else { return html! {} };
    html! {
        @match &context.form_token {
            Some(token) => { input type="hidden" name=(forms::FIELD) value=(token); }
            None => { input type="hidden" name=(forms::USER) value=(context.operator.name()); }
        }
    }
}

/// Returns the time of day in UTC.
pub(crate) fn clock(at: OffsetDateTime) -> String {
    let (hour, minute, second) = at.to_offset(time::UtcOffset::UTC).to_hms();
    format!("{hour:02}:{minute:02}:{second:02}")
}

/// Returns whether buttons are shown. The decision itself is authorized where it is carried out.
pub(crate) fn may_decide(operator: &Operator) -> bool {
    operator.role() >= Role::Operator
}

/// Renders a text from outside, shortened; its title has the whole text if it may be cut.
pub(crate) fn cell(text: &str) -> Markup {
    let text = plain(text);
    let short = beginning(&text, CELL_CHARS_MAX);
    // In a row, the end of a longer text does not fit.
    let is_cut = text.chars().nth(ROW_CHARS).is_some();
    html! { span class="text" title=[is_cut.then_some(&text)] { (short) } }
}

/// Like [`cell`], but whole: a remedy at the end must not be cut off.
pub(crate) fn whole(text: &str) -> Markup {
    html! { span class="text" { (plain(text)) } }
}

/// Like [`whole`], with places where a long word may break.
pub(crate) fn prose(text: &str) -> Markup {
    let parts = breakable(&plain(text));
    html! {
        span class="text" {
            @for (index, part) in parts.iter().enumerate() { @if index > 0 { wbr; } (part) }
        }
    }
}

/// Like [`cell`], or a dash.
pub(crate) fn maybe(text: Option<&str>) -> Markup {
    match text {
        Some(text) => cell(text),
        None => html! { span class="faint none" { "–" } },
    }
}

/// Renders a number in a list; zero is paler than the numbers that matter.
pub(crate) fn number(number: u64) -> Markup {
    html! { span class=[(number == 0).then_some("faint")] { (count(number)) } }
}

/// Renders a state as a badge.
pub(crate) fn badge(state: impl Toned) -> Markup {
    tone(state.tone(), &state.to_string())
}

/// Renders a badge in a colour: `good`, `warn`, `bad` or none.
pub(crate) fn tone(kind: &str, text: &str) -> Markup {
    html! { span class={ "badge " (kind) } { (plain(text)) } }
}

/// Renders a time by its age.
pub(crate) fn since(at: OffsetDateTime) -> Markup {
    let text = rfc3339(at);
    html! { time datetime=(text) title=(text) { (ago(at)) } }
}

/// Renders a time by its age, or a dash.
pub(crate) fn maybe_since(at: Option<OffsetDateTime>) -> Markup {
    at.map_or_else(|| maybe(None), since)
}

/// Renders a time as such, with its age. It breaks only between day, time and age.
pub(crate) fn moment(at: OffsetDateTime) -> Markup {
    html! { (stamp(at)) " " span class="faint age" { "(" (ago(at)) ")" } }
}

/// Renders a time as such. It breaks only between day and time.
pub(crate) fn stamp(at: OffsetDateTime) -> Markup {
    let text = rfc3339(at);
    let day_and_time = text.split_once('T');
    html! {
        time datetime=(text) {
            @if let Some((day, time)) = day_and_time { span { (day) } " " span { (time) } } @else { (text) }
        }
    }
}

/// Renders a time that is compared with logs: of today without its day, with its age.
pub(crate) fn logged(at: OffsetDateTime) -> Markup {
    let text = rfc3339(at);
    let is_today = at.to_offset(time::UtcOffset::UTC).date() == OffsetDateTime::now_utc().date();
    html! {
        time datetime=(text) title=(text) {
            @if !is_today { span { (at.date()) } " " }
            span { (clock(at)) }
        }
        " " span class="faint age" { (ago(at)) }
    }
}

/// Renders a whole text with a button that copies it, which needs the script. The button copies
/// what is shown: hidden characters, and those that would control a terminal, are not copied.
/// `what` names the text.
pub(crate) fn copyable(what: &str, text: &str) -> Markup {
    html! { (whole(text)) " " (copy(what, text)) }
}

/// Renders the button that copies a text.
pub(crate) fn copy(what: &str, text: &str) -> Markup {
    html! {
        button type="button" class="copy" data-copy=(plain(text)) {
            span aria-live="polite" { "Copy" } span class="hidden" { " " (what) }
        }
    }
}

/// Renders an error or another long text whole: folded, if it has more than a few lines. `id`
/// distinguishes it on its page.
pub(crate) fn folded(id: &str, what: &str, text: &str) -> Markup {
    let shown = plain(text);
    let is_long = shown.chars().nth(FOLDED_CHARS).is_some() || shown.lines().nth(FOLDED_LINES).is_some();
    html! {
        @if is_long {
            details class="fold" id=(id) {
                summary { (beginning(shown.lines().next().unwrap_or_default(), CELL_CHARS_MAX)) }
                pre class="error" { (shown) }
            }
        } @else {
            pre class="error" { (shown) }
        }
        (copy(what, text))
    }
}

/// Returns the age of a time in words.
pub(crate) fn ago(at: OffsetDateTime) -> String {
    let passed = OffsetDateTime::now_utc() - at;
    match Duration::try_from(passed) {
        Ok(passed) if passed < Duration::from_secs(1) => String::from("now"),
        Ok(passed) => format!("{} ago", age(passed)),
        Err(_) => format!("in {}", age(passed.unsigned_abs())),
    }
}

/// Formats seconds as a duration for people.
pub(crate) fn lasting(seconds: f64) -> String {
    age(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// Formats a size for people.
pub(crate) fn bytes(size: u64) -> String {
    bytesize::ByteSize(size).display().iec().to_string()
}

/// Renders the errors of places that do not answer. The other places are still shown.
pub(crate) fn away(errors: &[OperateError]) -> Markup {
    let told = |error: &OperateError| plain(&error.to_string());
    html! {
        @if !errors.is_empty() {
            div class="notice bad" role="alert" {
                strong { "Some data is missing: " }
                @if let [error] = errors { (told(error)) } @else {
                    ul { @for error in errors.iter().take(20) { li { (told(error)) } } }
                }
            }
        }
    }
}

/// Renders the field for the reason of a decision, with the one that was typed before.
pub(crate) fn why_field(typed: &str) -> Markup {
    html! {
        label { "Why (recorded in the audit)"
            input name="reason" required maxlength="500" autocomplete="off" value=[Some(typed).filter(|typed| !typed.is_empty())]; }
    }
}

/// Renders the fields for signing a decision.
pub(crate) fn signature(verb: &str, is_grave: bool) -> Markup {
    html! {
        (why_field(""))
        button class=(if is_grave { "danger" } else { "primary" }) { (verb) }
    }
}

/// Renders the buttons of an edit: each says whether the message is sent.
pub(crate) fn save_buttons() -> Markup {
    html! {
        div class="actions" {
            button name="then" value="requeue" class="primary" { "Save and requeue" }
            button name="then" value="" { "Save, leave it dead" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::NavCount;
    use super::*;

    const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'{{7*7}}\u{202e}";

    #[test]
    fn no_text_from_outside_is_markup() {
        let operator = Operator::new(HOSTILE, Role::Viewer);
        let uri: Uri = "/dead?topic=%22%3E%3Cscript%3E".parse().unwrap();
        let error = OperateError::refused(HOSTILE, HOSTILE);
        let body = html! { (form_token()) (cell(HOSTILE)) (maybe(Some(HOSTILE))) (tone("bad", HOSTILE)) (away(&[error])) };
        let nav = tokio::sync::watch::Sender::new(std::sync::Arc::default()).subscribe();
        let context = context::Context {
            operator,
            nav,
            form_token: Some(HOSTILE.into()),
            has_logout: false,
            path: String::from("/dead"),
        };
        let page = async { Frame::new(Tab::Dead, HOSTILE).live(&uri).page(&body).into_string() };
        let page = futures_util::FutureExt::now_or_never(context::within(context, page)).unwrap();
        assert!(!page.contains("<script>") && !page.contains("<img"), "{page}");
        assert!(!page.contains('\u{202e}'), "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
        // The policy forbids inline scripts and styles, so there must be none.
        assert!(!page.contains(" style=") && !page.contains(" onclick="), "{page}");
        assert_eq!(page.matches("<script").count(), 2, "{page}");
    }

    #[test]
    fn a_long_text_is_folded_and_whole_and_what_is_copied_is_what_is_shown() {
        let short = folded("error", "error", "no route").into_string();
        assert!(
            short.contains("<pre class=\"error\">no route</pre>") && !short.contains("<details"),
            "{short}"
        );
        let end = "the end</pre><script>";
        let long = format!("{}{end}", "x".repeat(FOLDED_CHARS));
        let text = folded("error", "error", &long).into_string();
        assert!(text.contains("<details class=\"fold\" id=\"error\">"), "{text}");
        assert!(
            text.contains("the end&lt;/pre&gt;&lt;script&gt;</pre>") && !text.contains("<script>"),
            "{text}"
        );
        assert!(folded("error", "error", &"line\n".repeat(20)).into_string().contains("<details"));
        let copied = copyable("key", HOSTILE).into_string();
        assert!(!copied.contains("<script>") && !copied.contains('\u{202e}'), "{copied}");
        let shown = "data-copy=\"&quot;&gt;&lt;script&gt;";
        assert!(copied.contains(shown) && copied.contains("'{{7*7}}\\u{202e}"), "{copied}");
    }

    #[test]
    fn each_address_belongs_to_a_page_of_the_navigation() {
        for (path, tab) in [
            ("/dead/decide", Tab::Dead),
            ("/decision", Tab::Dead),
            ("/message/payload", Tab::Messages),
            ("/keys/confirm", Tab::Keys),
            ("/saga", Tab::Sagas),
            ("/audit/export", Tab::Audit),
            ("/", Tab::None),
            ("", Tab::None),
            ("/nothing", Tab::None),
        ] {
            assert_eq!(Tab::of_path(path), tab, "{path}");
        }
        assert!(Tab::Sagas.way_back().into_string().contains("href=\"/sagas\">Sagas<"));
        assert_eq!(Tab::None.way_back().into_string(), "");
    }

    /// Goal: the documented set-up, in which the relay may not read keys and sagas, has no warning
    /// in its navigation. Oracle: the colours of the counts.
    #[test]
    fn a_missing_right_is_no_warning() {
        let of = |count| Nav { keys: count, ..Nav::default() }.of(Tab::Keys).unwrap();
        let denied = NavCount { is_denied: true, ..NavCount::default() };
        let badge = of(denied);
        assert_eq!((badge.kind, badge.text.as_str()), ("", "no right"));
        assert!(badge.title.is_some_and(|title| title.contains("GRANT")));
        assert_eq!(of(NavCount { number: 2, ..denied }).kind, "warn");
        assert_eq!(of(NavCount { is_partial: true, ..denied }).kind, "warn");
    }

    #[test]
    fn the_time_of_a_page_says_whose_clock_it_is() {
        let frame = Frame::new(Tab::None, "Audit").taken_at(OffsetDateTime::UNIX_EPOCH);
        let clock = "are by the clock of this process";
        let time = frame.time().into_string();
        assert!(time.contains(clock) && time.contains(">00:00:00</time>"), "{time}");
        let page = frame.page(&html! {}).into_string();
        assert!(page.contains(clock) && page.contains("times are UTC"), "{page}");
    }

    #[test]
    fn a_moment_is_a_time_with_its_age() {
        let at = OffsetDateTime::now_utc() - Duration::from_secs(3_700);
        let text = moment(at).into_string();
        let parts = rfc3339(at).replace('T', "</span> <span>");
        assert!(text.contains(&format!("<span>{parts}</span></time>")), "{text}");
        assert!(text.contains("(1h1m ago)"), "{text}");
    }

    #[test]
    fn a_time_that_is_compared_with_logs_comes_before_its_age() {
        let now = OffsetDateTime::now_utc();
        let text = logged(now).into_string();
        assert!(text.contains(&format!("<span>{}</span></time>", clock(now))), "{text}");
        assert!(!text.contains(&format!("<span>{}</span>", now.date())), "{text}");
        let text = logged(OffsetDateTime::UNIX_EPOCH).into_string();
        assert!(text.contains("<span>1970-01-01</span> <span>00:00:00</span></time>"), "{text}");
    }

    /// Goal: an address that is kept, sent or reloaded does not say that something was decided just
    /// now. Oracle: addresses of several ages, and others.
    #[test]
    fn a_decision_is_news_for_a_minute() {
        assert_eq!(just_decided(&decided_now("cancel")), Some("cancel"));
        let now = OffsetDateTime::now_utc().unix_timestamp();
        for (seconds, is_news) in [(30, true), (-30, true), (90, false), (-90, false)] {
            let told = format!("retry-{}", now - seconds);
            assert_eq!(just_decided(&told).is_some(), is_news, "{told}");
        }
        for other in ["", "retry", "retry-", "retry-x", "retry-99999999999999999999", "-"] {
            assert_eq!(just_decided(other), None, "{other}");
        }
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        for (number, shown) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), shown);
        }
    }
}
