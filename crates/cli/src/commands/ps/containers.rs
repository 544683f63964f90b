//! `penfold ps --containers`: the containers of `penfold oci`.

use std::path::PathBuf;

use penfold_oci::NotedContainer;
use serde::Serialize;

use super::PsArgs;
use crate::args::verb::Global;
use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::output;
use crate::surroundings;
use crate::text::{table, template};

/// A container in the JSON format.
#[derive(Serialize)]
struct Shown {
    id: String,
    /// The engine's state directory.
    #[serde(with = "penfold_process::path_text")]
    engine_root: PathBuf,
    status: &'static str,
    pids: Vec<i32>,
    #[serde(with = "penfold_process::path_text")]
    bundle: PathBuf,
    #[serde(with = "penfold_process::path_text")]
    delegate: PathBuf,
}

impl Shown {
    fn of(one: NotedContainer) -> Shown {
        let status = match (one.is_lost, one.is_refused, one.pids.is_empty()) {
            (true, _, _) => "lost",
            (false, true, _) => "deleting",
            (false, false, true) => "stopped",
            (false, false, false) => "running",
        };
        let pids = one.pids.iter().map(|pid| pid.as_raw_pid()).collect();
        let penfold_oci::ContainerNote { id, engine_root, bundle, delegate, .. } = one.note;
        Shown { id, engine_root, status, pids, bundle, delegate }
    }
}

/// Lists the containers, ordered by engine and id.
pub(super) fn ps(global: &Global, args: &PsArgs) -> Result<u8, Failure> {
    let noted = penfold_oci::noted_containers(&surroundings::root(global))
        .or_fail(FailureKind::Other, "cannot list the containers of `penfold oci`")?;
    let shown: Vec<Shown> = noted.into_iter().map(Shown::of).collect();
    if args.json {
        output::json(&shown)?;
    } else if global.quiet {
        let ids: Vec<Vec<String>> = shown.iter().map(|one| vec![template::printable(&one.id)]).collect();
        output::data(table::aligned(&ids).as_bytes())?;
    } else {
        let mut rows = vec![["ID", "STATUS", "PROCESSES", "ENGINE"].map(str::to_owned).to_vec()];
        rows.extend(shown.iter().map(|one| {
            let engine = one.engine_root.display().to_string();
            let count = one.pids.len().to_string();
            vec![template::printable(&one.id), one.status.to_owned(), count, template::printable(&engine)]
        }));
        output::data(table::aligned(&rows).as_bytes())?;
    }
    Ok(exit_codes::SUCCESS)
}
