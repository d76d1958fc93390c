//! Connects to a host that has several addresses.
//!
//! An address that drops packets keeps a connect waiting for minutes, longer than any limit here,
//! and the addresses after it would never be tried. So the next address is tried shortly
//! afterwards, in parallel with the first one (RFC 8305).

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// How long an address may be silent before the next one is tried beside it.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Returns the addresses of a host, in the order in which the name service returns them.
///
/// # Errors
/// The error of the name resolution. Cancel-safe.
pub async fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Connects to the first address that answers. The next one is tried as soon as one fails, and 250
/// ms after one was tried without an answer; attempts run in parallel. Has no time limit.
///
/// # Errors
/// The last address's, once all have failed. Cancel-safe if `connect` is.
pub async fn first_to_answer<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let answered = first_to_fit(addresses.iter().copied(), NEXT_AFTER, connect).await;
    answered.map_err(|mut errors| {
        let none = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        errors.pop().unwrap_or_else(none)
    })
}

/// Returns the first success among attempts, which begin in the order of `places`: the next one as
/// soon as one fails, and `next_after` after one began without an answer. They run in parallel; the
/// others are dropped after a success. Has no time limit.
///
/// # Errors
/// All errors, in the order in which the attempts failed. Cancel-safe if `attempt` is.
pub async fn first_to_fit<P, T, E, F: Future<Output = Result<T, E>>>(
    mut places: impl ExactSizeIterator<Item = P>,
    next_after: Duration,
    attempt: impl Fn(P) -> F,
) -> Result<T, Vec<E>> {
    let mut open = Vec::new();
    let mut failed = Vec::new();
    loop {
        match places.next() {
            Some(place) => open.push(Box::pin(attempt(place))),
            None if open.is_empty() => return Err(failed),
            None => {}
        }
        let answer = first_of(&mut open);
        let answer = match places.len() {
            0 => Some(answer.await),
            _ => tokio::time::timeout(next_after, answer).await.ok(),
        };
        match answer {
            Some(Ok(fit)) => return Ok(fit),
            Some(Err(error)) => failed.push(error),
            None => {}
        }
    }
}

/// Waits for the first of them to end, and removes it.
async fn first_of<F: Future>(open: &mut Vec<Pin<Box<F>>>) -> F::Output {
    std::future::poll_fn(|context| {
        for at in 0..open.len() {
            if let Poll::Ready(output) = open[at].as_mut().poll(context) {
                drop(open.swap_remove(at));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns ` (tried: 10.0.0.1, 10.0.0.2)` for an error about a host; an empty text if the host is
/// an address itself, or its addresses are not known.
#[must_use]
pub fn tried(host: &str, addresses: &[SocketAddr]) -> String {
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let mut text = String::new();
    for address in addresses.iter().filter(|_| !is_address) {
        let before = if text.is_empty() { " (tried: " } else { ", " };
        let _ = write!(text, "{before}{}", address.ip());
    }
    if !text.is_empty() {
        text.push(')');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    fn addresses(number: u16) -> Vec<SocketAddr> {
        (1..=number).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
    }

    /// The address with this port drops packets.
    async fn silent_at(port: u16, address: SocketAddr) -> io::Result<u16> {
        if address.port() == port {
            std::future::pending::<()>().await;
        }
        Ok(address.port())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_does_not_hide_the_next_one() {
        let begun = Instant::now();
        let answered = first_to_answer(&addresses(2), |address| silent_at(1, address)).await.unwrap();
        assert_eq!(answered, 2);
        assert_eq!(begun.elapsed(), NEXT_AFTER);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_answers_is_the_only_one_that_is_tried() {
        let tried = Mutex::new(Vec::new());
        let connect = |address: SocketAddr| {
            tried.lock().unwrap().push(address.port());
            silent_at(9, address)
        };
        assert_eq!(first_to_answer(&addresses(3), connect).await.unwrap(), 1);
        assert_eq!(*tried.lock().unwrap(), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_address_may_still_answer() {
        let connect = async |address: SocketAddr| {
            let millis = if address.port() == 1 { 400 } else { 60_000 };
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Ok(address.port())
        };
        assert_eq!(first_to_answer(&addresses(2), connect).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_leads_to_the_next_address_at_once() {
        let begun = Instant::now();
        let refused = async |address: SocketAddr| match address.port() {
            3 => Ok(3),
            _ => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
        };
        assert_eq!(first_to_answer(&addresses(3), refused).await.unwrap(), 3);
        let error = first_to_answer(&addresses(2), refused).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(first_to_answer(&[], refused).await.is_err());
    }

    #[test]
    fn an_error_names_what_was_tried() {
        assert_eq!(tried("db", &addresses(1)), " (tried: 127.0.0.1)");
        assert_eq!(tried("127.0.0.1", &addresses(1)), "");
        assert_eq!(tried("[::1]", &addresses(1)), "");
        assert_eq!(tried("db", &[]), "");
    }
}
