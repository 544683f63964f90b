//! Starts the runtime, and ends it.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::{App, AppState};
use crate::config::Config;
use crate::connections::Connections;
use crate::dialect::Dialect;
use crate::error::ServeError;
use crate::front::Front;
use crate::listen::Listener;
use crate::orphans;

/// The threads that answer requests; the work of a request is done beside them.
const WORKERS: usize = 2;
/// The stack of a thread. Nothing here recurses deeply.
const STACK: usize = 512 * 1024;
/// A thread for blocking calls ends after this time without a call.
const IDLE: Duration = Duration::from_secs(2);

/// A change of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServeEvent {
    /// The server handles SIGTERM and SIGINT from now on. A caller that has blocked them unblocks them.
    Started,
    /// The server answers, and the orphans of the state root were recovered.
    Ready,
    /// The server was asked to end.
    Ending,
}

/// Serves these dialects until SIGTERM or SIGINT, and then for at most [`Config::drain`] until every request is answered. A second signal
/// ends the server at once. Sandboxes go on.
///
/// # Errors
/// When the runtime cannot be started.
pub fn serve(
    config: Config,
    dialects: Vec<Dialect>,
    listeners: Vec<Listener>,
    tell: &mut dyn FnMut(ServeEvent),
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_stack_size(STACK)
        .thread_keep_alive(IDLE)
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    let result = runtime.block_on(run(App::new(config), dialects, listeners, tell));
    // A blocking call may wait for long; its work is not lost with this process.
    runtime.shutdown_background();
    result
}

async fn run(
    app: AppState,
    dialects: Vec<Dialect>,
    listeners: Vec<Listener>,
    tell: &mut dyn FnMut(ServeEvent),
) -> Result<(), ServeError> {
    let mut end = EndSignals::install().map_err(ServeError::Runtime)?;
    tell(ServeEvent::Started);
    let connections = Connections::new(&app, Front::new(&app, dialects));
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        tracing::info!(address = listener.address(), "listening");
        accepting.spawn(connections.clone().accept(listener));
    }
    let ready = orphans::watch_orphans(&app).map_err(ServeError::Runtime)?;
    tokio::select! {
        () = ready.notified() => {
            tell(ServeEvent::Ready);
            end.next().await;
        }
        () = end.next() => {}
    }
    tell(ServeEvent::Ending);
    tracing::info!("ending");
    app.drain.begin();
    penfold_sys::crash_point!("serve-draining");
    let closed = async {
        while accepting.join_next().await.is_some() {}
        connections.all_closed().await;
    };
    // What is left is cut off with the runtime: its client sees a reset or a body without its end.
    tokio::select! {
        () = closed => {}
        () = tokio::time::sleep(app.config.drain) => tracing::warn!("cut off requests at the deadline"),
        () = end.next() => tracing::warn!("cut off requests at the second signal"),
    }
    Ok(())
}

/// The signals that end the server.
struct EndSignals {
    term: Signal,
    int: Signal,
}

impl EndSignals {
    fn install() -> std::io::Result<EndSignals> {
        Ok(EndSignals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
