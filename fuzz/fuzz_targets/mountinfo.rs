//! `/proc/<pid>/mountinfo`, and where a leaf would go.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_cgroup::{LeafPlace, mountinfo};

fuzz_target!(|data: &[u8]| {
    let _ = mountinfo::parse_mountinfo(data);
    if let Ok(located) = LeafPlace::locate(data, b"0::/penfold/a1\n") {
        assert_eq!(located.cgroup, "/penfold/a1");
    }
});
