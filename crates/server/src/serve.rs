//! Starts the runtime, and ends it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::app::{App, AppState};
use crate::config::Config;
use crate::connections::Connections;
use crate::dialect::Dialect;
use crate::error::ServeError;
use crate::front::Front;
use crate::listen::Listener;
use crate::orphans;
use crate::tenants::Tenants;
use crate::tokens::Tokens;

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
    let front = Front::new(&app, dialects);
    let tenants = front.tenants.clone();
    if let Some(path) = app.config.token_file.clone() {
        let hangups = Hangups::install(app.config.has_terminal).map_err(ServeError::Runtime)?;
        tokio::spawn(reload_tokens(path, tenants.clone(), hangups, Arc::clone(&end.terminal_closed)));
    }
    tell(ServeEvent::Started);
    warn_of_open(app.config.token_file.as_deref());
    tell_of_unowned(&tenants);
    let connections = Connections::new(&app, front);
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
    tenants.begin_drain();
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

/// Says who reaches the sandboxes that belong to no tenant.
fn tell_of_unowned(tenants: &Tenants) {
    if let Some(who) = tenants.unowned_reached_by() {
        tracing::info!(who, "sandboxes that belong to no tenant are reached by");
    }
}

/// Says so if other users can read the tokens.
fn warn_of_open(token_file: Option<&Path>) {
    let is_open = |path: &&Path| penfold_state::is_open_to_others(path).unwrap_or(false);
    if let Some(path) = token_file.filter(is_open) {
        tracing::warn!(file = %path.display(), "other users can read or change the tokens: `chmod 600` helps");
    }
}

/// Reads the file of the tokens again at each SIGHUP. A file that cannot be followed changes nothing.
async fn reload_tokens(path: PathBuf, tenants: Tenants, mut hangups: Hangups, closed: Arc<Notify>) {
    while hangups.next().await {
        let read = tokio::task::spawn_blocking({
            let path = path.clone();
            move || Tokens::read_again(&path)
        });
        match read.await {
            Ok(Ok(tokens)) => {
                warn_of_open(Some(&path));
                let count = format!("{tokens:?}");
                tenants.replace(tokens);
                tracing::info!(count, "read the tokens again");
                tell_of_unowned(&tenants);
            }
            Ok(Err(error)) => {
                let why = penfold_state::error_chain(&error);
                tracing::error!(why, "cannot read the tokens again; the old ones stay");
            }
            Err(_) => return,
        }
    }
    // The server ends with its terminal, as one without tokens does.
    closed.notify_one();
}

/// SIGHUP, as a request to read the tokens again.
struct Hangups {
    signals: Signal,
    has_terminal: bool,
}

impl Hangups {
    fn install(has_terminal: bool) -> std::io::Result<Hangups> {
        Ok(Hangups { signals: signal(SignalKind::hangup())?, has_terminal })
    }

    /// Waits for the next one; `false` if it comes from the end of the server's terminal.
    async fn next(&mut self) -> bool {
        self.signals.recv().await.is_some() && (!self.has_terminal || has_terminal())
    }
}

/// Tells whether this process has a controlling terminal.
pub fn has_terminal() -> bool {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, rustix::fs::Mode::empty()).is_ok()
}

/// The signals that end the server.
struct EndSignals {
    term: Signal,
    int: Signal,
    /// Notified by a SIGHUP that comes from the end of the terminal.
    terminal_closed: Arc<Notify>,
}

impl EndSignals {
    fn install() -> std::io::Result<EndSignals> {
        Ok(EndSignals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            terminal_closed: Arc::default(),
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
            () = self.terminal_closed.notified() => {}
        }
    }
}
