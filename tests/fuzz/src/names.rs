//! Texts that are parsed as names and ids.

use std::fmt::Display;
use std::str::FromStr;

use inbox::{ConsumerName, DeadLetterId, Tenant};
use message::{
    ContentType, EventType, HeaderName, HeaderValue, MessageId, OrderingKey, Source, Topic, TraceContext,
};
use migrations::{Identifier, Line};
use outbox_log::{ExceptionState, RelayName};
use uuid::Uuid;

use crate::bounded;

/// Parses a text as every kind of name, and its first 16 bytes as an id.
pub fn names(input: &[u8]) {
    if let Some(Ok(id)) = input.first_chunk().map(|bytes| MessageId::try_from(Uuid::from_bytes(*bytes))) {
        timed(id);
    }
    let text = &*String::from_utf8_lossy(input);
    if let Some(id) = same::<MessageId>(text) {
        timed(id);
    }
    same::<Topic>(text);
    same::<OrderingKey>(text);
    same::<EventType>(text);
    same::<Source>(text);
    same::<ContentType>(text);
    same::<Identifier>(text);
    same::<Line>(text);
    same::<DeadLetterId>(text);
    same::<ConsumerName>(text);
    same::<Tenant>(text);
    checked(HeaderName::new(text).map(|name| assert_eq!(name.as_str(), text)));
    checked(HeaderValue::new(text).map(|value| assert_eq!(value.as_str(), text)));
    checked(RelayName::new(text).map(|name| assert_eq!(name.as_str(), text)));
    checked(text.parse::<ExceptionState>().map(drop));
    let (parent, state) = text.split_once('\n').unwrap_or((text, ""));
    checked(TraceContext::new(parent, Some(state.to_owned())).map(|context| {
        assert_eq!((context.parent(), context.trace_id().len()), (parent, 32));
        assert_eq!(context.state().unwrap_or_default(), state);
    }));
}

/// Demands that the time of an id converts back to the id's first bits.
fn timed(id: MessageId) {
    let floor = MessageId::floor(id.generated_at()).expect("the time of an id fits an id");
    assert_eq!(floor.as_bytes()[..6], id.as_uuid().as_bytes()[..6]);
}

/// Checks that an accepted text is written in an equivalent form, and that a refusal is explained.
fn same<T: FromStr<Err: Display> + Display + PartialEq>(text: &str) -> Option<T> {
    match text.parse::<T>() {
        Ok(value) => {
            let written = value.to_string();
            assert!(written.parse::<T>().ok().as_ref() == Some(&value), "{text:?} became {written:?}");
            Some(value)
        }
        Err(error) => {
            bounded(&error.to_string());
            None
        }
    }
}

fn checked<E: Display>(result: Result<(), E>) {
    if let Err(error) = result {
        bounded(&error.to_string());
    }
}
