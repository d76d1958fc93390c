//! One request and one answer over TCP, to see whether a service responds.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether something listens on a port of 127.0.0.1.
pub(crate) fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Sends `question` to 127.0.0.1 and returns the first `N` bytes of the answer.
pub(crate) fn ask<const N: usize>(port: u16, question: &[u8]) -> Result<[u8; N], String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut answer = [0; N];
    TcpStream::connect_timeout(&address, PROBE_TIMEOUT)
        .and_then(|mut stream| {
            stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
            stream.set_write_timeout(Some(PROBE_TIMEOUT))?;
            stream.write_all(question)?;
            stream.read_exact(&mut answer)
        })
        .map_err(|error| format!("{address}: {error}"))?;
    Ok(answer)
}

/// Formats an unexpected answer for an error, with its bytes as text.
pub(crate) fn unexpected(answer: &[u8]) -> String {
    format!("unexpected answer {:?}", String::from_utf8_lossy(answer))
}
