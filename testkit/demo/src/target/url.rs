//! Parses a broker's URL.

use url::Url;

use crate::error::DemoError;

/// A broker outside this process.
pub(crate) enum BrokerUrl {
    /// Kafka's bootstrap servers, `host:port`.
    Kafka(Vec<String>),
    /// RabbitMQ's URL, unchanged.
    #[cfg_attr(not(feature = "rabbitmq"), allow(dead_code, reason = "refused"))]
    Rabbitmq(Url),
    /// SQS, or a server with its protocol.
    #[cfg_attr(not(feature = "sqs"), allow(dead_code, reason = "refused"))]
    Sqs {
        /// `http[s]://host[:port]`, or `None` for Amazon itself, whose endpoint follows from the
        /// region.
        endpoint: Option<Url>,
        /// The region, or `None` for that of the environment.
        region: Option<String>,
        /// Access key and secret, or `None` for those of the environment.
        key: Option<(String, String)>,
        /// Whether the queue is a FIFO queue.
        fifo: bool,
    },
}

/// The supported forms of a URL.
const FORMS: &str = "use kafka://host:port, amqp://user:password@host/vhost, amqps://…, sqs+http://host:port or \
                     sqs+https://host, the last two with ?fifo=true for a FIFO queue";

impl BrokerUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`DemoError::Usage`], which never quotes the URL: it may hold a password.
    pub(crate) fn parse(text: &str) -> Result<Self, DemoError> {
        let usage = |problem: &str| DemoError::Usage(format!("--broker: {problem}; {FORMS}"));
        match text.split_once("://") {
            Some(("kafka", servers)) => {
                let servers = servers.trim_end_matches('/');
                if servers.is_empty() || servers.contains(['/', '@', '?']) {
                    return Err(usage("kafka:// is followed by addresses only: host:port[,host:port]"));
                }
                Ok(Self::Kafka(servers.split(',').map(str::to_owned).collect()))
            }
            Some(("amqp" | "amqps", _)) => {
                let url = Url::parse(text).map_err(|error| usage(&error.to_string()))?;
                url.host_str().ok_or_else(|| usage("the URL names no host"))?;
                Ok(Self::Rabbitmq(url))
            }
            Some(("sqs+http", rest)) => sqs(&format!("http://{rest}"), usage),
            Some(("sqs+https", rest)) => sqs(&format!("https://{rest}"), usage),
            Some((scheme, _)) => Err(usage(&format!(
                "the scheme {:?} is not known",
                scheme.chars().take(32).collect::<String>()
            ))),
            None => Err(usage("this is not a URL")),
        }
    }
}

fn sqs(http: &str, usage: impl Fn(&str) -> DemoError) -> Result<BrokerUrl, DemoError> {
    let mut url = Url::parse(http).map_err(|error| usage(&error.to_string()))?;
    let (mut fifo, mut region) = (false, None);
    for (name, value) in url.query_pairs() {
        match (&*name, &*value) {
            ("fifo", "true") => fifo = true,
            ("fifo", "false") => fifo = false,
            ("region", region_name) if !region_name.is_empty() => region = Some(region_name.to_owned()),
            (name, _) => return Err(usage(&format!("the parameter {name:?} or its value is not known"))),
        }
    }
    let host = url.host_str().ok_or_else(|| usage("the URL names no host"))?.to_owned();
    let mut key = url.password().map(|secret| (url.username().to_owned(), secret.to_owned()));
    if key.is_none() && url.scheme() == "http" {
        // Servers for tests accept any credentials, but the protocol requires some.
        key = Some((String::from("demo"), String::from("demo")));
    }
    let amazon = host.ends_with(".amazonaws.com");
    if region.is_none() && amazon {
        region = host.split('.').nth(1).map(str::to_owned);
    }
    if region.is_none() && key.is_some() {
        region = Some(String::from("us-east-1"));
    }
    url.set_query(None);
    // These cannot fail for a URL that has a host.
    let _ = (url.set_username(""), url.set_password(None));
    Ok(BrokerUrl::Sqs { endpoint: (!amazon).then_some(url), region, key, fifo })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_form_is_understood() {
        let kafka = BrokerUrl::parse("kafka://a:9092,b:9092").unwrap();
        assert!(matches!(kafka, BrokerUrl::Kafka(servers) if servers == ["a:9092", "b:9092"]));
        assert!(matches!(BrokerUrl::parse("amqp://u:p@h:5672/%2f").unwrap(), BrokerUrl::Rabbitmq(_)));
        let BrokerUrl::Sqs { endpoint, region, key, fifo } =
            BrokerUrl::parse("sqs+http://127.0.0.1:9324?fifo=true").unwrap()
        else {
            panic!("not SQS");
        };
        assert_eq!(endpoint.unwrap().as_str(), "http://127.0.0.1:9324/");
        assert!(fifo && region.is_some() && key.is_some());
        let amazon = BrokerUrl::parse("sqs+https://sqs.eu-central-1.amazonaws.com").unwrap();
        let BrokerUrl::Sqs { endpoint, region, key, fifo } = amazon else { panic!("not SQS") };
        assert_eq!(region.as_deref(), Some("eu-central-1"));
        assert!(endpoint.is_none() && key.is_none() && !fifo);
    }

    #[test]
    fn a_wrong_url_is_explained_without_quoting_it() {
        for url in [
            "nonsense",
            "redis://u:s3cret@h",
            "kafka://",
            "kafka://u:s3cret@h:1",
            "sqs+http://a:s3cret@h?fif=1",
        ] {
            let error = BrokerUrl::parse(url).err().unwrap().to_string();
            assert!(error.contains("kafka://host:port") && !error.contains("s3cret"), "{error}");
        }
    }
}
