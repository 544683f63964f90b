//! `penfold serve`.

mod templates;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use penfold_server::{
    Access, Address, Config, Dialect, Limits, Listener, LogFormat, ReadTokensError, ServeEvent, Tokens,
};
use penfold_sys::signal::{self, SignalSet};
use rustix::process::Signal;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, pid_one, service_manager, surroundings, value};

/// The verb `serve`.
pub(crate) const VERB: Verb = Verb {
    name: "serve",
    aliases: &[],
    about: "Serve sandboxes over HTTP",
    description: "Answers requests over HTTP until SIGTERM or SIGINT; the native API is below /v1, the Cloudflare Sandbox API \
        at /. The server owns nothing: if it ends or is killed, every sandbox goes on, and the next server finds all of \
        them. While it runs, a sandbox that loses all its supervisors is ended within a second. Without --listen, the \
        server listens on the sockets that systemd hands over, else on the Unix socket /run/penfold/api.sock (for users: \
        penfold/api.sock in $XDG_RUNTIME_DIR, else in /run/user/UID), which serves processes of the same user and of root; with --api cloudflare \
        or e2b alone, on 127.0.0.1:3000; with envd alone, on 127.0.0.1:49983. A TCP port needs --token-file. A caller sends a token as `Authorization: Bearer TOKEN` \
        (native API), as `X-Penfold-Token: TOKEN`, or before the path as /t/TOKEN. Each token is a tenant, who sees its own \
        sandboxes only; a line of the file is `NAME TOKEN`, and then any of admin (sees all), read-only and max-sandboxes=N. \
        SIGHUP has the file read again.",
    examples: &[
        ("penfold serve", "listen on a Unix socket that only this user can use"),
        (
            "penfold serve --listen 127.0.0.1:3000 --token-file tokens",
            "listen on a port, for callers with a token",
        ),
        ("penfold serve --api cloudflare --token-file tokens", "serve clients of the Cloudflare Sandbox SDK"),
        ("penfold serve --api e2b --token-file tokens", "serve clients of the E2B SDKs"),
        (
            "penfold serve --api envd --insecure-no-token",
            "let E2B SDKs in debug mode act on this machine, on 127.0.0.1:49983",
        ),
        (
            "penfold serve --api cloudflare --session-idle 1h --insecure-no-token",
            "the same on this host, and end sessions that no client has used for an hour",
        ),
    ],
    usage_failure: FailureKind::Usage,
    define: ServeArgs::augment_args,
    places: Places::Here,
    call: |global, matches| serve(global, &usage::read(&VERB, matches)?),
};

/// The port of the Cloudflare Sandbox API, and of the E2B API.
const PORT: u16 = 3000;
/// The port of the data plane of the E2B API.
const ENVD_PORT: u16 = 49983;

/// An API that the server can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Api {
    /// Below `/v1`.
    Native,
    /// The Cloudflare Sandbox API.
    Cloudflare,
    /// The E2B API.
    E2b,
    /// The data plane of the E2B API, for this machine.
    Envd,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// An object on each line.
    Json,
}

/// What `penfold serve` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Listen on `unix:PATH` or `HOST:PORT`; may be given again.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<Address>,
    /// Serve every local process on loopback addresses without a token.
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) insecure_no_token: bool,
    /// The APIs that are served: native, cloudflare, e2b, envd.
    #[arg(
        long,
        value_enum,
        value_name = "API",
        value_delimiter = ',',
        hide_possible_values = true,
        default_value = "native,cloudflare"
    )]
    pub(crate) api: Vec<Api>,
    /// Time that requests have to finish after SIGTERM or SIGINT; a second signal ends the server at once.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s"
    )]
    pub(crate) drain: Duration,
    /// Form of the log lines on standard error: text, json.
    #[arg(long, value_enum, value_name = "FORMAT", hide_possible_values = true, default_value = "text")]
    pub(crate) log_format: Format,
    /// The most connections at one time; fewer if the limit of descriptors (`RLIMIT_NOFILE`) is lower.
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections, value_parser = positive)]
    pub(crate) max_connections: usize,
    /// The most living sandboxes of a tenant whose line does not say `max-sandboxes=N`.
    #[arg(long, value_name = "N", default_value_t = Limits::default().sandboxes, value_parser = positive)]
    pub(crate) max_sandboxes: usize,
    /// Directory of templates for the E2B API: what sandboxes of the template NAME are made of is in NAME.toml, as a file for `run --spec`.
    #[arg(long, value_name = "DIR")]
    pub(crate) templates: Option<PathBuf>,
    /// End each session of the Cloudflare API that no client has used for this time, with all that runs in it; at least 1s. Without it a session
    /// whose client is gone for good goes on.
    #[arg(long, value_name = "DURATION", value_parser = session_idle, allow_hyphen_values = true)]
    pub(crate) session_idle: Option<Duration>,
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = value::size,
        default_value = "64M",
        help = "Size of the output of a command that is kept; the oldest output beyond is counted and lost"
    )]
    pub(crate) output_limit: u64,
}

fn session_idle(text: &str) -> Result<Duration, String> {
    let idle = value::duration(text).map_err(|error| error.to_string())?;
    if idle < Duration::from_secs(1) { Err("is less than 1s".to_owned()) } else { Ok(idle) }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=1_000_000).contains(count))
        .ok_or_else(|| "not a number from 1 to 1000000".to_owned())
}

/// Refuses two APIs of which each answers all paths that no other has.
fn check_apis(served: &[Api]) -> Result<(), Failure> {
    if !(served.contains(&Api::Envd) && served.contains(&Api::Cloudflare)) {
        return Ok(());
    }
    let sentence = "`--api` has envd and cloudflare: each answers every path that is no other API's";
    Err(Failure::new(FailureKind::Usage, sentence)
        .hint("serve one of them with a second server, on another port"))
}

/// The fewest descriptors with which a stream and the processes of a session have theirs.
const LEAST_DESCRIPTORS: u64 = 48;

/// Refuses to serve where every answer would only say that descriptors are missing.
fn check_descriptors() -> Result<(), Failure> {
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(limit) if limit < LEAST_DESCRIPTORS => {
            let sentence =
                format!("cannot serve with {limit} open files: at least {LEAST_DESCRIPTORS} are needed");
            Err(Failure::new(FailureKind::Other, sentence)
                .hint("`ulimit -n 1024` before it, or `LimitNOFILE=` of its unit"))
        }
        _ => Ok(()),
    }
}

/// Serves until a signal.
pub(crate) fn serve(global: &Global, args: &ServeArgs) -> Result<u8, Failure> {
    if let Some(code) = pid_one::fork_if_init()? {
        return Ok(code);
    }
    check_apis(&args.api)?;
    check_descriptors()?;
    let tokens = global.token_file.as_deref().map(read_tokens).transpose()?.unwrap_or_default();
    let has_terminal = penfold_server::has_terminal();
    // A signal that comes before the server handles it must not leave the socket behind.
    let reloads = global.token_file.as_ref().map(|_| Signal::HUP.as_raw());
    let signals = SignalSet::of([Signal::TERM.as_raw(), Signal::INT.as_raw()].into_iter().chain(reloads));
    let before = signal::block_signals(&signals).or_fail(FailureKind::Other, "cannot block signals")?;
    let listeners = listen(global, args, &tokens)?;
    let token_file = global.token_file.as_deref().map(std::path::absolute).transpose();
    let token_file = token_file.or_fail(FailureKind::Other, "cannot read the working directory")?;
    let config = Config {
        state_root: surroundings::absolute_root(global),
        temporary: surroundings::temporary(),
        program: surroundings::program(),
        environment: std::env::vars_os()
            .filter(|(key, _)| !service_manager::is_own(key) && !surroundings::names_a_server(key))
            .collect(),
        tokens,
        token_file,
        has_terminal,
        templates: args.templates.as_deref().map(templates::read).transpose()?.unwrap_or_default(),
        limits: Limits {
            connections: args.max_connections,
            sandboxes: args.max_sandboxes,
            output: args.output_limit,
            session_idle: args.session_idle,
            ..Limits::default()
        },
        drain: args.drain,
    };
    let format = match args.log_format {
        Format::Text => LogFormat::Text,
        Format::Json => LogFormat::Json,
    };
    penfold_server::log_to_standard_error(format, global.quiet);
    penfold_server::serve(config, dialects(&args.api), listeners, &mut |event| match event {
        ServeEvent::Started => drop(signal::set_mask(&before)),
        ServeEvent::Ready => service_manager::notify_ready(),
        ServeEvent::Ending => service_manager::notify_stopping(),
    })?;
    Ok(exit_codes::SUCCESS)
}

/// Returns the dialects that the server knows. The last one owns each path that is not another's: Cloudflare's, or that of this machine.
fn dialects(served: &[Api]) -> Vec<Dialect> {
    let rest = if served.contains(&Api::Envd) {
        (Api::Envd, penfold_api_e2b::ENVD)
    } else {
        (Api::Cloudflare, penfold_api_cloudflare::DIALECT)
    };
    let known = [
        (Api::E2b, penfold_api_e2b::GUEST),
        (Api::E2b, penfold_api_e2b::CONTROL),
        (Api::Native, penfold_api_native::DIALECT),
        rest,
    ];
    known.map(|(api, dialect)| Dialect { is_served: served.contains(&api), ..dialect }).into()
}

fn read_tokens(path: &Path) -> Result<Tokens, Failure> {
    let sentence = format!("cannot read the tokens in `{}`", path.display());
    Tokens::read(path).map_err(|error| {
        let kind = match &error {
            ReadTokensError::Read(error) => FailureKind::from(error),
            ReadTokensError::Invalid(_) => FailureKind::Usage,
        };
        Failure::new(kind, sentence).because(error)
    })
}

/// Listens on what was asked for.
fn listen(global: &Global, args: &ServeArgs, tokens: &Tokens) -> Result<Vec<Listener>, Failure> {
    let access = Access { tokens, insecure_no_token: args.insecure_no_token };
    let mut addresses = args.listen.clone();
    if addresses.is_empty() {
        let inherited = service_manager::sockets()
            .or_fail(FailureKind::Other, "cannot take over the sockets of the service manager")?;
        if !inherited.is_empty() {
            return inherited.into_iter().map(|socket| Ok(Listener::inherit(socket, access)?)).collect();
        }
        addresses.push(if args.api.contains(&Api::Native) {
            Address::Unix(surroundings::socket(global))
        } else {
            let port = if args.api.contains(&Api::Envd) { ENVD_PORT } else { PORT };
            Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        });
    }
    addresses.iter().map(|address| Ok(Listener::open(address, access)?)).collect()
}
