//! Finds causes in the errors of HTTP clients, which only report that something failed.

use std::error::Error;
use std::io;

/// Returns whether `is` holds for an error or any of its causes. An I/O error hides the error that
/// it wraps from its sources.
pub(crate) fn has_cause(error: &(dyn Error + 'static), is: &dyn Fn(&(dyn Error + 'static)) -> bool) -> bool {
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    is(error)
        || wrapped.is_some_and(|wrapped| has_cause(wrapped, is))
        || error.source().is_some_and(|source| has_cause(source, is))
}

/// Returns whether TLS failed: the server's certificate was refused, or it does not speak TLS.
pub(crate) fn is_unverified(error: &(dyn Error + 'static)) -> bool {
    has_cause(error, &|cause| {
        cause.is::<rustls::Error>()
            || cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::InvalidData)
    })
}

/// Returns the whole chain of causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        // Wrappers repeat their cause's text.
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    texts.join(": ")
}
