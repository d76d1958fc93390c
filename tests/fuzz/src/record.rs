//! A record of a broker in readable bytes, so that seeds are readable files and a fuzzer splits
//! them well.
//!
//! ```text
//! orders                 the topic
//! order-7                the key; a line with `-` for none
//! ce_id: 0190…           headers, up to an empty line
//!
//! {"total":12}           the payload: all that follows
//! ```

use brokers::fuzzing::Record;

/// Reads this form. Every input is a record.
#[must_use]
pub fn read(input: &[u8]) -> Record {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (topic, rest) = line(input);
    let (key, mut rest) = line(rest);
    let mut record =
        Record { topic: text(topic), key: (key != b"-").then(|| key.to_vec()), ..Record::default() };
    while !rest.is_empty() {
        let (header, after) = line(rest);
        rest = after;
        if header.is_empty() {
            break;
        }
        let (name, value) = split(header, b": ");
        record.headers.push((text(name), value.to_vec()));
    }
    record.payload = rest.to_vec();
    record
}

/// Returns the first line, and the rest behind it.
fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
    split(bytes, b"\n")
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> (&'a [u8], &'a [u8]) {
    match bytes.windows(at.len()).position(|window| window == at) {
        Some(found) => (&bytes[..found], &bytes[found + at.len()..]),
        None => (bytes, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn the_form_is_read_in_parts() {
        let record = read(b"orders\n-\na: 1\nb\n\nx\n\ny");
        assert_eq!((record.topic.as_str(), &record.key), ("orders", &None));
        assert_eq!(record.headers, [("a".to_owned(), b"1".to_vec()), ("b".to_owned(), Vec::new())]);
        assert_eq!(record.payload, b"x\n\ny");
        assert_eq!(read(b"t\nk").key, Some(b"k".to_vec()));
    }
}
