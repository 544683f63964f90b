//! `/proc/<pid>/status`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_process::ProcessStatus;

fuzz_target!(|data: &[u8]| {
    let _ = ProcessStatus::parse(data);
});
