//! Texts that operators write.

use relay::fuzzing;

use crate::bounded;

/// The password in the inputs: no output may contain it.
const SECRET: &str = "s3cret-7f3a";

/// Reads `relay.toml`, and behind a line `---` environment variables, one `NAME=VALUE` in each
/// line.
pub fn configuration(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (file, variables) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let variable = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let value = if name.ends_with("PASSWORD") { SECRET } else { value };
        Some((name.to_owned(), value.to_owned()))
    };
    let variables: Vec<_> = variables.lines().filter_map(variable).collect();
    let shown = fuzzing::configuration(file, variables).unwrap_or_else(|report| report);
    assert!(!shown.is_empty());
    assert!(text.contains(SECRET) || !shown.contains(SECRET), "a secret is shown:\n{shown}");
    let first = text.lines().next().unwrap_or_default();
    for rewrite in [fuzzing::duration, fuzzing::size] {
        match rewrite(first) {
            Ok(written) => assert_eq!(rewrite(&written).as_ref(), Ok(&written), "{first}"),
            Err(problem) => bounded(&problem),
        }
    }
}

/// Puts a password into URLs of databases and brokers, and checks that it is never shown.
pub fn urls(input: &[u8]) {
    let Ok(password) = std::str::from_utf8(input) else { return };
    // Shorter passwords, and parts of the frame, occur in every text.
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\' | '*');
    if password.len() < 6 || !password.chars().all(plain) || !password.contains(|c: char| c.is_ascii_digit())
    {
        return;
    }
    let database = format!("postgres://relay:{password}@db.example/orders");
    let broker = format!("amqp://relay:{password}@mq.example/shop");
    for url in [&database, &broker] {
        let shown = fuzzing::shown_url(url);
        assert!(!shown.contains(password), "{password:?} is shown: {shown}");
    }
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let file = format!(
        "[[pipeline]]\nname = 'orders'\n[pipeline.database]\nurl = {}\n[pipeline.rabbitmq]\nurl = {}\n",
        quoted(&database),
        quoted(&broker)
    );
    // Unchanged, and with a mistake added, so that the report quotes the file.
    for text in [file.clone(), format!("{file}oops = 1\n"), format!("{file}oops = = 1\n")] {
        let shown = fuzzing::configuration(&text, Vec::new()).unwrap_or_else(|report| report);
        assert!(!shown.contains(password), "{password:?} is shown:\n{shown}");
    }
}

/// Reads the headers of `relay dead edit`, one argument in each line.
pub fn edits(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let arguments: Vec<&str> = text.lines().collect();
    match fuzzing::edited_headers(&arguments) {
        Ok(None) => assert!(arguments.is_empty()),
        Ok(Some(headers)) => {
            assert_eq!(headers.len(), arguments.len());
            let json = serde_json::to_string(&headers).expect("headers are JSON");
            assert_eq!(serde_json::from_str::<message::Headers>(&json).expect("read back"), headers);
        }
        Err(problem) => bounded(&problem),
    }
}
