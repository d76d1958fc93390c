//! The credential of a login: a password, or a token of OAuth 2 that RabbitMQ takes as one.

use secrecy::{ExposeSecret as _, SecretString};

use super::config::{Auth, Config, OAUTH, invalid};
use crate::oauth::{Token, TokenError, TokenSource};
use crate::secret::Secret;
use crate::settings::InvalidSetting;

/// The setting of the password.
pub(super) const PASSWORD: &str = "rabbitmq.password";

/// Where the credential comes from.
#[derive(Debug, Clone)]
pub(super) enum Credential {
    Password(Secret),
    Tokens(TokenSource),
}

/// A credential that was read for one login, or asked for.
#[derive(Debug, Clone)]
pub(super) enum Proof {
    Password(SecretString),
    Token(Token),
}

impl Credential {
    /// Returns the one credential of the settings and of the URL, if there is any. Reads no file.
    pub(super) fn of(config: &Config, of_url: Option<Secret>) -> Result<Option<Self>, InvalidSetting> {
        let has_password = config.password.is_some() || config.password_file.is_some();
        if let Some(oauth) = &config.oauth {
            let stray = match () {
                () if of_url.is_some() => Some("url contains a password"),
                () if has_password => Some("password is set as well"),
                () if config.auth == Auth::External => Some("auth is \"external\""),
                () => None,
            };
            if let Some(stray) = stray {
                let problem = format!("{stray}, and a login has one credential; remove one of them");
                return Err(invalid("oauth", problem));
            }
            return oauth.tokens(OAUTH).map(|tokens| Some(Self::Tokens(tokens)));
        }
        if has_password {
            if of_url.is_some() {
                let problem = "the url also contains a password; set it in one place only";
                return Err(invalid("password", problem));
            }
            let secret = Secret::from_pair(PASSWORD, config.password.clone(), config.password_file.clone())?;
            return Ok(Some(Self::Password(secret)));
        }
        Ok(of_url.map(Self::Password))
    }

    /// Reads the password, or asks for a token. Cancel-safe.
    ///
    /// # Errors
    /// [`TokenError`] without a token, and for a file that cannot be read.
    pub(super) async fn proof(&self) -> Result<Proof, TokenError> {
        match self {
            Self::Password(secret) => Ok(Proof::Password(secret.load(PASSWORD)?)),
            Self::Tokens(tokens) => tokens.token().await.map(Proof::Token),
        }
    }
}

impl Proof {
    /// Returns the text that is sent as the password.
    pub(super) fn secret(&self) -> &SecretString {
        match self {
            Self::Password(password) => password,
            Self::Token(token) => token.value(),
        }
    }

    /// Returns the user of a login whose settings name none: RabbitMQ takes the name from the
    /// token, and this one only if the token has none.
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Self::Password(_) => None,
            Self::Token(token) => Some(token.owner_or("token")),
        }
    }

    /// Returns the value of `Authorization` for the management API.
    pub(super) fn authorization(&self, user: &str) -> String {
        match self {
            Self::Password(password) => basic(user, password),
            Self::Token(token) => format!("Bearer {}", token.value().expose_secret()),
        }
    }
}

/// Returns the value of `Authorization` for a user and a password.
pub(super) fn basic(user: &str, password: &SecretString) -> String {
    use base64::Engine as _;
    let pair = format!("{user}:{}", password.expose_secret());
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oauth::OAuth;

    fn problem(config: &Config, of_url: Option<Secret>) -> String {
        Credential::of(config, of_url).map(|found| found.is_some()).unwrap_err().to_string()
    }

    #[test]
    fn a_login_has_one_credential() {
        let tokens = || Config::new("amqp://127.0.0.1").oauth(OAuth::file("/x"));
        let secret = || Secret::Text(SecretString::from("s3cret"));
        for (config, of_url, told) in [
            (tokens(), Some(secret()), "url contains a password"),
            (tokens().password(SecretString::from("s3cret")), None, "password is set as well"),
            (tokens().password_file("/y"), None, "password is set as well"),
            (tokens().auth(Auth::External), None, "auth is \"external\""),
        ] {
            let text = problem(&config, of_url);
            assert!(text.starts_with("rabbitmq.oauth: ") && text.contains(told), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
        let twice = Config::new("amqp://127.0.0.1").password_file("/y");
        assert!(problem(&twice, Some(secret())).starts_with("rabbitmq.password: "));
        let wrong = Config::new("amqp://127.0.0.1").oauth(OAuth::client("http://login/", "relay"));
        assert!(problem(&wrong, None).starts_with("rabbitmq.oauth.token_url: login is another machine"));
        assert!(matches!(Credential::of(&tokens(), None), Ok(Some(Credential::Tokens(_)))));
        assert!(matches!(Credential::of(&Config::new("amqp://x"), None), Ok(None)));
    }
}
