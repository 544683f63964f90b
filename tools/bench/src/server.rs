//! `penfold serve`: latency, throughput and memory of its API for sandboxes, beside a bare bash over a pipe.

mod connections;
mod e2b;
mod followers;
mod http;
mod terminals;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, pid_from_raw};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::document::Section;
use crate::error::Error;
use crate::samples::{Samples, millis};
use crate::table::{Table, verdict};
use crate::tools::{Tools, running};
use crate::{Args, footprint, talk, wait};
use http::Connection;

/// The pause until background work of the server is done.
const REST: Duration = Duration::from_secs(1);
/// The connections, each with a session of its own, for the throughput.
const CALLERS: u32 = 8;
/// A sleeping process ends by itself after this time.
const SLEEP: &str = "sleep 170";
/// Three levels with ten leaves; each half says so once it runs, in six bytes: as base64 they are the same in one piece or two.
const TREE: &str =
    "for a in 1 2; do (for b in 1 2 3 4 5; do sleep 170 & done; echo \"up$a..\"; wait) & done; wait";

/// The measurements of a server.
#[derive(Default)]
struct Figures {
    pipe: Samples,
    execute: Samples,
    start: Samples,
    kill: Samples,
    create: Samples,
    delete: Samples,
    line: Samples,
    event: Samples,
    line_to_all: Samples,
    followers_anonymous: u64,
    follower_descriptors: f64,
    key: Samples,
    kill_beside: Samples,
    terminals_rss: u64,
    connection_anonymous: u64,
    list_beside_connections: Samples,
    kill_beside_connections: Samples,
    kill_all: Duration,
    commands: u32,
    taken: Duration,
    idle_rss: u64,
    session_private: u64,
    e2b: e2b::Figures,
}

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let figures = figures(args, tools)?;
    let row =
        |what: &str, samples: &Samples| [what.to_owned(), samples.cell(), millis(samples.percentile(99))];
    let mut table = Table::new(["what", "p50 (p90) ms", "p99 ms"]);
    table.row(row("`true` in a bash over a pipe, without a server", &figures.pipe));
    table.row(row("`execute true` in a session", &figures.execute));
    table.row(row("start of a background process", &figures.start));
    table.row(row("kill of a 3-level tree with 10 leaves", &figures.kill));
    table.row(row("create a session", &figures.create));
    table.row(row("delete a session", &figures.delete));
    table.row(row("a line of output reaches a follower", &figures.line));
    table.row(row("one event to 100 followers", &figures.event));
    table.row(row("one line to 1,000 followers of one log", &figures.line_to_all));
    table.row(row("a key is shown, beside 20 terminals with `yes`", &figures.key));
    table.row(row("kill of an exec beside them", &figures.kill_beside));
    table.row(row("a list beside 10,000 open connections", &figures.list_beside_connections));
    table.row(row("kill of a sandbox beside them", &figures.kill_beside_connections));
    let mut body = format!(
        "`penfold serve --api cloudflare` on a loopback port; a connection stays open between requests. Many followers: `--api \
         native`, from the write of the event or the line until the last of them has read it. \
        Terminals: over WebSockets; nobody reads those with `yes`.\n\n{}\n",
        table.markdown()
    );
    let ms = |time: Duration| Some(time.as_secs_f64() * 1000.0);
    let rate = f64::from(figures.commands) / figures.taken.as_secs_f64().max(1e-9);
    body.push_str(&verdict("`execute true`, p50", " ms", 3.0, ms(figures.execute.p50())));
    body.push_str(&verdict("`execute true`, p99", " ms", 10.0, ms(figures.execute.percentile(99))));
    body.push_str(&verdict("start of a background process", " ms", 4.0, ms(figures.start.p50())));
    body.push_str(&verdict("kill of the tree", " ms", 8.0, ms(figures.kill.p50())));
    body.push_str(&verdict("create a session", " ms", 8.0, ms(figures.create.p50())));
    body.push_str(&verdict("delete a session", " ms", 6.0, ms(figures.delete.p50())));
    body.push_str(&verdict("kill-all of 100 sleeping processes", " ms", 60.0, ms(figures.kill_all)));
    body.push_str(&verdict("a line reaches a follower", " ms", 5.0, ms(figures.line.p50())));
    body.push_str(&verdict("time of 1,000 commands over 8 connections", " s", 1.0, Some(1000.0 / rate)));
    body.push_str(&verdict("resident memory of the idle server", " MiB", 12.0, Some(mebi(figures.idle_rss))));
    let private = Some(mebi(figures.session_private));
    body.push_str(&verdict("private memory of an idle session", " MiB", 1.0, private));
    body.push_str(&verdict("one event to 100 followers, p99", " ms", 10.0, ms(figures.event.percentile(99))));
    let anonymous = Some(mebi(figures.followers_anonymous));
    body.push_str(&verdict("1,000 followers of one log, memory", " MiB", 50.0, anonymous));
    let each = Some(figures.follower_descriptors);
    body.push_str(&verdict("1,000 followers of one log, descriptors for each", "", 1.05, each));
    body.push_str(&verdict("a key beside 20 terminals with `yes`, p50", " ms", 20.0, ms(figures.key.p50())));
    body.push_str(&verdict("a kill beside them, p50", " ms", 50.0, ms(figures.kill_beside.p50())));
    let terminals = Some(mebi(figures.terminals_rss));
    body.push_str(&verdict("20 terminals that are not read, memory", " MiB", 50.0, terminals));
    let kill = ms(figures.kill_beside_connections.p50());
    body.push_str(&verdict("a kill beside 10,000 open connections, p50", " ms", 50.0, kill));
    let connections = Some(mebi(figures.connection_anonymous));
    body.push_str(&verdict("10,000 open connections, memory", " MiB", 200.0, connections));
    body.push_str(&e2b::report(&figures.e2b));
    Ok(Section { name: "server", title: "HTTP server", body, ..Section::default() })
}

fn mebi(kib: u64) -> f64 {
    f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0
}

fn figures(args: &Args, tools: &Tools) -> Result<Figures, Error> {
    let server = Server::start(tools, "cloudflare", &[])?;
    let mut figures = Figures { idle_rss: server.resident()?, ..Figures::default() };
    let mut caller = Connection::open(server.address)?;
    talk("server: sessions");
    for round in 0..args.rounds(40) {
        let id = json!(format!("s{round}"));
        let begun = Instant::now();
        caller.call("POST", "/api/session/create", &json!({ "id": id }))?;
        figures.create.push(begun.elapsed());
        let begun = Instant::now();
        caller.call("POST", "/api/session/delete", &json!({ "sessionId": id }))?;
        figures.delete.push(begun.elapsed());
    }
    figures.session_private = idle_sessions(args, tools, &mut caller)?;
    talk("server: execute");
    execute(args, &mut caller, &mut figures)?;
    talk("server: processes");
    processes(args, &server, &mut caller, &mut figures)?;
    talk("server: throughput");
    throughput(args, &server, &mut figures)?;
    drop((caller, server));
    let server = followers::start(tools)?;
    followers::measure(args, &server, &mut figures)?;
    terminals::measure(args, &server, &mut figures)?;
    connections::measure(args, &server, &mut figures)?;
    drop(server);
    figures.e2b = e2b::measure(args, tools)?;
    Ok(figures)
}

/// Returns the private memory of an idle session in KiB.
fn idle_sessions(args: &Args, tools: &Tools, caller: &mut Connection) -> Result<u64, Error> {
    let count = if args.quick { 2 } else { 10 };
    talk(&format!("server: {count} idle sessions"));
    for number in 0..count {
        caller.call("POST", "/api/session/create", &json!({ "id": format!("idle{number}") }))?;
    }
    wait::pass(REST);
    let mut proc = ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    let pids = running(&mut proc, &tools.penfold)?;
    let bash = penfold_shells(&mut proc, &pids)?;
    let pids: Vec<Pid> = pids.into_iter().chain(bash).collect();
    let print = footprint::print(&pids, Duration::from_millis(100))?;
    for number in 0..count {
        caller.call("POST", "/api/session/delete", &json!({ "sessionId": format!("idle{number}") }))?;
    }
    let empty = footprint::print(&running(&mut proc, &tools.penfold)?, Duration::from_millis(100))?;
    Ok(print.anonymous.saturating_sub(empty.anonymous) / count)
}

/// Returns the children of these processes that run another program.
fn penfold_shells(proc: &mut ProcFs, pids: &[Pid]) -> Result<Vec<Pid>, Error> {
    let mut shells = Vec::new();
    let mut children = Vec::new();
    for pid in pids {
        proc.children(*pid, &mut children).map_err(|source| Error::io("cannot read `/proc`", source))?;
        shells.extend(children.drain(..).filter(|child| !pids.contains(child)));
    }
    Ok(shells)
}

/// Times `true` in a session, and in a bash over a pipe, in turn.
fn execute(args: &Args, caller: &mut Connection, figures: &mut Figures) -> Result<(), Error> {
    let mut shell = PipedShell::start()?;
    caller.call("POST", "/api/session/create", &json!({ "id": "execute" }))?;
    let request = json!({ "command": "true", "sessionId": "execute" });
    for round in 0..args.rounds(400) + 5 {
        let begun = Instant::now();
        shell.run("true")?;
        let piped = begun.elapsed();
        let begun = Instant::now();
        let answer = caller.call("POST", "/api/execute", &request)?;
        let served = begun.elapsed();
        if answer.get("exitCode") != Some(&json!(0)) {
            return Err(Error::odd(format!("`true` was answered with {answer}")));
        }
        // The first ones warm up.
        if round >= 5 {
            figures.pipe.push(piped);
            figures.execute.push(served);
        }
    }
    caller.call("POST", "/api/session/delete", &json!({ "sessionId": "execute" }))?;
    Ok(())
}

fn processes(
    args: &Args,
    server: &Server,
    caller: &mut Connection,
    figures: &mut Figures,
) -> Result<(), Error> {
    caller.call("POST", "/api/session/create", &json!({ "id": "processes" }))?;
    let start = |caller: &mut Connection, id: &str, command: &str| {
        let body = json!({ "command": command, "sessionId": "processes", "processId": id });
        caller.call("POST", "/api/process/start", &body)
    };
    for round in 0..args.rounds(40) {
        let id = format!("tree{round}");
        let begun = Instant::now();
        start(caller, &id, TREE)?;
        figures.start.push(begun.elapsed());
        let mut follower = Connection::open(server.address)?;
        follower.follow(&format!("/api/process/{id}/stream"))?;
        await_texts(&mut follower, &["up1..", "up2.."])?;
        let begun = Instant::now();
        caller.call("DELETE", &format!("/api/process/{id}"), &Value::Null)?;
        figures.kill.push(begun.elapsed());
    }
    lines(args, server, caller, figures, start)?;
    let many = if args.quick { 5 } else { 100 };
    for number in 0..many {
        start(caller, &format!("sleep{number}"), SLEEP)?;
    }
    let begun = Instant::now();
    let answer = caller.call("DELETE", "/api/process/kill-all", &Value::Null)?;
    figures.kill_all = begun.elapsed();
    if answer.get("cleanedCount") != Some(&json!(many)) {
        return Err(Error::odd(format!("kill-all of {many} processes was answered with {answer}")));
    }
    caller.call("POST", "/api/session/delete", &json!({ "sessionId": "processes" }))?;
    Ok(())
}

/// Times the way of a line from a process to a follower. The process writes when a byte comes through a FIFO.
fn lines(
    args: &Args,
    server: &Server,
    caller: &mut Connection,
    figures: &mut Figures,
    start: impl Fn(&mut Connection, &str, &str) -> Result<Value, Error>,
) -> Result<(), Error> {
    let fifo = server.root.join("line-fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).map_err(Error::at("make", &fifo))?;
    let command =
        format!("exec 3<>'{}'; echo up.; while read -r word <&3; do echo \"$word\"; done", fifo.display());
    start(caller, "lines", &command)?;
    let mut follower = Connection::open(server.address)?;
    follower.follow("/api/process/lines/stream")?;
    await_texts(&mut follower, &["up."])?;
    let mut pipe = std::fs::OpenOptions::new().write(true).open(&fifo).map_err(Error::at("open", &fifo))?;
    for round in 0..args.rounds(100) {
        let begun = Instant::now();
        pipe.write_all(format!("line{round}.\n").as_bytes()).map_err(Error::at("write", &fifo))?;
        await_texts(&mut follower, &[&format!("line{round}.")])?;
        figures.line.push(begun.elapsed());
    }
    caller.call("DELETE", "/api/process/lines", &Value::Null)?;
    let _ = std::fs::remove_file(&fifo);
    Ok(())
}

/// Reads a stream until each of the texts has come.
fn await_texts(follower: &mut Connection, texts: &[&str]) -> Result<(), Error> {
    let mut left = texts.to_vec();
    while !left.is_empty() {
        let part = follower.next_part()?;
        let part = part.ok_or_else(|| Error::odd(format!("a stream ended before {left:?}")))?;
        left.retain(|text| !part.contains(text));
    }
    Ok(())
}

/// Counts the commands that some callers have done in parallel, each in a session of its own.
fn throughput(args: &Args, server: &Server, figures: &mut Figures) -> Result<(), Error> {
    let each = args.rounds(250);
    let address = server.address;
    let mut callers = Vec::new();
    for number in 0..CALLERS {
        let mut caller = Connection::open(address)?;
        caller.call("POST", "/api/session/create", &json!({ "id": format!("caller{number}") }))?;
        callers.push((number, caller));
    }
    let begun = Instant::now();
    let threads: Vec<_> = callers
        .into_iter()
        .map(|(number, mut caller)| {
            std::thread::spawn(move || {
                let request = json!({ "command": "true", "sessionId": format!("caller{number}") });
                (0..each).try_for_each(|_| caller.call("POST", "/api/execute", &request).map(drop))?;
                Ok::<_, Error>((number, caller))
            })
        })
        .collect();
    let mut done = Vec::new();
    for thread in threads {
        done.push(thread.join().map_err(|_| Error::odd("a caller failed".to_owned()))??);
    }
    (figures.taken, figures.commands) = (begun.elapsed(), each * CALLERS);
    for (number, mut caller) in done {
        caller.call("POST", "/api/session/delete", &json!({ "sessionId": format!("caller{number}") }))?;
    }
    Ok(())
}

/// A server with a state root of its own.
struct Server {
    child: Child,
    address: SocketAddr,
    root: PathBuf,
}

impl Server {
    /// Starts one that speaks one dialect.
    fn start(tools: &Tools, api: &str, more: &[&str]) -> Result<Server, Error> {
        let root = tools.volatile().join(format!("server-{api}"));
        std::fs::create_dir(&root).map_err(Error::at("create", &root))?;
        let words = ["serve", "--api", api, "--listen", "127.0.0.1:0", "--insecure-no-token"];
        let mut command = Command::new(&tools.penfold);
        command.arg("--root").arg(&root).args(words).args(more).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::at("execute", &tools.penfold))?;
        let stderr = child.stderr.take().ok_or_else(|| Error::odd("the server has no stderr".to_owned()))?;
        let mut lines = BufReader::new(stderr).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.split("address=").nth(1)?.split_whitespace().next()?.parse().ok());
        // The rest of the log goes nowhere, but the pipe must not fill up.
        std::thread::spawn(move || lines.map_while(Result::ok).count());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::odd("the server does not say its address".to_owned()));
        };
        let server = Server { child, address, root };
        // A request first, so that all of it has run once.
        let path = match api {
            "native" => "/v1/sandboxes",
            "e2b" => "/v2/sandboxes",
            _ => "/api/ping",
        };
        Connection::open(address)?.call("GET", path, &Value::Null)?;
        wait::pass(REST);
        Ok(server)
    }

    /// Returns the resident memory in KiB.
    fn resident(&self) -> Result<u64, Error> {
        let path = PathBuf::from(format!("/proc/{}/status", self.child.id()));
        let text = std::fs::read_to_string(&path).map_err(Error::at("read", &path))?;
        let rss = text
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        rss.ok_or_else(|| Error::odd("the kernel does not show the memory of the server".to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(pid_from_raw);
        // An unreaped child keeps its pid.
        if let Some(Ok(pidfd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            let _ = pidfd_send_signal(&pidfd, Signal::TERM);
        }
        let _ = wait::exit(&mut self.child, "penfold serve");
    }
}

/// The floor: a bash that reads commands from a pipe.
struct PipedShell {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl PipedShell {
    fn start() -> Result<PipedShell, Error> {
        let mut command = Command::new("bash");
        command.args(["--norc", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|source| Error::io("cannot execute `bash`", source))?;
        let out = child.stdout.take().ok_or_else(|| Error::odd("bash has no stdout".to_owned()))?;
        Ok(PipedShell { child, answers: BufReader::new(out) })
    }

    fn run(&mut self, command: &str) -> Result<(), Error> {
        let failed = |source| Error::io("cannot talk to bash", source);
        if let Some(input) = &mut self.child.stdin {
            input.write_all(format!("{command}\necho $?\n").as_bytes()).map_err(failed)?;
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(failed)?;
        Ok(())
    }
}

impl Drop for PipedShell {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
