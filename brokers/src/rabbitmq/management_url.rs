//! The address of the management API.

use message::loopback::is_loopback;
use url::Url;

use crate::oauth::OAuth;
use crate::plaintext;
use crate::settings::InvalidSetting;

/// Checks the setting `management_url`.
pub(super) fn check(text: &str, oauth: Option<&OAuth>, allow_plaintext: bool) -> Result<Url, InvalidSetting> {
    let shape = "write http[s]://host[:port]";
    let url = Url::parse(text).map_err(|error| invalid(format!("{error}; {shape}")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid(format!("is not an address of the management API; {shape}")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let problem = "contains credentials; remove them: the management API is queried as the AMQP user";
        return Err(invalid(problem));
    }
    if url.scheme() == "http" {
        let host = url.host_str().unwrap_or_default();
        if oauth.is_some() && !is_loopback(host) {
            return Err(invalid(format!(
                "{host} is another machine, and a token would cross the network unencrypted, whatever \
                 allow_plaintext says; write https://"
            )));
        }
        plaintext::check("rabbitmq", "management_url", host, allow_plaintext, "write https://")?;
    }
    Ok(url)
}

fn invalid(problem: impl Into<String>) -> InvalidSetting {
    InvalidSetting::new("rabbitmq.management_url", problem)
}
