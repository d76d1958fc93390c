//! Tokens for Amazon MSK with IAM access control: a URL that is signed with the credentials of AWS,
//! as the signers of AWS make it (`aws-msk-iam-sasl-signer-*`).

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign};
use aws_sigv4::sign::v4;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use url::Url;

use crate::oauth::{Token, TokenError, TokenProvider};

/// Lifetime of a token. Brokers accept none that lives longer.
const LIFETIME: Duration = Duration::from_secs(900);
/// The service in a signature.
const SERVICE: &str = "kafka-cluster";
const USER_AGENT: &str = concat!("outbox-toolkit/", env!("CARGO_PKG_VERSION"));

/// Signs tokens with the credentials of the default chain, or of a profile.
#[derive(Debug, Clone)]
pub(super) struct Signer {
    pub(super) region: String,
    pub(super) profile: Option<String>,
}

#[async_trait]
impl TokenProvider for Signer {
    async fn token(&self) -> Result<Token, TokenError> {
        let credentials = self.credentials().await?;
        let now = SystemTime::now();
        let token = signed(&credentials, &self.region, now).map_err(|problem| {
            TokenError::refused(format!(
                "kafka.sasl.aws: no token can be signed: {problem}; correct kafka.sasl.aws.region"
            ))
        })?;
        let expires_at = now + LIFETIME;
        let expires_at = credentials.expiry().map_or(expires_at, |expiry| expiry.min(expires_at));
        Ok(Token::new(token, expires_at)?.owner(SERVICE))
    }
}

impl Signer {
    /// Maximum time for credentials: some come from other services.
    pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

    /// Reads the credentials: environment, profile, web identity, container or instance role.
    async fn credentials(&self) -> Result<Credentials, TokenError> {
        let region = Region::new(self.region.clone());
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).region(region);
        if let Some(profile) = &self.profile {
            loader = loader.profile_name(profile);
        }
        let shared = loader.load().await;
        let Some(provider) = shared.credentials_provider() else {
            return Err(TokenError::refused(format!(
                "kafka.sasl.aws: no AWS credentials are configured; {REMEDY}"
            )));
        };
        provider.provide_credentials().await.map_err(|error| {
            let why = message::error_text::chain(&error);
            TokenError::refused(format!("kafka.sasl.aws: no AWS credentials were found: {why}; {REMEDY}"))
        })
    }
}

const REMEDY: &str = "set AWS_ACCESS_KEY_ID, a profile, a web identity or an instance role";

/// Returns the token of these credentials at a time: `kafka-cluster:Connect` as a signed request,
/// in Base64.
fn signed(credentials: &Credentials, region: &str, at: SystemTime) -> Result<String, String> {
    let address = format!("https://kafka.{region}.amazonaws.com/?Action=kafka-cluster%3AConnect");
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(LIFETIME);
    let identity = credentials.clone().into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(SERVICE)
        .time(at)
        .settings(settings)
        .build()
        .map_err(|error| error.to_string())?
        .into();
    let request = SignableRequest::new("GET", &address, std::iter::empty(), SignableBody::Bytes(&[]))
        .map_err(|error| error.to_string())?;
    let (instructions, _) = sign(request, &parameters).map_err(|error| error.to_string())?.into_parts();
    let (_, signature) = instructions.into_parts();
    let mut url = Url::parse(&address).map_err(|error| error.to_string())?;
    url.query_pairs_mut().extend_pairs(signature).append_pair("User-Agent", USER_AGENT);
    Ok(URL_SAFE_NO_PAD.encode(url.as_str()))
}

/// Returns the region in the name of a broker of MSK:
/// `b-1.shop.a1b2c3.c2.kafka.eu-central-1.amazonaws.com`.
pub(super) fn region_of(host: &str) -> Option<&str> {
    let mut labels = host.split('.').skip_while(|label| !matches!(*label, "kafka" | "kafka-serverless"));
    let (_, region, domain) = (labels.next()?, labels.next()?, labels.next()?);
    (domain == "amazonaws").then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::UNIX_EPOCH;

    /// Oracle: signatures that botocore 1 makes of the same request, credentials and time
    /// (2023-11-14, 22:13:20).
    #[test]
    fn a_token_is_the_url_that_the_signers_of_aws_make() {
        let at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        for (session, region, signature) in [
            (None, "eu-central-1", "674a7efeeb19a92e44b849bf3ea778a9c78e68ad0bac99e834ab2ea6139ac226"),
            (
                Some("to/ken+1=="),
                "us-east-1",
                "2d736514afa847ec603a0ed9b6612b4de7fbc56145784fd01fc1748269aef431",
            ),
        ] {
            let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
            let credentials =
                Credentials::new("AKIDEXAMPLE", secret, session.map(str::to_owned), None, "test");
            let token = signed(&credentials, region, at).unwrap();
            let url = String::from_utf8(URL_SAFE_NO_PAD.decode(&token).unwrap()).unwrap();
            let url = Url::parse(&url).unwrap();
            assert_eq!(url.host_str(), Some(format!("kafka.{region}.amazonaws.com").as_str()));
            let pairs: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
            let credential = format!("AKIDEXAMPLE/20231114/{region}/kafka-cluster/aws4_request");
            for (name, value) in [
                ("Action", "kafka-cluster:Connect"),
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
                ("X-Amz-Credential", credential.as_str()),
                ("X-Amz-Date", "20231114T221320Z"),
                ("X-Amz-Expires", "900"),
                ("X-Amz-SignedHeaders", "host"),
                ("X-Amz-Signature", signature),
                ("User-Agent", USER_AGENT),
            ] {
                assert_eq!(pairs.get(name).map(String::as_str), Some(value), "{name}");
            }
            assert_eq!(pairs.get("X-Amz-Security-Token").map(String::as_str), session);
            assert!(!url.as_str().contains("wJalr"));
        }
    }

    #[test]
    fn the_region_is_read_from_the_name_of_a_broker() {
        for (host, region) in [
            ("b-1.shop.a1b2c3.c2.kafka.eu-central-1.amazonaws.com", Some("eu-central-1")),
            ("boot-a1b2.c1.kafka-serverless.us-east-1.amazonaws.com", Some("us-east-1")),
            ("b-1.shop.a1b2c3.c2.kafka.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
            ("kafka.example.com", None),
            ("kafka-1", None),
            ("localhost", None),
        ] {
            assert_eq!(region_of(host), region, "{host}");
        }
    }
}
