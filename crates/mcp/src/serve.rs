//! Serves one client on standard input and output, and ends what it has started.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use penfold_teardown::Survivor;
use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use rmcp::transport::io::{StdioReader, stdio_pipes};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;

use crate::config::Config;
use crate::host::Host;
use crate::server::Server;
use crate::started::Started;
use crate::tools::stop_all;

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
    let host = Arc::new(Host { config, started: Started::default() });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Runtime)?;
    let served = runtime.block_on(talk(Arc::clone(&host)));
    let ids = host.started.close();
    let left = if host.config.keep { Vec::new() } else { stop_all(host.root(), &ids) };
    // A thread may wait in read(2) of standard input.
    runtime.shutdown_background();
    served.map(|()| Ended { left })
}

async fn talk(host: Arc<Host>) -> Result<(), ServeError> {
    let (closing, is_closing) = watch::channel(false);
    let (reader, writer) = stdio_pipes();
    let input = Input { reader, closing };
    match Server::new(host, is_closing).serve((input, writer)).await {
        Ok(service) => {
            // However the connection ends, it has ended.
            let _ = service.waiting().await;
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
