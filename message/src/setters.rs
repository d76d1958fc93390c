//! Setters of options, written once for all crates.

/// Writes setters of public fields, one for each row. A field that is `None` by default takes its
/// value without `Some`, unless its row has `as`.
///
/// | row | the setter takes |
/// |---|---|
/// | `lease: Duration,` | a `Duration` |
/// | `name: String,` | `impl Into<String>` |
/// | `file: Option<PathBuf>,` | `impl Into<PathBuf>`, and stores `Some` |
/// | `schema as Option<Identifier>,` | an `Option<Identifier>` |
///
/// The documentation above a row becomes that of its setter. Rows without any get a line with the
/// field's name.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    () => {};
    ($field:ident $($rest:tt)*) => {
        $crate::setters! {
            #[doc = concat!("Sets `", stringify!($field), "`.")]
            $field $($rest)*
        }
    };
    ($(#[$($doc:tt)*])+ $field:ident: String, $($rest:tt)*) => {
        $(#[$($doc)*])+
        #[must_use]
        pub fn $field(mut self, $field: impl Into<String>) -> Self {
            self.$field = $field.into();
            self
        }
        $crate::setters! { $($rest)* }
    };
    ($(#[$($doc:tt)*])+ $field:ident: Option<$value:ty>, $($rest:tt)*) => {
        $(#[$($doc)*])+
        #[must_use]
        pub fn $field(mut self, $field: impl Into<$value>) -> Self {
            self.$field = Some($field.into());
            self
        }
        $crate::setters! { $($rest)* }
    };
    ($(#[$($doc:tt)*])+ $field:ident: $value:ty, $($rest:tt)*) => {
        $crate::setters! { $(#[$($doc)*])+ $field as $value, $($rest)* }
    };
    ($(#[$($doc:tt)*])+ $field:ident as $value:ty, $($rest:tt)*) => {
        $(#[$($doc)*])+
        #[must_use]
        pub fn $field(mut self, $field: $value) -> Self {
            self.$field = $field;
            self
        }
        $crate::setters! { $($rest)* }
    };
}

#[cfg(test)]
mod tests {
    #[derive(Debug, Default, PartialEq)]
    struct Options {
        name: String,
        limit: Option<u32>,
        whole: Option<u32>,
        width: u8,
    }

    #[expect(unreachable_pub, reason = "setters are public")]
    impl Options {
        setters! {
            name: String,
            /// Sets the limit.
            limit: Option<u32>,
            /// Sets or removes
            /// the other limit.
            whole as Option<u32>,
            width: u8,
        }
    }

    #[test]
    fn each_form_of_a_row_sets_its_field() {
        let options = Options::default().name("a").limit(3_u16).whole(Some(4)).width(5);
        assert_eq!(options, Options { name: String::from("a"), limit: Some(3), whole: Some(4), width: 5 });
        assert_eq!(options.whole(None).whole, None);
    }
}
