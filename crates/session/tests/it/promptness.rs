//! How soon a command ends.

use std::time::{Duration, Instant};

use penfold_session::ShellCommand;

use crate::support::{Session, sh};

#[test]
fn short_command_takes_little_time() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "true");
    let mut times: Vec<Duration> = (0..300)
        .map(|_| {
            let began = Instant::now();
            let number = client.run(&ShellCommand::new("true")).unwrap();
            client.wait_end(number, None).unwrap();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    let (half, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("p50 {half:?}, p99 {most:?}");
    assert!(half < Duration::from_millis(10), "p50 {half:?}, p99 {most:?}");
}
