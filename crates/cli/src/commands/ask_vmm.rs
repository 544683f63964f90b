//! `penfold ask-vmm`: asks a virtual machine monitor to end its guest. penfold starts it as a stop command; users do not.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use penfold_client::{Client, Method, ServerAddress};
use penfold_launch::stop_channel::ASK_VMM;
use rustix::fs::{FileType, Mode, OFlags};
use serde_json::{Value, json};

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};

/// The verb `ask-vmm`.
pub(crate) const VERB: Verb = Verb {
    name: ASK_VMM,
    aliases: &[],
    about: "Ask a virtual machine monitor to end its guest",
    description: "Sends one request to the API socket of a virtual machine monitor, for `penfold run --profile vmm`.",
    examples: &[
        (
            "penfold ask-vmm --qmp=/run/vm/qmp --execute=system_powerdown",
            "press the power button of a guest of qemu",
        ),
        ("penfold ask-vmm --http=/run/vm/api --request='PUT /actions' --body='{}'", "send a request of HTTP"),
    ],
    usage_failure: FailureKind::Usage,
    define: AskVmmArgs::augment_args,
    places: Places::Here,
    call: |_: &Global, matches| ask(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct AskVmmArgs {
    /// Socket of the QEMU machine protocol.
    #[arg(long, value_name = "SOCKET", required_unless_present = "http", conflicts_with = "http")]
    qmp: Option<PathBuf>,
    /// Command of the QEMU machine protocol.
    #[arg(long, value_name = "COMMAND", default_value = "system_powerdown")]
    execute: String,
    /// Socket of an API over HTTP.
    #[arg(long, value_name = "SOCKET", requires = "request")]
    http: Option<PathBuf>,
    /// Method and path of the request.
    #[arg(long, value_name = "METHOD PATH")]
    request: Option<String>,
    /// Body of the request.
    #[arg(long, value_name = "JSON", default_value = "")]
    body: String,
}

/// The time that one answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// The most bytes that are read of a monitor.
const LONGEST: u64 = 1 << 20;

fn ask(args: &AskVmmArgs) -> Result<u8, Failure> {
    if let Some(socket) = &args.qmp {
        let failed = format!("cannot send `{}` to `{}`", args.execute, socket.display());
        ask_qmp(socket, &args.execute).or_fail(FailureKind::Other, &failed)?;
    } else if let (Some(socket), Some(request)) = (&args.http, &args.request) {
        let failed = format!("cannot send `{request}` to `{}`", socket.display());
        ask_http(socket, request, &args.body).or_fail(FailureKind::Other, &failed)?;
    }
    Ok(exit_codes::SUCCESS)
}

/// Opens a socket that is no symbolic link: the command owns the directory, and could lead the request elsewhere.
fn open(socket: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(socket, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) != FileType::Socket {
        return Err(std::io::Error::other("it is no socket"));
    }
    Ok(opened)
}

fn place(opened: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", opened.as_raw_fd()).into()
}

/// Sends a command of the QEMU machine protocol: greeting, `qmp_capabilities`, the command.
fn ask_qmp(socket: &Path, execute: &str) -> std::io::Result<()> {
    let opened = open(socket)?;
    let stream = UnixStream::connect(place(&opened))?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let mut writer = &stream;
    let mut lines = BufReader::new((&stream).take(LONGEST)).lines();
    let mut answer = |key: &str| loop {
        let line = lines.next().ok_or_else(|| std::io::Error::other("it has closed the connection"))??;
        let message: Value = serde_json::from_str(&line)?;
        // Events may come at any time.
        if let Some(error) = message.get("error") {
            return Err(std::io::Error::other(format!("it refuses: {error}")));
        }
        if message.get(key).is_some() {
            return Ok(());
        }
    };
    answer("QMP")?;
    for command in ["qmp_capabilities", execute] {
        writer.write_all(format!("{}\n", json!({ "execute": command })).as_bytes())?;
        answer("return")?;
    }
    Ok(())
}

fn ask_http(socket: &Path, request: &str, body: &str) -> Result<(), Box<dyn std::error::Error>> {
    let opened = open(socket)?;
    let (method, path) = request.split_once(' ').ok_or("the request lacks a path")?;
    let client = Client::new(ServerAddress::Unix(place(&opened)), None)?;
    client.order(Method::from_bytes(method.as_bytes())?, path, body.to_owned(), ANSWER)?;
    Ok(())
}
