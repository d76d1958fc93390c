//! The content of a message before and after the edits of operators.

use clap::Args;
use message::Headers;
use operate::dead::{KeptContent, MessageRef, PastEdit, edits};
use operate::seconds;

use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, card, one_line};
use super::super::places::Where;
use super::super::progress::during;
use super::super::signature::Signature;

/// The message, and who looks.
#[derive(Debug, Args)]
pub struct Edits {
    #[command(flatten)]
    place: Where,

    /// Position in the log, or message id. The message id also finds a message that retention has
    /// deleted.
    #[arg(long, value_name = "ID")]
    id: MessageRef,

    #[command(flatten)]
    signature: Signature,
}

impl Edits {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed()?;
        let places = self.place.open_for(std::slice::from_ref(&self.id)).await?;
        let found = during("searching", edits(&places, &signed, &self.id)).await;
        places.close().await;
        format.print(&found?, |edits| match edits[..] {
            [] => String::from("it was not edited, or retention has removed the decision"),
            _ => edits.iter().map(told).collect::<Vec<_>>().join("\n\n"),
        })?;
        Ok(Exit::Success)
    }
}

/// Formats one edit. What it did not change is shown once.
fn told(edit: &PastEdit) -> String {
    let mut lines = vec![
        ("at", Some(seconds::text(edit.at))),
        ("actor", Some(edit.actor.clone())),
        ("note", Some(edit.note.clone())),
    ];
    // Of content that is not kept, only the digests can be compared.
    let before = edit.before.digest.as_ref();
    let is_same = before.is_some() && before == edit.after.digest.as_ref();
    let are_kept = edit.before.headers.is_some() || edit.after.headers.is_some();
    if edit.before.headers == edit.after.headers && (are_kept || is_same) {
        lines.push(("headers", Some(headers(&edit.after))));
    } else {
        lines.push(("headers before", Some(headers(&edit.before))));
        lines.push(("headers after", Some(headers(&edit.after))));
    }
    let is_kept = edit.before.payload.is_some() || edit.after.payload.is_some();
    if edit.before.payload == edit.after.payload && (is_kept || is_same) {
        lines.push(("payload", Some(payload(&edit.after))));
    } else {
        lines.push(("payload before", Some(payload(&edit.before))));
        lines.push(("payload after", Some(payload(&edit.after))));
    }
    card(0, lines)
}

fn headers(kept: &KeptContent) -> String {
    let line = |headers: &Headers| {
        headers.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
    };
    match &kept.headers {
        Some(headers) if headers.is_empty() => String::from("-"),
        Some(headers) => line(headers),
        None => not_kept(kept),
    }
}

fn payload(kept: &KeptContent) -> String {
    let Some(bytes) = &kept.payload else { return not_kept(kept) };
    match std::str::from_utf8(bytes) {
        Ok("") => String::from("-"),
        Ok(text) => one_line(text),
        Err(_) => format!("{} bytes that are not UTF-8", bytes.len()),
    }
}

fn not_kept(kept: &KeptContent) -> String {
    let digest = kept.digest.as_deref().unwrap_or("unknown");
    format!("not kept: larger than 64 KiB, or not part of a valid message; SHA-256 of both: {digest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::OffsetDateTime;

    fn kept(payload: &[u8], tenant: &str) -> KeptContent {
        let mut headers = Headers::new();
        headers.insert("tenant", tenant).unwrap();
        let payload_bytes = Some(payload.len() as u64);
        KeptContent { payload: Some(payload.to_vec()), payload_bytes, headers: Some(headers), digest: None }
    }

    fn edit(before: KeptContent, after: KeptContent) -> PastEdit {
        let (actor, note) = (String::from("ann"), String::from("typo"));
        PastEdit { number: 1, at: OffsetDateTime::UNIX_EPOCH, actor, note, before, after }
    }

    #[test]
    fn only_what_changed_is_shown_twice() {
        let text = told(&edit(kept(b"{\"a\":1}", "acme"), kept(b"{\"a\":2}", "acme")));
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let expected = [
            "at 1970-01-01T00:00:00Z",
            "actor ann",
            "note typo",
            "headers tenant=acme",
            "payload before {\"a\":1}",
            "payload after {\"a\":2}",
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }

    /// Only the command can make such an edit, from a file.
    #[test]
    fn an_edit_of_content_that_is_not_kept_is_no_edit_of_nothing() {
        let large = |digest: &str| KeptContent {
            payload: None,
            payload_bytes: None,
            headers: None,
            digest: Some(digest.to_owned()),
        };
        let text = told(&edit(large("aa"), large("bb")));
        for line in ["headers before", "headers after", "payload before", "payload after", "aa", "bb"] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let text = told(&edit(large("aa"), large("aa")));
        assert!(!text.contains("before"), "{text}");
        let text = told(&edit(large("aa"), KeptContent { digest: None, ..large("aa") }));
        assert!(text.contains("payload before"), "unknown is not equal: {text}");
    }

    #[test]
    fn content_that_a_terminal_cannot_show_is_named() {
        let large = KeptContent { payload: None, headers: None, ..kept(b"", "acme") };
        let text = told(&edit(kept(b"\xff\x1b", "acme"), large));
        assert!(text.contains("2 bytes that are not UTF-8"), "{text}");
        assert!(text.contains("not kept: larger than 64 KiB"), "{text}");
    }
}
