//! Many followers of `penfold serve`: the way of one event to all of them, and what they cost the server.

use std::io::Write;
use std::time::{Duration, Instant};

use penfold_process::{Pid, pid_from_raw};
use penfold_state::events::{Event, EventKind, EventSubject, append_events};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::http::Connection;
use super::{Figures, REST, Server};
use crate::error::Error;
use crate::tools::Tools;
use crate::{Args, footprint, talk, wait};

/// The followers of the events.
pub(super) const OF_EVENTS: u32 = 100;
/// The followers of one log.
pub(super) const OF_LOG: u32 = 1000;
/// The followers of either in a quick run.
const FEW: u32 = 10;
/// The name of the sandbox.
const NAME: &str = "followed";

/// Starts a server that has room for all of them.
pub(super) fn start(tools: &Tools) -> Result<Server, Error> {
    // Each follower takes a descriptor here, and one in the server.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .map_err(|errno| Error::io("cannot raise the limit of descriptors", errno.into()))?;
    Server::start(tools, "native", &["--max-connections", "12000"])
}

pub(super) fn measure(args: &Args, server: &Server, figures: &mut Figures) -> Result<(), Error> {
    talk("server: followers of the events");
    events(args, server, figures)?;
    wait::pass(REST);
    talk("server: followers of one log");
    log(args, server, figures)
}

/// Times the way of an event from its write in the state root until the last follower has read it.
fn events(args: &Args, server: &Server, figures: &mut Figures) -> Result<(), Error> {
    let mut followers = Vec::new();
    for _ in 0..if args.quick { FEW } else { OF_EVENTS } {
        let mut follower = Connection::open(server.address)?;
        follower.follow("/v1/events")?;
        followers.push(follower);
    }
    let rounds = args.rounds(100);
    for round in 0..rounds + 5 {
        let what = EventKind::Exec { number: round, command: vec!["true".to_owned()] };
        let about = EventSubject { id: "0123456789ab".to_owned(), ..EventSubject::default() };
        let event = Event { schema: 1, time_ns: u64::from(round), about, what };
        let begun = Instant::now();
        append_events(&server.root, &[event]).map_err(|source| Error::io("cannot write an event", source))?;
        for follower in &mut followers {
            super::await_texts(follower, &[&format!("\"number\":{round},")])?;
        }
        // The first ones warm up.
        if round >= 5 {
            figures.event.push(begun.elapsed());
        }
    }
    Ok(())
}

/// Measures what the followers of one log cost the server, and times the way of a line to all of them.
fn log(args: &Args, server: &Server, figures: &mut Figures) -> Result<(), Error> {
    let fifo = server.root.join("line-fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).map_err(Error::at("make", &fifo))?;
    let text =
        format!("exec 3<>'{}'; echo up.; while read -r word <&3; do echo \"$word\"; done", fifo.display());
    let mut caller = Connection::open(server.address)?;
    let body = json!({ "command": ["sh", "-c", text], "name": NAME, "lease_ms": 170_000 });
    caller.call("POST", "/v1/sandboxes", &body)?;
    let mut pipe = std::fs::OpenOptions::new().write(true).open(&fifo).map_err(Error::at("open", &fifo))?;
    let (before, descriptors_before) = (anonymous(server)?, descriptors(server)?);
    let number = if args.quick { FEW } else { OF_LOG };
    let mut followers = Vec::new();
    for _ in 0..number {
        let mut follower = Connection::open(server.address)?;
        follower.follow(&format!("/v1/sandboxes/{NAME}/logs?follow=true"))?;
        super::await_texts(&mut follower, &["up."])?;
        followers.push(follower);
    }
    let mut most = anonymous(server)?;
    for round in 0..args.rounds(20) {
        let begun = Instant::now();
        pipe.write_all(format!("line{round}.\n").as_bytes()).map_err(Error::at("write", &fifo))?;
        for follower in &mut followers {
            super::await_texts(follower, &[&format!("line{round}.")])?;
        }
        figures.line_to_all.push(begun.elapsed());
        most = most.max(anonymous(server)?);
    }
    figures.followers_anonymous = most.saturating_sub(before);
    figures.follower_descriptors =
        f64::from(descriptors(server)?.saturating_sub(descriptors_before)) / f64::from(number);
    caller.call("DELETE", &format!("/v1/sandboxes/{NAME}"), &serde_json::Value::Null)?;
    let _ = std::fs::remove_file(&fifo);
    Ok(())
}

/// Returns the anonymous memory of the server in KiB.
pub(super) fn anonymous(server: &Server) -> Result<u64, Error> {
    let pid: Option<Pid> = i32::try_from(server.child.id()).ok().and_then(pid_from_raw);
    Ok(footprint::print(pid.as_slice(), Duration::ZERO)?.anonymous)
}

/// Returns the number of descriptors of the server.
fn descriptors(server: &Server) -> Result<u32, Error> {
    let path = std::path::PathBuf::from(format!("/proc/{}/fd", server.child.id()));
    let open = std::fs::read_dir(&path).map_err(Error::at("read", &path))?;
    Ok(u32::try_from(open.count()).unwrap_or(u32::MAX))
}
