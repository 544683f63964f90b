//! `/proc/<pid>/stat`: any text, and any name in an otherwise good text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_process::{StartTime, Stat};

const REST: &[u8] = b") S 1 7 7 0 -1 4194560 2 0 0 0 11 7 0 0 20 0 3 0 8812345 1000 1 1 1 1 0\n";

fuzz_target!(|data: &[u8]| {
    let _ = Stat::parse(data);
    let line = [b"7 (", data, REST].concat();
    let stat = Stat::parse(&line).expect("any name is legal");
    assert_eq!(stat.start, StartTime(8_812_345));
    assert_eq!(stat.comm, String::from_utf8_lossy(data));
});
