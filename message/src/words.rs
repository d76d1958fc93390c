//! Enums whose values have words, written once for all crates.

/// Makes enums from their values and the words of these, as tables, logs and metrics have them.
/// Each is `Copy` and can be compared and printed as its word; other traits are derived above it.
///
/// ```
/// message::words! {
///     /// The choice of an operator.
///     #[derive(Hash)]
///     pub enum Action {
///         /// It is run once more.
///         Retry = "retry",
///         /// It never runs.
///         Discard = "discard",
///     }
/// }
/// assert_eq!(Action::Retry.to_string(), "retry");
/// assert_eq!(Action::from_word("discard"), Some(Action::Discard));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($(
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$about:meta])* $value:ident = $word:literal,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$about])* $value,)*
        }

        #[allow(dead_code, reason = "not every enum is read back")]
        impl $name {
            /// All values.
            $vis const ALL: [Self; [$($word),*].len()] = [$(Self::$value),*];

            /// Returns its word.
            #[must_use]
            $vis fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }

            /// Returns the value of a word; `None` for an unknown one.
            #[must_use]
            $vis fn from_word(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == word)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )*};
}

#[cfg(test)]
mod tests {
    use crate::Fault;

    #[test]
    fn each_value_is_found_by_its_word_alone() {
        let words = Fault::ALL.map(|fault| fault.to_string());
        assert_eq!(words, ["broker", "message", "operator"]);
        assert_eq!(words.map(|word| Fault::from_word(&word)), Fault::ALL.map(Some));
        assert_eq!(Fault::from_word("Broker"), None);
    }
}
