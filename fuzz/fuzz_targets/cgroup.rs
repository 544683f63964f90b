//! `/proc/<pid>/cgroup`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_cgroup::Membership;

fuzz_target!(|data: &[u8]| {
    let membership = Membership::of(data);
    if membership.is_in("/penfold/a1") {
        assert!(membership.unified().is_some_and(|path| path.starts_with(b"/penfold/a1")));
    }
    let _ = membership.v1(b"freezer");
});
