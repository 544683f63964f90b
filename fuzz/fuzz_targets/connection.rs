//! Any bytes on a connection of the server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_fuzz::{Answer, edge};

fuzz_target!(|data: &[u8]| {
    let Some((&first, sent)) = data.split_first() else { return };
    let said = edge(|edge| edge.answers(sent, first & 1 == 0));
    let mut rest = said.as_slice();
    while !rest.is_empty() {
        let (answer, after) = Answer::parse(rest);
        answer.judge();
        rest = after;
    }
});
