//! The section `[pipeline.engine]`, and how it becomes the engine's settings.

use message::{CHUNKED_BYTES_MAX, CHUNKED_BYTES_MAX_DEFAULT, PayloadEncoding, SizeLimit, Splitter};
use schemars::JsonSchema;
use serde::Deserialize;

use super::broker::MESSAGE_BYTES_MIN;
use engine::{DeadPolicy, EngineOptions};
use operate::units::{Size, Time};

type Count = usize;
type Number = u32;

macro_rules! section {
    (file { $(
        $(#[$text:meta])*
        $name:ident $($key:literal)? : $kind:ident = $default:expr
        $(, in $bounds:expr)? $(, not 0: $harm:literal)?;
    )* } code $code:tt) => {
        /// The behaviour of a pipeline. Missing settings have the engine's defaults.
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct EngineSection {
            $( $(#[$text])* $(#[serde(rename = $key)])? pub(crate) $name: Option<$kind>, )*
            /// Maximum size of a message. A larger one is parked as dead, or split.
            pub(crate) message_bytes_max: Option<Size>,
            /// The treatment of a message above `message_bytes_max`.
            pub(crate) oversize: Option<Oversize>,
            /// Maximum size of a message that is published in chunks.
            pub(crate) chunked_bytes_max: Option<Size>,
        }

        impl EngineSection {
            /// Sets the given options that the engine takes unchanged.
            fn apply(&self, settings: &mut EngineOptions) {
                $( if let Some(given) = self.$name { settings.$name = given.into(); } )*
            }
        }
    };
}

engine::pipeline_settings!(section);

/// The treatment of a message that exceeds the destination's limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Oversize {
    /// Park it as dead.
    #[default]
    Refuse,
    /// Publish it in chunks.
    Chunk,
}

/// A setting of the section and its problem.
pub(crate) type Refusal = (&'static str, String);

/// A smaller limit leaves chunks little room besides the envelope.
const CHUNKING_LIMIT_MIN: usize = 8 << 10;
/// Maximum size of a chunked message, as a multiple of the limit. It stays within the maximum
/// number of chunks in any encoding, because at least half of each chunk is payload.
const CHUNKED_LIMITS_MAX: usize = 1_024;

/// The name of the configured limit in errors: the broker's own limit may be larger.
const OWN_LIMIT: &str = "this relay (pipeline.engine.message_bytes_max)";
const OWN_CHUNKED_LIMIT: &str = "this relay (pipeline.engine.chunked_bytes_max)";

/// Returns the engine's settings for a destination that accepts messages up to `limit` and encodes
/// payloads with `encoding`, and the refused settings.
pub(crate) fn settings(
    section: &EngineSection,
    limit: SizeLimit,
    encoding: PayloadEncoding,
) -> (EngineOptions, Vec<Refusal>) {
    let mut settings = EngineOptions::default();
    section.apply(&mut settings);
    if section.page_bytes.is_none() {
        // A smaller window has smaller pages.
        settings.page_bytes = settings.page_bytes.min(settings.window_bytes);
    }
    settings.size_limit = match section.message_bytes_max {
        Some(size) => SizeLimit { destination: OWN_LIMIT, message_bytes_max: size.0 },
        None => limit,
    };
    settings.chunking = chunking(section, settings.size_limit, encoding);
    let mut refusals = refusals(&settings, limit);
    refusals.extend(chunking_refusals(section, &settings));
    (settings, refusals)
}

fn chunking(section: &EngineSection, limit: SizeLimit, encoding: PayloadEncoding) -> Option<Splitter> {
    let most = CHUNKED_BYTES_MAX_DEFAULT.min(limit.message_bytes_max.saturating_mul(CHUNKED_LIMITS_MAX));
    let chunked_bytes_max = section.chunked_bytes_max.map_or(most, |size| size.0);
    let is_on = section.oversize == Some(Oversize::Chunk);
    let limit = SizeLimit { destination: OWN_CHUNKED_LIMIT, ..limit };
    is_on.then_some(Splitter { limit, encoding, chunked_bytes_max })
}

fn chunking_refusals(section: &EngineSection, settings: &EngineOptions) -> Vec<Refusal> {
    let Some(splitter) = &settings.chunking else {
        let problem = || String::from("has no effect without oversize = \"chunk\"");
        return section.chunked_bytes_max.map(|_| ("chunked_bytes_max", problem())).into_iter().collect();
    };
    let mut refusals = Vec::new();
    let limit = settings.size_limit.message_bytes_max;
    let bytes = splitter.chunked_bytes_max;
    let most = CHUNKED_BYTES_MAX.min(limit.saturating_mul(CHUNKED_LIMITS_MAX));
    if limit < CHUNKING_LIMIT_MIN {
        let problem = format!("\"chunk\" needs chunks of at least {}", Size(CHUNKING_LIMIT_MIN));
        refusals.push(("oversize", format!("{problem}; message_bytes_max is {}", Size(limit))));
    } else if !(limit..=most).contains(&bytes) {
        let (bytes, limit, most) = (Size(bytes), Size(limit), Size(most));
        refusals.push((
            "chunked_bytes_max",
            format!("{bytes} is outside {limit} (message_bytes_max) to {most} (the maximum for that limit)"),
        ));
    }
    refusals
}

fn refusals(settings: &EngineOptions, limit: SizeLimit) -> Vec<Refusal> {
    let found = settings.out_of_bounds(EngineOptions::key).into_iter();
    let mut refusals: Vec<Refusal> = found.map(|it| (it.setting, it.problem)).collect();
    let mut refuse = |setting, problem| refusals.push((setting, problem));
    let bytes = settings.size_limit.message_bytes_max;
    if bytes > limit.message_bytes_max {
        let SizeLimit { destination, message_bytes_max } = limit;
        refuse(
            "message_bytes_max",
            format!(
                "{} is more than {destination} accepts: {message_bytes_max} bytes; raise both or lower it",
                Size(bytes)
            ),
        );
    } else if limit.message_bytes_max >= MESSAGE_BYTES_MIN && bytes < MESSAGE_BYTES_MIN {
        refuse(
            "message_bytes_max",
            format!("{bytes} is less than {MESSAGE_BYTES_MIN}, which the envelope needs"),
        );
    }
    refusals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(section: EngineSection) -> Vec<Refusal> {
        settings(&section, SizeLimit::SQS, PayloadEncoding::Base64).1
    }

    fn time(text: &str) -> Option<Time> {
        Some(text.parse().unwrap())
    }

    fn size(text: &str) -> Option<Size> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn defaults_are_the_engines_with_the_brokers_limit() {
        let (settings, refusals) =
            settings(&EngineSection::default(), SizeLimit::SQS, PayloadEncoding::Base64);
        assert_eq!(refusals, []);
        assert_eq!(settings, EngineOptions::default().size_limit(SizeLimit::SQS));
    }

    #[test]
    fn a_refusal_names_the_limit_that_is_exceeded() {
        let of = |section: &EngineSection| {
            settings(section, SizeLimit::SQS, PayloadEncoding::Base64).0.row_limit()
        };
        assert_eq!(of(&EngineSection::default()).payload, SizeLimit::SQS);
        let own = of(&EngineSection { message_bytes_max: size("16KiB"), ..EngineSection::default() });
        assert_eq!((own.payload.destination, own.payload.message_bytes_max), (OWN_LIMIT, 16 << 10));
        let chunk = Some(Oversize::Chunk);
        let chunked = of(&EngineSection {
            oversize: chunk,
            message_bytes_max: size("16KiB"),
            ..EngineSection::default()
        });
        assert_eq!(
            (chunked.payload.destination, chunked.payload.message_bytes_max),
            (OWN_CHUNKED_LIMIT, 16 << 20)
        );
        assert_eq!(chunked.headers.message_bytes_max, 16 << 10, "each chunk has all headers");
    }

    #[test]
    fn a_small_window_has_small_pages() {
        let section = EngineSection { window_bytes: size("1MiB"), ..EngineSection::default() };
        let (settings, refusals) = settings(&section, SizeLimit::SQS, PayloadEncoding::Base64);
        assert_eq!((refusals, settings.page_bytes), (vec![], 1 << 20));
    }

    #[test]
    fn chunks_are_as_large_as_the_destination_takes() {
        let section = EngineSection { oversize: Some(Oversize::Chunk), ..EngineSection::default() };
        let (chunked, refusals) = settings(&section, SizeLimit::SQS, PayloadEncoding::Base64);
        assert_eq!(refusals, []);
        let splitter = Splitter {
            limit: SizeLimit { destination: OWN_CHUNKED_LIMIT, ..SizeLimit::SQS },
            encoding: PayloadEncoding::Base64,
            chunked_bytes_max: CHUNKED_BYTES_MAX_DEFAULT,
        };
        assert_eq!(chunked.chunking, Some(splitter));
        let small = EngineSection { message_bytes_max: size("8KiB"), ..section };
        let (small, refusals) = settings(&small, SizeLimit::SQS, PayloadEncoding::Base64);
        assert_eq!(
            (refusals, small.chunking.map(|splitter| splitter.chunked_bytes_max)),
            (vec![], Some(8 << 20))
        );
    }

    #[test]
    fn every_bound_names_setting_value_and_limit() {
        let base = EngineSection::default;
        let chunk = Some(Oversize::Chunk);
        for (section, setting, problem) in [
            (EngineSection { lease_ttl: time("900ms"), ..base() }, "lease_ttl", "900ms is outside 1s to 1h"),
            (
                EngineSection { poll_min: time("60ms"), ..base() },
                "poll_min",
                "longer than poll_max, which is 50ms",
            ),
            (EngineSection { poll_max: time("2m"), ..base() }, "poll_max", "2m is outside"),
            (
                EngineSection { checkpoint_interval: time("1m"), ..base() },
                "checkpoint_interval",
                "10ms to 15s",
            ),
            (EngineSection { shutdown_grace: time("1d"), ..base() }, "shutdown_grace", "1d is outside 0s"),
            (EngineSection { silent_after: time("9ms"), ..base() }, "silent_after", "9ms is outside 100ms"),
            (EngineSection { retry_initial: time("0s"), ..base() }, "retry_initial", "0s is outside 1ms"),
            (EngineSection { retry_max: time("500ms"), ..base() }, "retry_initial", "longer than retry_max"),
            (EngineSection { attempts_max: Some(0), ..base() }, "attempts_max", "at least 1"),
            (EngineSection { window_bytes: size("1KiB"), ..base() }, "window", "1KiB is less than 64KiB"),
            (EngineSection { page_bytes: size("1KiB"), ..base() }, "page", "1KiB is less than 64KiB"),
            (EngineSection { page_bytes: size("13MiB"), ..base() }, "window", "12MiB is smaller than page"),
            (EngineSection { page_entries: Some(0), ..base() }, "page_entries", "0 is outside 1 to 65536"),
            (
                EngineSection { message_bytes_max: size("2MiB"), ..base() },
                "message_bytes_max",
                "more than SQS accepts: 1048576 bytes",
            ),
            (
                EngineSection { chunked_bytes_max: size("9MiB"), ..base() },
                "chunked_bytes_max",
                "without oversize",
            ),
            (
                EngineSection { oversize: chunk, chunked_bytes_max: size("1GiB"), ..base() },
                "chunked_bytes_max",
                "1GiB is outside 1MiB",
            ),
            (
                EngineSection { oversize: chunk, chunked_bytes_max: size("9KiB"), ..base() },
                "chunked_bytes_max",
                "9KiB is outside 1MiB",
            ),
            (
                EngineSection { oversize: chunk, message_bytes_max: size("4KiB"), ..base() },
                "oversize",
                "at least 8KiB; message_bytes_max is 4KiB",
            ),
            (EngineSection { message_bytes_max: size("9"), ..base() }, "message_bytes_max", "less than 1000"),
        ] {
            let refusals = refused(section);
            assert!(
                matches!(&refusals[..], [(name, text)] if *name == setting && text.contains(problem)),
                "{setting} {problem}: {refusals:?}"
            );
        }
    }
}
