//! The E2B API: sandboxes, commands and files, as its SDKs ask for them.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::Connection;
use super::{REST, Server, TREE, await_texts, mebi, penfold_shells};
use crate::error::Error;
use crate::samples::{Samples, millis};
use crate::table::{Table, verdict};
use crate::tools::{Tools, running};
use crate::{Args, footprint, talk, wait};

/// The size of the file that is sent, in MiB.
const MEBIBYTES: u64 = 100;
/// The words with which the SDKs run a command.
const SHELL: [&str; 2] = ["-l", "-c"];

/// The measurements.
#[derive(Default)]
pub(super) struct Figures {
    create: Samples,
    delete: Samples,
    plain: Samples,
    run: Samples,
    start: Samples,
    kill: Samples,
    pipe: Duration,
    upload: Duration,
    download: Duration,
    private: u64,
}

pub(super) fn report(figures: &Figures) -> String {
    let row =
        |what: &str, samples: &Samples| [what.to_owned(), samples.cell(), millis(samples.percentile(99))];
    let mut table = Table::new(["what", "p50 (p90) ms", "p99 ms"]);
    table.row(row("create a sandbox, a jail", &figures.create));
    table.row(row("end a sandbox", &figures.delete));
    table.row(row("`bash -l -c true`, without a server", &figures.plain));
    table.row(row("`commands.run(\"true\")`, which is `bash -l -c true`", &figures.run));
    table.row(row("start of a background command", &figures.start));
    table.row(row("kill of a 3-level tree with 10 leaves", &figures.kill));
    let mut text =
        format!("\n### The E2B API\n\n`penfold serve --api e2b`, as its SDKs ask.\n\n{}\n", table.markdown());
    let ms = |time: Duration| Some(time.as_secs_f64() * 1000.0);
    let beside_plain = figures.run.p50().saturating_sub(figures.plain.p50());
    text.push_str(&verdict("`commands.run(\"true\")` above plain, p50", " ms", 4.0, ms(beside_plain)));
    text.push_str(&verdict("start of a background command, p50", " ms", 5.0, ms(figures.start.p50())));
    text.push_str(&verdict("kill of the tree, p50", " ms", 8.0, ms(figures.kill.p50())));
    text.push_str(&verdict("create a sandbox, p50", " ms", 20.0, ms(figures.create.p50())));
    let ratio = |time: Duration| Some(time.as_secs_f64() / figures.pipe.as_secs_f64().max(1e-9));
    text.push_str(&verdict(
        "100 MiB up, of the time of `cat` through a pipe",
        "",
        2.0,
        ratio(figures.upload),
    ));
    text.push_str(&verdict("100 MiB down, the same", "", 2.0, ratio(figures.download)));
    text.push_str(&verdict("private memory of an idle sandbox", " MiB", 1.0, Some(mebi(figures.private))));
    text
}

pub(super) fn measure(args: &Args, tools: &Tools) -> Result<Figures, Error> {
    let server = Server::start(tools, "e2b", &[])?;
    let mut figures = Figures::default();
    let mut caller = Connection::open(server.address)?;
    talk("server: sandboxes of the E2B API");
    for _ in 0..args.rounds(40) {
        let begun = Instant::now();
        let guest = Guest::create(&mut caller)?;
        figures.create.push(begun.elapsed());
        let begun = Instant::now();
        guest.end(&mut caller)?;
        figures.delete.push(begun.elapsed());
    }
    figures.private = idle(args, tools, &mut caller)?;
    let guest = Guest::create(&mut caller)?;
    talk("server: commands of the E2B API");
    commands(args, &guest, &mut caller, &mut figures)?;
    trees(args, &server, &guest, &mut caller, &mut figures)?;
    talk("server: files of the E2B API");
    files(args, &server, &guest, &mut figures)?;
    guest.end(&mut caller)?;
    Ok(figures)
}

/// A sandbox, as clients reach it.
struct Guest {
    id: String,
    headers: String,
}

impl Guest {
    fn create(caller: &mut Connection) -> Result<Guest, Error> {
        let made = caller.call("POST", "/v2/sandboxes", &json!({ "templateID": "base", "timeout": 170 }))?;
        let text = |name: &str| made.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (id, token) = (text("sandboxID"), text("envdAccessToken"));
        let headers = format!("e2b-sandbox-id: {id}\r\nx-access-token: {token}\r\n");
        Ok(Guest { id, headers })
    }

    fn end(&self, caller: &mut Connection) -> Result<(), Error> {
        caller.call("DELETE", &format!("/sandboxes/{}", self.id), &Value::Null).map(drop)
    }

    fn stream_headers(&self) -> String {
        format!("content-type: application/connect+json\r\n{}", self.headers)
    }
}

/// A message that starts a command, as a frame.
fn start_message(script: &str) -> Vec<u8> {
    let words: Vec<&str> = SHELL.into_iter().chain([script]).collect();
    let text = json!({ "process": { "cmd": "/bin/bash", "args": words }, "stdin": false }).to_string();
    let length = u32::try_from(text.len()).unwrap_or(0);
    [&[0][..], &length.to_be_bytes(), text.as_bytes()].concat()
}

const START: &str = "POST /process.Process/Start";

/// Times `true` as a command of a sandbox, and without a server, in turn.
fn commands(args: &Args, guest: &Guest, caller: &mut Connection, figures: &mut Figures) -> Result<(), Error> {
    for round in 0..args.rounds(200) + 5 {
        let begun = Instant::now();
        let mut plain = Command::new("/bin/bash");
        plain.args(SHELL).arg("true").env_clear().env("HOME", "/nonexistent").stderr(Stdio::null());
        plain.status().map_err(|source| Error::io("cannot run bash", source))?;
        let plain = begun.elapsed();
        let begun = Instant::now();
        let said = caller.exchange(START, &guest.stream_headers(), &start_message("true"))?;
        let served = begun.elapsed();
        if !String::from_utf8_lossy(&said).contains("\"exitCode\":0") {
            return Err(Error::odd(format!("`true` was answered with {}", String::from_utf8_lossy(&said))));
        }
        // The first ones warm up.
        if round >= 5 {
            figures.plain.push(plain);
            figures.run.push(served);
        }
    }
    Ok(())
}

/// Times the start of a command that goes on, and the kill of a tree.
fn trees(
    args: &Args,
    server: &Server,
    guest: &Guest,
    caller: &mut Connection,
    figures: &mut Figures,
) -> Result<(), Error> {
    for _ in 0..args.rounds(40) {
        let mut stream = Connection::open(server.address)?;
        let begun = Instant::now();
        stream.open_stream(START, &guest.stream_headers(), &start_message(TREE))?;
        let first = stream.next_part()?.unwrap_or_default();
        figures.start.push(begun.elapsed());
        let pid: String = first
            .split("\"pid\":")
            .nth(1)
            .unwrap_or_default()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        // `up1..` and `up2..`, each with its end of line, as base64.
        await_texts(&mut stream, &["dXAxLi4K", "dXAyLi4K"])?;
        let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" }).to_string();
        let headers = format!("content-type: application/json\r\n{}", guest.headers);
        let begun = Instant::now();
        caller.exchange("POST /process.Process/SendSignal", &headers, kill.as_bytes())?;
        figures.kill.push(begun.elapsed());
    }
    Ok(())
}

/// Times a large file up and down, and the same bytes through a pipe into a file.
fn files(args: &Args, server: &Server, guest: &Guest, figures: &mut Figures) -> Result<(), Error> {
    let size = usize::try_from(if args.quick { 1 } else { MEBIBYTES } << 20).unwrap_or(0);
    let bytes = vec![7; size];
    let failed = |source| Error::io("cannot run cat", source);
    let target = std::env::temp_dir().join(format!("penfold-bench-pipe-{}", std::process::id()));
    let begun = Instant::now();
    let file = std::fs::File::create(&target).map_err(Error::at("make", &target))?;
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(file).spawn().map_err(failed)?;
    let written = cat.stdin.take().map_or(Ok(()), |mut input| input.write_all(&bytes));
    cat.wait().and(written).map_err(failed)?;
    figures.pipe = begun.elapsed();
    let _ = std::fs::remove_file(&target);
    let headers = format!("content-type: application/octet-stream\r\n{}", guest.headers);
    // The server closes a connection after a large body.
    let mut caller = Connection::open(server.address)?;
    let begun = Instant::now();
    caller.exchange("POST /files?path=large", &headers, &bytes)?;
    figures.upload = begun.elapsed();
    let mut caller = Connection::open(server.address)?;
    let begun = Instant::now();
    let read = caller.exchange("GET /files?path=large", &guest.headers, b"")?;
    figures.download = begun.elapsed();
    let is_same = read.len() == size && read.bytes().next().is_some();
    if is_same { Ok(()) } else { Err(Error::odd("the file came back as another one".to_owned())) }
}

/// Returns the private memory of an idle sandbox in KiB: penfold's processes, bubblewrap, and the command that sleeps.
fn idle(args: &Args, tools: &Tools, caller: &mut Connection) -> Result<u64, Error> {
    let count = if args.quick { 2 } else { 10 };
    let mut proc =
        penfold_process::ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    let empty = footprint::print(&running(&mut proc, &tools.penfold)?, Duration::from_millis(100))?;
    let guests = (0..count).map(|_| Guest::create(caller)).collect::<Result<Vec<_>, _>>()?;
    wait::pass(REST);
    let pids = running(&mut proc, &tools.penfold)?;
    let below = penfold_shells(&mut proc, &pids)?;
    let jails = penfold_shells(&mut proc, &below)?;
    let asleep = penfold_shells(&mut proc, &jails)?;
    let all: Vec<_> = pids.into_iter().chain(below).chain(jails).chain(asleep).collect();
    let print = footprint::print(&all, Duration::from_millis(100))?;
    for guest in guests {
        guest.end(caller)?;
    }
    Ok(print.anonymous.saturating_sub(empty.anonymous) / count)
}
