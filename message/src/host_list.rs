//! Lists of hosts in the URL of a server: `h1:5432,h2,[2001:db8::7]:5433`.
//!
//! Client libraries take one host, so a URL with a list becomes one URL for each host. No error
//! repeats a part of the URL: part of a password may have been taken for a host.

/// Maximum number of hosts in a URL.
pub const HOSTS_MAX: usize = 16;

/// Returns the hosts of a URL, without user and password.
#[must_use]
pub fn hosts_of(url: &str) -> &str {
    let Some((_, rest)) = url.split_once("://") else { return "" };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts)
}

/// Returns one URL for each host, in the order of the list; the URL itself if it names one host.
///
/// # Errors
/// The problem: more than 16 hosts, one that is empty or given twice, or an invalid port. A host
/// without a port has `port_default`.
pub fn urls_of(url: &str, port_default: u16) -> Result<Vec<String>, String> {
    let hosts = hosts_of(url);
    if hosts.to_ascii_lowercase().contains("%2c") {
        return Err(String::from("write a comma between hosts as it is, not as %2C"));
    }
    let list: Vec<&str> = hosts.split(',').collect();
    let count = list.len();
    if count < 2 {
        return Ok(vec![url.to_owned()]);
    }
    if count > HOSTS_MAX {
        return Err(format!("there are {count}, and at most {HOSTS_MAX} are accepted"));
    }
    let mut known: Vec<(String, u16)> = Vec::new();
    for (index, text) in list.iter().enumerate() {
        let number = index + 1;
        let host =
            read(text, port_default).map_err(|problem| format!("host {number} of {count} {problem}"))?;
        if let Some(earlier) = known.iter().position(|other| *other == host) {
            return Err(format!("host {number} of {count} repeats host {}", earlier + 1));
        }
        known.push(host);
    }
    // They end the authority.
    let begin = url.find("://").map_or(0, |scheme| scheme + "://".len());
    let end = url[begin..].find(['/', '?']).map_or(url.len(), |end| begin + end);
    let before = &url[..end - hosts.len()];
    let after = &url[end..];
    Ok(list.into_iter().map(|host| format!("{before}{host}{after}")).collect())
}

/// Returns name and port of a host, or the problem.
fn read(text: &str, port_default: u16) -> Result<(String, u16), &'static str> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']').ok_or("has a [ without a ]")?;
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("has no IPv6 address between its brackets");
        }
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port),
            None if rest.is_empty() => None,
            None => return Err("has a text after its ]: write [address]:port"),
        };
        return Ok((address.to_ascii_lowercase(), port_of(port, port_default)?));
    }
    if text.matches(':').count() > 1 {
        return Err("has more than one colon: write an IPv6 address in brackets, and one port");
    }
    let name = text.split(':').next().unwrap_or_default();
    if name.is_empty() {
        return Err("is empty");
    }
    if name.contains(char::is_whitespace) {
        return Err("has a blank: write no blanks between hosts");
    }
    Ok((name.to_ascii_lowercase(), port_of(text.split(':').nth(1), port_default)?))
}

fn port_of(text: Option<&str>, port_default: u16) -> Result<u16, &'static str> {
    let Some(text) = text else { return Ok(port_default) };
    let port = text.parse::<u16>().ok().filter(|port| *port > 0);
    port.ok_or("has a port that is not a number from 1 to 65535; without a port, leave out the colon")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_becomes_one_url_for_each_host() {
        let urls = |url| urls_of(url, 5432).unwrap();
        assert_eq!(
            urls("postgres://u:a,b@h1:5433,h2,[2001:db8::7]:6432,[::1]/d?sslmode=disable"),
            [
                "postgres://u:a,b@h1:5433/d?sslmode=disable",
                "postgres://u:a,b@h2/d?sslmode=disable",
                "postgres://u:a,b@[2001:db8::7]:6432/d?sslmode=disable",
                "postgres://u:a,b@[::1]/d?sslmode=disable",
            ]
        );
        // A user and a database with the text of the list.
        assert_eq!(
            urls("x://h1,h2@h1,h2/h1,h2?h1,h2"),
            ["x://h1,h2@h1/h1,h2?h1,h2", "x://h1,h2@h2/h1,h2?h1,h2"]
        );
        assert_eq!(urls("x://h1,h2"), ["x://h1", "x://h2"]);
        assert_eq!(urls("x://h1,h2?a=/b"), ["x://h1?a=/b", "x://h2?a=/b"]);
        for alone in ["postgres://u@h1/d", "postgres:///d?host=/run/a,b", "sqlite:a,b.db", "", "x://u:a,b@h"]
        {
            assert_eq!(urls(alone), [alone]);
        }
    }

    #[test]
    fn what_is_wrong_with_a_list_is_said_without_its_texts() {
        let twenty = vec!["h"; 20].join(",");
        for (list, part) in [
            ("h1,,CANARY", "host 2 of 3 is empty"),
            (",CANARY", "host 1 of 2 is empty"),
            ("CANARY,", "host 2 of 2 is empty"),
            ("CANARY,:5432", "host 2 of 2 is empty"),
            ("CANARY:,h2", "host 1 of 2 has a port that is not a number"),
            ("CANARY:0,h2", "from 1 to 65535"),
            ("h1:65536,CANARY", "from 1 to 65535"),
            ("h1:CANARY,h2", "from 1 to 65535"),
            ("CANARY:5432:5433,h2", "host 1 of 2 has more than one colon"),
            ("h1,2001:db8::CANARY", "write an IPv6 address in brackets"),
            ("h1,[::1", "a [ without a ]"),
            ("h1,[CANARY]:1", "no IPv6 address"),
            ("h1,[::1]5432", "a text after its ]"),
            ("CANARY,h2,canary:5432", "host 3 of 3 repeats host 1"),
            ("[::1]:5432,[::1]", "host 2 of 2 repeats host 1"),
            ("h1, CANARY", "write no blanks"),
            (twenty.as_str(), "there are 20, and at most 16"),
            ("h1%2cCANARY", "write a comma between hosts as it is"),
        ] {
            let problem = urls_of(&format!("postgres://u:CANARY@{list}/d"), 5432).unwrap_err();
            assert!(
                problem.contains(part) && !problem.to_uppercase().contains("CANARY"),
                "{list}: {problem}"
            );
        }
    }
}
