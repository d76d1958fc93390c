//! Connections whose answer is read even after writing has failed.
//!
//! A server may answer before it has read a request, and close: 413 for a large body, 401, 503. The
//! rest of the request then fails to be written, and the client would give up without reading the
//! answer, which is here already. So once a connection can no longer be written to, it swallows
//! what is written and is still read: up to the answer, or to its end, which comes at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection.
#[derive(Debug)]
pub(super) struct Steady<S> {
    stream: S,
    is_broken: bool,
}

impl<S> Steady<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, is_broken: false }
    }

    /// Handles the outcome of a write of this many bytes. If the other side has gone, all of them
    /// count as written.
    fn written(&mut self, outcome: io::Result<usize>, len: usize) -> io::Result<usize> {
        match outcome {
            Err(error) if is_gone(&error) => {
                self.is_broken = true;
                Ok(len)
            }
            outcome => outcome,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}

impl<S: Unpin> Connection for Steady<S> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Steady<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Steady<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_broken {
            return Poll::Ready(Ok(bytes.len()));
        }
        let outcome = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(self.written(outcome, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = parts.iter().map(|part| part.len()).sum();
        if self.is_broken {
            return Poll::Ready(Ok(len));
        }
        let outcome = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts));
        Poll::Ready(self.written(outcome, len))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_broken {
            return Poll::Ready(Ok(()));
        }
        let outcome = ready!(Pin::new(&mut self.stream).poll_flush(context)).map(|()| 0);
        Poll::Ready(self.written(outcome, 0).map(drop))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server that has answered and left: reads have the answer, writes fail.
    struct Gone {
        answer: io::Cursor<&'static [u8]>,
        kind: io::ErrorKind,
    }

    impl AsyncRead for Gone {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.answer).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Gone {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(self.kind.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Goal: the answer of a server that closes before it has read the request is read. Oracle:
    /// what is read after each error, and that an error that says nothing about the other side is
    /// passed on.
    #[tokio::test]
    async fn an_answer_is_read_although_the_request_cannot_be_written() {
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset] {
            let mut steady = Steady::new(Gone { answer: io::Cursor::new(b"HTTP/1.1 413"), kind });
            steady.write_all(&[0; 100_000]).await.unwrap();
            steady.write_all(b"more").await.unwrap();
            let mut answer = String::new();
            steady.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "HTTP/1.1 413", "{kind}");
        }
        let mut steady = Steady::new(Gone { answer: io::Cursor::new(b""), kind: io::ErrorKind::OutOfMemory });
        assert!(steady.write_all(b"x").await.is_err());
    }
}
