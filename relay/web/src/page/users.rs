//! The users of the page, and how they authenticate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use brokers::Secret;
use message::shield;
use operate::{Operator, Role};
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::session::{self, Session};
use crate::settings::{PageCredential, PageUser};

/// Minimum size of a secret in bytes.
const SECRET_BYTES_MIN: usize = 12;
/// How long a secret is cached before its file is read again.
const READ_FOR: Duration = Duration::from_secs(5);
/// Delay after a wrong proof.
const WRONG_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of concurrent delays of one peer. Meanwhile no further name or token of that peer
/// is checked.
const WRONG_WAITERS: usize = 4;
/// Maximum number of concurrent delays of all peers: guessing from many addresses is no faster.
const WRONG_WAITERS_OF_ALL: usize = 32;
/// Maximum wait for a slot: correct credentials hold a slot only briefly, so they do not delay each
/// other.
const TURN_TIMEOUT: Duration = Duration::from_millis(100);
/// The name for users of this machine, if there is no login.
const LOCAL: &str = "a user of this machine";

/// All users of the page. Without any, people at this machine may view it.
pub(crate) struct Users {
    users: Vec<User>,
    is_open: bool,
    turns: Turns,
}

/// The slots that wrong credentials hold.
struct Turns {
    all: Arc<Semaphore>,
    /// The slots of each peer that holds or awaits one. Peers behind a proxy, and those on this
    /// machine, count as one.
    peers: Mutex<HashMap<Option<IpAddr>, Weak<Semaphore>>>,
}

impl Turns {
    fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(WRONG_WAITERS_OF_ALL)), peers: Mutex::default() }
    }

    /// Takes a slot of the peer and one shared by all peers. Cancel-safe.
    async fn take(&self, peer: Option<IpAddr>) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
        let own = self.of(peer).acquire_owned().await?;
        Ok([own, Arc::clone(&self.all).acquire_owned().await?])
    }

    fn of(&self, peer: Option<IpAddr>) -> Arc<Semaphore> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        // The other peers no longer hold a slot.
        peers.retain(|_, turns| turns.strong_count() > 0);
        peers.get(&peer).and_then(Weak::upgrade).unwrap_or_else(|| {
            let turns = Arc::new(Semaphore::new(WRONG_WAITERS));
            peers.insert(peer, Arc::downgrade(&turns));
            turns
        })
    }
}

struct User {
    name: String,
    role: Role,
    secret: KnownSecret,
    is_token: bool,
}

/// A secret whose digest is compared. Its file is read again every few seconds.
pub(crate) struct KnownSecret {
    secret: Secret,
    digest: Mutex<Option<(Instant, [u8; 32])>>,
}

/// The credential in the head of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proof {
    /// No credential.
    None,
    /// A name and its secret.
    Named(String, String),
    /// A token.
    Token(String),
    /// The cookie of a login.
    Cookie(String),
}

/// The error when too many wrong proofs are pending, so that none is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Users {
    /// Reads every secret once.
    ///
    /// # Errors
    /// Names the user whose secret cannot be read or is too short.
    pub(crate) fn load(users: &[PageUser]) -> Result<Self, String> {
        let users = users.iter().map(|user| {
            let (secret, is_token) = match &user.credential {
                PageCredential::Password(secret) => (secret.clone(), false),
                PageCredential::Token(secret) => (secret.clone(), true),
            };
            let setting = if is_token { "page.user.token" } else { "page.user.password" };
            let secret = KnownSecret::load(secret, setting, &user.name)?;
            Ok(User { name: user.name.clone(), role: user.role, secret, is_token })
        });
        let users = users.collect::<Result<Vec<_>, String>>()?;
        Ok(Self { is_open: users.is_empty(), users, turns: Turns::new() })
    }

    /// Lets nobody in without a login, although there may be no users: a proxy names people.
    pub(crate) fn closed(self) -> Self {
        Self { is_open: false, ..self }
    }

    /// Returns whether a user has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.users.iter().any(|user| user.name == name)
    }

    /// Returns whether the form can log anybody in.
    pub(crate) fn has_any(&self) -> bool {
        !self.users.is_empty()
    }

    /// Returns whether no login is needed.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the user; `None` when the proof is wrong, or missing where one is needed. A wrong
    /// secret delays the answer and holds one of a few slots of the peer for that time, even if the
    /// peer disconnects.
    ///
    /// # Errors
    /// [`TooMany`] when no slot is free; then nothing was compared.
    pub(crate) async fn prove(
        &self,
        proof: &Proof,
        peer: Option<IpAddr>,
    ) -> Result<Option<Operator>, TooMany> {
        let name = match proof {
            _ if self.is_open() => return Ok(self.know(proof)),
            Proof::None | Proof::Cookie(_) => return Ok(self.know(proof)),
            Proof::Named(name, _) => Some(name),
            Proof::Token(_) => None,
        };
        // The slot comes first: otherwise the answer "too many" would reveal that the secret is
        // wrong.
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.turns.take(peer)).await;
        let Ok(Ok(turn)) = turn else { return Err(TooMany) };
        if let Some(operator) = self.know(proof) {
            return Ok(Some(operator));
        }
        // An unknown name may be a secret that was typed into the wrong field.
        let known = name.filter(|name| self.has(name));
        let name = known.map_or("an unknown user", String::as_str);
        tracing::warn!(target: crate::LOG, user = name, "login to the page refused: wrong secret");
        delayed(turn).await;
        Ok(None)
    }

    /// Delays the answer to a forged login, as to a wrong secret, and reports it.
    ///
    /// # Errors
    /// [`TooMany`] when no slot is free; then nothing is reported.
    pub(crate) async fn punish(&self, peer: IpAddr, report: impl FnOnce()) -> Result<(), TooMany> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.turns.take(Some(peer))).await;
        let Ok(Ok(turn)) = turn else { return Err(TooMany) };
        report();
        delayed(turn).await;
        Ok(())
    }

    /// Returns the user, without a delay.
    fn know(&self, proof: &Proof) -> Option<Operator> {
        if self.is_open() {
            return Some(Operator::new(LOCAL, Role::Viewer));
        }
        let user = match proof {
            Proof::None => None,
            Proof::Named(name, secret) => {
                let digest = hash(secret);
                // All users are compared, so that the time does not reveal which names exist.
                let all = self.users.iter().filter(|user| user.secret.is(&digest) & (user.name == *name));
                all.last()
            }
            Proof::Token(token) => {
                let digest = hash(token);
                self.users.iter().filter(|user| user.secret.is(&digest) & user.is_token).last()
            }
            Proof::Cookie(value) => self.users.iter().find(|user| {
                Session::claimed(value).is_some_and(|session| session.user == user.name)
                    && user.secret.digest().is_some_and(|digest| {
                        session::is_valid(value, &user.name, &digest, SystemTime::now())
                    })
            }),
        };
        user.map(|user| Operator::new(user.name.clone(), user.role))
    }

    /// Returns the cookie of a session of an authenticated user.
    pub(crate) fn cookie(&self, session: &Session) -> Option<String> {
        let user = self.users.iter().find(|user| user.name == session.user)?;
        session.sign(&user.secret.digest()?)
    }
}

/// Holds a slot for the time of a wrong proof, even if the peer disconnects.
async fn delayed(turn: [OwnedSemaphorePermit; 2]) {
    shield(async move {
        tokio::time::sleep(WRONG_PAUSE).await;
        drop(turn);
    })
    .await;
}

impl KnownSecret {
    /// Reads a secret once. `owner` names its owner.
    ///
    /// # Errors
    /// Names the owner of a secret that cannot be read or is too short.
    pub(crate) fn load(secret: Secret, setting: &str, owner: &str) -> Result<Self, String> {
        let text = secret.load(setting).map_err(|error| format!("{owner}: {error}"))?;
        let bytes = text.expose_secret().len();
        if bytes < SECRET_BYTES_MIN {
            let section = setting.rsplit_once('.').map_or(setting, |(section, _)| section);
            return Err(format!(
                "{section}: the secret of {owner} has {bytes} bytes; the minimum is {SECRET_BYTES_MIN}"
            ));
        }
        Ok(Self { secret, digest: Mutex::new(None) })
    }

    /// Returns the digest of the current secret; `None` when its file cannot be read.
    fn digest(&self) -> Option<[u8; 32]> {
        let mut known = self.digest.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some((at, digest)) if at.elapsed() < READ_FOR => Some(digest),
            _ => {
                let text = self.secret.load("page.user").ok();
                let text = text.filter(|text| text.expose_secret().len() >= SECRET_BYTES_MIN);
                let digest = hash(text?.expose_secret());
                *known = Some((Instant::now(), digest));
                Some(digest)
            }
        }
    }

    /// Returns whether this is the secret, in constant time.
    pub(crate) fn is_text(&self, text: &str) -> bool {
        self.is(&hash(text))
    }

    /// Returns whether this is the digest of the secret, in constant time.
    fn is(&self, digest: &[u8; 32]) -> bool {
        let Some(own) = self.digest() else { return false };
        own.iter().zip(digest).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
    }
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Reads the credential from a request's headers. `Authorization` takes precedence over the cookie.
pub(crate) fn proof(authorization: Option<&str>, cookies: &[&str], cookie_name: &str) -> Proof {
    if let Some(text) = authorization {
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            return Proof::Token(rest.trim().to_owned());
        }
        let decoded = STANDARD.decode(rest.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let (name, secret) = decoded.as_deref().and_then(|pair| pair.split_once(':')).unwrap_or_default();
        let is_basic = scheme.eq_ignore_ascii_case("basic");
        return if is_basic { Proof::Named(name.to_owned(), secret.to_owned()) } else { Proof::None };
    }
    let pairs =
        cookies.iter().flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let found = pairs.filter(|(name, _)| *name == cookie_name).map(|(_, value)| value.to_owned()).next();
    found.map_or(Proof::None, Proof::Cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, role: Role, credential: fn(Secret) -> PageCredential, secret: &str) -> PageUser {
        PageUser { name: name.into(), role, credential: credential(Secret::Text(secret.into())) }
    }

    const PEER: Option<IpAddr> = None;

    fn session(operator: &Operator) -> Session {
        Session::begin(operator.name(), SystemTime::now()).unwrap()
    }

    fn users() -> Users {
        Users::load(&[
            user("ann", Role::Operator, PageCredential::Token, "token-of-ann-1"),
            user("eve", Role::Viewer, PageCredential::Password, "password-of-eve"),
        ])
        .unwrap()
    }

    #[test]
    fn each_proof_names_one_user_with_their_role() {
        let users = users();
        let named = |name: &str, secret: &str| users.know(&Proof::Named(name.into(), secret.into()));
        let token = |token: &str| users.know(&Proof::Token(token.into()));
        assert_eq!(token("token-of-ann-1").unwrap().role(), Role::Operator);
        assert_eq!(named("eve", "password-of-eve").unwrap().role(), Role::Viewer);
        assert_eq!(named("ann", "token-of-ann-1").unwrap().name(), "ann");
        for (name, secret) in [("ann", "password-of-eve"), ("eve", ""), ("", ""), ("bob", "token-of-ann-1")] {
            assert_eq!(named(name, secret), None, "{name}");
        }
        // A password needs its name.
        for wrong in ["password-of-eve", "", "token-of-ann-2"] {
            assert_eq!(token(wrong), None, "{wrong}");
        }
        assert_eq!(users.know(&Proof::None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn while_too_many_guess_a_right_guess_is_not_told() {
        let users = Arc::new(users());
        let guess = || Proof::Token("token-of-nobody".into());
        let right = Proof::Token("token-of-ann-1".into());
        for _ in 0..20 {
            assert!(users.prove(&right, PEER).await.unwrap().is_some(), "right ones take no turn");
        }
        let start = Instant::now();
        assert_eq!(users.prove(&guess(), PEER).await, Ok(None));
        assert_eq!(start.elapsed(), WRONG_PAUSE);
        // A client that does not wait for the answer still holds a slot.
        for _ in 0..WRONG_WAITERS {
            let hurried = tokio::time::timeout(Duration::from_millis(1), users.prove(&guess(), PEER)).await;
            assert!(hurried.is_err());
        }
        assert_eq!(users.prove(&right, PEER).await, Err(TooMany));
        assert_eq!(users.prove(&guess(), PEER).await, Err(TooMany));
        let elsewhere = Some(IpAddr::from([10, 0, 0, 2]));
        assert!(users.prove(&right, elsewhere).await.unwrap().is_some(), "another peer waits for nobody");
        let ann = users.know(&right).unwrap();
        let cookie = Proof::Cookie(users.cookie(&session(&ann)).unwrap());
        assert_eq!(users.prove(&cookie, PEER).await, Ok(Some(ann)), "a login goes on");
        tokio::time::sleep(WRONG_PAUSE).await;
        assert!(users.prove(&right, PEER).await.unwrap().is_some());
        // From many addresses at once, until they hold all slots.
        for peer in 0..=u8::try_from(WRONG_WAITERS_OF_ALL / WRONG_WAITERS).unwrap() {
            for _ in 0..WRONG_WAITERS {
                let peer = Some(IpAddr::from([10, 0, 1, peer]));
                let hurried =
                    tokio::time::timeout(Duration::from_millis(1), users.prove(&guess(), peer)).await;
                assert!(hurried.is_err());
            }
        }
        assert_eq!(users.prove(&right, elsewhere).await, Err(TooMany));
        tokio::time::sleep(WRONG_PAUSE).await;
        assert!(users.prove(&right, elsewhere).await.unwrap().is_some());
        assert!(users.turns.peers.lock().unwrap().len() <= 1, "peers that hold no turn are forgotten");
    }

    #[test]
    fn a_login_is_known_again_and_another_users_is_not() {
        let users = users();
        let eve = users.know(&Proof::Named("eve".into(), "password-of-eve".into())).unwrap();
        let cookie = users.cookie(&session(&eve)).unwrap();
        assert_eq!(users.know(&Proof::Cookie(cookie)), Some(eve));
        let ann = Session::begin("ann", SystemTime::now()).unwrap();
        let forged = ann.sign(&hash("password-of-eve")).unwrap();
        assert_eq!(users.know(&Proof::Cookie(forged)), None);
    }

    #[test]
    fn without_users_people_of_this_machine_look_and_do_not_decide() {
        let open = Users::load(&[]).unwrap();
        assert_eq!(open.know(&Proof::None).unwrap().role(), Role::Viewer);
    }

    #[test]
    fn a_short_or_missing_secret_ends_the_start() {
        let short =
            Users::load(&[user("ann", Role::Operator, PageCredential::Token, "short")]).err().unwrap();
        assert!(
            short.contains("ann") && short.contains("the minimum is 12") && !short.contains("short"),
            "{short}"
        );
        let credential = PageCredential::Token(Secret::File("/nowhere/at/all".into()));
        let gone = PageUser { name: "ann".into(), role: Role::Operator, credential };
        assert!(Users::load(&[gone]).err().unwrap().contains("/nowhere/at/all"));
    }

    #[test]
    fn the_head_says_who_asks() {
        let basic = format!("Basic {}", STANDARD.encode("eve:pass:word"));
        let (local, other) = (session::Cookie::new(false, 9465).name, session::Cookie::new(true, 9465).name);
        assert_eq!(proof(Some(&basic), &[], &local), Proof::Named("eve".into(), "pass:word".into()));
        assert_eq!(proof(Some("bearer  abc "), &[], &local), Proof::Token("abc".into()));
        assert_eq!(proof(Some("Digest x"), &["relay-9465=c"], &local), Proof::None);
        assert_eq!(proof(None, &["a=1; relay-9465=c"], &local), Proof::Cookie("c".into()));
        assert_eq!(proof(None, &["relay-9466=c; relay=c"], &local), Proof::None, "of another port");
        assert_eq!(proof(None, &["a=1", "__Host-relay=s; relay-9465=c"], &other), Proof::Cookie("s".into()));
        assert_eq!(proof(None, &["relay-9465=c"], &other), Proof::None);
    }
}
