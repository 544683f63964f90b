//! `/proc/<pid>/mountinfo`, and where a leaf would go.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_cgroup::{Place, mountinfo};

fuzz_target!(|data: &[u8]| {
    let _ = mountinfo::parse(data);
    if let Ok(located) = Place::locate(data, b"0::/penfold/a1\n") {
        assert_eq!(located.cgroup, "/penfold/a1");
    }
});
