//! A form that comes back with what was typed: its login had ended, its reason was refused, or its
//! content needs a second look. It is made of the fields that the browser sent: the page stores
//! nothing, and only the user that it was made for gets it back.

use maud::{Markup, html};
use operate::dead::Moment;
use operate::{Operator, Signed};
use saga::Action;

use super::address::to;
use super::answer::Problem;
use super::fields::{FIELDS_MAX, Fields};
use super::forms;
use super::layout::{Frame, Tab, cell, count, form_token, save_buttons, whole, why_field};
use super::text::capital;

/// The beginning of the names that a form's fields have in the login form.
const KEPT: &str = "kept.";
/// A value of more bytes gets a line of its own.
const WIDE_BYTES: usize = 24;
/// The field of the login form with the address of the form.
const PATH: &str = "kept_path";

/// The forms that come back, with the text of their buttons.
const FORMS: [(&str, &str); 16] = [
    ("/dead/confirm", "Continue"),
    ("/dead/decide", ""),
    ("/message/payload", "Show the payload"),
    ("/message/edit", "Show the form"),
    ("/message/edit/decide", "Save and requeue"),
    ("/message/edit/content", "Show the edit"),
    ("/pause", "Pause"),
    ("/resume", "Resume"),
    ("/keys/confirm", "Continue"),
    ("/keys/decide", ""),
    ("/saga/decide", ""),
    ("/replay/confirm", "Preview…"),
    ("/replay", "Publish again"),
    ("/doctor", "Continue"),
    ("/verify", "Continue"),
    ("/decision/stop", "Stop"),
];

/// The fields by which people recognize a form. Others are shown by their names, so that none is
/// sent unseen.
const SHOWN: [(&str, &str); 27] = [
    ("what", "Decision"),
    ("pipeline", "Pipeline"),
    ("source", "Source"),
    ("consumer", "Consumer"),
    ("database", "Database"),
    ("scope", "Scope"),
    ("operation", "Operation"),
    ("type", "Type"),
    ("topic", "Topic"),
    ("key", "Key"),
    ("name", "Name"),
    ("place", "Position"),
    ("message", "Message id"),
    ("id", "Id"),
    ("cause", "Cause"),
    ("error", "Error contains"),
    ("error_like", "Error"),
    ("older_than", "Older than"),
    ("newer_than", "Newer than"),
    ("step", "Step"),
    ("result", "Result"),
    ("all", "All published messages"),
    ("from_id", "From this position in the log"),
    ("to_id", "Up to this position"),
    ("since", "Enqueued since"),
    ("until", "Enqueued until"),
    ("rate", "Messages a second"),
];

/// The fields that mean something only to this page. The buttons have the numbers of messages.
const UNSEEN: [&str; 14] = [
    forms::FIELD,
    forms::USER,
    "as_of",
    "at",
    "chosen",
    "decision",
    "digest",
    "from",
    "headers_before",
    "holder",
    "in",
    "payload_before",
    "replay",
    "row",
];

/// Boxes that stay as they were.
const BOXES: [(&str, &str); 2] = [
    ("accept_late", "Also apply messages older than the inbox's retention"),
    ("accept_invalid_json", "Save it although it is not JSON"),
];

/// A form that was sent.
#[derive(Debug, Clone)]
pub(crate) struct Again {
    path: &'static str,
    button: &'static str,
    fields: Fields,
    /// The box that accepts what was warned about.
    offers: Option<&'static str>,
}

impl Again {
    /// Returns the form that was sent to this path, if it can come back.
    pub(crate) fn of(path: &str, fields: Fields) -> Option<Self> {
        let (path, button) = *FORMS.iter().find(|(known, _)| *known == path)?;
        (fields.iter().count() <= FIELDS_MAX).then_some(Self { path, button, fields, offers: None })
    }

    /// Offers a box that accepts what was warned about.
    pub(crate) fn offering(self, name: &'static str) -> Self {
        Self { offers: Some(name), ..self }
    }

    /// Returns the form that a login form has kept.
    pub(crate) fn kept(login: &Fields) -> Option<Self> {
        let kept = login.iter().filter_map(|(name, value)| Some((name.strip_prefix(KEPT)?, value)));
        let fields = kept.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self::of(login.exact(PATH), fields)
    }

    /// Renders the fields by which a login form keeps this one.
    pub(crate) fn hidden(&self) -> Markup {
        html! {
            input type="hidden" name=(PATH) value=(self.path);
            @for (name, value) in self.fields.iter() {
                input type="hidden" name={ (KEPT) (name) } value=(value);
            }
        }
    }

    /// Returns whether the form was made for this user.
    pub(crate) fn is_of(&self, operator: &Operator) -> bool {
        self.fields.exact(forms::USER) == operator.name()
    }

    /// Returns whether the form says for whom it was made, as all forms of this page do.
    pub(crate) fn names_its_user(&self) -> bool {
        self.fields.has(forms::USER)
    }

    /// Renders the page that brings a form back after a login.
    pub(crate) fn page(&self, operator: &Operator) -> Markup {
        let title = "Send the form again?";
        let body = html! {
            @if self.is_of(operator) {
                p class="notice" role="status" {
                    "Your login had ended before this form arrived: nothing was changed. Check it, and send it again."
                }
                (self.card())
            } @else {
                p class="notice" role="status" {
                    "Nothing was changed. The form of another user does not come back: you are " (cell(operator.name())) "."
                }
            }
            p { a class="button" href=(to("/")) { "Overview" } }
        };
        Frame::new(Tab::None, title).page(&body)
    }

    /// Renders the form, to be sent once more.
    pub(crate) fn card(&self) -> Markup {
        let is_edit = self.path == "/message/edit/decide";
        let is_typed =
            |name: &str| matches!(name, "reason" | "payload" | "headers") || is_edit && name == "then";
        let is_new = |name: &str| {
            matches!(name, forms::FIELD | forms::USER) || BOXES.iter().any(|(known, _)| *known == name)
        };
        let fields = &self.fields;
        // A text field sends line breaks as CR LF, and drops the first one after its tag.
        let area = |name: &str| fields.exact(name).replace("\r\n", "\n");
        let is_grave = ["discard", "cancel", "skip"].iter().any(|word| fields.text("what").starts_with(word));
        html! {
            form method="post" action=(to(self.path)) class="card" {
                (form_token())
                @for (name, value) in fields.iter().filter(|(name, _)| !is_typed(name) && !is_new(name)) {
                    input type="hidden" name=(name) value=(value);
                }
                dl class="facts" {
                    @for (label, value) in self.seen().iter().filter(|(label, _)| !is_typed(label)) {
                        div class=[(value.len() > WIDE_BYTES).then_some("wide")] { dt { (label) } dd { (whole(value)) } }
                    }
                }
                @if fields.has("headers") {
                    label { "Headers, one name=value in each line"
                        textarea name="headers" rows="5" spellcheck="false" autocomplete="off" { "\n" (area("headers")) }
                    }
                }
                @if fields.has("payload") {
                    label { "Payload"
                        textarea name="payload" rows="20" spellcheck="false" autocomplete="off" { "\n" (area("payload")) }
                    }
                }
                @for (name, label) in BOXES {
                    @if fields.has(name) || self.offers == Some(name) {
                        label class="check" { input type="checkbox" name=(name) value="yes" checked[fields.has(name)]; " " (label) }
                    }
                }
                @if fields.has("reason") {
                    (why_field(fields.text("reason")))
                }
                @if is_edit { (save_buttons()) }
                @else { button class=(if is_grave { "danger" } else { "primary" }) { (self.button()) } }
                " " (Tab::of_path(self.path).way_back())
            }
        }
    }

    /// Returns what the form says, for people: the fields that are recognized first, then all
    /// others but those that only the page understands.
    fn seen(&self) -> Vec<(&str, String)> {
        // The page names a pause by its time.
        let is_unseen = |name: &str| UNSEEN.contains(&name) || self.path == "/resume" && name == "since";
        let is_box = |name: &str| BOXES.iter().any(|(known, _)| *known == name);
        let is_known = |name: &str| SHOWN.iter().any(|(known, _)| *known == name);
        let known = SHOWN.iter().map(|(name, label)| (*label, self.fields.exact(name), is_unseen(name)));
        let others = self.fields.iter().filter(|(name, _)| !is_known(name));
        let others = others.map(|(name, value)| (name, value, is_unseen(name) || is_box(name)));
        let known = known.map(|(label, value, is_unseen)| match label {
            "Decision" => (label, decision(value), is_unseen),
            _ => (label, value.to_owned(), is_unseen),
        });
        let others = others.map(|(name, value, is_unseen)| (name, value.to_owned(), is_unseen));
        let all = known.chain(others).filter(|(_, value, is_unseen)| !value.trim().is_empty() && !is_unseen);
        let mut seen: Vec<_> = all.map(|(label, value, _)| (label, value)).collect();
        let rows: Vec<&str> = self.fields.all("row").collect();
        match rows[..] {
            [] => {}
            [row] => seen.push(("Message", row.to_owned())),
            _ => seen.push(("Chosen one by one", messages(rows.len() as u64))),
        }
        seen
    }

    /// Returns the text of the button: what it does, and to how many messages.
    fn button(&self) -> String {
        let chosen = self.fields.text("chosen").parse::<u64>();
        if let ("/replay", Ok(chosen)) = (self.path, chosen) {
            return format!("Publish {} again", messages(chosen));
        }
        if !self.button.is_empty() {
            return self.button.to_owned();
        }
        let what = self.fields.text("what");
        if let ("/saga/decide", Some(action)) = (self.path, Action::from_word(what)) {
            return saga_verb(action).to_owned();
        }
        let verb = what.split('-').next().unwrap_or(what);
        let verb = capital(verb);
        let number: u64 =
            self.fields.all("at").filter_map(|at| at.parse::<Moment>().ok()).map(|at| at.count()).sum();
        if number == 0 { verb } else { format!("{verb} {}", messages(number)) }
    }
}

/// Returns a decision in words: `Requeue all that match`.
fn decision(what: &str) -> String {
    match what.strip_suffix("-all") {
        Some(verb) => format!("{} all that match", capital(verb)),
        None => capital(what),
    }
}

/// Returns a number of messages with its noun.
fn messages(number: u64) -> String {
    if number == 1 { String::from("1 message") } else { format!("{} messages", count(number)) }
}

/// Returns the author and the reason of a form. If they cannot be recorded, the form comes back.
///
/// # Errors
/// A [`Problem`] with the form.
pub(crate) fn signed(operator: &Operator, form: &Fields, path: &str, what: &str) -> Result<Signed, Problem> {
    let signed = Signed { operator: operator.clone(), note: form.text("reason").to_owned() };
    match signed.check(what) {
        Ok(()) => Ok(signed),
        Err(error) => {
            let problem =
                Problem::from(error).with_help("nothing was changed: correct the form and send it again");
            Err(problem.with_form(card(path, form)))
        }
    }
}

/// Renders the form that was sent to this path, if it can come back.
pub(crate) fn card(path: &str, form: &Fields) -> Option<Markup> {
    Again::of(path, form.clone()).map(|form| form.card())
}

/// Returns the text of a button about a saga: “Cancel” alone would be read as leaving the form.
pub(crate) fn saga_verb(action: Action) -> &'static str {
    match action {
        Action::Retry => "Retry the saga",
        Action::Cancel => "Cancel the saga",
        _ => "Skip a step",
    }
}

#[cfg(test)]
mod tests {
    use operate::Role;

    use super::*;

    const HOSTILE: &str = "\"></textarea><script>alert(1)</script>";

    fn edit(reason: &str) -> Fields {
        Fields::of(&[
            ("form_user", "ann"),
            ("decision", "01a21987-9bca-7af8-8184-ba681445d351"),
            ("payload", "\r\n{\"n\": 2}"),
            ("then", "requeue"),
            ("reason", reason),
        ])
    }

    /// Goal: a reason that is refused costs nothing that was typed. Oracle: the form of the answer.
    #[test]
    fn a_blank_reason_brings_the_form_back_with_what_was_typed() {
        let ann = Operator::new("ann", Role::Operator);
        let refused = signed(&ann, &edit(" "), "/message/edit/decide", "edit messages").unwrap_err();
        assert!(refused.message.contains("the reason is empty"), "{refused:?}");
        let text = refused.form.unwrap().into_string();
        assert!(
            text.contains("{&quot;n&quot;: 2}</textarea>") && text.contains("Save and requeue</button>"),
            "{text}"
        );
        assert!(
            text.contains("action=\"/message/edit/decide\"") && text.contains("name=\"decision\""),
            "{text}"
        );
        assert!(signed(&ann, &edit("why"), "/message/edit/decide", "edit messages").is_ok());
    }

    /// Goal: a form survives a login, for its user alone. Oracle: the fields of a login form, read
    /// back.
    #[test]
    fn a_login_form_keeps_a_form_for_its_user() {
        let again = Again::of("/message/edit/decide", edit(HOSTILE)).unwrap();
        let text = again.hidden().into_string();
        assert!(!text.contains("<script>") && !text.contains("</textarea>"), "{text}");
        let sent = [
            ("kept_path", "/message/edit/decide"),
            ("name", "ann"),
            ("kept.form_user", "ann"),
            ("kept.reason", HOSTILE),
        ];
        let kept = Again::kept(&Fields::of(&sent)).unwrap();
        assert!(kept.is_of(&Operator::new("ann", Role::Operator)));
        assert!(!kept.is_of(&Operator::new("bob", Role::Operator)));
        let card = kept.card().into_string();
        assert!(card.contains("name=\"reason\"") && !card.contains("<script>"), "{card}");
        for unknown in ["", "/login", "/logout", "https://evil.example/", "/nothing"] {
            assert!(Again::kept(&Fields::of(&[("kept_path", unknown)])).is_none(), "{unknown}");
        }
        let many = vec![("row", "1"); FIELDS_MAX + 1];
        assert!(Again::of("/dead/decide", Fields::of(&many)).is_none());
    }

    /// Goal: nothing is confirmed unseen. Oracle: the card of each kind of form, with a field that
    /// no list of this file has.
    #[test]
    fn a_form_shows_everything_that_it_decides() {
        let card = |path: &str, pairs: &[(&str, &str)]| {
            Again::of(path, Fields::of(pairs)).unwrap().card().into_string()
        };
        let fact = |label: &str, value: &str| {
            format!("<dt>{label}</dt><dd><span class=\"text\">{value}</span></dd>")
        };
        let saga = [
            ("form_user", "ann"),
            ("type", "checkout"),
            ("id", "7"),
            ("as_of", "12.3"),
            ("what", "skip"),
            ("step", "charge"),
            ("result", "{paid:1}"),
            ("reason", "why"),
        ];
        let text = card("/saga/decide", &saga);
        for (label, value) in [("Decision", "Skip"), ("Step", "charge"), ("Result", "{paid:1}")] {
            assert!(text.contains(&fact(label, value)), "{label}: {text}");
        }
        assert!(
            !text.contains("<dt>as_of") && !text.contains("<dt>form_user") && !text.contains("<dt>reason")
        );
        let replay =
            [("pipeline", "orders"), ("since", "2026-01-31T12:00:00Z"), ("all", "yes"), ("rate", "50")];
        let text = card("/replay", &[&replay[..], &[("chosen", "40000"), ("replay", "x")]].concat());
        for (label, value) in [
            ("Enqueued since", "2026-01-31T12:00:00Z"),
            ("All published messages", "yes"),
            ("Messages a second", "50"),
        ] {
            assert!(text.contains(&fact(label, value)), "{label}: {text}");
        }
        assert!(text.contains(">Publish 40,000 messages again</button>"), "{text}");
        let text =
            card("/dead/decide", &[("what", "discard"), ("row", "outbox/7/orders"), ("later", "added")]);
        assert!(text.contains(&fact("Message", "outbox/7/orders")), "{text}");
        assert!(text.contains(&fact("later", "added")), "a field of a later version: {text}");
        let text = card("/dead/decide", &[("what", "discard"), ("row", "a/1/x"), ("row", "a/2/x")]);
        assert!(text.contains(&fact("Chosen one by one", "2 messages")), "{text}");
        let text = card("/resume", &[("pipeline", "orders"), ("since", "1764201600123456000")]);
        assert!(!text.contains("<dt>Enqueued since"), "it names a pause: {text}");
        let text = card("/message/edit/decide", &[("payload", "p"), ("headers", "h"), ("then", "requeue")]);
        assert!(!text.contains("<dt>"), "what was typed is in its fields: {text}");
    }

    /// Goal: nobody undoes a saga who wants to leave the form. Oracle: the text of the button in
    /// the form that comes back, and the way out beside it; a form of no page of the navigation has
    /// none.
    #[test]
    fn a_form_that_comes_back_can_be_left() {
        let card = |path: &str, what: &str| {
            Again::of(path, Fields::of(&[("what", what), ("reason", "x")])).unwrap().card().into_string()
        };
        for (what, button) in
            [("cancel", "Cancel the saga"), ("retry", "Retry the saga"), ("skip", "Skip a step")]
        {
            let text = card("/saga/decide", what);
            assert!(text.contains(&format!(">{button}</button>")), "{text}");
            assert!(text.contains("<a class=\"button\" href=\"/sagas\">Sagas</a>"), "{text}");
        }
        assert!(card("/keys/decide", "discard").contains("href=\"/keys\">Keys</a>"));
        assert!(card("/dead/decide", "discard").contains("href=\"/dead\">Dead letters</a>"));
        let text = card("/verify", "");
        assert!(!text.contains("<a "), "{text}");
    }

    #[test]
    fn a_button_says_how_many_messages_it_decides_about() {
        let at = "outbox/4000000000000000/2000/0/0/orders";
        let form = Fields::of(&[("what", "discard-all"), ("at", at), ("reason", "x")]);
        let text = Again::of("/dead/decide", form).unwrap().card().into_string();
        assert!(text.contains("<button class=\"danger\">Discard 2,000 messages</button>"), "{text}");
        assert!(text.contains(">Discard all that match<"), "{text}");
    }
}
