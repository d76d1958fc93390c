//! A last check before a request is sent: an endpoint can also come from the AWS environment.

use aws_sdk_sqs::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use message::loopback::is_loopback;

/// Refuses to send unencrypted requests to another machine.
#[derive(Debug)]
pub(super) struct EncryptedOnly;

/// A request that would have been sent unencrypted. The operator's fault.
#[derive(Debug, thiserror::Error)]
#[error(
    "{host} is another machine, and messages would cross the network unencrypted; use an https endpoint \
     (endpoint_url, AWS_ENDPOINT_URL or the profile's), or set sqs.allow_plaintext = true"
)]
pub(super) struct Unencrypted {
    host: String,
}

impl Intercept for EncryptedOnly {
    fn name(&self) -> &'static str {
        "EncryptedOnly"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        match plaintext_host(context.request().uri()) {
            Some(host) if !is_loopback(&host) => Err(Unencrypted { host }.into()),
            _ => Ok(()),
        }
    }
}

/// Returns the host of a URL that is not `https`.
pub(super) fn plaintext_host(url: &str) -> Option<String> {
    let url = url::Url::parse(url).ok().filter(|url| url.scheme() != "https")?;
    Some(url.host_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_is_plaintext() {
        assert_eq!(plaintext_host("http://sqs.internal:9324/q").as_deref(), Some("sqs.internal"));
        assert_eq!(plaintext_host("https://sqs.eu-central-1.amazonaws.com"), None);
    }
}
