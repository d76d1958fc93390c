//! A plain HTTP client that sends its input unchanged.

use std::net::{Ipv4Addr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tests::Failure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// A client with its own headers.
#[derive(Clone)]
pub(crate) struct Client {
    address: String,
    /// The address that it connects from, if not the system's choice.
    from: Option<Ipv4Addr>,
    host: String,
    heads: Vec<(String, String)>,
}

/// A response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Client {
    /// Returns a client without credentials.
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), from: None, host: address.to_owned(), heads: Vec::new() }
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.heads.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Connects from this address.
    pub(crate) fn from(mut self, address: Ipv4Addr) -> Self {
        self.from = Some(address);
        self
    }

    /// Returns the last value of a header that was added.
    pub(crate) fn head(&self, name: &str) -> Option<&str> {
        self.heads.iter().rev().find_map(|(known, value)| (known == name).then_some(value.as_str()))
    }

    /// Sets another host name.
    pub(crate) fn host(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    /// Adds a name and a password, as browsers send them from the page itself.
    pub(crate) fn basic(self, name: &str, password: &str) -> Self {
        let origin = format!("http://{}", self.address);
        let pair = STANDARD.encode(format!("{name}:{password}"));
        self.with("Authorization", &format!("Basic {pair}")).with("Origin", &origin)
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.send("GET", path, "").await
    }

    /// Posts a form.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<Answer, Failure> {
        let pairs: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        self.send("POST", path, &pairs.join("&")).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Result<Answer, Failure> {
        let mut stream = self.open(method, path, body).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Answer::read(&String::from_utf8_lossy(&answer))
    }

    /// Sends a form that leads to another page, and returns that page with its address.
    pub(crate) async fn follow(
        &self,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<(String, Answer), Failure> {
        let answer = self.post(path, fields).await?;
        let address = answer.value("location").filter(|_| answer.status == 303);
        let address = address.ok_or_else(|| format!("{path}: {} {}", answer.status, answer.body))?.to_owned();
        let page = self.get(&address).await?;
        Ok((address, page))
    }

    /// Sends a request and leaves reading the response to the caller.
    pub(crate) async fn open(&self, method: &str, path: &str, body: &str) -> Result<TcpStream, Failure> {
        let socket = TcpSocket::new_v4()?;
        if let Some(from) = self.from {
            socket.bind(SocketAddr::from((from, 0)))?;
        }
        let mut stream = socket.connect(self.address.parse()?).await?;
        stream.write_all(self.request(method, path, body).as_bytes()).await?;
        Ok(stream)
    }

    /// Returns the text of a request.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> String {
        let heads: String = self.heads.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let kind = "application/x-www-form-urlencoded";
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{heads}Content-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        )
    }
}

impl Answer {
    pub(crate) fn read(answer: &str) -> Result<Self, Failure> {
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("no head: {answer:?}"))?;
        let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
        Ok(Self { status, head: head.to_owned(), body: body.to_owned() })
    }

    /// Returns the value of a hidden field of the response's form.
    pub(crate) fn field(&self, name: &str) -> Result<&str, Failure> {
        let field = format!("type=\"hidden\" name=\"{name}\" value=\"");
        let value = self.body.split(&*field).nth(1).and_then(|rest| rest.split('"').next());
        value.ok_or_else(|| format!("no field {name}: {}", self.body).into())
    }

    /// Returns the hidden fields by which a form about one place names its decision.
    pub(crate) fn decision(&self) -> Result<[(&str, &str); 2], Failure> {
        Ok([("decision", self.field("decision")?), ("at", self.field("at")?)])
    }

    /// Returns the value of a header.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
    }
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
