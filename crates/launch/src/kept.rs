//! What a detached sandbox keeps for a restart, and how the next life starts from it.

use std::ffi::OsString;

use penfold_request::{SandboxSpec, StartRequest};
use penfold_state::names::NameClaim;
use penfold_state::{Intent, KeptRequest, Launch, LaunchSource, Life, OwnerExit, Record, Spec};
use rustix::fs::Mode;

use crate::caller::Caller;
use crate::error::LaunchError;
use crate::surroundings::{Variables, is_token};

/// Keeps what a restart needs, if the sandbox can be restarted.
pub(crate) fn keep_request(request: &StartRequest, spec: &mut Spec, variables: &Variables) {
    let Some(detach) = &mut spec.detach else { return };
    if detach.remove || spec.outside.is_some() || spec.on_owner_exit != OwnerExit::Keep {
        return;
    }
    // It consists of texts and numbers.
    let Ok(request) = serde_json::to_vec(request) else { return };
    let directory = std::env::current_dir().unwrap_or_default();
    // A credential of penfold is kept only if the command gets it.
    let is_kept = |key: &OsString| !is_token(key) || spec.environment.iter().any(|(other, _)| other == key);
    let environment = variables.iter().filter(|(key, _)| is_kept(key)).cloned().collect();
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(umask);
    let launch =
        Launch { request: KeptRequest::Request(request), environment, directory, umask: umask.bits() };
    detach.launch = Some(LaunchSource::New(launch.encode()));
}

/// A sandbox that has ended, and is restarted.
pub struct FormerLife {
    /// Its record, whose lock passes to the next life.
    pub record: Record,
    /// Its intent.
    pub intent: Intent,
    /// Its name, if it is held already.
    pub name: Option<NameClaim>,
}

impl FormerLife {
    /// Returns what its launch file asks for, and sets the mask for the modes of new files as at the first start. `of_words` reads the
    /// words of a command line, which earlier versions kept.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn request(
        &self,
        launch: &Launch,
        of_words: impl FnOnce(&[OsString]) -> Option<(SandboxSpec, Caller)>,
    ) -> Result<(SandboxSpec, Caller), LaunchError> {
        rustix::process::umask(Mode::from_bits_truncate(launch.umask));
        let asked = match &launch.request {
            KeptRequest::Request(text) => serde_json::from_slice(text).ok().map(Caller::of),
            KeptRequest::Words(words) => of_words(words),
        };
        let (spec, mut caller) = asked.ok_or_else(|| {
            LaunchError::new(format!("the launch file of sandbox {} is damaged", self.record.name()))
        })?;
        // What the first life has replaced is gone, and its caller may be.
        (caller.replace, caller.owner) = (false, None);
        caller.id = Some(self.intent.id);
        Ok((spec, caller))
    }

    /// Passes record and name on to the next life. `failures` is the number of lives in a row that failed.
    pub fn pass_on(self, spec: &mut Spec, failures: u32) {
        let FormerLife { record, intent: _, name } = self;
        let life = Life { restart_of: String::new(), restarts: record.files().life(), failures };
        spec.claim = name;
        if let Some(detach) = &mut spec.detach {
            detach.life = Some(life);
            detach.launch = Some(LaunchSource::Former { record, is_requested: failures == 0 });
        }
    }
}
