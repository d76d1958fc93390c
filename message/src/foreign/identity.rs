//! Ids for messages whose producers use other ids, and times in the forms that producers write.

use time::format_description::well_known::{Rfc2822, Rfc3339};
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

use super::unmapped::Unmapped;
use crate::cloudevents::{beginning, in_utc};
use crate::id::MessageId;
use crate::subscription::Malformed;

/// The shortest number that is read as milliseconds since 1970: a time in 2001.
const MILLIS_MIN: i64 = 1_000_000_000_000;

/// Returns the id of a message that its producer calls `id` within `scope`: the id itself if it is
/// a UUID of version 7. Any other is hashed with the time of the event, or with that of the broker.
///
/// # Errors
/// [`Unmapped::Invalid`] without an id or any time, or with a time that no id can contain.
pub(super) fn identity(
    malformed: &Malformed,
    scope: &str,
    id: &str,
    time: Option<OffsetDateTime>,
) -> Result<MessageId, Unmapped> {
    if id.is_empty() {
        return Err(Unmapped::invalid("the id of the foreign message is empty"));
    }
    if let Ok(id) = id.parse() {
        return Ok(id);
    }
    let at = time.or_else(|| malformed.timestamp()).ok_or_else(|| {
        Unmapped::invalid(format!(
            "the foreign message {:?} has no time, which its id needs; send a time with it, or a UUID of \
             version 7 as the id",
            beginning(id)
        ))
    })?;
    Ok(MessageId::derived(at, [scope, id])?)
}

/// Returns the time that a text stands for: RFC 3339, RFC 2822, milliseconds since 1970, or one of
/// the forms of .NET libraries.
///
/// # Errors
/// [`Unmapped::Invalid`] with the text and the name of what has it.
pub(super) fn time_of(what: &str, text: &str) -> Result<OffsetDateTime, Unmapped> {
    parse(text.trim()).ok_or_else(|| {
        Unmapped::invalid(format!("{what} is {:?}, which is not a time; send RFC 3339", beginning(text)))
    })
}

fn parse(text: &str) -> Option<OffsetDateTime> {
    if let Ok(millis) = text.parse::<i64>() {
        return (millis >= MILLIS_MIN).then(|| of_millis(millis)).flatten();
    }
    let nservicebus = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]:[subsecond] Z");
    let cap = format_description!(
        "[month]/[day]/[year] [hour]:[minute]:[second] [offset_hour sign:mandatory]:[offset_minute]"
    );
    let utc = |text: &str| PrimitiveDateTime::parse(text, nservicebus).map(PrimitiveDateTime::assume_utc);
    OffsetDateTime::parse(text, &Rfc3339)
        .or_else(|_| utc(text))
        .or_else(|_| OffsetDateTime::parse(text, cap))
        .or_else(|_| OffsetDateTime::parse(text, &Rfc2822))
        .ok()
        .and_then(in_utc)
}

/// Returns the time of these milliseconds since 1970.
pub(super) fn of_millis(millis: i64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn times_are_read_in_the_forms_of_their_producers() {
        let at = datetime!(2026-11-27 20:00 UTC);
        for text in [
            "2026-11-27T20:00:00Z",
            "2026-11-27T21:00:00+01:00",
            "2026-11-27 20:00:00:000000 Z",
            "11/27/2026 20:00:00 +00:00",
            "Fri, 27 Nov 2026 20:00:00 GMT",
            "1795809600000",
        ] {
            assert_eq!(time_of("x", text).unwrap(), at, "{text}");
        }
        for text in ["", "yesterday", "7", "99999999999999999999", "-1", "9999-12-31T23:59:59-01:00"] {
            assert!(time_of("x", text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_id_of_version_7_is_kept_and_another_needs_a_time() {
        let malformed = Malformed::default();
        let fresh = MessageId::new();
        assert_eq!(identity(&malformed, "s", &fresh.to_string(), None).unwrap(), fresh);
        let error = identity(&malformed, "s", "17", None).unwrap_err().to_string();
        assert!(error.contains("\"17\" has no time"), "{error}");
        let at = datetime!(2026-11-27 20:00 UTC);
        let id = identity(&malformed, "s", "17", Some(at)).unwrap();
        assert_eq!(id, MessageId::derived(at, ["s", "17"]).unwrap());
        assert!(identity(&malformed, "s", "", Some(at)).is_err());
        assert!(identity(&malformed, "s", "17", Some(datetime!(1969-01-01 0:00 UTC))).is_err());
    }
}
