//! Size of the binary, and the time of a clean build.

use std::time::Instant;

use crate::document::Section;
use crate::error::Error;
use crate::table::verdict;
use crate::talk;
use crate::tools::{Tools, build};

pub(crate) fn measure(tools: &Tools) -> Result<Section, Error> {
    talk("build: from nothing");
    let target = tools.dir().join("target");
    let begun = Instant::now();
    let binary = build(Some(&target))?;
    let seconds = begun.elapsed().as_secs_f64();
    let bytes = std::fs::metadata(&binary).map_err(Error::at("read", &binary))?.len();
    let megabytes = u32::try_from(bytes / 1000).map_or(f64::INFINITY, f64::from) / 1000.0;
    let mut body = String::from(
        "`cargo build --release --package penfold` into an empty directory, sources fetched before.\n\n",
    );
    body.push_str(&verdict("time", " s", 120.0, Some(seconds)));
    body.push_str(&verdict("binary", " MB", 12.0, Some(megabytes)));
    Ok(Section { name: "build", title: "Build", body, ..Section::default() })
}
