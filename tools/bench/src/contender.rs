//! Commands that are timed in turns.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::samples::Samples;
use crate::tools::last_words;
use crate::wait;

/// A command that is timed from its spawn to its exit.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    command: Command,
}

/// The result of a contender.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) samples: Samples,
    /// The reason why there are no samples.
    pub(crate) skipped: Option<String>,
}

impl Contender {
    pub(crate) fn new(name: &str, command: Command) -> Contender {
        Contender { name: name.to_owned(), command }
    }

    /// Runs the command once, as a warm-up. An error is the reason why the command cannot run here.
    fn attempt(&mut self) -> Result<(), String> {
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let status = wait::exit(&mut child, &self.name).map_err(|error| error.to_string())?;
        let mut said = Vec::new();
        if let Some(mut pipe) = child.stderr.take().filter(|_| !status.success()) {
            // A process that the command left behind may hold the pipe.
            let mut buffer = [0; 4096];
            while wait::readable(&pipe, std::time::Duration::from_millis(100)) {
                match std::io::Read::read(&mut pipe, &mut buffer) {
                    Ok(length) if length > 0 => said.extend_from_slice(&buffer[..length]),
                    _ => break,
                }
            }
        }
        self.command.stderr(Stdio::null());
        if status.success() { Ok(()) } else { Err(format!("{status}: {}", last_words(&said))) }
    }

    /// Runs the command once more and takes the time.
    fn time(&mut self, samples: &mut Samples) -> Result<(), Error> {
        let begun = Instant::now();
        let mut child = self
            .command
            .spawn()
            .map_err(|source| Error::io(format!("cannot run `{}`", self.name), source))?;
        let status = wait::exit(&mut child, &self.name)?;
        samples.push(begun.elapsed());
        if status.success() {
            return Ok(());
        }
        Err(Error::Failed {
            program: self.name.clone(),
            status,
            said: "it had succeeded the first time".to_owned(),
        })
    }
}

/// Times all contenders in turns; each round begins with another one.
pub(crate) fn race(mut contenders: Vec<Contender>, rounds: u32) -> Result<Vec<Outcome>, Error> {
    let mut outcomes: Vec<Outcome> = contenders
        .iter_mut()
        .map(|contender| Outcome {
            name: contender.name.clone(),
            samples: Samples::default(),
            skipped: contender.attempt().err(),
        })
        .collect();
    let count = contenders.len();
    for _ in 0..rounds {
        for (contender, outcome) in contenders.iter_mut().zip(&mut outcomes) {
            if outcome.skipped.is_none() {
                contender.time(&mut outcome.samples)?;
            }
        }
        // No contender always runs after the same other one, whose cleanup may still go on.
        contenders.rotate_left(1.min(count));
        outcomes.rotate_left(1.min(count));
    }
    if count > 0 {
        let back = usize::try_from(rounds).unwrap_or(0) % count;
        outcomes.rotate_right(back);
    }
    Ok(outcomes)
}

/// Returns the outcome with this name.
pub(crate) fn named<'o>(outcomes: &'o [Outcome], name: &str) -> Option<&'o Outcome> {
    outcomes.iter().find(|outcome| outcome.name == name)
}
