//! Times a scan of the whole host: `stat` alone, and with a search for a marker in every environment.

use std::time::{Duration, Instant};

use penfold_process::{EnvironmentMatch, ProcFs};

#[expect(clippy::print_stdout, reason = "its numbers are all it is for")]
fn main() -> std::io::Result<()> {
    let mut proc = ProcFs::open()?;
    let mut pids = Vec::new();
    let mut stat_only = Vec::new();
    let mut with_environ = Vec::new();
    let mut found = 0;
    for _ in 0..21 {
        let start = Instant::now();
        let mut count = 0_u32;
        let _ = proc.scan(|_| count += 1)?;
        stat_only.push(start.elapsed());

        let start = Instant::now();
        proc.processes(&mut pids)?;
        for &pid in &pids {
            if proc.stat(pid)?.is_some()
                && proc.environ_has(pid, b"PENFOLD_NO_SUCH_MARK", |_| true) == EnvironmentMatch::Yes
            {
                found += 1;
            }
        }
        with_environ.push(start.elapsed());
    }
    let (stat_only, with_environ) = (median(stat_only), median(with_environ));
    println!("{} processes, {found} marked", pids.len());
    println!("stat {stat_only:?}, stat and environ {with_environ:?}");
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
