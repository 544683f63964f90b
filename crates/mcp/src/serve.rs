//! Serves one client on standard input and output, and ends what it has started.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use penfold_teardown::Survivor;
use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use rmcp::transport::io::{StdioReader, StdioWriter, stdio_pipes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::config::Config;
use crate::host::ServerState;
use crate::server::Server;
use crate::started::Started;
use crate::tools::stop_all;
use crate::transport::Lines;

/// How long an answer may wait for a reader after standard input has ended.
const READER_PATIENCE: Duration = Duration::from_secs(2);

/// Why the server could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The runtime cannot be made.
    #[error("cannot start the server")]
    Runtime(#[source] io::Error),
    /// The client does not speak the protocol, or cannot be written to.
    #[error("the client on standard input speaks no MCP")]
    Protocol(#[source] Box<ServerInitializeError>),
}

/// What was left after standard input had ended.
#[derive(Debug)]
pub struct Ended {
    /// The ids of the sandboxes that are not gone, each with what is left.
    pub left: Vec<(String, Vec<Survivor>)>,
}

/// Answers until standard input ends. Then stops the sandboxes that were started, unless they are to be kept, and returns once
/// they are gone, or what is left is known.
///
/// If this process dies before, the supervisors of the sandboxes do the same.
///
/// # Errors
/// When nothing can be served.
pub fn serve(config: Config) -> Result<Ended, ServeError> {
    let host = Arc::new(ServerState { config, started: Started::default() });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Runtime)?;
    let served = runtime.block_on(talk(Arc::clone(&host)));
    let ids = host.started.close();
    let left = if host.config.keep { Vec::new() } else { stop_all(host.root(), &ids) };
    // A thread may wait in read(2) of standard input.
    runtime.shutdown_background();
    served.map(|()| Ended { left })
}

async fn talk(host: Arc<ServerState>) -> Result<(), ServeError> {
    let (closing, is_closing) = watch::channel(false);
    let (reader, writer) = stdio_pipes();
    let input = Input { reader, closing };
    let progress = Arc::new(Progress::default());
    let output = Output { writer, progress: Arc::clone(&progress) };
    match Server::new(host, is_closing.clone()).serve(Lines::new(input, output)).await {
        Ok(service) => {
            tokio::select! {
                // However the connection ends, it has ended.
                _ = service.waiting() => {}
                () = unread(is_closing, &progress) => {}
            }
            Ok(())
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(ServeError::Protocol(Box::new(error))),
    }
}

/// Standard input. Its end ends the waits of calls: otherwise the connection would wait for them.
struct Input {
    reader: StdioReader,
    closing: watch::Sender<bool>,
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.reader).poll_read(context, buffer);
        let at_end = matches!(&read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        if at_end || matches!(&read, Poll::Ready(Err(_))) {
            self.closing.send_replace(true);
        }
        read
    }
}

/// What has become of the answers.
#[derive(Default)]
struct Progress {
    written: AtomicUsize,
    /// Whether an answer waits for a reader.
    is_waiting: AtomicBool,
}

/// Standard output.
struct Output {
    writer: StdioWriter,
    progress: Arc<Progress>,
}

impl Output {
    fn note<T>(&self, done: Poll<T>) -> Poll<T> {
        self.progress.is_waiting.store(done.is_pending(), Ordering::Relaxed);
        done
    }
}

impl AsyncWrite for Output {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.writer).poll_write(context, data);
        if let Poll::Ready(Ok(count)) = done {
            self.progress.written.fetch_add(count, Ordering::Relaxed);
        }
        self.note(done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.writer).poll_flush(context);
        self.note(done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.writer).poll_shutdown(context);
        self.note(done)
    }
}

/// Waits until standard input has ended, and then until an answer finds no reader in time. The connection would wait for ever.
async fn unread(mut is_closing: watch::Receiver<bool>, progress: &Progress) {
    // An error means that the input is gone.
    let _ = is_closing.wait_for(|&closing| closing).await;
    loop {
        let before = progress.written.load(Ordering::Relaxed);
        tokio::time::sleep(READER_PATIENCE).await;
        if progress.is_waiting.load(Ordering::Relaxed) && progress.written.load(Ordering::Relaxed) == before {
            return;
        }
    }
}
