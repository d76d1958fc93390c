//! Judges a token endpoint's answer (RFC 6749, sections 5.1 and 5.2). Pure.

use std::time::{Duration, SystemTime};

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::Value;

use super::jwt::Claims;
use super::token::{Token, TokenError};

/// Maximum characters of an endpoint's own words that an error repeats.
const WORDS_MAX: usize = 300;
/// Maximum lifetime that is believed. A token that lives longer is replaced after most of a day.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3_600);

/// An answer, and the request that it belongs to.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) body: &'a [u8],
    pub(super) client_id: &'a str,
    /// Texts that may not be repeated: the secret, as itself and as it is sent.
    pub(super) secrets: [&'a str; 2],
}

#[derive(Deserialize)]
struct Granted {
    access_token: Option<SecretString>,
    token_type: Option<String>,
    expires_in: Option<Value>,
}

#[derive(Deserialize)]
struct Refused {
    error: Option<String>,
    error_description: Option<String>,
}

impl Answer<'_> {
    /// Returns the token of an answer that arrived at this time.
    ///
    /// # Errors
    /// [`TokenError`] without a token that is valid now. Their texts contain no secret.
    pub(super) fn token(&self, now: SystemTime) -> Result<Token, TokenError> {
        match self.status {
            200 => self.granted(now),
            300..=399 => Err(TokenError::refused(format!(
                "answers with a redirect (status {}), which is not followed; write the address of the endpoint itself",
                self.status
            ))),
            400 | 401 | 403 => Err(self.refused()),
            404 | 405 | 406 | 410 | 415 => Err(TokenError::refused(format!(
                "answers with status {}: it is not a token endpoint; correct its path",
                self.status
            ))),
            status => Err(TokenError::unavailable(format!(
                "answers with status {status}{}; see the logs of the issuer",
                self.words().unwrap_or_default()
            ))),
        }
    }

    fn granted(&self, now: SystemTime) -> Result<Token, TokenError> {
        // serde's errors repeat values, which may be secrets.
        let granted: Granted = serde_json::from_slice(self.body).map_err(|_| {
            TokenError::refused(
                "answers with something that is not a JSON object with a token; write the address of a token endpoint",
            )
        })?;
        let kind = granted.token_type.as_deref().unwrap_or("Bearer");
        if !kind.eq_ignore_ascii_case("bearer") {
            return Err(TokenError::refused(
                "gives a token that is not of the type Bearer; configure this client for bearer tokens there",
            ));
        }
        let Some(value) = granted.access_token else {
            return Err(TokenError::refused(
                "answers without an access_token; allow the grant client_credentials for this client there",
            ));
        };
        let claims = Claims::of(value.expose_secret()).unwrap_or_default();
        // `expires_in` counts from now on, so it is right even where the clocks differ. No token
        // lives longer than from its issue to its expiry, whatever the answer and the issuer's
        // clock say.
        let longest = claims.lifetime().unwrap_or(LIFETIME_MAX).min(LIFETIME_MAX);
        let expires_at = match &granted.expires_in {
            Some(seconds) => now + lifetime(seconds)?,
            None => claims.expires_at().ok_or_else(|| {
                TokenError::refused(
                    "does not say when its token expires: the answer has no expires_in, and the token is not a JSON \
                     Web Token with an exp; configure a lifetime for this client there",
                )
            })?,
        };
        let token = Token::new(value, expires_at.min(now + longest))?;
        Ok(token.owner(claims.sub.as_deref().unwrap_or(self.client_id)))
    }

    fn refused(&self) -> TokenError {
        let words = self.words().unwrap_or_default();
        TokenError::refused(format!(
            "refuses the client {:?} (status {}{words}); check client_id, client_secret, scope and audience, and \
             whether the issuer still knows this client",
            self.client_id, self.status
        ))
    }

    /// Returns the endpoint's own words about a failure, if there are any that can be repeated.
    fn words(&self) -> Option<String> {
        let refused: Refused = serde_json::from_slice(self.body).ok()?;
        let words: Vec<String> = [refused.error, refused.error_description].into_iter().flatten().collect();
        let words = words.join(": ");
        if self.secrets.iter().any(|secret| !secret.is_empty() && words.contains(secret)) {
            return Some(String::from(": words that repeat the secret"));
        }
        let words: String =
            words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect();
        // A remedy begins after the last semicolon of a text.
        let words = words.replace(';', ",");
        (!words.trim().is_empty()).then(|| format!(": {}", words.trim()))
    }
}

/// Reads `expires_in`, which some endpoints send as a text.
fn lifetime(seconds: &Value) -> Result<Duration, TokenError> {
    let number = match seconds {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    match number {
        Some(seconds) if seconds > 0.0 => {
            Ok(Duration::try_from_secs_f64(seconds).unwrap_or(LIFETIME_MAX).min(LIFETIME_MAX))
        }
        _ => Err(TokenError::refused(
            "gives a token whose expires_in is not a positive number; configure a lifetime for this client there",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::Fault;

    fn answer(status: u16, body: &str) -> Result<Token, TokenError> {
        let secrets = ["s3cret", "cmVsYXk6czNjcmV0"];
        Answer { status, body: body.as_bytes(), client_id: "relay", secrets }.token(SystemTime::now())
    }

    #[test]
    fn a_token_lives_as_long_as_the_answer_says() {
        // {"exp":1000000000,"sub":"me"}: this machine's clock may be ahead.
        let jwt = "e30.eyJleHAiOjEwMDAwMDAwMDAsInN1YiI6Im1lIn0.c2ln";
        // The issuer's clock is years ahead: {"iat":4102444800,"exp":4102444890}
        let ahead = "e30.eyJpYXQiOjQxMDI0NDQ4MDAsImV4cCI6NDEwMjQ0NDg5MH0.c2ln";
        for (body, seconds, owner) in [
            (
                r#"{"access_token": "t", "token_type": "bearer", "expires_in": 3600}"#.to_owned(),
                3_600,
                "relay",
            ),
            (r#"{"access_token": "t", "expires_in": "60"}"#.to_owned(), 60, "relay"),
            (r#"{"access_token": "t", "expires_in": 1e300}"#.to_owned(), 86_400, "relay"),
            (r#"{"access_token": "t", "expires_in": 99999999999999999}"#.to_owned(), 86_400, "relay"),
            (format!(r#"{{"access_token": "{jwt}", "expires_in": 600}}"#), 600, "me"),
            (format!(r#"{{"access_token": "{ahead}"}}"#), 90, "relay"),
            // A lie: the token lives for 90 seconds.
            (format!(r#"{{"access_token": "{ahead}", "expires_in": 3600}}"#), 90, "relay"),
            (format!(r#"{{"access_token": "{ahead}", "expires_in": 70}}"#), 70, "relay"),
        ] {
            let token = answer(200, &body).unwrap();
            let left = token.left(SystemTime::now()).as_secs_f64();
            assert!(left <= f64::from(seconds) && left > f64::from(seconds) - 60.0, "{body}: {left}");
            assert_eq!(token.owner_or(""), owner);
        }
    }

    #[test]
    fn an_endpoint_that_lies_is_refused_with_a_remedy_and_without_a_secret() {
        let expired = r#"{"access_token": "e30.eyJleHAiOjEwMDAwMDAwMDAsInN1YiI6Im1lIn0.s3cret"}"#;
        for (status, body, named) in [
            (200, "", "not a JSON object"),
            (200, "<html>s3cret</html>", "not a JSON object"),
            (200, r#""s3cret""#, "not a JSON object"),
            (200, r#"{"access_token": 5, "note": "s3cret"}"#, "not a JSON object"),
            (200, "{}", "without an access_token"),
            (200, r#"{"access_token": "s3cret", "token_type": "mac", "expires_in": 60}"#, "type Bearer"),
            (200, r#"{"access_token": "s3cret"}"#, "does not say when"),
            (200, r#"{"access_token": "s3cret", "expires_in": 0}"#, "not a positive number"),
            (200, r#"{"access_token": "s3cret", "expires_in": -5}"#, "not a positive number"),
            (200, r#"{"access_token": "s3cret", "expires_in": "soon"}"#, "not a positive number"),
            (200, r#"{"access_token": "s3cret s3cret", "expires_in": 60}"#, "has spaces"),
            (200, r#"{"access_token": "", "expires_in": 60}"#, "has 0 bytes"),
            (200, expired, "has expired"),
            (302, "", "redirect"),
            (307, "", "redirect"),
            (404, "<html>s3cret</html>", "not a token endpoint"),
            (401, "", "refuses the client \"relay\""),
            (
                401,
                r#"{"error": "invalid_client", "error_description": "no; such\nclient"}"#,
                "invalid_client: no, such client",
            ),
            (400, r#"{"error": "invalid_scope"}"#, "invalid_scope"),
            (400, r#"{"error": "s3cret"}"#, "repeat the secret"),
            (401, r#"{"error": "x", "error_description": "Basic cmVsYXk6czNjcmV0"}"#, "repeat the secret"),
        ] {
            let error = answer(status, body).expect_err(body);
            let text = error.to_string();
            assert_eq!(error.fault(), Fault::Operator, "{text}");
            assert!(text.contains(named) && text.contains("; "), "{status} {body}: {text}");
            assert!(!text.contains("s3cret") && !text.contains("cmVsYXk6") && text.len() < 700, "{text}");
        }
        for status in [429, 500, 503] {
            let error = answer(status, "s3cret").unwrap_err();
            assert_eq!(error.fault(), Fault::Broker, "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        let long = format!(r#"{{"error": "{}"}}"#, "x".repeat(10_000));
        assert!(answer(400, &long).unwrap_err().to_string().len() < 700);
    }
}
