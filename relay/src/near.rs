//! Suggests the known word that a misspelt one may mean.

/// Maximum number of letters that are wrong, missing, extra or swapped.
const DISTANCE_MAX: usize = 2;

/// Returns the known word that is closest to a misspelt one, if one is close enough.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Of a short word, less than half may be wrong.
    let distance_max = DISTANCE_MAX.min(word.chars().count().saturating_sub(1) / 2);
    let distances = known.into_iter().map(|known| (strsim::damerau_levenshtein(word, known), known));
    let close = distances.filter(|(distance, _)| *distance <= distance_max);
    close.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Returns a question about the intended word, to precede the list of known words, or an empty
/// text.
pub(crate) fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|known| format!("did you mean {known}? ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_finds_the_closest_and_another_word_none() {
        let known = ["lease_ttl", "batch_entries", "log", "orders", "orders-eu"];
        for (word, found) in [
            ("lease_tll", Some("lease_ttl")),
            ("lease-ttl", Some("lease_ttl")),
            ("order", Some("orders")),
            ("lgo", Some("log")),
            ("lo", None),
            ("", None),
            ("payments", None),
            ("öffnen", None),
        ] {
            assert_eq!(nearest(word, known), found, "{word}");
        }
    }
}
